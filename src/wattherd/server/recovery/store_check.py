"""Whether a store can be trusted: nothing missing, nothing changed, decided as was answered."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import sqlalchemy as sa

from wattherd.errors import Bug, UserError
from wattherd.server.hardware.draw import DrawBook
from wattherd.server.journal.snapshot_codec import FrozenState, OtherVersion, UnusableSnapshot, thaw
from wattherd.server.recovery.projector import BILL, Projector, answer_row
from wattherd.server.recovery.recovery import take_bills
from wattherd.server.recovery.replay import WHOLE_AGAIN, JournalReplay, ReplayedEntry, settings_of
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.energy_rates import bill_of
from wattherd.store.entry import StoreFailure
from wattherd.store.snapshots import StateSnapshot
from wattherd.store.store import ClusterStore
from wattherd.store.tables import ANSWERS

BATCH = 1_000


@dataclass(slots=True)
class StoreVerdict:
    """What was looked at, and all that is wrong with it."""

    entries: int = 0
    answers: int = 0
    snapshots: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be compared, and is no sign of damage."""


def verify(store: ClusterStore, head: str | None = None) -> StoreVerdict:
    """Read the whole journal, live it through, and compare with what was answered and kept then.

    Its end is compared with what was noted outside of it. An entry with the digest `head`, or one
    that begins like this, must be among the entries.

    Raises:
        UserError: it is not the kind of store that can be lived through.
        StoreFailure: it cannot be read.
    """
    verdict = StoreVerdict()
    _compare_end(store, verdict, head)
    settings = settings_of(store.snapshots)
    if not settings:
        return verdict
    snapshots = {one.seq: one for one in store.snapshots.newest()}
    try:
        replay = _beginning(store, settings, snapshots)
        known = _Known(store, verdict, snapshots)
        for lived in _to(replay, store):
            verdict.entries += 1
            known.compare(lived, replay)
    except (UserError, UnusableSnapshot, Bug) as error:
        verdict.problems.append(str(error))
    return verdict


def _compare_end(store: ClusterStore, verdict: StoreVerdict, head: str | None) -> None:
    """First of all: a service may add entries meanwhile, and notes of them."""
    try:
        problem = store.journal.end_problem()
    except UserError as error:
        problem = error.line()
    if problem:
        verdict.problems.append(problem)
    if head and not store.journal.holds(head):
        verdict.problems.append(f"no entry has the digest {head}: it is missing, or was changed")


def rebuild(store: ClusterStore) -> None:
    """Make the list of jobs and the audit anew from a sound journal.

    Joules follow from no entry: they are kept.

    Raises:
        UserError: the journal is not sound.
        StoreFailure: the store cannot be written.
    """
    snapshots = {one.seq: one for one in store.snapshots.newest()}
    replay = _beginning(store, settings_of(store.snapshots), snapshots)
    energy_j = store.projection.energy_j()
    store.projection.forget(replay.state.standing.seq)
    book = DrawBook(energy_j=energy_j)
    site = bill_of(store.journal.known_fact(BILL))
    if site is not None:
        book.site_bill, book.currency = site
    take_bills(book, store.projection.bills())
    scribe = Projector(store.projection, deque(), book)
    for number, lived in enumerate(_to(replay, store), start=1):
        scribe.told([(lived.entry, lived.commands)], lived.touched)
        if number % BATCH == 0:
            _write(scribe)
    _write(scribe)


def _to(replay: JournalReplay, store: ClusterStore) -> Iterator[ReplayedEntry]:
    """All that follows; what a running service adds meanwhile is left out."""
    last = store.journal.last_seq
    entries = store.journal.entries(replay.state.standing.seq)
    return replay.live(takewhile(lambda entry: entry.seq <= last, entries))


def _beginning(
    store: ClusterStore, settings: list[tuple[int, Blueprint]], snapshots: dict[int, StateSnapshot]
) -> JournalReplay:
    base = store.journal.base()
    if base.seq == 1:
        return JournalReplay(settings)
    if base.seq not in snapshots:
        raise UserError(f"the journal begins at entry {base.seq}, and its snapshot is missing")
    try:
        return JournalReplay(settings, snapshots[base.seq])
    except OtherVersion as other:
        problem = f"the journal begins at entry {base.seq}, and its snapshot {other}"
        raise UserError(f"{problem}; {WHOLE_AGAIN}", hint=WHOLE_AGAIN) from None


def _write(scribe: Projector) -> None:
    if not scribe.write():
        raise StoreFailure(scribe.problem)


class _Known:
    """What was noted when it happened."""

    def __init__(
        self, store: ClusterStore, verdict: StoreVerdict, snapshots: dict[int, StateSnapshot]
    ) -> None:
        self._store, self._verdict, self._snapshots = store, verdict, snapshots
        self._noted_to = store.projection.projected()
        self._page: dict[int, str] = {}
        self._page_to = 0

    def compare(self, lived: ReplayedEntry, replay: JournalReplay) -> None:
        """One answer, and the snapshot after it."""
        seq = lived.entry.seq
        if seq <= self._noted_to:
            row = answer_row(lived.entry, lived.commands)
            noted = self._answer(seq)
            self._verdict.answers += noted is not None
            if noted != (None if row is None else json.loads(row["commands"])):
                self._verdict.problems.append(f"entry {seq} is answered differently now")
        if seq in self._snapshots:
            self._compare_snapshot(self._snapshots[seq], replay)

    def _answer(self, seq: int) -> object:
        if seq > self._page_to:
            self._page_to = seq + BATCH
            between = ANSWERS.c.seq.between(seq, self._page_to)
            query = sa.select(ANSWERS.c.seq, ANSWERS.c.commands).where(between)
            with self._store.database.reading() as connection:
                self._page = {row.seq: row.commands for row in connection.execute(query)}
        noted = self._page.get(seq)
        return None if noted is None else json.loads(noted)

    def _compare_snapshot(self, snapshot: StateSnapshot, replay: JournalReplay) -> None:
        replay.arrive(snapshot.seq, snapshot.setting)
        try:
            config = replay.blueprint.core_config(replay.scheduler)
            found = thaw(snapshot.body, config)
        except OtherVersion as other:
            if snapshot.sound:
                note = f"snapshot of entry {snapshot.seq} {other}: the entries stand for it"
                self._verdict.notes.append(note)
                return
            found = None
        except UnusableSnapshot as unfit:
            self._verdict.problems.append(f"snapshot of entry {snapshot.seq} {unfit}")
            return
        self._verdict.snapshots += 1
        if found is None or not snapshot.sound or _essence(found) != _essence(replay.frozen()):
            self._verdict.problems.append(f"snapshot of entry {snapshot.seq} is of another state")


def _essence(state: FrozenState) -> object:
    """What two equal states have in common, whatever they have looked up meanwhile."""
    core = state.core
    jobs = {
        job.id: (job.state, job.attempt, job.allocations, job.cap_w, job.progress, job.failures)
        for job in core.jobs.values()
    }
    return jobs, core.finished, core.watts.budget_w, state.standing, state.live, state.submitted
