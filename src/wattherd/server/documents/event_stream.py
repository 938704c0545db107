"""What happens at a site, as it happens, for whoever listens: jobs, watts, budgets, decisions.

Follows journal and answers turn by turn, and the meter sample by sample; the last happenings are
kept, so that who was cut off can go on where it was. A listener that does not keep up is let go
and told so: nobody who decides ever waits for somebody who listens. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.model.command import Command, WakeAt
from wattherd.model.event import BudgetAnnounced, BudgetChanged, Event, JobProgressed, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.server.documents.documents import OPERATORS, SHOWN_STATES
from wattherd.server.hardware.draw import DrawSample
from wattherd.server.journal.job_history import JobHistory
from wattherd.server.journal.timeline import order_line
from wattherd.store.entry import JournalEntry

KEPT = 10_000
"""Happenings that can be gone back to."""
MOST_WAITING = 1_000
"""Happenings that a listener may leave lying about."""
MOST_LISTENERS = 200
MARK = 8
"""Hexadecimal digits of a digest that stand in the id of an event."""
Turn = tuple[JournalEntry, Sequence[Command]]
Place = tuple[int, int]
"""A number of the journal, and which of the happenings of its turn."""


def _no_digest(seq: int) -> str:
    del seq
    return ""


class HappeningKind(StrEnum):
    """What a happening is about."""

    JOB = "job"
    POWER = "power"
    BUDGET = "budget"
    DECISION = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """`told` is plain data; times in it are seconds of the journal, under `at_s`.

    Without a `place` it is of the moment, and not kept; `mark` is the beginning of that entry's
    digest, so that places in another journal are told apart. `spec` is the job's it is about,
    `specs` those of the jobs that draw.
    """

    kind: HappeningKind
    told: Mapping[str, Any]
    place: Place | None = None
    mark: str = ""
    spec: JobSpec | None = None
    specs: Mapping[str, JobSpec] = field(default_factory=dict)


class StreamListener:
    """Takes happenings in its own event loop; made by `EventStream.listen`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing has happened yet."""
        self.slow = False
        """Whether it was let go because it did not keep up."""
        self.over = False
        """Whether nothing more will come."""
        self._loop = loop
        self._news = asyncio.Event()
        self._waiting: deque[Happening] = deque()

    def put(self, happenings: Iterable[Happening]) -> None:
        """From any thread."""
        self._waiting.extend(happenings)
        if len(self._waiting) > MOST_WAITING:
            self.slow = self.over = True
            self._waiting.clear()
        self.wake()

    def end(self) -> None:
        """Nothing more comes."""
        self.over = True
        self.wake()

    def wake(self) -> None:
        """Have it look; where its loop is closed already, nobody is there to look."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def next(self, patience_s: float) -> list[Happening]:
        """What has happened since the last call; empty if nothing does for so long."""
        if not self._waiting and not self.over:
            try:
                async with asyncio.timeout(patience_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        self._news.clear()
        found: list[Happening] = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found


class EventStream:
    """One site's happenings. `told` and `sampled` are called by who makes them happen."""

    def __init__(
        self, core: Core, history: JobHistory, seq: int, digest: Callable[[int], str] = _no_digest
    ) -> None:
        """From after entry `seq` of the journal on, of whose entries `digest` tells the digests."""
        self._core, self._history, self._digest = core, history, digest
        self._last = seq
        """The last entry that was told."""
        self._kept: deque[Happening] = deque(maxlen=KEPT)
        self._before: Place = (seq, 0)
        """Where the last happening was that is not kept."""
        self._states: dict[str, str] = {job.id: _shown(job.state) for job in core.jobs.values()}
        self._listeners: list[StreamListener] = []
        self._changing = threading.Lock()

    # From who makes it happen -------------------------------------------------------------------

    def told(self, turns: Sequence[Turn]) -> None:
        """A turn has been taken: its entries, and what the core answered to each."""
        made: list[Happening] = []
        touched: dict[str, None] = {}
        for entry, commands in turns:
            made.extend(_of_entry(entry, commands, len(made)))
            touched.update(dict.fromkeys(_jobs_of(entry.event, commands)))
        for job_id in touched:
            last = turns[-1][0]
            made.extend(self._moved(job_id, last.event.at_s, (last.seq, len(made))))
        marks = {one.place[0]: "" for one in made if one.place}
        marks = {seq: self._digest(seq)[:MARK] for seq in marks}
        self._last = turns[-1][0].seq if turns else self._last
        self._publish([replace(one, mark=marks.get((one.place or (0,))[0], "")) for one in made])

    def sampled(self, sample: DrawSample) -> None:
        """Watts were taken."""
        known = {job_id: self._history.jobs.get(job_id) for job_id in sample.by_job}
        specs = {job_id: past.spec for job_id, past in known.items() if past is not None}
        told = {
            "at_s": sample.at_s,
            "draw_w": sample.draw_w,
            "budget_w": sample.budget_w,
            "stated": sample.stated,
            "by_job": dict(sample.by_job),
        }
        self._publish([Happening(kind=HappeningKind.POWER, told=told, specs=specs)])

    def _moved(self, job_id: str, at_s: float, place: Place) -> Iterable[Happening]:
        """A job that is in another state than was told last, or in another run."""
        now = self._now(job_id)
        before = self._states.get(job_id)
        if now is None or now[1] == before:
            return
        spec, state, attempt, exit_code = now
        if job_id in self._core.jobs:
            self._states[job_id] = state
        else:
            self._states.pop(job_id, None)
        told = {
            "at_s": at_s,
            "id": job_id,
            "user": spec.user,
            "tenant": spec.tenant,
            "queue": spec.queue,
            "from": before,
            "state": state,
            "attempt": attempt,
            "exit_code": exit_code,
        }
        yield Happening(kind=HappeningKind.JOB, told=told, place=place, spec=spec)

    def _now(self, job_id: str) -> tuple[JobSpec, str, int, int | None] | None:
        """What a job is, its state, attempt, and exit code; None of one that left memory."""
        record = self._core.jobs.get(job_id)
        if record is not None:
            return record.spec, _shown(record.state), record.attempt, None
        past = self._history.jobs.get(job_id)
        return None if past is None else (past.spec, past.state, past.attempts, past.exit_code)

    def _publish(self, made: Sequence[Happening]) -> None:
        if not made:
            return
        with self._changing:
            for one in made:
                if one.place is not None:
                    self._last = max(self._last, one.place[0])
                    if len(self._kept) == KEPT:
                        self._before = self._kept[0].place or self._before
                    self._kept.append(one)
            for listener in self._listeners:
                listener.put(made)
            self._listeners = [one for one in self._listeners if not one.over]

    # From who listens ---------------------------------------------------------------------------

    def listen(
        self, after: Place | None, loop: asyncio.AbstractEventLoop
    ) -> tuple[StreamListener, list[Happening], bool] | None:
        """A listener, what happened after a place, and whether all of that is still known.

        Without a place the past is left out. A place beyond the end is of another journal, of which
        nothing is known. None if there are too many listeners.
        """
        with self._changing:
            if len(self._listeners) >= MOST_LISTENERS:
                return None
            ahead = after is not None and after[0] > self._last
            whole = after is None or (after >= self._before and not ahead)
            missed = [one for one in self._kept if after and one.place and one.place > after]
            listener = StreamListener(loop)
            self._listeners.append(listener)
            return listener, missed, whole

    def leave(self, listener: StreamListener) -> None:
        """It listens no more."""
        with self._changing:
            self._listeners = [one for one in self._listeners if one is not listener]

    def end(self) -> None:
        """Let all listeners go."""
        with self._changing:
            listeners, self._listeners = self._listeners, []
        for one in listeners:
            one.end()


def _shown(state: Any) -> str:
    return SHOWN_STATES.get(state, str(state))


def _jobs_of(event: Event, commands: Sequence[Command]) -> Iterable[str]:
    """Jobs whose state may have changed."""
    if isinstance(event, JobSubmitted):
        yield event.job.id
    elif not isinstance(event, JobProgressed) and hasattr(event, "job_id"):
        yield event.job_id
    for command in commands:
        job_id = getattr(command, "job_id", None)
        if job_id is not None:
            yield job_id


def _of_entry(entry: JournalEntry, commands: Sequence[Command], count: int) -> Iterable[Happening]:
    event = entry.event
    if isinstance(event, BudgetChanged | BudgetAnnounced):
        begins_s = event.begins_s if isinstance(event, BudgetAnnounced) else event.at_s
        told = {
            "at_s": event.at_s,
            "begins_s": begins_s,
            "budget_w": event.budget_w,
            "domain": event.domain,
            "source": event.source or OPERATORS,
        }
        yield Happening(kind=HappeningKind.BUDGET, told=told, place=(entry.seq, count))
        count += 1
    orders = [order_line(one) for one in commands if not isinstance(one, WakeAt)]
    if orders:
        decided: dict[str, Any] = {
            "at_s": event.at_s,
            "number": entry.seq,
            "cause": type(event).__name__,
            "by": entry.by,
            "orders": orders,
        }
        yield Happening(kind=HappeningKind.DECISION, told=decided, place=(entry.seq, count))
