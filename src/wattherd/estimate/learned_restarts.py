"""What a restart costs a job: seconds from the start of its run to the first progress it reports.

Learned from every run. A job's own word is the median of its last starts, a kind's that of its
jobs; each job is one voice there, and kinds of two tenants are two. A job that never reports
teaches nothing. Where nothing was learned it is the published minute, which is a prior.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from wattherd.estimate.job_rate import RateSource

PRIOR_RESTART_S = 60.0
"""Published restarts take 30 s (Pollux, AITurbo), and as much again until devices are busy."""
LEAST_RESTART_S, MOST_RESTART_S = 0.1, 3600.0
MOST_STARTS = 5
"""Of a job, the last ones."""
MOST_JOBS = 25
"""Of a kind, those heard last."""
MOST_KINDS = 10_000
SPARE_JOBS = 100
"""Jobs that are over and still remembered, beyond as many as are live."""


class RestartTime(NamedTuple):
    """Seconds of a restart, and who says so."""

    seconds: float
    source: RateSource


PRIOR = RestartTime(PRIOR_RESTART_S, RateSource.PRIOR)


class LearnedRestarts:
    """What was learned of all jobs; changed by `heard` alone."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._attempts: dict[str, int] = {}
        """By job the run at work of which the start is known, or is not to be learned from."""
        self._jobs: dict[str, deque[float]] = {}
        self._kinds: dict[str, dict[str, float]] = {}

    def heard(self, job_id: str, kind: str, attempt: int, after_s: float) -> None:
        """A run has reported progress `after_s` seconds after its start; the first time counts."""
        if self._attempts.get(job_id) == attempt:
            return
        self._attempts[job_id] = attempt
        after_s = min(max(after_s, LEAST_RESTART_S), MOST_RESTART_S)
        starts = self._jobs.setdefault(job_id, deque(maxlen=MOST_STARTS))
        starts.append(after_s)
        if not kind:
            return
        jobs = self._kinds.pop(kind, None) or {}
        self._kinds[kind] = jobs
        jobs.pop(job_id, None)
        jobs[job_id] = median(starts)
        for known, most in ((jobs, MOST_JOBS), (self._kinds, MOST_KINDS)):
            if len(known) > most:
                del known[next(iter(known))]

    def forget(self, live: Container[str], count: int) -> None:
        """Jobs that are over, where there are many; what their kinds learned from them stays."""
        if len(self._jobs) > 2 * count + SPARE_JOBS:
            for gone in [job_id for job_id in self._jobs if job_id not in live]:
                del self._jobs[gone]

    def found(self, job_id: str, attempt: int) -> None:
        """A run was found at work: what it reports first says nothing of how long a start takes."""
        self._attempts[job_id] = attempt

    def ended(self, job_id: str) -> None:
        """A run is over."""
        self._attempts.pop(job_id, None)

    def taken_over(self) -> None:
        """Another core hears from now on: whatever it finds at work it says."""
        self._attempts.clear()

    def of_kinds(self) -> dict[str, tuple[float, ...]]:
        """The voices of all kinds, by when they were heard last."""
        return {kind: tuple(jobs.values()) for kind, jobs in self._kinds.items()}

    def recall(self, kinds: Mapping[str, Sequence[float]]) -> None:
        """These are the kinds that are known, as `of_kinds` told them, and no others."""
        self._kinds = {
            kind: {f"earlier {at}": one for at, one in enumerate(voices[-MOST_JOBS:])}
            for kind, voices in list(kinds.items())[-MOST_KINDS:]
        }

    def of(self, job_id: str, kind: str) -> RestartTime:
        """What a restart of this job costs."""
        starts = self._jobs.get(job_id)
        if starts:
            return RestartTime(median(starts), RateSource.LEARNED_JOB)
        jobs = self._kinds.get(kind)
        return RestartTime(median(jobs.values()), RateSource.LEARNED_KIND) if jobs else PRIOR
