"""Follows the journal and has notifications sent, each at least once.

What is to be told follows from the entries and the core's answers to them, which the store keeps.
So only a position is kept: the last entry of which all notifications are settled, sent or given up.
A service that was killed goes on from there; what had been sent beyond it is sent again, with the
same `id`. Nothing of this is waited for by anybody: a receiver that is silent holds up itself.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wattherd.errors import UserError
from wattherd.model.event import JobExited, JobStarted
from wattherd.server.documents.documents import time_of
from wattherd.server.journal.job_history import JobHistory
from wattherd.server.notify.channels import Channels, NotSent
from wattherd.server.periodic import PeriodicThread
from wattherd.store.entry import JournalEntry, StoreFailure
from wattherd.store.store import ClusterStore

# --- From entries of the journal and the core's answers to them: what users want to hear of.

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


PERIOD_S = 0.5
POSITION = "notified"
"""The fact that holds the position."""
AT_ONCE, MOST_WAITING, MOST_PROBLEMS = 8, 10_000, 1_000
AT_ONCE_OF_ONE, MOST_OF_ONE = 4, 1_000
"""The same for one user, whose receivers may all be silent."""
ENTRIES = 2_000
"""Read at a time."""
KEEP_S = 10.0
"""Between two writings of the position where nothing was to be told."""
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Before a notification is tried again; the last one counts from then on."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Delivery:
    """One notification on one way."""

    notice: JobNotice
    kind: str
    target: str
    document: Mapping[str, Any]
    began_s: float = field(default_factory=time.monotonic)
    tries: int = 0
    next_s: float = 0.0

    @property
    def place(self) -> str:
        """Whom one waits for: no two are sent there at once."""
        # Without the port: one machine has thousands, and is waited for at one of them.
        host = urlsplit(self.target).hostname if self.kind == "webhook" else None
        return f"{self.kind} {(host or '').rstrip('.')}".strip()

    @property
    def owner(self) -> tuple[str, str]:
        """Tenant and user of the job."""
        return self.document["job"]["tenant"], self.document["job"]["user"]


class Notifier(PeriodicThread):
    """Tells users; `problems` are what could not be sent, by job, for people to see."""

    def __init__(
        self, store: ClusterStore, history: JobHistory, channels: Channels, epoch: float
    ) -> None:
        """Nothing is sent before `begin`; without a position, what is in the journal is not told.

        Raises:
            StoreFailure: the store cannot be read or written.
        """
        super().__init__("notifier", PERIOD_S)
        self._store, self._history, self._channels = store, history, channels
        self._epoch = epoch
        last = store.journal.last_seq
        known = int(store.journal.fact(POSITION, str(last)))
        base = store.journal.base().seq - 1
        self._kept = self._read = max(base, min(known, last))
        self._found = last
        """Entries up to here are read in any case: they may be of jobs that are archived."""
        self._kept_s = -KEEP_S
        self.notes: tuple[str, ...] = ()
        """What is to be said when the service starts."""
        if known > last:
            self.notes = ("notifications: the store is older than what was told; some come again",)
        elif self._kept < last and self._due():
            entry = self._kept + 1
            self.notes = (f"notifications from entry {entry} on may come twice (with the same id)",)
        self._waiting: list[_Delivery] = []
        self._waits = ""
        """Why nothing can be taken or noted at the moment."""
        self._held: dict[tuple[str, str], int] = {}
        """Users of whom enough waits, each with the last entry that was read for them."""
        self._busy: dict[str, _Delivery] = {}
        self._done: list[tuple[_Delivery, NotSent | None]] = []
        self._lock = threading.Lock()
        self.problems: dict[str, str] = {}

    def _due(self) -> bool:
        """Whether anything beyond the position was to be told, as far as can be seen at once."""
        entries = itertools.islice(self._store.journal.entries(self._kept), ENTRIES)
        return any((one.paper or {}).get("notify") for one in entries) or any(
            past.paper.get("notify") for past in list(self._history.jobs.values())
        )

    def look(self) -> None:
        """Take what is new, send what is due, note what came of it."""
        try:
            self._settle()
            self._take()
            self._dispatch()
            self._keep()
        except (StoreFailure, UserError) as failure:
            if str(failure) != self._waits:  # not every round: the log may be on the full disk
                _LOG.warning("notifications wait: %s", failure)
            self._waits = str(failure)
        else:
            self._waits = ""

    # What is to be told -------------------------------------------------------------------------

    def _take(self) -> None:
        if len(self._waiting) >= MOST_WAITING:
            return
        self._read = self._taken(self._read, self._store.projection.projected())
        counts = Counter(one.owner for one in self._waiting)
        for owner, last in self._held.items():
            if counts[owner] <= MOST_OF_ONE // 2:
                reached = self._taken(last, self._read, owner)
                del self._held[owner]
                if reached < self._read:
                    self._held[owner] = reached  # at the end: others' turn comes first
                return

    def _taken(self, after: int, until: int, owner: tuple[str, str] | None = None) -> int:
        """Take what entries tell everybody who is not held, or one user; the last entry read.

        Raises:
            StoreFailure: an entry cannot be read; then nothing is taken.
        """
        until = min(until, after + ENTRIES)
        if until <= after:
            return after
        if after >= self._found and not self._history.notified:
            return until  # reading an entry costs a query and a digest, for nobody
        after = max(after, self._store.journal.base().seq - 1)
        counts = Counter(one.owner for one in self._waiting)
        answers = self._store.projection.answers(after, until)
        held = {} if owner else dict(self._held)
        fresh: list[_Delivery] = []
        for entry in self._store.journal.entries(after):
            if entry.seq > until:
                break
            notices = notices_of(entry, answers.get(entry.seq, ()))
            found = [one for notice in notices for one in self._deliveries(notice)]
            wanted = [one for one in found if owner in (None, one.owner)]
            # All of an entry or nothing, since it would be read again as a whole.
            full = {one.owner for one in wanted if counts[one.owner] >= MOST_OF_ONE}
            if owner in full:
                until = entry.seq - 1
                break
            for one in full:
                held.setdefault(one, entry.seq - 1)
            taken = [one for one in wanted if one.owner not in held]
            fresh.extend(taken)
            counts.update(one.owner for one in taken)
        self._waiting.extend(fresh)
        if owner is None:
            self._held = held
        return until

    def _deliveries(self, notice: JobNotice) -> list[_Delivery]:
        past = self._history.get(notice.job_id)
        wish = None if past is None else past.paper.get("notify")
        if past is None or not wish or notice.what not in wish["on"]:
            return []
        spec, url = past.spec, self._channels.settings.url.rstrip("/")
        document = {
            "schema": SCHEMA,
            "id": f"{self._store.journal.identity()[:8]}-{notice.id}",
            "what": notice.what,
            "at": time_of(self._epoch, notice.at_s),
            "job": {"id": spec.id, "name": past.paper.get("name", ""), "user": spec.user,
                    "tenant": spec.tenant, "queue": spec.queue},
            "attempt": notice.attempt,
            "exit_code": notice.exit_code,
            "why": notice.why,
            "url": f"{url}/jobs/{spec.id}" if url else "",
        }  # fmt: skip
        ways = (("webhook", wish.get("webhook")), ("email", wish.get("email")))
        return [_Delivery(notice, kind, to, document) for kind, to in ways if to]

    # Sending ------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        now_s = time.monotonic()
        busy = Counter(one.owner for one in self._busy.values())
        for one in self._waiting:
            if len(self._busy) >= AT_ONCE:
                return
            if one.next_s > now_s or one.place in self._busy:
                continue
            if busy[one.owner] >= AT_ONCE_OF_ONE:
                continue
            busy[one.owner] += 1
            self._busy[one.place] = one
            # Not of a pool, which would be waited for at the end of the program.
            send = threading.Thread(target=self._send, args=(one,), name="notify", daemon=True)
            try:
                send.start()
            except RuntimeError:  # no more threads can be had now
                del self._busy[one.place]
                return

    def _send(self, one: _Delivery) -> None:
        outcome: NotSent | None = None
        try:
            self._channels.send(one.kind, one.target, one.document)
        except NotSent as failure:
            outcome = failure
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing else waits for it
            _LOG.exception("a notification of %s cannot be sent", one.notice.job_id)
            outcome = NotSent(str(error), final=True)
        with self._lock:
            self._done.append((one, outcome))

    def _settle(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        if done:
            self._kept_s = -KEEP_S  # the position is written in this round
        for one, failure in done:
            self._busy.pop(one.place, None)
            if failure is None:
                self._waiting.remove(one)
                self.problems.pop(one.notice.job_id, None)
            else:
                self._put_off(one, failure)

    def _put_off(self, one: _Delivery, failure: NotSent) -> None:
        now_s = time.monotonic()
        late = now_s - one.began_s >= self._channels.settings.give_up_s
        one.next_s = now_s + PAUSES_S[min(one.tries, len(PAUSES_S) - 1)]
        one.tries += 1
        what = f"notification {one.notice.what!r} by {one.place} was not sent: {failure}"
        if failure.final or late:
            self._waiting.remove(one)
            what = f"{what}; given up"
            _LOG.warning("%s: %s", one.notice.job_id, what)
        else:
            what = f"{what}; tried again"
        self.problems.pop(one.notice.job_id, None)
        self.problems[one.notice.job_id] = what
        while len(self.problems) > MOST_PROBLEMS:
            self.problems.pop(next(iter(self.problems)))

    def _keep(self) -> None:
        """Write the position down: at once where something was settled, else now and then."""
        oldest = min((one.notice.number for one in self._waiting), default=self._read + 1)
        settled = min(oldest - 1, self._read, *self._held.values())
        now_s = time.monotonic()
        if settled > self._kept and now_s >= self._kept_s + KEEP_S:
            self._store.journal.set_fact(POSITION, str(settled))
            self._kept, self._kept_s = settled, now_s
