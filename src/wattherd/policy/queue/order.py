"""The order of jobs within one queue, whatever the order of queues: a key per job.

Where users take turns, the one with the least share of the queue comes first, and the key orders
the jobs of each user.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any, Generic, TypeVar

from wattherd.model.allocation import Allocation
from wattherd.policy.contract import JobView, View
from wattherd.policy.queue.drf import Vector, dominant_share

Key = Callable[[JobView, float], tuple[float, ...]]
"""(job, now) to a rank; lower first. The job's number is the last word among equals."""


@dataclass(frozen=True, slots=True)
class LeafOrder:
    """`share` of (held, capacity) ranks users; None: users do not matter.

    With `stays` a job's place among others is the same as long as it waits.
    """

    key: Key
    share: Callable[[Vector, Vector], float] | None = None
    stays: bool = False


def _fifo(job: JobView, now_s: float) -> tuple[float, ...]:
    """Priority, then submission (YARN's FifoOrderingPolicy)."""
    del now_s
    return (-job.spec.priority,)


def _shortest(job: JobView, now_s: float) -> tuple[float, ...]:
    """Known duration; jobs of unknown duration last."""
    del now_s
    return (math.inf if job.spec.duration_s is None else job.spec.duration_s,)


def _least_attained(job: JobView, now_s: float) -> tuple[float, ...]:
    """GPU time received so far."""
    return (job.service_gpu_s(now_s),)


def _deadline(job: JobView, now_s: float) -> tuple[float, ...]:
    """Earliest deadline first; jobs without one last."""
    del now_s
    return (math.inf if job.spec.deadline_s is None else job.spec.deadline_s,)


def _gpu_share(held: Vector, capacity: Vector) -> float:
    return dominant_share(held[GPU:], capacity[GPU:])


GPU = 2
"""Position of GPUs in vectors (milli-vCPU, MiB, milli-GPU)."""
ORDERS: Mapping[str, LeafOrder] = {
    "fifo": LeafOrder(_fifo, stays=True),
    "fair": LeafOrder(_fifo, _gpu_share),
    "drf": LeafOrder(_fifo, dominant_share),
    "sjf": LeafOrder(_shortest, stays=True),
    "las": LeafOrder(_least_attained),
    "deadline": LeafOrder(_deadline, stays=True),
}


def vector_of(allocations: Iterable[Allocation]) -> tuple[int, int, int]:
    """What allocations hold: milli-vCPU, MiB, milli-GPU."""
    cpu = memory = gpu = 0
    for one in allocations:
        cpu += one.request.cpu_milli
        memory += one.request.memory_mib
        gpu += one.request.total_gpu_milli
    return cpu, memory, gpu


Owner = TypeVar("Owner", bound=Hashable)
_Amount = tuple[Sequence[Allocation], int, Any, Sequence[int]]
"""Of a job: its place, told by identity; its number; its owner; GPUs, and all resources."""


class PlannedAmounts(Generic[Owner]):
    """What the plan gives to owners, kept from plan to plan: only whose part changed is looked at.

    Sums of integers, so that they do not depend on the order in which jobs came and went.
    """

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._heard = False
        self._known: dict[str, _Amount] = {}
        self._sums: dict[Owner, list[int]] = {}
        self._numbers: dict[Owner, list[int]] = {}
        """Of their jobs with a place, ascending."""

    def hear(self, view: View, owner: Callable[[JobView], Owner]) -> None:
        """See to all that changed since the last plan; to be called at every plan.

        `owner` says whose a job is, which must not change while it has a place.
        """
        if not self._heard:
            self._heard = True
            changed = view.live()
        else:
            for job in view.left():
                self._drop(job.id)
            changed = [*view.entered(), *view.replanned()]
        for job in changed:
            known = self._known.get(job.id)
            if known is None or known[0] is not job.wanted:
                self._drop(job.id)
                if job.wanted:
                    self._add(job, owner(job))

    def of_all(self) -> dict[Owner, Sequence[int]]:
        """GPUs of each owner with a place, and milli-vCPU, MiB and milli-GPU after that.

        In the order of the first of their jobs with a place.
        """
        first = sorted(self._numbers, key=lambda owner: self._numbers[owner][0])
        return {owner: tuple(self._sums[owner]) for owner in first}

    def _add(self, job: JobView, whose: Owner) -> None:
        amount = sum(len(one.gpus) for one in job.wanted), *vector_of(job.wanted)
        self._known[job.id] = job.wanted, job.number, whose, amount
        sums = self._sums.setdefault(whose, [0, 0, 0, 0])
        for column, more in enumerate(amount):
            sums[column] += more
        insort(self._numbers.setdefault(whose, []), job.number)

    def _drop(self, job_id: str) -> None:
        known = self._known.pop(job_id, None)
        if known is None:
            return
        _, number, whose, amount = known
        numbers, sums = self._numbers[whose], self._sums[whose]
        del numbers[bisect_left(numbers, number)]
        for column, less in enumerate(amount):
            sums[column] -= less
        if not numbers:
            del self._numbers[whose], self._sums[whose]


def capacity_of(view: View) -> Vector:
    """What all usable nodes have: milli-vCPU, MiB, milli-GPU; added up when these change."""
    usable = view.usable()
    known: tuple[bytes, Vector] | None = view.memory.get("capacity of nodes")
    if known is None or known[0] != usable.tobytes():
        nodes = [node for node, able in zip(view.nodes(), usable, strict=True) if able]
        sums = (
            sum(node.cpu_milli for node in nodes),
            sum(node.memory_mib for node in nodes),
            sum(node.gpu_milli for node in nodes),
        )
        known = view.memory["capacity of nodes"] = usable.tobytes(), sums
    return known[1]


class LeafLine:
    """The waiting jobs of one leaf, in its order."""

    def __init__(self, order: str, jobs: Iterable[JobView], now_s: float) -> None:
        """`order` is one of ORDERS."""
        self._order = ORDERS[order]
        ranked = sorted(jobs, key=lambda job: (*self._order.key(job, now_s), job.number))
        self._by_user: dict[str, deque[JobView]] = {}
        for job in ranked:
            user = job.spec.user if self._order.share else ""
            self._by_user.setdefault(user, deque()).append(job)

    def first(self, held: Callable[[str], Vector], capacity: Vector) -> JobView | None:
        """Who is next in line, left there."""
        share = self._order.share
        lines = [(user, jobs[0]) for user, jobs in self._by_user.items() if jobs]
        if not lines:
            return None
        _, job = min(
            lines,
            key=lambda one: (share(held(one[0]), capacity) if share else 0.0, one[1].number),
        )
        return job

    def turns(self, held: Callable[[str], Vector], capacity: Vector) -> Iterator[JobView]:
        """Take those in line out one by one, users taking turns by what each has `held`.

        For as long as nobody holds more or less than at the beginning.
        """
        share = self._order.share
        users = [
            (share(held(user), capacity) if share else 0.0, jobs[0].number, user)
            for user, jobs in self._by_user.items()
            if jobs
        ]
        heapify(users)
        while users:
            least, _, user = users[0]
            jobs = self._by_user[user]
            job = jobs.popleft()
            if jobs:
                heapreplace(users, (least, jobs[0].number, user))
            else:
                heappop(users)
            yield job
