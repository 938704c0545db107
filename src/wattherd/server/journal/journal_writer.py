"""The register: numbers what is to happen, writes it to the journal, and lines it up for the core.

Whoever writes next, the thread that takes wishes or the one that runs the core, does so in one
order: what has the lower number was written before, and happens before. Writing waits for the disk
alone, never for a decision, and many wishes are written with one commit.

What users want fails if the journal cannot take it: nothing is acknowledged that a crash could
lose. Facts of the world cannot be refused; they stay here until the journal takes them. Where a
connection is lost in the middle of a commit, the journal is read again before anything else is
written, and what it kept after all is lined up, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.model.event import Event, JobSubmitted
from wattherd.server.journal.contract import JournalLog, JournalTime
from wattherd.server.journal.replay_state import ReplayState, request_of
from wattherd.store.entry import JournalEntry, StoreDoubt, StoreFailure
from wattherd.workload.job_array import array_id


@dataclass(frozen=True, slots=True)
class WishPart:
    """One of several events that somebody asks for together, and its paper."""

    event: Event
    paper: Mapping[str, Any] | None = None


@dataclass(slots=True)
class EventWish:
    """An event that somebody asks for; `done` gets the id of the job it is about, or an error.

    With `more` all of them are written in one commit, or none is: the tasks of an array have
    consecutive ids, and an array's id is made of the first one. `done` is told of the first event.

    That is once it has happened. A submission is done as soon as it is on disk, however long the
    core thinks; its event then has the job's id and time. `again` says that an earlier submission
    with the same key stands for it. `told` gets what `then` makes of the core and the job's id once
    the event has happened; nothing if that was earlier.
    """

    event: Event
    by: str
    paper: Mapping[str, Any] | None = None
    done: Future[str] = field(default_factory=Future)
    again: bool = False
    then: Callable[[Core, str], Any] | None = None
    told: Future[Any] = field(default_factory=Future)
    more: Sequence[WishPart] = ()

    def fulfil(self, job_id: str) -> None:
        """Tell whoever still waits."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_result(job_id)

    def repeat(self, job_id: str) -> None:
        """An earlier submission stands for this one."""
        self.again = True
        self.fulfil(job_id)
        with contextlib.suppress(InvalidStateError):
            self.told.set_result(None)

    def tell(self, core: Core) -> None:
        """Say what has become of it, if somebody wants to know."""
        if self.then is None or not self.told.set_running_or_notify_cancel():
            return
        try:
            self.told.set_result(self.then(core, self.done.result()))
        except Exception as error:  # noqa: BLE001 - it is the asker's, who gets it
            self.told.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """Tell whoever still waits."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)
        with contextlib.suppress(InvalidStateError):
            self.told.set_exception(error)


@dataclass(frozen=True, slots=True)
class LinedEntry:
    """An entry that is on disk and has not happened yet, and whom to tell when it has."""

    entry: JournalEntry
    wish: EventWish | None = None


def _nothing_due(now_s: float) -> Sequence[Event]:
    del now_s
    return ()


class JournalWriter:
    """Writes for one core; every method may be called from any thread."""

    def __init__(self, journal: JournalLog, clock: JournalTime, standing: ReplayState) -> None:
        """Go on after what `standing` knows; see `stand`."""
        self.problem = ""
        """Why the journal takes nothing at the moment; empty if it does."""
        self.facts: list[Event] = []
        """What has happened in the world and is not on disk yet."""
        self.in_doubt = False
        """Whether the journal may hold more than is known here."""
        self._doubted = 0
        """How many of the facts are then in it already."""
        self._journal, self._clock, self._standing = journal, clock, standing
        self._writing = threading.Lock()
        self._lines: deque[LinedEntry] = deque()
        self._promised: dict[tuple[str, str], str] = {}
        """Job ids by request, where the core has not heard of the job yet."""
        self.stand()

    def stand(self) -> None:
        """Number what comes from where the core stands now."""
        self._seq, self._number = self._standing.seq, self._standing.submitted

    def taken(self) -> list[LinedEntry]:
        """All that is lined up, in order; it is the caller's to make it happen."""
        taken: list[LinedEntry] = []
        while self._lines:
            taken.append(self._lines.popleft())
        return taken

    def happened(self, line: LinedEntry, core: Core) -> None:
        """The core has heard of it."""
        request = request_of(line.entry.by, line.entry.paper)
        if request is not None:
            self._promised.pop(request, None)
        if line.wish is not None:
            line.wish.fulfil(about(line.wish.event))
            line.wish.tell(core)

    def write(
        self,
        wishes: Sequence[EventWish],
        *,
        facts: bool = False,
        due: Callable[[float], Sequence[Event]] = _nothing_due,
    ) -> None:
        """Write wishes, `facts` that wait to be written, and what is `due` at the time.

        Submissions are done when this returns, and so is what could not be written.
        """
        with self._writing:
            try:
                self._settle()
                now_s = self._clock.now_s()
                wishes = self._numbered(self._new(wishes), now_s)
                told = self.facts[:] if facts else []
                entries = self._entries([*told, *due(now_s)], wishes, now_s)
                self._append(entries, len(told))
            except StoreFailure as failure:
                self.problem = str(failure)
                for wish in wishes:
                    wish.fail(failure)
                return
            self.problem = ""
            del self.facts[: len(told)]
            self._line_up(entries, wishes)

    def try_again(self) -> None:
        """Find out whether the journal takes something by now, though there is nothing to write."""
        with self._writing:
            try:
                self._journal.check_writable()
            except StoreFailure as failure:
                self.problem = str(failure)
            else:
                self.problem = ""

    def _settle(self) -> None:
        """What the journal kept although it could not say so is to happen."""
        if not self.in_doubt:
            return
        kept = self._journal.settle()
        if kept:
            del self.facts[: self._doubted]
            self._line_up(kept, ())
        self._doubted, self.in_doubt = 0, False

    def _new(self, wishes: Sequence[EventWish]) -> list[EventWish]:
        """Wishes that were not fulfilled before; the others get the same answer."""
        found: list[EventWish] = []
        asked: dict[tuple[str, str], EventWish] = {}
        for wish in wishes:
            request = request_of(wish.by, wish.paper)
            known = None if request is None else self._known(request)
            if known is not None:
                wish.repeat(known)
            elif request is not None and request in asked:
                _answer_alike(asked[request], wish)
            else:
                found.append(wish)
                if request is not None:
                    asked[request] = wish
        return found

    def _known(self, request: tuple[str, str]) -> str | None:
        """The job of a request; the promise is looked at first, as it is dropped last."""
        return self._promised.get(request) or self._standing.requests.get(request)

    def _numbered(self, wishes: Sequence[EventWish], now_s: float) -> list[EventWish]:
        """The same at their time, new jobs with their ids; what cannot have its own is refused."""
        found: list[EventWish] = []
        number = self._number + 1
        for wish in wishes:
            try:
                wish.event = _numbered(wish.event, number, number, now_s)
                wish.more = [
                    replace(part, event=_numbered(part.event, number + at, number, now_s))
                    for at, part in enumerate(wish.more, start=1)
                ]
            except UserError as error:  # it waits for itself, as nobody knew before
                wish.fail(error)
                continue
            if isinstance(wish.event, JobSubmitted):
                number += 1 + len(wish.more)
            found.append(wish)
        return found

    def _entries(
        self, facts: Sequence[Event], wishes: Sequence[EventWish], now_s: float
    ) -> list[JournalEntry]:
        seq = self._seq
        entries = [
            JournalEntry(seq=seq + i, event=replace(event, at_s=now_s), by="system")
            for i, event in enumerate(facts, start=1)
        ]
        for wish in wishes:
            for part in (WishPart(wish.event, wish.paper), *wish.more):
                number = seq + len(entries) + 1
                entries.append(
                    JournalEntry(seq=number, event=part.event, by=wish.by, paper=part.paper)
                )
        return entries

    def _append(self, entries: Sequence[JournalEntry], facts: int) -> None:
        if not entries:
            return
        try:
            self._journal.append(entries)
        except StoreDoubt:
            self._doubted, self.in_doubt = facts, True
            raise

    def _line_up(self, entries: Sequence[JournalEntry], wishes: Sequence[EventWish]) -> None:
        """In order; the wishes are those of the last entries. Submissions are done by it."""
        last: dict[int, EventWish] = {}
        end = len(entries)
        for wish in reversed(wishes):  # it has happened when the last of its events has
            last[end - 1] = wish
            end -= 1 + len(wish.more)
        for place, entry in enumerate(entries):
            self._seq = entry.seq
            if isinstance(entry.event, JobSubmitted):
                self._promise(entry, entry.event.job.id)
            self._lines.append(LinedEntry(entry, last.get(place)))
        for wish in wishes:
            if isinstance(wish.event, JobSubmitted):
                wish.fulfil(wish.event.job.id)

    def _promise(self, entry: JournalEntry, job_id: str) -> None:
        self._number += 1
        request = request_of(entry.by, entry.paper)
        if request is not None:
            self._promised.setdefault(request, job_id)


def _numbered(event: Event, number: int, first: int, now_s: float) -> Event:
    """At its time; a new job with its id, a task with that of its array, by the first of them."""
    if not isinstance(event, JobSubmitted):
        return replace(event, at_s=now_s)
    job = event.job
    array = array_id(first) if job.array else ""
    due_s = None if job.deadline_s is None else now_s + job.deadline_s
    job = replace(job, id=f"j-{number}", submit_s=now_s, deadline_s=due_s, array=array)
    return replace(event, at_s=now_s, job=job)


def about(event: Event) -> str:
    """The id of the job that an event is about, if it is about one."""
    if isinstance(event, JobSubmitted):
        return event.job.id
    return str(getattr(event, "job_id", ""))


def _answer_alike(first: EventWish, twin: EventWish) -> None:
    """`twin` gets the answer of `first`."""

    def tell(done: Future[str]) -> None:
        error = done.exception()
        if error is None:
            twin.repeat(done.result())
        else:
            twin.fail(error)

    first.done.add_done_callback(tell)
