"""Nodes that sleep: idle ones are switched off, and on again when a plan needs them.

Planners see a sleeping node as free: it is, after a while. A job that is planned there waits until
every one of its nodes has said that it is awake. The power guard goes on counting a sleeping node
at its idle draw, so that waking one can never break a budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.cluster.capacity import Book
from wattherd.engine.jobs.record import JobRecord
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import SleepNode, WakeAt, WakeNode
from wattherd.model.event import NodeAsleep, NodeAwake
from wattherd.policy.rebalance.sleep import SleepPolicy

REST = "rest"
"""Key of the wake-ups at which idle nodes are looked at again."""


# Three phases and no more, because a node is told to sleep or wake only when it is at rest: what
# becomes of an order to a machine that is switching is its controller's affair.
#
# awake -> FALLING (ordered off) -> ASLEEP (said so) -> WAKING (ordered on) -> awake (said so)
class _Phase(Enum):
    """Where a node stands that is not simply awake."""

    FALLING = auto()
    ASLEEP = auto()
    WAKING = auto()


class NodeSleep:
    """Which nodes sleep, and who waits for them."""

    def __init__(self, cluster: ClusterSpec, policy: SleepPolicy | None) -> None:
        """All nodes are awake; without a policy they stay so."""
        self._policy = policy
        self._nodes = cluster.nodes
        self._phase: dict[int, _Phase] = {}
        self._idle_since_s: dict[int, float] = {}
        self._wake_s: float | None = None
        # An empty book to compare with: a node is idle when nothing is booked on it, and that
        # includes CPU and memory of jobs without GPUs.
        self._whole = Book(cluster)

    # Sorted: orders follow from it, and the order of a dict follows from history.
    @property
    def asleep(self) -> tuple[int, ...]:
        """Nodes that draw nothing, ascending."""
        if not self._phase:
            return ()
        return tuple(sorted(n for n, phase in self._phase.items() if phase is _Phase.ASLEEP))

    @property
    def waking(self) -> tuple[int, ...]:
        """Nodes that are being switched on, ascending."""
        if not self._phase:
            return ()
        return tuple(sorted(n for n, phase in self._phase.items() if phase is _Phase.WAKING))

    def note(self, event: NodeAsleep | NodeAwake, node: int) -> None:
        """A node has done what it was told; whatever does not follow from its order is old news."""
        # News counts only as the answer to an order. "Asleep" of a node that was woken meanwhile is
        # old, and would otherwise hold back the job for which it was woken.
        phase = self._phase.get(node)
        if isinstance(event, NodeAsleep) and phase is _Phase.FALLING:
            self._phase[node] = _Phase.ASLEEP
        elif isinstance(event, NodeAwake) and phase is _Phase.WAKING:
            del self._phase[node]

    def forget(self, node: int) -> None:
        """A node is lost; once it returns it is awake."""
        # What a lost node was told is void: it comes back by a boot, and that is awake.
        self._phase.pop(node, None)
        self._idle_since_s.pop(node, None)

    def ready(self, job: JobRecord) -> bool:
        """Whether all nodes that a job is planned on are awake."""
        return not self._phase or all(one.node not in self._phase for one in job.wanted)

    def orders(
        self,
        starting: Iterable[JobRecord],
        books: tuple[Book, Book],
        lost: Collection[int],
        now_s: float,
    ) -> list[SleepNode | WakeNode | WakeAt]:
        """Wake what those who are to start need, let sleep what nobody needs."""
        if self._policy is None:
            return []
        # Waking goes first: a node that a job waits for must not be counted among the idle ones.
        woken = self._wake(starting)
        self._note_idle(_empty(books, self._whole), lost, now_s)
        slept = [self._sleep(node) for node in self._policy.tired(self._idle_since_s, now_s)]
        return [*woken, *slept, *self._look_again()]

    def _wake(self, starting: Iterable[JobRecord]) -> list[WakeNode]:
        orders = []
        if self._phase:
            needed = {one.node for job in starting for one in job.wanted}
            for node in sorted(needed & set(self.asleep)):
                self._phase[node] = _Phase.WAKING
                orders.append(WakeNode(node=self._nodes[node].name))
        return orders

    def _note_idle(self, empty: NDArray[np.bool_], lost: Collection[int], now_s: float) -> None:
        known = self._idle_since_s
        # Neither planned nor held: a node that only the plan gives away is about to be used, a node
        # that only the world uses is still being left.
        idle = set(np.flatnonzero(empty).tolist()) - self._phase.keys() - set(lost)
        for node in known.keys() - idle:
            del known[node]
        for node in sorted(idle - known.keys()):
            known[node] = now_s

    def _sleep(self, node: int) -> SleepNode:
        del self._idle_since_s[node]
        self._phase[node] = _Phase.FALLING
        return SleepNode(node=self._nodes[node].name)

    def _look_again(self) -> list[WakeAt]:
        at_s = self._policy.next_s(self._idle_since_s) if self._policy else None
        # A shell keeps one wake-up by a key; the same one is not asked for twice, or every event
        # would bring an order.
        if at_s is None or at_s == self._wake_s:
            return []
        self._wake_s = at_s
        return [WakeAt(at_s=at_s, key=REST)]


def _empty(books: tuple[Book, Book], whole: Book) -> NDArray[np.bool_]:
    """Nodes (N,) on which neither the plan nor the world has anything; `whole` has everything."""
    free: NDArray[np.bool_] = np.ones(len(whole.whole), dtype=np.bool_)
    for book in books:
        free &= book.whole == whole.whole
        free &= book.cpu_free == whole.cpu_free
        free &= book.memory_free == whole.memory_free
    return free
