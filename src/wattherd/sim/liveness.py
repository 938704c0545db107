"""Notices runs that go on for ever: jobs are started and stopped, and none gets any further.

A planner whose slices are shorter than a restart, or two that undo what the other did, give orders
without end. The world cannot tell that by itself, since every order is a good one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.model.command import Command, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobProgressed, JobStopped

FEWEST_RUNS = 1000
RUNS_PER_JOB = 20
"""So many runs of every job, and at least `FEWEST_RUNS` in all, without progress are too many."""
TOLD = 3
"""Jobs whose story is told."""


class Liveness:
    """Watches events and commands; progress is what stops and reports say, and every end."""

    def __init__(self, core: Core) -> None:
        """Nothing has run yet."""
        self._core = core
        self._best: dict[str, float] = {}
        self._since_s: dict[str, float] = {}
        """When each job that runs was started."""
        self._runs: Counter[str] = Counter()
        """Runs since anybody got further."""
        self._stops: dict[str, str] = {}
        """Why each job was stopped last."""
        self._count = 0
        self._from_s = 0.0

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Count runs until somebody gets further.

        Raises:
            UserError: nobody does; with the story.
        """
        kind = type(event)
        if kind is JobExited:
            self._further(event)
        elif kind is JobStopped or kind is JobProgressed:
            self._compare(event)
        for command in commands:
            if type(command) is StartJob:
                self._started(command)
            elif type(command) is StopJob:
                self._stops[command.job_id] = str(command.reason)

    def _compare(self, event: Event) -> None:
        assert isinstance(event, JobStopped | JobProgressed)  # noqa: S101 - see `after`
        done = event.progress
        if isinstance(event, JobStopped):
            self._since_s.pop(event.job_id, None)
        if done is None or done > self._best.get(event.job_id, 0.0):
            self._best[event.job_id] = done or 0.0
            self._further(event)

    def _further(self, event: Event) -> None:
        if isinstance(event, JobExited):
            self._best.pop(event.job_id, None)
            self._since_s.pop(event.job_id, None)
        if self._count:
            self._runs.clear()
            self._count = 0
        self._from_s = event.at_s

    def _started(self, order: StartJob) -> None:
        self._since_s[order.job_id] = self._core.now_s
        self._runs[order.job_id] += 1
        self._count += 1
        if self._count % FEWEST_RUNS == 0 and self._count >= RUNS_PER_JOB * len(self._core.jobs):
            self._judge()

    def _judge(self) -> None:
        jobs = self._core.jobs
        for job_id, since_s in self._since_s.items():
            job = jobs.get(job_id)
            if job is not None and job.active and since_s < self._from_s:
                return  # it has run all the while, and will be over some time
        runs = f"in {self._count} runs since {self._from_s:g} s"
        raise UserError(
            f"no job got any further {runs}: {self._story()}",
            where=f"simulation at {self._core.now_s:g} s",
            hint="does a restart take longer than jobs are let run? choose a shorter `restart`",
        )

    def _story(self) -> str:
        told = [
            f"job {job_id} was started {count} times"
            + (f", stopped last for {self._stops[job_id]}" if job_id in self._stops else "")
            for job_id, count in self._runs.most_common(TOLD)
        ]
        return "; ".join(told)
