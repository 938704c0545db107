"""What is free on every node, booked and given back in whole allocations.

The book of the core's cycle: a booking touches one node and costs a microsecond or two, whatever
the size of the cluster. It knows nothing of fragmentation or watts; placement runs that score
nodes by those keep a `ClusterState` instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import TaskRole
from wattherd.model.request import Request

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
