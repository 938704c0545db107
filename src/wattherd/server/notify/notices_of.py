"""From entries of the journal and the core's answers to them: what users want to hear of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.model.event import JobExited, JobStarted
from wattherd.store.entry import JournalEntry

SCHEMA = "wattherd.notification/1"
_ENDS = {
    "Succeeded": "succeeded", "Failed": "failed", "TimedOut": "timed_out", "Cancelled": "cancelled",
}  # fmt: skip
_ASKED = frozenset({"UserRequest", "TimeLimit", "TrialEnded"})
"""Stops that are no preemption: they were asked for, or are an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNotice:
    """Something that happened to a job; `number` is the entry's by which it did."""

    number: int
    at_s: float
    job_id: str
    what: str
    why: str = ""
    attempt: int | None = None
    exit_code: int | None = None

    @property
    def id(self) -> str:
        """The same whenever this is told."""
        return f"{self.number}-{self.job_id}-{self.what}"


def notices_of(entry: JournalEntry, answers: Sequence[Mapping[str, Any]]) -> Iterator[JobNotice]:
    """What happened by one entry; `answers` are the core's commands as documents."""
    event = entry.event
    if isinstance(event, JobStarted):
        yield _notice(entry, event.job_id, "started", attempt=event.attempt)
    for one in answers:
        match one:
            case {"type": "FinishJob", "job_id": job_id, "state": state} if state in _ENDS:
                yield _notice(entry, job_id, _ENDS[state], **_end(entry, job_id))
            case {"type": "RejectJob", "job_id": job_id}:
                yield _notice(entry, job_id, "failed", why=str(one.get("detail", "")))
            case {"type": "StopJob", "job_id": job_id, "reason": reason} if reason not in _ASKED:
                yield _notice(entry, job_id, "preempted", why=reason, attempt=one["attempt"])
            case _:
                pass


def _end(entry: JournalEntry, job_id: str) -> dict[str, Any]:
    """What is known of how a job ended, where this entry tells of its last run."""
    event = entry.event
    if not isinstance(event, JobExited) or event.job_id != job_id:
        return {}
    return {"exit_code": event.exit_code, "attempt": event.attempt, "why": event.cause}


def _notice(entry: JournalEntry, job_id: str, what: str, **more: Any) -> JobNotice:
    return JobNotice(number=entry.seq, at_s=entry.event.at_s, job_id=job_id, what=what, **more)
