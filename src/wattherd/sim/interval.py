"""The time that a run's figures are about: from the first submission until no job holds anything.

What happens afterwards (a budget that changes next week, a node that comes back) belongs to no job.
Meters go on as long as the world does, and are set back at the end to what they had counted when
the last job let its devices go. Only if jobs hold devices at the end, nothing is set back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wattherd.engine.core.core import Core
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob
from wattherd.model.event import Event, JobStopped, NodeLost


class Rewinds(Protocol):
    """A meter that can be set back."""

    def mark(self) -> Any:
        """What it has counted so far."""
        ...

    def rewind(self, mark: Any) -> None:
        """Forget what was counted since."""
        ...


class JobInterval:
    """Watches beside `meters`, which must watch before it."""

    def __init__(self, core: Core, meters: Sequence[Rewinds]) -> None:
        """No job has ended yet: if none ever begins, nothing counts."""
        self._core, self._meters = core, meters
        self._gpus = core.held.whole_gpus
        self._marks = [meter.mark() for meter in meters]
        self._holding = False
        """Whether a job was given devices since nothing was held."""
        self.end_s: float | None = None
        """When the last job let go, None while one holds devices."""

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Note what the meters have counted if nothing is held any more."""
        self._holding = self._holding or any(type(one) is StartJob for one in commands)
        ends = isinstance(event, JobStopped | NodeLost)
        if ends or any(type(one) is FinishJob or type(one) is RejectJob for one in commands):
            self._look()

    def _look(self) -> None:
        free = self._core.held.whole_gpus
        if not self._holding or free < self._gpus or self._held():
            return
        self._holding = False
        self.end_s = self._core.now_s
        self._marks = [meter.mark() for meter in self._meters]

    def _held(self) -> bool:
        return any(job.active for job in self._core.jobs.values())

    def close(self) -> None:
        """Set the meters back to the end of the last job, if all jobs have let go."""
        if self._held():
            self.end_s = None
            return
        for meter, mark in zip(self._meters, self._marks, strict=True):
            meter.rewind(mark)
