"""Whose turn it is: the orders in which waiting and running jobs are looked at.

An order gives each job a key; lower keys come first, and no two jobs have the same one. A waiting
job's key stays as it is, a running one's may fall as it gets on (`moving`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from wattherd.estimate.gittins import GittinsIndex
from wattherd.estimate.learned_services import LEAST_JOBS
from wattherd.policy.contract import JobView, View
from wattherd.policy.schedule.running_jobs import Floats, RunningColumns

Key = tuple[float, ...]

TIRESIAS_THRESHOLDS_GPU_S = (3250.0, 7200.0)
"""Queue limits of Tiresias' simulator (NSDI'19 artifact), and of those that grew out of it."""
HOLDS_RESTARTS = 10.0
"""Restarts of a job for which it keeps its rank: indices fall as jobs run, and those who wait would
otherwise take turns with those who run at every event."""
LOOK_S = 10.0
"""Between two looks at ranks that move while somebody waits, at least."""


@dataclass(slots=True)
class JobStanding:
    """What a planner remembers of a job it plans for.

    `work_s` is all its work (s at full width), `left_s` what is left of it and `served_s` the time
    it held devices, both at `since_s`, when it last started or stopped; work is done from
    `works_from_s` on, `pause_s` after the start. `queue` and `turn` say where it stands among jobs
    that are queued by service received; a `requeued` one has just fallen to another queue while it
    runs. For `holds_s` after a start it keeps the rank with which it started, where an order heeds
    that. `version` voids alarms of an earlier life.
    """

    job: JobView
    gpus: int
    shape: int
    since_s: float
    pause_s: float = 0.0
    work_s: float = math.inf
    left_s: float = math.inf
    works_from_s: float = math.inf
    served_s: float = 0.0
    waited_s: float = 0.0
    queue: int = 0
    turn: int = 0
    key: Key = ()
    running: bool = False
    requeued: bool = False
    starved: bool = False
    holds_s: float = 0.0
    version: int = 0

    def remaining_s(self, now_s: float) -> float:
        """Work left now."""
        done_s = now_s - self.works_from_s
        return self.left_s - done_s if done_s > 0 else self.left_s

    def service_s(self, now_s: float) -> float:
        """Time for which it held devices."""
        return self.served_s + (now_s - self.since_s if self.running else 0.0)


class LearnedOrder(Protocol):
    """An order that may be another one when more has been learned; asked before each plan."""

    def order(self, view: View) -> Order:
        """The order now; equal to the last one as long as nothing changes by it."""
        ...

    def hold_s(self, view: View, job: JobView) -> float:
        """How long after a start a job keeps the rank with which it started."""
        ...

    def look_s(self, running: Iterable[JobStanding], now_s: float) -> float:
        """When time may have changed ranks, while others wait."""
        ...

    def about(self, view: View) -> str:
        """What it goes by now, in a few words."""
        ...


class Order(Protocol):
    """One way to rank jobs.

    `thresholds_gpu_s` are limits of service (GPU x s), ascending, beyond which a job falls to the
    next queue; empty where there is but one queue.
    """

    @property
    def moving(self) -> bool:
        """Whether a running job's key changes while it runs."""
        ...

    @property
    def thresholds_gpu_s(self) -> tuple[float, ...]:
        """Limits of the queues."""
        ...

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """Where a job stands now; lower comes first."""
        ...

    def rank(self, running: Iterable[JobStanding], now_s: float) -> None:
        """Give jobs that run the keys they have now."""
        ...

    def keys(self, running: RunningColumns, now_s: float) -> tuple[Floats, ...]:
        """The keys of jobs that run, where they are `moving`: `key` in columns (R,).

        To the last bit those of `key`: who comes first among near equals follows from them.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Still:
    """An order whose keys never change."""

    @property
    def moving(self) -> bool:
        """No."""
        return False

    @property
    def thresholds_gpu_s(self) -> tuple[float, ...]:
        """One queue."""
        return ()

    def rank(self, running: Iterable[JobStanding], now_s: float) -> None:
        """They have them already."""

    def keys(self, running: RunningColumns, now_s: float) -> tuple[Floats, ...]:
        """Nobody asks."""
        del running, now_s
        return ()


@dataclass(frozen=True, slots=True)
class Fifo(_Still):
    """First submitted, first served."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By time of submission."""
        del now_s
        return standing.job.spec.submit_s, standing.job.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority(_Still):
    """Higher priority first; `aging_s` of waiting make up for one level (None: never)."""

    aging_s: float | None = None

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By priority, then submission; all jobs age alike, so that ranks do not change."""
        del now_s
        spec = standing.job.spec
        if self.aging_s is None:
            return -spec.priority, spec.submit_s, standing.job.number
        return spec.submit_s - spec.priority * self.aging_s, standing.job.number


@dataclass(frozen=True, slots=True)
class Deadline(_Still):
    """Earliest deadline first; jobs without one come last."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By deadline, then submission."""
        del now_s
        spec = standing.job.spec
        deadline_s = math.inf if spec.deadline_s is None else spec.deadline_s
        return deadline_s, spec.submit_s, standing.job.number


@dataclass(frozen=True, slots=True)
class Shortest(_Still):
    """Shortest job first, by all its work; jobs of unknown length come last."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By work, then submission."""
        del now_s
        return standing.work_s, standing.job.spec.submit_s, standing.job.number


@dataclass(frozen=True, slots=True)
class Smallest(_Still):
    """Fewest GPUs first (`sjf` of Tiresias' simulator)."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By width, then submission."""
        del now_s
        return standing.gpus, standing.job.spec.submit_s, standing.job.number


@dataclass(frozen=True, slots=True)
class _Remaining(_Still):
    """An order by what is left."""

    @property
    def moving(self) -> bool:
        """Running jobs come forward as they get on."""
        return True


@dataclass(frozen=True, slots=True)
class ShortestRemaining(_Remaining):
    """SRTF: shortest remaining time first."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By work left."""
        return standing.remaining_s(now_s), standing.job.number

    def rank(self, running: Iterable[JobStanding], now_s: float) -> None:
        """By work left, worked out here: running jobs are ranked at every event."""
        for one in running:
            done_s, left_s = now_s - one.works_from_s, one.left_s
            one.key = (left_s - done_s if done_s > 0 else left_s), one.job.number

    def keys(self, running: RunningColumns, now_s: float) -> tuple[Floats, ...]:
        """By work left."""
        return running.remaining_s(now_s), running.number


@dataclass(frozen=True, slots=True)
class SmallestRemainingService(_Remaining):
    """SRSF: smallest remaining time x GPUs first."""

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By GPU time left."""
        return standing.remaining_s(now_s) * standing.gpus, standing.job.number

    def rank(self, running: Iterable[JobStanding], now_s: float) -> None:
        """By GPU time left, worked out here: running jobs are ranked at every event."""
        for one in running:
            done_s, left_s = now_s - one.works_from_s, one.left_s
            one.key = (left_s - done_s if done_s > 0 else left_s) * one.gpus, one.job.number

    def keys(self, running: RunningColumns, now_s: float) -> tuple[Floats, ...]:
        """By GPU time left."""
        with np.errstate(invalid="ignore"):  # endless work on no GPU
            return running.remaining_s(now_s) * running.gpus, running.number


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAttained(_Still):
    """2D-LAS, discretised (Tiresias, NSDI'19): queues by GPU time received.

    Within a queue those who run come before those who wait, each in the order in which they got
    there; who is preempted waits at the head, who has just fallen to a queue comes last in it.
    """

    limits_gpu_s: tuple[float, ...] = TIRESIAS_THRESHOLDS_GPU_S

    @property
    def thresholds_gpu_s(self) -> tuple[float, ...]:
        """Limits of the queues."""
        return self.limits_gpu_s

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By queue, then who runs, then turn."""
        del now_s
        last = standing.requeued or not standing.running
        return standing.queue, last, standing.turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Gittins:
    """2D-Gittins, discretised (Tiresias, NSDI'19): within a queue the highest index first.

    A job that has a hold (`JobStanding.holds_s`) keeps until its end at least the index with which
    it started.
    """

    index: GittinsIndex
    limits_gpu_s: tuple[float, ...] = TIRESIAS_THRESHOLDS_GPU_S

    @property
    def moving(self) -> bool:
        """Running jobs' indices follow their service."""
        return True

    @property
    def thresholds_gpu_s(self) -> tuple[float, ...]:
        """Limits of the queues."""
        return self.limits_gpu_s

    def key(self, standing: JobStanding, now_s: float) -> Key:
        """By queue, then index, then submission."""
        served_gpu_s = standing.service_s(now_s) * standing.gpus
        index, job = self.index.of(served_gpu_s), standing.job
        if standing.running and now_s - standing.since_s < standing.holds_s:
            index = max(index, self.index.of(standing.served_s * standing.gpus))
        return standing.queue, -index, job.spec.submit_s, job.number

    def rank(self, running: Iterable[JobStanding], now_s: float) -> None:
        """As `key`, worked out here: running jobs are ranked at every event."""
        services, indices = self.index.services, (*self.index.indices, 0.0)
        for one in running:
            held_s = now_s - one.since_s
            index = indices[bisect_right(services, (one.served_s + held_s) * one.gpus)]
            if held_s < one.holds_s:
                index = max(index, indices[bisect_right(services, one.served_s * one.gpus)])
            one.key = one.queue, -index, one.job.spec.submit_s, one.job.number

    def keys(self, running: RunningColumns, now_s: float) -> tuple[Floats, ...]:
        """By queue, then index, then submission."""
        services, indices = _steps(self.index)
        held_s, gpus, served_s = running.held_s(now_s), running.gpus, running.served_s
        at = np.searchsorted(services, (served_s + held_s) * gpus, side="right")
        index = indices[at]
        holds = held_s < running.holds_s
        if holds.any():
            then = np.searchsorted(services, served_s[holds] * gpus[holds], side="right")
            index[holds] = np.maximum(index[holds], indices[then])
        return running.queue, -index, running.submit_s, running.number


@lru_cache(maxsize=4)
def _steps(index: GittinsIndex) -> tuple[Floats, Floats]:
    """Services (S,) and indices (S + 1,); 0 beyond all experience."""
    return np.array(index.services), np.array((*index.indices, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GittinsOfPast:
    """2D-Gittins by jobs that have ended here; 2D-LAS while too few have (`LearnedServices`)."""

    limits_gpu_s: tuple[float, ...] = TIRESIAS_THRESHOLDS_GPU_S

    def order(self, view: View) -> Order:
        """By the index that was learned, if there is one."""
        index = view.past_services().index
        if index is None:
            return LeastAttained(limits_gpu_s=self.limits_gpu_s)
        return Gittins(index=index, limits_gpu_s=self.limits_gpu_s)

    def hold_s(self, view: View, job: JobView) -> float:
        """Ten of its restarts: at most a tenth of the time of those who take turns is lost."""
        return HOLDS_RESTARTS * view.restart_time(job).seconds

    def look_s(self, running: Iterable[JobStanding], now_s: float) -> float:
        """At the end of the first hold, and after a while where one is over."""
        ends = (one.since_s + one.holds_s for one in running)
        return max(min(ends, default=0.0), now_s + LOOK_S)

    def about(self, view: View) -> str:
        """How many ends it is made of, or how many are missing."""
        past = view.past_services()
        if past.index is None:
            return f"as tiresias until {LEAST_JOBS} jobs have succeeded, {past.jobs} so far"
        return f"Gittins index of {past.of_jobs} jobs that have succeeded"
