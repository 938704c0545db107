"""Which devices can be had: what is free on every node, what is out of use, which nodes sleep.

*Books* (`Book`) say what is free, booked and given back in whole allocations. A booking touches one
node and costs a microsecond or two, whatever the size of the cluster. They know nothing of
fragmentation or watts; placement runs that score nodes by those keep a `ClusterState` instead.

*Drained devices* are given to nobody any more. A rank that needs much longer than the others for
its part of a step may do so for its own sake or for that of its device. A device is believed to be
slow when ranks lag on it in two runs; a job that lags wherever it runs is believed to be slow
itself, and what it said of devices is forgotten.

*Sleeping nodes* are switched off while idle, and on again when a plan needs them. Planners see one
as free: it is, after a while. A job that is planned there waits until every one of its nodes has
said that it is awake. The power guard goes on counting a sleeping node at its idle draw, so that
waking one can never break a budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.command import SleepNode, WakeAt, WakeNode
from wattherd.model.event import NodeAsleep, NodeAwake
from wattherd.model.job import Request, TaskRole
from wattherd.policy.rebalance.sleep import SleepPolicy

# --- What is free -----------------------------------------------------------------------------
Ints = NDArray[np.int64]
ENDLESS = 1 << 40
"""Tasks that need nothing fit without end."""


# Why bits beside arrays. Planners ask the whole cluster at once (`whole`, `cpu_free`: arrays, one
# NumPy operation for N nodes); a booking touches one node and must not cost by N, so which GPUs of
# a node are free is one Python integer. Both are kept by every booking; `core.invariants` compares
# them.
#
# Why milli-GPU. A GPU that jobs share is split in thousandths (Kubernetes' way of writing parts of
# a resource); a whole one is a bit, and a test of bits is what makes bookings of whole ones cheap.
class Book:
    """Free CPU (milli-vCPU), memory (MiB) and GPUs (milli-GPU each) of `cluster`'s nodes."""

    def __init__(self, cluster: ClusterSpec) -> None:
        """Start with everything free."""
        nodes = cluster.nodes
        self.cluster = cluster
        self.gpu_count: Ints = np.array([node.gpu_count for node in nodes], dtype=np.int64)
        self.cpu_free: Ints = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory_free: Ints = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.whole: Ints = self.gpu_count.copy()
        """Wholly free GPUs of each node."""
        self.whole_gpus = int(self.whole.sum())
        """The same of all nodes together."""
        self.used_cpu_milli = 0
        """CPU given away, in milli-vCPU."""
        # Invariant: a GPU is in exactly one of `_free` (nobody has any of it), `_parts` (some of it
        # is given), `_parked` (nobody has it and nobody may), or wholly given away, which is
        # written nowhere: it is what the other three leave.
        self._free = [(1 << node.gpu_count) - 1 for node in nodes]
        """The same as bits, GPU 0 lowest."""
        self._parts: list[dict[int, int]] = [{} for _ in nodes]
        """Free milli-GPU of the GPUs that are shared, by number."""
        self._usable: Ints = self.gpu_count.copy()
        self._usable_total = int(self._usable.sum())
        """GPUs of each node that are not out of use, given away or not."""
        self._out = [0] * len(nodes)
        """GPUs that nobody is given any more, as bits."""
        # Without `_parked` a drained GPU that is given back would look wholly given away, and
        # `release` could not tell a release of what was never given from a right one.
        self._parked = [0] * len(nodes)
        """Those of them that nobody has."""

    # Counted from what is free, not summed up while booking: parts and parked devices would have to
    # be told apart at every booking.
    @property
    def used_gpu_milli(self) -> int:
        """GPU given away, in milli-GPU."""
        shared = sum(sum(parts.values()) for parts in self._parts)
        parked = sum(bits.bit_count() for bits in self._parked)
        free = (self.whole_gpus + parked) * WHOLE_GPU_MILLI + shared
        return int(self.gpu_count.sum()) * WHOLE_GPU_MILLI - free

    def gpu_free(self, node: int) -> list[int]:
        """Free milli-GPU of each GPU of a node; none of those that are out of use."""
        free, parts, out = self._free[node], self._parts[node], self._out[node]
        return [
            WHOLE_GPU_MILLI if free >> gpu & 1 else 0 if out >> gpu & 1 else parts.get(gpu, 0)
            for gpu in range(int(self.gpu_count[node]))
        ]

    def usable_gpus(self) -> Ints:
        """GPUs of each node that are not out of use, given away or not."""
        return self._usable.copy()

    def usable_gpu_total(self, lost: Collection[int]) -> int:
        """GPUs that are not out of use, on all nodes but the `lost` ones."""
        return self._usable_total - sum(int(self._usable[node]) for node in lost)

    # Out of use is a mark beside the booking, not a booking: the job on the device keeps it until
    # it has checkpointed, and when it gives the device back `_free_up` parks it instead of freeing
    # it. A booking in nobody's name would have to wait for the device first.
    def take_out(self, node: int, gpu: int) -> None:
        """Give a GPU to nobody any more; who has it keeps it until it is released."""
        # Twice the same news must change nothing: events may be told again after a restart.
        was_out = self._out[node] >> gpu & 1
        self._usable[node] -= not was_out
        self._usable_total -= not was_out
        self._out[node] |= 1 << gpu
        if self._free[node] >> gpu & 1:
            self._free[node] &= ~(1 << gpu)
            self._parked[node] |= 1 << gpu
            self.whole[node] -= 1
            self.whole_gpus -= 1

    def put_back(self, node: int, gpu: int) -> None:
        """A GPU that was taken out may be given away again."""
        was_out = self._out[node] >> gpu & 1
        self._usable[node] += was_out
        self._usable_total += was_out
        self._out[node] &= ~(1 << gpu)
        if self._parked[node] >> gpu & 1:
            self._parked[node] &= ~(1 << gpu)
            self._free_up(node, 1 << gpu)

    def _free_up(self, node: int, bits: int) -> None:
        """GPUs that nobody has any more are free, or out of use."""
        self._parked[node] |= bits & self._out[node]
        bits &= ~self._out[node]
        self._free[node] |= bits
        self.whole[node] += bits.bit_count()
        self.whole_gpus += bits.bit_count()

    # An answer for all nodes at once, by the scarcest resource of each. It must never say more than
    # `fits` would: planners believe it, and each refusal costs them a turn.
    def room(self, role: TaskRole, models: tuple[str, ...]) -> Ints:
        """How many tasks of `role` each node could still take, of the GPU `models` if any."""
        # The common question, whole GPUs and nothing else, is answered by a copy of one array:
        # planners ask it for each job that they try.
        simple = role.gpu_count == 1 and role.gpu_milli == WHOLE_GPU_MILLI and not models
        if simple and not role.cpu_milli and not role.memory_mib:
            return self.whole.copy()
        limits = [
            free // each
            for free, each in (
                (self._roomy(role.gpu_milli), role.gpu_count),
                (self.cpu_free, role.cpu_milli),
                (self.memory_free, role.memory_mib),
            )
            # What is not asked for limits nothing; division by zero is left out with it.
            if each
        ]
        if len(limits) == 1:
            room: Ints = limits[0]
        else:
            room = np.minimum.reduce(limits) if limits else np.full_like(self.whole, ENDLESS)
        # A role without GPUs may use any node, whatever models its job names for the others.
        if models and role.gpu_count:
            room[[node.gpu_model not in models for node in self.cluster.nodes]] = 0
        return room

    def _roomy(self, milli: int) -> Ints:
        """GPUs of each node of which at least `milli` is free."""
        if milli == WHOLE_GPU_MILLI:
            return self.whole
        shared = [
            sum(free >= milli for gpu, free in parts.items() if not out >> gpu & 1)
            for parts, out in zip(self._parts, self._out, strict=True)
        ]
        return self.whole + np.array(shared, dtype=np.int64)

    def choose(self, request: Request, node: int, among: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The first GPUs of `node` (of those `among` if any) with room for `request`.

        They are fewer than asked if there are not as many.
        """
        # Who makes a job narrower names the devices that it keeps (`engine.core.plan`): the
        # first free ones would be the wrong answer.
        if among:
            roomy = [g for g, milli in enumerate(self.gpu_free(node)) if milli >= request.gpu_milli]
            return tuple([gpu for gpu in roomy if gpu in among][: request.gpu_count])
        if request.gpu_milli == WHOLE_GPU_MILLI or not request.gpu_count:
            return _lowest(self._free[node], request.gpu_count)
        free = self.gpu_free(node)
        roomy = [gpu for gpu, milli in enumerate(free) if milli >= request.gpu_milli]
        # Lowest numbers first, always: the choice must follow from the state alone, or a replay of
        # the same events would hand out other devices.
        return tuple(roomy[: request.gpu_count])

    def fits(self, allocation: Allocation) -> bool:
        """Whether everything it asks for is free."""
        request, node = allocation.request, allocation.node
        # Cheapest tests first: `fits` is asked for every planned job that waits for its devices,
        # after every event.
        whole = request.gpu_milli == WHOLE_GPU_MILLI
        if whole and _bits(allocation.gpus) & ~self._free[node]:
            return False
        if request.cpu_milli and request.cpu_milli > self.cpu_free[node]:
            return False
        if request.memory_mib and request.memory_mib > self.memory_free[node]:
            return False
        if len(allocation.gpus) != request.gpu_count:
            return False
        return whole or self._roomy_parts(allocation)

    def _roomy_parts(self, allocation: Allocation) -> bool:
        """Whether the parts that it asks for are free on all of its GPUs."""
        free, milli = self.gpu_free(allocation.node), allocation.request.gpu_milli
        return all(free[gpu] >= milli for gpu in allocation.gpus)

    def place(self, allocation: Allocation) -> None:
        """Give it its resources.

        Raises:
            Bug: not all of them are free.
        """
        if not self.fits(allocation):
            raise Bug(f"cannot place {allocation}: {self.describe(allocation.node)}")
        self._take(allocation)

    def place_all(self, allocations: Sequence[Allocation]) -> bool:
        """Give all of them their resources, or none and say False."""
        for count, allocation in enumerate(allocations):
            # All or nothing, since a gang that holds some of its nodes while it waits for others is
            # how gangs lock each other out.
            if not self.fits(allocation):
                for placed in allocations[:count]:
                    self.release(placed)
                return False
            self._take(allocation)
        return True

    def _take(self, allocation: Allocation) -> None:
        request, node = allocation.request, allocation.node
        if request.cpu_milli:
            self.cpu_free[node] -= request.cpu_milli
            self.used_cpu_milli += request.cpu_milli
        if request.memory_mib:
            self.memory_free[node] -= request.memory_mib
        if request.gpu_milli == WHOLE_GPU_MILLI:
            free = self._free[node] = self._free[node] & ~_bits(allocation.gpus)
            self.whole[node] = free.bit_count()
            self.whole_gpus -= request.gpu_count
        elif request.gpu_count:
            self._share(allocation, -request.gpu_milli)

    def release(self, allocation: Allocation) -> None:
        """Take back what `place` gave.

        Raises:
            Bug: it was not given.
        """
        request, node = allocation.request, allocation.node
        if request.cpu_milli:
            self.cpu_free[node] += request.cpu_milli
            self.used_cpu_milli -= request.cpu_milli
        if request.memory_mib:
            self.memory_free[node] += request.memory_mib
        if request.gpu_milli == WHOLE_GPU_MILLI:
            bits, free, parts = _bits(allocation.gpus), self._free[node], self._parts[node]
            # A double release would hand the same device to two jobs later on, far from its cause.
            # So it is refused here, where the story is still at hand.
            unheld = free | self._parked[node]
            if bits & unheld or (parts and parts.keys() & set(allocation.gpus)):
                raise Bug(f"cannot release {allocation}: {self.describe(node)}")
            if self._out[node]:
                self._free_up(node, bits)
            else:
                free = self._free[node] = free | bits
                self.whole[node] = free.bit_count()
                self.whole_gpus += request.gpu_count
        elif request.gpu_count:
            self._share(allocation, request.gpu_milli)

    def _share(self, allocation: Allocation, change: int) -> None:
        """Change the free part of GPUs that several jobs may use."""
        node, parts = allocation.node, self._parts[allocation.node]
        for gpu in allocation.gpus:
            whole = self._free[node] >> gpu & 1
            milli = (WHOLE_GPU_MILLI if whole else parts.pop(gpu, 0)) + change
            # Parts of a device add up to a device; more would be free than there is, or less than
            # none.
            if not 0 <= milli <= WHOLE_GPU_MILLI:
                raise Bug(f"cannot book {allocation}: {self.describe(node)}")
            if milli == WHOLE_GPU_MILLI:
                self._free_up(node, 1 << gpu)
                continue
            parts[gpu] = milli
            if whole:
                self._free[node] &= ~(1 << gpu)
                self.whole[node] -= 1
                self.whole_gpus -= 1

    def describe(self, node: int) -> str:
        """One node in words, for messages."""
        gpus = "-".join(map(str, self.gpu_free(node)))
        return (
            f"{self.cluster.nodes[node].name} has {self.cpu_free[node]} milli-CPU, "
            f"{self.memory_free[node]} MiB and GPUs [{gpus}] free"
        )


# Both directions are remembered: a node has few GPUs, and so few patterns of free ones come again
# and again.
@lru_cache(maxsize=1 << 16)
def _lowest(bits: int, count: int) -> tuple[int, ...]:
    """Numbers of the `count` lowest set bits, or of all if there are fewer."""
    numbers = (number for number in range(bits.bit_length()) if bits >> number & 1)
    return tuple(number for number, _ in zip(numbers, range(count), strict=False))


@lru_cache(maxsize=1 << 16)
def _bits(numbers: tuple[int, ...]) -> int:
    """The set of `numbers` as bits."""
    return sum(1 << number for number in set(numbers))


# --- Devices out of use -----------------------------------------------------------------------
# Two, since one slow run may be a cold cache or a neighbour; a device that is slow for two
# different runs has no such excuse. The rule is that of stragglers in training: all ranks of a
# synchronous job wait for the slowest, so that one bad device costs as much as all of them.
STRIKES = 2
"""Runs in which a rank lags on a device before it is taken out of use."""
Place = tuple[int, int]
"""Node and GPU."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Since when a device is out of use, and why."""

    since_s: float
    cause: str


class DrainedDevices:
    """What the core knows of single devices."""

    def __init__(self) -> None:
        """All are in use, none is suspected."""
        self.out: dict[Place, Drained] = {}
        # By run and not a number: the same run tells again and again that it lags, and counts once.
        self._lagged: dict[Place, dict[tuple[str, int], None]] = {}
        """Runs (job, attempt) in which a rank lagged there."""

    def on(self, node: int) -> list[int]:
        """GPUs of a node that are out of use."""
        return sorted(gpu for at, gpu in self.out if at == node)

    def lagged(self, place: Place, job_id: str, attempt: int) -> bool:
        """Note a rank that lags there; whether the device is to be taken out of use."""
        # The job is the common cause where it lags on different devices: its data are skewed, or
        # one of its ranks has more to do. Nothing it says counts then, what it said before
        # included.
        elsewhere = [
            other
            for other, runs in self._lagged.items()
            if other != place and any(job == job_id for job, _ in runs)
        ]
        if elsewhere:
            for other in elsewhere:
                self._forget(other, job_id)
            self._forget(place, job_id)
            return False
        runs = self._lagged.setdefault(place, {})
        runs[job_id, attempt] = None
        return len(runs) >= STRIKES and place not in self.out

    def _forget(self, place: Place, job_id: str) -> None:
        runs = {run: None for run in self._lagged.get(place, ()) if run[0] != job_id}
        self._lagged.pop(place, None)
        if runs:
            self._lagged[place] = runs

    def returned(self, place: Place) -> bool:
        """It is in use again, its past forgotten; whether it was out of use."""
        # A device that an operator returns was mended or replaced: it begins without strikes, or
        # the first slow run would take it out again.
        self._lagged.pop(place, None)
        return self.out.pop(place, None) is not None


# --- Nodes that sleep -------------------------------------------------------------------------
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
