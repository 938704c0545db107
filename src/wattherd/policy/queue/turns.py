"""Whose turn it is among capacity queues, who must wait for quota, and who gives back; pure.

The most under-served queue goes first, maxima and user limits hold on the way to the root, and what
is lent is taken back by those who are promised it. Within a queue jobs go by priority, then in
order of coming; only there does priority stop others: for room, and for quota where the queue says
so. A share of a GPU counts as a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from wattherd.model.reason import Reason
from wattherd.policy.contract import JobView, View
from wattherd.policy.queue.capacity import FadingUse, Usage, ideal, next_leaf, over_served
from wattherd.policy.queue.limits import QueueLimits
from wattherd.policy.queue.order import vector_of
from wattherd.policy.queue.tree import ROUNDING, QueueTree

_LEAST = 1e-6
"""GPUs that a queue may be promised less, for others to be promised next to nothing."""
Turn = Callable[[JobView], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """A tree of promises, and in which of its queues the important stop others for quota, too.

    What runs in a queue that is no more counts in the queue `fallback`. Reasons call users by
    `user_word`. `lately` is what queues held before, kept from plan to plan.
    """

    tree: QueueTree
    preempting: frozenset[str] = frozenset()
    fallback: str = "default"
    user_word: str = "user"
    lately: FadingUse = field(default_factory=FadingUse, compare=False)


class QueueTurns:
    """One plan among the queues of `rules`; `turn` orders jobs of one queue."""

    def __init__(
        self, rules: QueueRules, view: View, waiting: Iterable[JobView], turn: Turn
    ) -> None:
        """Count what is held, and who waits."""
        tree = rules.tree
        self._rules, self._tree, self._turn, self._now_s = rules, tree, turn, view.now_s
        self._total = int(view.gpus_per_node().sum())
        self._usage = Usage()
        demand: dict[str, float] = {}
        for job in view.live():
            if job.wanted:
                self.book(job)
        for place in tree.leaves:
            demand[place.queue.name] = float(self._usage.queues[place.queue.name])
        for job in waiting:
            leaf = tree.leaf(job.spec.queue)
            if leaf is not None:
                demand[leaf.queue.name] += job.spec.gpus
        rules.lately.look(tree, view.now_s)
        self._ideals = ideal(
            tree, self._total, demand, held=self._usage.queues, lately=rules.lately.gpus
        )

    def _leaf(self, job: JobView) -> str:
        """Its queue; what runs in one that is no more is in the default queue."""
        place = self._tree.leaf(job.spec.queue) or self._tree.leaf(self._rules.fallback)
        return "" if place is None else place.queue.name

    def book(self, job: JobView, sign: int = 1) -> None:
        """Count what the plan gives a job, or (-1) do not count it any more."""
        place = self._tree.leaf(self._leaf(job))
        if place is not None:
            gpus = sum(len(one.gpus) for one in job.wanted)
            vector = tuple(sign * part for part in vector_of(job.wanted))
            self._usage.add(place, job.spec.user, sign * gpus, vector)

    def in_turn(self, trying: Iterable[JobView]) -> Iterator[JobView]:
        """Those who are `trying`, in order; who was started meanwhile counts for the next."""
        lines: dict[str, list[JobView]] = {}
        for job in sorted(trying, key=self._turn, reverse=True):
            lines.setdefault(self._leaf(job), []).append(job)
        yield from reversed(lines.pop("", []))
        while lines:
            leaf = next_leaf(
                self._tree, self._usage, self._total, lines.__contains__, self._rules.lately.gpus
            )
            job = lines[leaf or ""].pop()
            if not lines[leaf or ""]:
                del lines[leaf or ""]
            yield job
            if job.wanted:
                self.book(job)

    def end(self) -> None:
        """The plan is made; what it gives is held until the next one."""
        self._rules.lately.holds(self._usage)

    def refused(self, job: JobView) -> Reason | None:
        """Why quota keeps a job from starting now, or None."""
        word = self._rules.user_word
        limits = QueueLimits(self._tree, self._total, self._usage, user_word=word)
        return limits.refused(job.spec, job.spec.gpus, self._now_s)

    def stops_for_quota(self, job: JobView) -> bool:
        """Whether its queue has less important jobs stopped where quota is what is lacking."""
        return self._leaf(job) in self._rules.preempting

    def may_stop(self, job: JobView, running: Iterable[JobView]) -> list[JobView]:
        """Of those `running`, who may be stopped for `job`, in order.

        Less important ones of its queue; then, if its queue is promised what it asks for, those of
        queues that hold more than is theirs, as far as they do.
        """
        own, others = self._leaf(job), list[JobView]()
        less = [
            one
            for one in running
            if self._leaf(one) == own and one.spec.priority < job.spec.priority
        ]
        if self._owed(own, job.spec.gpus):
            others = self._borrowers(own, running)
        return [*sorted(less, key=_least_first), *others]

    def _owed(self, leaf: str, gpus: int) -> bool:
        place = self._tree.leaf(leaf)
        if place is None or not gpus:
            return False
        promised = max(place.guaranteed * self._total, self._ideals.get(leaf, 0.0))
        return self._usage.queues[leaf] + gpus <= promised + _LEAST

    def _borrowers(self, own: str, running: Iterable[JobView]) -> list[JobView]:
        over = over_served(self._tree, self._usage, self._ideals, self._total, dead_zone=0.0)
        found = []
        for one in sorted(running, key=_least_first):
            leaf = self._leaf(one)
            gpus = sum(len(each.gpus) for each in one.wanted)
            if leaf != own and gpus and over.get(leaf, 0.0) > ROUNDING:
                over[leaf] -= gpus
                found.append(one)
        return found


def _least_first(job: JobView) -> tuple[int, int]:
    return job.spec.priority, -job.number
