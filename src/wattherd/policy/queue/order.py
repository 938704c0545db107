"""The order of jobs within one queue, whatever the order of queues: a key per job.

Where users take turns, the one with the least share of the queue comes first, and the key orders
the jobs of each user.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.policy.contract import JobView, View
from wattherd.policy.queue.drf import Vector, dominant_share

Key = Callable[[JobView, float], tuple[float, ...]]
"""(job, now) to a rank; lower first. The job's number is the last word among equals."""


@dataclass(frozen=True, slots=True)
class LeafOrder:
    """`share` of (held, capacity) ranks users; None: users do not matter."""

    key: Key
    share: Callable[[Vector, Vector], float] | None = None


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
    "fifo": LeafOrder(_fifo),
    "fair": LeafOrder(_fifo, _gpu_share),
    "drf": LeafOrder(_fifo, dominant_share),
    "sjf": LeafOrder(_shortest),
    "las": LeafOrder(_least_attained),
    "deadline": LeafOrder(_deadline),
}


def vector_of(allocations: Iterable[Allocation]) -> Vector:
    """What allocations hold: milli-vCPU, MiB, milli-GPU."""
    cpu = memory = gpu = 0
    for one in allocations:
        cpu += one.request.cpu_milli
        memory += one.request.memory_mib
        gpu += one.request.total_gpu_milli
    return cpu, memory, gpu


class HeldAmounts:
    """What owners hold, kept from plan to plan: only jobs whose place changed are added up anew.

    Sums of integers, so that they do not depend on the order in which jobs came and went.
    """

    def __init__(self) -> None:
        """Nobody holds anything."""
        self._jobs: dict[str, tuple[Sequence[Allocation], str, Vector]] = {}
        self._sums: dict[str, list[float]] = {}

    def of(self, running: Sequence[JobView], owner: Callable[[JobView], str]) -> dict[str, Vector]:
        """What each owner of the `running` jobs holds; their allocations are told by identity."""
        known = self._jobs
        for job in running:
            mine, whose = known.get(job.id), owner(job)
            if mine is None or mine[0] is not job.wanted or mine[1] != whose:
                self._drop(job.id)
                amount = vector_of(job.wanted)
                known[job.id] = job.wanted, whose, amount
                sums = self._sums.setdefault(whose, [0, 0, 0])
                for column, more in enumerate(amount):
                    sums[column] += more
        if len(known) > len(running):
            there = {job.id for job in running}
            for gone in [job_id for job_id in known if job_id not in there]:
                self._drop(gone)
        return {whose: tuple(sums) for whose, sums in self._sums.items()}

    def _drop(self, job_id: str) -> None:
        mine = self._jobs.pop(job_id, None)
        if mine is not None:
            sums = self._sums[mine[1]]
            for column, less in enumerate(mine[2]):
                sums[column] -= less
            if not any(sums):
                del self._sums[mine[1]]


_Amount = tuple[Sequence[Allocation], JobSpec, tuple[str, str], Vector]
"""Of a job: place and specification, told by identity; queue and user; GPUs and resources."""
_NO_AMOUNT = (0, 0, 0, 0)


class RunningAmounts:
    """What users hold in queues, kept from plan to plan as `HeldAmounts` keeps what owners hold."""

    def __init__(self) -> None:
        """Nobody runs."""
        self._known: dict[str, _Amount] = {}
        self._sums: dict[tuple[str, str], list[float]] = {}

    def of(self, running: Sequence[JobView]) -> dict[tuple[str, str], Sequence[float]]:
        """What users hold in each queue that jobs name: GPUs, and all resources after that.

        In the order of the first of their `running` jobs.
        """
        known, order = self._known, dict[tuple[str, str], None]()
        for job in running:
            mine = known.get(job.id)
            if mine is None or mine[0] is not job.wanted or mine[1] is not job.spec:
                mine = self._look(job)
            order[mine[2]] = None
        if len(known) > len(running):
            there = {job.id for job in running}
            for gone in [job_id for job_id in known if job_id not in there]:
                self._drop(gone)
        return {whose: self._sums.get(whose, _NO_AMOUNT) for whose in order}

    def _look(self, job: JobView) -> _Amount:
        self._drop(job.id)
        whose = job.spec.queue, job.spec.user
        amount = sum(len(one.gpus) for one in job.wanted), *vector_of(job.wanted)
        sums = self._sums.setdefault(whose, list(_NO_AMOUNT))
        for column, more in enumerate(amount):
            sums[column] += more
        found = self._known[job.id] = job.wanted, job.spec, whose, amount
        return found

    def _drop(self, job_id: str) -> None:
        mine = self._known.pop(job_id, None)
        if mine is not None:
            sums = self._sums.get(mine[2], list(_NO_AMOUNT))
            for column, less in enumerate(mine[3]):
                sums[column] -= less
            if not any(sums):
                self._sums.pop(mine[2], None)


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
