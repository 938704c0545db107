"""How much work the jobs of a journal were: from what they did, at the caps they did it at.

A second of work is a second at full speed. Under a cap a job is as slow as its power curve says;
what a crash or a lost node undid is no work. Of jobs that did not end the rest is estimated, and
how is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wattherd.engine.core.core import EXIT_REQUEUE
from wattherd.engine.jobs.lifecycle import State
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob
from wattherd.model.event import (
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
)
from wattherd.model.job import JobSpec

LEAST_S = 0.001
ENDLESS_S = 1e9
MEASURED, CANCELLED, PROJECTED, EXPECTED, TYPICAL, UNKNOWN = (
    "measured",
    "until it was cancelled",
    "projected from its progress",
    "as its user expected",
    "as the median of those that ended",
    "left out: never ran, and nothing is known",
)
RateOf = Callable[[float | None], float]
"""Speed at a cap in watts per device, 1 without one."""


@dataclass(slots=True)
class PlayedJob:
    """One job as the journal tells; times in seconds since the journal began."""

    spec: JobSpec
    state: str = ""
    first_start_s: float | None = None
    finish_s: float | None = None
    attempt: int = 0
    kept_s: float = 0.0
    run_s: float = 0.0
    """Work of the present run, up to `settled_s`."""
    longest_s: float = 0.0
    """Work of the longest run; there is at least as much in the job."""
    settled_s: float | None = None
    cap_w: float | None = None
    fraction: float | None = None
    """Part that it says is done."""

    def settle(self, at_s: float, rate_of: RateOf) -> None:
        """Book what was done since the last change."""
        if self.settled_s is not None:
            self.run_s += (at_s - self.settled_s) * rate_of(self.cap_w)
            self.settled_s = at_s

    def end_run(self, *, kept: bool) -> None:
        """The run is over; its work stays, or is to be done again."""
        self.longest_s = max(self.longest_s, self.run_s)
        if kept:
            self.kept_s += self.run_s
            self.run_s = 0.0
        self.settled_s = None

    @property
    def done_s(self) -> float:
        """Work done so far; less than the longest run would be work that was saved unseen."""
        return max(self.kept_s + self.run_s, self.longest_s)


@dataclass(slots=True)
class PlayedJobs:
    """All jobs of a journal; `note` is called with every entry and answer."""

    rate_of: RateOf
    jobs: dict[str, PlayedJob] = field(default_factory=dict)
    now_s: float = 0.0

    def note(self, event: Event, commands: Sequence[Command]) -> None:
        """Follow one entry."""
        self.now_s = event.at_s
        self._hear(event)
        for command in commands:
            self._obey(command)

    def _hear(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self.jobs.setdefault(event.job.id, PlayedJob(event.job))
        elif isinstance(event, NodeLost):
            for job in self.jobs.values():
                job.end_run(kept=False)
        job_of_run = self.jobs.get(getattr(event, "job_id", ""))
        if job_of_run is not None and getattr(event, "attempt", None) == job_of_run.attempt:
            self._hear_run(job_of_run, event)

    def _hear_run(self, job: PlayedJob, event: Event) -> None:
        job.settle(event.at_s, self.rate_of)
        match event:
            case JobStarted():
                job.settled_s, job.run_s = event.at_s, 0.0
            case CapApplied():
                job.cap_w = event.cap_w
            case JobProgressed() if event.total:
                job.fraction = min(1.0, event.progress / event.total)
            case JobStopped():
                job.end_run(kept=True)
            case JobExited():
                job.end_run(kept=event.exit_code in (0, EXIT_REQUEUE))

    def _obey(self, command: Command) -> None:
        job = self.jobs.get(str(getattr(command, "job_id", "")))
        if job is None:
            return
        match command:
            case StartJob():
                job.attempt, job.cap_w, job.run_s = command.attempt, command.cap_w, 0.0
                job.first_start_s = self.now_s if job.first_start_s is None else job.first_start_s
            case FinishJob():
                job.state, job.finish_s = command.state, self.now_s
            case RejectJob():
                job.state, job.finish_s = "Rejected", self.now_s

    def works(self) -> dict[str, tuple[float, str]]:
        """Seconds of work of every job, and what they are based on."""
        for job in self.jobs.values():
            job.settle(self.now_s, self.rate_of)
        ended = (job.done_s for job in self.jobs.values() if job.state == State.SUCCEEDED)
        typical_s = _median(ended)
        found = {job_id: _work(job, typical_s) for job_id, job in self.jobs.items()}
        return {job_id: (max(LEAST_S, work_s), basis) for job_id, (work_s, basis) in found.items()}


def _work(job: PlayedJob, typical_s: float | None) -> tuple[float, str]:
    if job.state == State.CANCELLED:
        return ENDLESS_S, CANCELLED
    if job.state:  # also one that failed took its time; a rejected one is rejected again
        return job.done_s, MEASURED
    if job.fraction and job.done_s:
        return job.done_s / job.fraction, PROJECTED
    if job.spec.duration_s:
        return max(job.done_s, job.spec.duration_s), EXPECTED
    if typical_s is not None:
        return max(job.done_s, typical_s), TYPICAL
    return job.done_s, TYPICAL if job.done_s else UNKNOWN


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
