"""What the core's orders amount to: which runs are to exist, which wake-ups and answers are due.

Kept from events and commands alone, so that replaying the journal gives after a crash what was
there before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.engine.core.executor import RunOrder
from wattherd.engine.jobs.edits import amended
from wattherd.model.command import (
    AmendJob,
    Command,
    Compute,
    FinishJob,
    RejectJob,
    SetBatch,
    SetCap,
    StartJob,
    StopJob,
    WakeAt,
)
from wattherd.model.event import (
    ArrayLimited,
    Computed,
    Event,
    JobExited,
    JobStopped,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec


@dataclass(slots=True)
class StandingOrders:
    """`specs` and `papers` of live jobs; `runs`, `wakes` (key to seconds) and `questions` due."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    papers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: dict[str, RunOrder] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)
    questions: dict[str, Compute] = field(default_factory=dict)

    def note(
        self, event: Event, paper: Mapping[str, Any] | None, commands: Iterable[Command]
    ) -> None:
        """Follow one event and what the core said to it."""
        self._hear(event, paper or {})
        for command in commands:
            self._obey(command)

    def _hear(self, event: Event, paper: Mapping[str, Any]) -> None:
        match event:
            case JobSubmitted() if event.job.id not in self.specs:
                self.specs[event.job.id] = event.job
                self.papers[event.job.id] = paper
            case ArrayLimited():
                for job_id, spec in self.specs.items():
                    if spec.array == event.array:
                        self.specs[job_id] = replace(spec, array_most=event.most)
            case JobStopped() | JobExited():
                run = self.runs.get(event.job_id)
                if run is not None and run.start.attempt == event.attempt:
                    del self.runs[event.job_id]
            case Woke() if self.wakes.get(event.key, event.at_s + 1) <= event.at_s:
                del self.wakes[event.key]
            case Computed():
                question = self.questions.get(event.kind)
                if question is not None and question.key == event.key:
                    del self.questions[event.kind]

    def _obey(self, command: Command) -> None:
        match command:
            case StartJob():
                self.runs[command.job_id] = RunOrder(
                    spec=self.specs[command.job_id],
                    paper=self.papers[command.job_id],
                    start=command,
                    cap_w=command.cap_w,
                )
            case StopJob():
                self._change(command.job_id, command.attempt, stop=command)
            case SetCap():
                self._change(command.job_id, command.attempt, cap_w=command.cap_w)
            case SetBatch():
                self._change(command.job_id, command.attempt, batch=command)
            case AmendJob():
                self.specs[command.job_id] = amended(self.specs[command.job_id], command)
            case FinishJob() | RejectJob():
                self.runs.pop(command.job_id, None)
                self.specs.pop(command.job_id, None)
                self.papers.pop(command.job_id, None)
            case WakeAt():
                self.wakes[command.key] = command.at_s
            case Compute():
                self.questions[command.kind] = command

    def _change(self, job_id: str, attempt: int, **fields: Any) -> None:
        run = self.runs.get(job_id)
        if run is not None and run.start.attempt == attempt:
            self.runs[job_id] = replace(run, **fields)

    def next_wake_s(self) -> float | None:
        """When the next wake-up is due."""
        return min(self.wakes.values(), default=None)

    def due(self, now_s: float) -> list[Woke]:
        """Wake-ups whose time has come, in order."""
        keys = sorted((at_s, key) for key, at_s in self.wakes.items() if at_s <= now_s)
        return [Woke(at_s=now_s, key=key) for _, key in keys]
