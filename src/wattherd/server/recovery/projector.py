"""Writes projections behind the keeper's back, so that turns wait for the journal alone.

What it has not written yet is lost in a crash and made again from the journal, but for watts: of
those the last seconds are gone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.model.command import Command
from wattherd.model.event import Event, JobSubmitted
from wattherd.server.hardware.draw import DrawBook
from wattherd.server.journal.job_history import PastJob, row_of
from wattherd.server.settings.energy_rates import bill_text
from wattherd.store.entry import JournalEntry, StoreFailure
from wattherd.store.event_log import plain
from wattherd.store.projection import Projection, ProjectionBatch

_LOG = logging.getLogger(__name__)

SYSTEM = "system"
"""Who brings facts of the world; everybody else is in the audit."""
PAUSE_S = 0.25
"""Between two writes, unless somebody waits: what comes meanwhile is written together."""
RETRY_S = 1.0
SAMPLES_S = 10.0
"""How long samples of watts may wait for company."""
THIN_S = 60.0
TIDY_S = 1.0
"""Between two tidyings of the database's log; rarer ones would take longer each."""
OVER = "over"
"""The fact that tells seconds and joules above the budget."""
BILL = "bill"
"""Fact of a store: what the energy of the site has cost and emitted."""


Turn = tuple[JournalEntry, Sequence[Command]]


@dataclass(slots=True)
class _Waiting:
    """What is to be written."""

    turns: list[Turn] = field(default_factory=list)
    jobs: dict[str, PastJob] = field(default_factory=dict)
    samples: list[Mapping[str, Any]] = field(default_factory=list)

    def before(self, later: _Waiting) -> _Waiting:
        """Both together."""
        jobs, samples = {**self.jobs, **later.jobs}, [*self.samples, *later.samples]
        return _Waiting([*self.turns, *later.turns], jobs, samples)


class Projector:
    """Takes turns from the keeper and samples from the meter; a thread writes them.

    `forgettable` gets the ids of jobs that are over and written; `book` knows the joules.
    """

    def __init__(self, projection: Projection, forgettable: deque[str], book: DrawBook) -> None:
        """Nothing is written before `begin`."""
        self.problem = ""
        """Why nothing can be written at the moment."""
        self._projection, self._forgettable, self._book = projection, forgettable, book
        self._known = self._heard = self._written = projection.projected()
        self._waiting = _Waiting()
        self._now_s = 0.0
        self._over: dict[str, None] = {}
        """Jobs that are over and written, whose joules are still in the book."""
        self._change = threading.Condition()
        """That something is written, or the first of what is to be written has come."""
        self._hurry = threading.Event()
        self._end = False
        self._thread = threading.Thread(target=self._run, name="scribe", daemon=True)

    def told(self, turns: Sequence[Turn], touched: Iterable[PastJob]) -> None:
        """Take turns and the jobs they changed; those written before a crash are left out."""
        fresh = [turn for turn in turns if turn[0].seq > self._known]
        if not fresh:
            return
        with self._change:
            idle = not self._waiting.turns
            self._waiting.turns.extend(fresh)
            self._waiting.jobs.update((past.spec.id, past) for past in touched)
            self._heard = fresh[-1][0].seq
            if idle:  # waking a thread for every turn costs more than the turn
                self._change.notify_all()

    def corrected(self, touched: Iterable[PastJob]) -> None:
        """Take jobs that changed although nothing happened."""
        with self._change:
            self._waiting.jobs.update((past.spec.id, past) for past in touched)

    def sampled(self, at_s: float, row: Mapping[str, Any]) -> None:
        """Take a sample of the watts."""
        with self._change:
            self._now_s = at_s
            self._waiting.samples.append(row)

    def begin(self) -> None:
        """Let it write."""
        self._thread.start()

    def end(self) -> None:
        """Write what there is, and stop."""
        self._end = True
        self._hurry.set()
        with self._change:
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def caught_up(self, patience_s: float = 2.0) -> bool:
        """Wait until all that was told up to now is written."""
        with self._change:
            goal = self._heard
            if self._written < goal:
                self._hurry.set()
            return self._change.wait_for(lambda: self._written >= goal, patience_s)

    def _run(self) -> None:
        thinned_s = tidied_s = time.monotonic()
        while not self._end:
            with self._change:
                self._change.wait_for(self._has_to_write, SAMPLES_S)
            written = self.write()
            if written and time.monotonic() >= thinned_s + THIN_S:
                thinned_s = time.monotonic()
                self._try(lambda: self._projection.thin(self._now_s))
            if written and time.monotonic() >= tidied_s + TIDY_S:
                tidied_s = time.monotonic()
                self._try(self._projection.tidy)
            self._hurry.wait(PAUSE_S if written else RETRY_S)
            if not self._end:
                self._hurry.clear()
        self.write()

    def _has_to_write(self) -> bool:
        return bool(self._waiting.turns) or self._end

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as failure:  # noqa: BLE001 - tidying must not end the thread that writes
            self.problem = str(failure) or type(failure).__name__

    def write(self) -> bool:
        """Write all that is waiting; whether it could be written."""
        with self._change:
            taken, self._waiting = self._waiting, _Waiting()
        if not (taken.turns or taken.samples):
            return True
        try:
            self._projection.write(self._rows(taken))
        except Exception as failure:  # noqa: BLE001 - whatever it is, what was told must not be lost
            if not isinstance(failure, StoreFailure) and not self.problem:
                _LOG.exception("what happened cannot be written for lists; tried again")
            self.problem = str(failure) or type(failure).__name__
            with self._change:
                self._waiting = taken.before(self._waiting)
            return False
        self.problem = ""
        self._keep_in_mind(taken)
        return True

    def _rows(self, taken: _Waiting) -> ProjectionBatch:
        return ProjectionBatch(
            seq=taken.turns[-1][0].seq if taken.turns else 0,
            answers=[row for turn in taken.turns if (row := answer_row(*turn))],
            jobs={job_id: self._row(past) for job_id, past in taken.jobs.items()},
            audit=[audit_row(entry) for entry, _ in taken.turns if entry.by != SYSTEM],
            samples=taken.samples,
            energy_j=dict(self._book.energy_j) if taken.samples else {},
            bills=self._bills() if taken.samples else {},
            facts={
                OVER: json.dumps([self._book.over_s, self._book.over_j]),
                BILL: bill_text(self._book.site_bill, self._book.currency),
            },
        )

    def _bills(self) -> dict[str, str]:
        """Of jobs that have drawn something under rates; others have none to keep."""
        currency = self._book.currency
        return {job_id: bill_text(one, currency) for job_id, one in dict(self._book.bills).items()}

    def _row(self, past: PastJob) -> Mapping[str, Any]:
        energy_j = self._book.energy_j.get(past.spec.id, past.energy_j)
        bill = self._book.bills.get(past.spec.id)
        text = past.bill if bill is None else bill_text(bill, self._book.currency)
        return row_of(replace(past, energy_j=energy_j, bill=text))

    def _keep_in_mind(self, taken: _Waiting) -> None:
        with self._change:
            if taken.turns:
                self._written = taken.turns[-1][0].seq
            # A job may be told of again after its end; then it is still in memory.
            over = [job_id for job_id, past in taken.jobs.items() if past.over]
            self._forgettable.extend(job_id for job_id in over if job_id not in self._waiting.jobs)
            self._over.update(dict.fromkeys(over))
            still = set(self._forgettable)  # in memory, without their joules, until the next entry
            for job_id in [one for one in self._over if one not in still]:
                self._book.energy_j.pop(job_id, None)
                self._book.bills.pop(job_id, None)
                del self._over[job_id]
            self._change.notify_all()


def answer_row(entry: JournalEntry, commands: Sequence[Command]) -> Mapping[str, Any] | None:
    """What the core answered to an entry, if it did."""
    if not commands:
        return None
    return {"seq": entry.seq, "commands": json.dumps([plain(one) for one in commands])}


def audit_row(entry: JournalEntry) -> Mapping[str, Any]:
    """Who did what."""
    event = plain(entry.event)
    what = event.pop("type")
    detail = _submission(entry.event) if isinstance(entry.event, JobSubmitted) else event
    return {
        "seq": entry.seq,
        "at_s": entry.event.at_s,
        "by_whom": entry.by,
        "what": what,
        "about": about(entry.event),
        "detail": json.dumps(detail, sort_keys=True),
    }


def about(event: Event) -> str:
    """The job, node or queue that an event is about."""
    if isinstance(event, JobSubmitted):
        return event.job.id
    return str(next((getattr(event, n) for n in _ABOUT if hasattr(event, n)), ""))


_ABOUT = ("job_id", "node", "queue", "tenant")


def _submission(event: JobSubmitted) -> Mapping[str, Any]:
    spec = event.job
    return {"user": spec.user, "tenant": spec.tenant, "queue": spec.queue, "gpus": spec.gpus}
