"""What became of every job, live or over: a projection of the journal, kept as it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.engine.lifecycle import State
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob
from wattherd.model.event import Event, JobExited, JobProgressed, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.store.entry import Entry


@dataclass(slots=True)
class Past:
    """One job as its user may look it up; times in seconds since the journal began."""

    spec: JobSpec
    paper: Mapping[str, Any]
    by: str
    state: str = str(State.QUEUED)
    first_start_s: float | None = None
    finish_s: float | None = None
    attempts: int = 0
    progress: float = 0.0
    loss: float | None = None
    total: float | None = None
    exit_code: int | None = None
    why: str = ""


@dataclass(slots=True)
class History:
    """Every job by its id, in order of submission."""

    jobs: dict[str, Past] = field(default_factory=dict)

    def note(self, entry: Entry, commands: Sequence[Command]) -> None:
        """Follow one entry and the core's answer."""
        self._hear(entry.event, entry)
        for command in commands:
            self._obey(command, entry.event.at_s)

    def _hear(self, event: Event, entry: Entry) -> None:
        match event:
            case JobSubmitted():
                past = Past(spec=event.job, paper=entry.paper or {}, by=entry.by)
                self.jobs.setdefault(event.job.id, past)
            case JobProgressed() if event.job_id in self.jobs:
                past = self.jobs[event.job_id]
                past.progress = event.progress
                past.loss = event.loss if event.loss is not None else past.loss
                past.total = event.total if event.total is not None else past.total
            case JobExited() if event.job_id in self.jobs:
                past = self.jobs[event.job_id]
                past.exit_code, past.why = event.exit_code, event.cause

    def _obey(self, command: Command, at_s: float) -> None:
        match command:
            case StartJob():
                past = self.jobs[command.job_id]
                past.attempts = command.attempt
                past.first_start_s = at_s if past.first_start_s is None else past.first_start_s
            case RejectJob():
                past = self.jobs[command.job_id]
                past.state, past.finish_s, past.why = str(State.FAILED), at_s, command.detail
            case FinishJob():
                past = self.jobs[command.job_id]
                past.state, past.finish_s = command.state, at_s
