"""Runs that ended with a node: what is left of a gang is still to be stopped, and must answer."""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.model.command import StopJob
from wattherd.model.event import JobStopped, job_stopped


class LostRuns:
    """The latest run of each job that was lost, until it is stopped or the job starts again."""

    def __init__(self) -> None:
        """None yet."""
        self._runs: dict[str, tuple[int, float]] = {}

    def add(self, job_id: str, attempt: int, progress: float) -> None:
        """A run is gone, all but the job's progress so far."""
        self._runs[job_id] = attempt, progress

    def forget(self, job_id: str) -> None:
        """The job starts again."""
        if self._runs:
            self._runs.pop(job_id, None)

    def stop(self, order: StopJob, now_s: float) -> Sequence[JobStopped]:
        """What is left of a lost run stops at once; other runs are over and have said so."""
        attempt, progress = self._runs.get(order.job_id, (None, 0.0))
        if attempt != order.attempt:
            return ()
        del self._runs[order.job_id]
        return [
            job_stopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt, progress=progress)
        ]
