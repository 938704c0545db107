"""Whether a store can be trusted: nothing missing, nothing changed, decided as was answered."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import sqlalchemy as sa

from wattherd.errors import Bug, UserError
from wattherd.service.live.blueprint import Blueprint
from wattherd.service.live.draw import DrawBook
from wattherd.service.live.frozen import Frozen, Unfit, thaw
from wattherd.service.live.replay import Lived, Replay, settings_of
from wattherd.service.live.scribe import Scribe, answer_row
from wattherd.store.entry import Entry
from wattherd.store.snapshots import Snapshot
from wattherd.store.store import Store
from wattherd.store.tables import ANSWERS

BATCH = 1_000


@dataclass(slots=True)
class Verdict:
    """What was looked at, and all that is wrong with it."""

    entries: int = 0
    answers: int = 0
    snapshots: int = 0
    rebuilt: bool = False
    problems: list[str] = field(default_factory=list)


def verify(store: Store, *, rebuild: bool = False) -> Verdict:
    """Read the whole journal, live it through, and compare; with `rebuild` project it anew.

    Raises:
        UserError: it is not the kind of store that can be lived through.
        StoreFailure: it cannot be read, or not be written.
    """
    verdict = Verdict(rebuilt=rebuild)
    settings = settings_of(store.snapshots)
    if not settings:
        return verdict
    snapshots = {one.seq: one for one in store.snapshots.newest()}
    try:
        replay = _beginning(store, settings, snapshots)
        known = _Known(store, verdict, snapshots)
        scribe = _scribe(store, replay) if rebuild else None
        last = store.journal.last_seq
        entries = store.journal.entries(replay.state.standing.seq)
        for number, lived in enumerate(_to(replay, entries, last), start=1):
            verdict.entries += 1
            known.compare(lived, replay)
            if scribe is not None:
                scribe.told([(lived.entry, lived.commands)], lived.touched)
                if number % BATCH == 0:
                    _write(scribe)
        if scribe is not None:
            _write(scribe)
    except (UserError, Unfit, Bug) as error:
        verdict.problems.append(str(error))
    return verdict


def _to(replay: Replay, entries: Iterator[Entry], last: int) -> Iterator[Lived]:
    """What a running service adds meanwhile is left out."""
    return replay.live(takewhile(lambda entry: entry.seq <= last, entries))


def _beginning(
    store: Store, settings: list[tuple[int, Blueprint]], snapshots: dict[int, Snapshot]
) -> Replay:
    base = store.journal.base()
    if base.seq == 1:
        return Replay(settings)
    if base.seq not in snapshots:
        raise UserError(f"the snapshot of entry {base.seq}, with which it begins, is missing")
    return Replay(settings, snapshots[base.seq])


def _scribe(store: Store, replay: Replay) -> Scribe:
    """Joules follow from no entry: they are kept."""
    energy_j = store.projection.energy_j()
    store.projection.forget(replay.state.standing.seq)
    return Scribe(store.projection, deque(), DrawBook(energy_j=energy_j))


def _write(scribe: Scribe) -> None:
    if not scribe.write():
        raise UserError(f"cannot be projected: {scribe.problem}")


class _Known:
    """What was noted when it happened."""

    def __init__(self, store: Store, verdict: Verdict, snapshots: dict[int, Snapshot]) -> None:
        self._store, self._verdict, self._snapshots = store, verdict, snapshots
        self._noted_to = store.projection.projected()
        self._page: dict[int, str] = {}
        self._page_to = 0

    def compare(self, lived: Lived, replay: Replay) -> None:
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

    def _compare_snapshot(self, snapshot: Snapshot, replay: Replay) -> None:
        self._verdict.snapshots += 1
        try:
            config = replay.blueprint.core_config(replay.scheduler)
            found = thaw(snapshot.body, config)
        except Unfit as unfit:
            self._verdict.problems.append(f"snapshot of entry {snapshot.seq} {unfit}")
            return
        if not snapshot.sound or _essence(found) != _essence(replay.frozen()):
            self._verdict.problems.append(f"snapshot of entry {snapshot.seq} is of another state")


def _essence(state: Frozen) -> object:
    """What two equal states have in common, whatever they have looked up meanwhile."""
    core = state.core
    jobs = {
        job.id: (job.state, job.attempt, job.allocations, job.cap_w, job.progress, job.failures)
        for job in core.jobs.values()
    }
    return jobs, core.finished, core.watts.budget_w, state.standing, state.live, state.submitted
