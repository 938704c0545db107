"""What became of every job: live ones in memory, those that are over in the store."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import TypeAdapter

from wattherd.engine.core.job_table import NEVER, array_never_text, never_text, parents
from wattherd.engine.jobs.edits import amended
from wattherd.engine.jobs.lifecycle import FINAL, State
from wattherd.model.command import AmendJob, Command, FinishJob, RejectJob, StartJob
from wattherd.model.event import (
    ArrayLimited,
    Event,
    JobCancelled,
    JobEdited,
    JobExited,
    JobProgressed,
    JobSubmitted,
)
from wattherd.model.job import JobSpec
from wattherd.store.entry import JournalEntry, StoreFailure

DEFERRED_BY = "energy rates"
"""Who edits the begin of a job that waits for cheap energy."""
_FINAL = {str(state) for state in FINAL}
_SPEC = TypeAdapter(JobSpec)


@dataclass(slots=True)
class PastJob:
    """One job as its user may look it up; times in seconds since the journal began.

    `number` counts submissions from 1. `energy_j` is set once the job is over.
    """

    spec: JobSpec
    paper: Mapping[str, Any]
    by: str
    number: int = 0
    state: str = str(State.QUEUED)
    first_start_s: float | None = None
    finish_s: float | None = None
    attempts: int = 0
    progress: float = 0.0
    loss: float | None = None
    total: float | None = None
    exit_code: int | None = None
    why: str = ""
    energy_j: float = 0.0
    bill: str = ""
    """What its energy has cost, as the store keeps it; empty where that is not known."""

    @property
    def over(self) -> bool:
        """Whether it has reached a final state."""
        return self.state in _FINAL


class Archive(Protocol):
    """Where jobs are that are over."""

    def job(self, job_id: str) -> Mapping[str, Any] | None:
        """The row of one."""
        ...


@dataclass(slots=True, eq=False)
class JobHistory(Mapping[str, PastJob]):
    """Every job by its id; iteration is over those in memory, in order of submission.

    `forgettable` names jobs that are safe in the archive; the next entry drops them from memory.
    `notified` becomes true with the first job whose user asks for notifications, and stays so.
    """

    jobs: dict[str, PastJob] = field(default_factory=dict)
    archive: Archive | None = None
    forgettable: deque[str] = field(default_factory=deque)
    submitted: int = 0
    notified: bool = False

    def __post_init__(self) -> None:
        """Jobs known from the start may ask for notifications, too."""
        self.notified |= any(past.paper.get("notify") for past in self.jobs.values())

    def __getitem__(self, job_id: str) -> PastJob:
        """One job, from the archive if it has to be.

        Raises:
            KeyError: there is none.
            StoreFailure: the archive cannot be read.
        """
        known = self.jobs.get(job_id)
        if known is None and self.archive is not None:
            row = self.archive.job(job_id)
            known = None if row is None else past_of(row)
        if known is None:
            raise KeyError(job_id)
        return known

    def __iter__(self) -> Iterator[str]:
        """Ids of those in memory."""
        return iter(list(self.jobs))

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self.jobs)

    def note(self, entry: JournalEntry, commands: Sequence[Command]) -> list[PastJob]:
        """Follow one entry and the core's answer; what has changed, as it is now."""
        while self.forgettable:
            self.jobs.pop(self.forgettable.popleft(), None)
        touched = self._hear(entry.event, entry)
        ended = self._arrays_of(commands)
        for command in commands:
            touched |= self._obey(command, entry.event.at_s, ended)
        if isinstance(entry.event, JobCancelled) and entry.event.job_id in touched:
            past = self.jobs[entry.event.job_id]
            past.why = "" if past.why.startswith(NEVER) else past.why  # its user ended it
        return [replace(self.jobs[job_id]) for job_id in sorted(touched)]

    def overtaken(self, said: Sequence[Command], at_s: float) -> list[PastJob]:
        """Follow what another core says to the jobs it takes over: it may not want all of them."""
        touched: set[str] = set()
        for command in said:
            touched |= self._obey(command, at_s)
        return [replace(self.jobs[job_id]) for job_id in sorted(touched)]

    def _hear(self, event: Event, entry: JournalEntry) -> set[str]:
        match event:
            case JobSubmitted():
                self.submitted += 1
                self.notified |= bool(entry.paper and entry.paper.get("notify"))
                past = PastJob(
                    spec=event.job, paper=entry.paper or {}, by=entry.by, number=self.submitted
                )
                self.jobs.setdefault(event.job.id, past)
                return {event.job.id}
            case JobProgressed() if event.job_id in self.jobs:
                past = self.jobs[event.job_id]
                past.progress = event.progress
                past.loss = event.loss if event.loss is not None else past.loss
                past.total = event.total if event.total is not None else past.total
            case JobExited() if event.job_id in self.jobs:
                past = self.jobs[event.job_id]
                past.exit_code, past.why = event.exit_code, event.cause
            case JobEdited() if event.job_id in self.jobs:
                past = self.jobs[event.job_id]
                if event.begin_at_s is None or entry.by == DEFERRED_BY or "defer" not in past.paper:
                    return set()
                past.paper = {key: one for key, one in past.paper.items() if key != "defer"}
            case ArrayLimited():
                return self._limit_array(event)
            case _:
                return set()
        return {event.job_id}

    def _limit_array(self, event: ArrayLimited) -> set[str]:
        live = (one for one in self.jobs.values() if one.spec.array == event.array)
        tasks = [one for one in live if not one.over]
        for past in tasks:
            past.spec = replace(past.spec, array_most=event.most)
        return {past.spec.id for past in tasks}

    def _obey(self, command: Command, at_s: float, ended: Container[str] = ()) -> set[str]:
        match command:
            case StartJob():
                past = self.jobs[command.job_id]
                past.attempts = command.attempt
                past.first_start_s = at_s if past.first_start_s is None else past.first_start_s
            case AmendJob():
                past = self.jobs[command.job_id]
                past.spec = amended(past.spec, command)
            case RejectJob():
                past = self.jobs[command.job_id]
                past.state, past.finish_s, past.why = str(State.FAILED), at_s, command.detail
            case FinishJob():
                past = self.jobs[command.job_id]
                past.state, past.finish_s = command.state, at_s
                if not past.attempts and not past.why:
                    past.why = self._never(past.spec, command.state, ended)
            case _:
                return set()
        return {command.job_id}

    def _arrays_of(self, commands: Sequence[Command]) -> set[str]:
        """Arrays of jobs that are over by these commands: one of them may be over by that."""
        over = (one.job_id for one in commands if isinstance(one, FinishJob | RejectJob))
        return {self.jobs[one].spec.array for one in over if one in self.jobs} - {""}

    def _never(self, spec: JobSpec, state: str, ended: Container[str]) -> str:
        """Which of the jobs it waited for has kept it from ever starting, if one has."""
        arrays = []
        for parent in parents(spec):
            try:
                past = self.get(parent)
            except StoreFailure:
                continue
            if past is None:
                arrays.append(parent)
            elif past.over and (text := never_text(spec, parent, past.state)):
                return text
        # How an array has ended is known by what has become of the job that waited for it.
        end = State(state)
        named = spec.after if end is State.FAILED else spec.after_notok
        arrays = sorted((one for one in arrays if one in named), key=lambda one: one not in ended)
        return array_never_text(arrays[0], end) if arrays else ""


def row_of(past: PastJob) -> dict[str, Any]:
    """A job as a row of the archive."""
    spec = past.spec
    return {
        "number": past.number,
        "id": spec.id,
        "name": str(past.paper.get("name") or ""),
        "owner": spec.user,
        "tenant": spec.tenant,
        "queue": spec.queue,
        "state": past.state,
        "submit_s": spec.submit_s,
        "first_start_s": past.first_start_s,
        "finish_s": past.finish_s,
        "attempts": past.attempts,
        "progress": past.progress,
        "loss": past.loss,
        "total": past.total,
        "exit_code": past.exit_code,
        "why": past.why,
        "energy_j": past.energy_j,
        "bill": past.bill or None,
        "by_whom": past.by,
        "spec": _SPEC.dump_json(spec).decode(),
        "paper": json.dumps(dict(past.paper), sort_keys=True),
    }


def past_of(row: Mapping[str, Any]) -> PastJob:
    """The job that `row_of` made a row of."""
    same = ("number", "state", "first_start_s", "finish_s", "attempts", "progress", "loss", "total")
    return PastJob(
        spec=_SPEC.validate_json(row["spec"]),
        paper=json.loads(row["paper"]),
        by=row["by_whom"],
        exit_code=row["exit_code"],
        why=row["why"],
        energy_j=row["energy_j"],
        bill=row["bill"] or "",
        **{name: row[name] for name in same},
    )
