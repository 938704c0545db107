"""A journal lived through once more: with the policy, queues and devices of the time.

A service goes on from the end of it, a snapshot is made of it, and `store verify` compares what is
answered with what was answered then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wattherd import __version__
from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler
from wattherd.model.command import Command
from wattherd.server.journal.job_history import Archive, JobHistory, PastJob
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, UnusableSnapshot, thaw
from wattherd.server.journal.succession import succeed
from wattherd.server.settings.blueprint import Blueprint
from wattherd.store.entry import JournalEntry
from wattherd.store.journal import Journal
from wattherd.store.snapshots import Snapshots, StateSnapshot

WHOLE_AGAIN = (
    "make it whole, then start on that: `wattherd store export later.jsonl.gz`, then"
    " `wattherd store import ARCHIVE later.jsonl.gz --state whole`, with the archive that"
    " `wattherd store compact` wrote"
)
"""What helps where a journal has lost its beginning, and no snapshot can stand for it."""


@dataclass(frozen=True, slots=True)
class ReplayedEntry:
    """An entry, the answer to it, and the jobs it changed, as they are after it."""

    entry: JournalEntry
    commands: Sequence[Command]
    touched: Sequence[PastJob]


@dataclass(frozen=True, slots=True)
class _Setting:
    """How decisions were made after an entry.

    A service may be started with another configuration several times before anything happens: then
    several settings follow the same entry, one taken on after the other. The name is the digest of
    those that follow the entry, up to this one, so that it tells them apart.
    """

    after: int
    blueprint: Blueprint
    name: str


def _named(settings: Sequence[tuple[int, Blueprint]]) -> list[_Setting]:
    texts: dict[int, list[str]] = {}
    named = []
    for after, blueprint in settings:
        so_far = texts.setdefault(after, [])
        so_far.append(blueprint.text())
        name = hashlib.sha256("\n".join(so_far).encode()).hexdigest()
        named.append(_Setting(after, blueprint, name))
    return named


def _setting_of(snapshot: StateSnapshot, settings: Sequence[_Setting]) -> int:
    """By which of the settings that held at its entry a snapshot was made.

    Raises:
        Unfit: by none of them.
    """
    passed = [number for number, one in enumerate(settings) if one.after <= snapshot.seq]
    for number in reversed(passed):
        if settings[number].name == snapshot.setting:
            return number
        if settings[number].after < snapshot.seq:
            break  # none before this one held there
    raise UnusableSnapshot("decisions were made differently then")


class JournalReplay:
    """Stands at an entry of a journal, and goes on from there."""

    def __init__(
        self,
        settings: Sequence[tuple[int, Blueprint]],
        snapshot: StateSnapshot | None = None,
        archive: Archive | None = None,
    ) -> None:
        """Begin at the start, or at a snapshot.

        Raises:
            Unfit: the snapshot is of no use here.
            UserError: a setting is of no use here.
        """
        named = _named(settings)
        first = 0 if snapshot is None else _setting_of(snapshot, named)
        self._ahead = named[first + 1 :]
        self.setting, self.blueprint = named[first].name, named[first].blueprint
        self.scheduler: BuiltScheduler = self.blueprint.scheduler()
        config = self.blueprint.core_config(self.scheduler)
        if snapshot is None:
            self.state = FrozenState(Core(config), ReplayState(), {}, 0)
        else:
            self.state = _usable(snapshot, thaw(snapshot.body, config))
        self.history = JobHistory(
            jobs=self.state.live, archive=archive, submitted=self.state.submitted
        )

    def live(self, entries: Iterable[JournalEntry]) -> Iterator[ReplayedEntry]:
        """Hand the entries that follow to the core, one by one."""
        for entry in entries:
            self.arrive(entry.seq - 1)
            standing, core = self.state.standing, self.state.core
            ((_, commands),) = standing.replay(core, [entry])
            yield ReplayedEntry(entry, commands, self.history.note(entry, commands))

    def arrive(self, seq: int, setting: str | None = None) -> None:
        """Take on the settings that hold after entry `seq`; several only up to `setting`."""
        while self._ahead and self._ahead[0].after <= seq and self.setting != setting:
            following = self._ahead.pop(0)
            self.take_on(following.blueprint)
            self.setting = following.name

    def take_on(self, blueprint: Blueprint) -> list[PastJob]:
        """From here on decisions are made as `blueprint` says; jobs that this ended.

        Raises:
            UserError: no such policy, or one that lacks something.
        """
        before, live = self.blueprint, self.state.core.queues
        self.blueprint = blueprint
        in_force = before if live is None else before.with_queues(live)
        if live is not None and blueprint.text() == in_force.text():
            return []  # the configuration now says what has been in force already
        if any(blueprint.follows_gently(one) for one in (in_force, before)):
            self._go_on(blueprint, anew=blueprint.policy != before.policy)
            return []
        self.scheduler = blueprint.scheduler()
        core = Core(blueprint.core_config(self.scheduler))
        stay = live if blueprint.queues == before.queues else None
        self.state, said = succeed(self.state, core, stay)
        return self.history.overtaken(said, core.now_s)

    def _go_on(self, blueprint: Blueprint, *, anew: bool) -> None:
        """Nothing that runs is touched."""
        scheduler = blueprint.scheduler()
        if anew:
            self.scheduler = scheduler
        self.state.core.go_on_by(blueprint.core_config(scheduler), anew=anew)

    def frozen(self) -> FrozenState:
        """The state, without what is over."""
        return FrozenState.of(self.state.core, self.state.standing, self.history)


def _usable(snapshot: StateSnapshot, state: FrozenState) -> FrozenState:
    if state.standing.seq != snapshot.seq:
        raise UnusableSnapshot(f"is of entry {state.standing.seq}, not {snapshot.seq}")
    return state


def settings_of(snapshots: Snapshots) -> list[tuple[int, Blueprint]]:
    """How decisions were made, from when on; empty for a store that nothing was decided on.

    Raises:
        UserError: a setting was written by another version and cannot be read.
        StoreFailure: they cannot be read.
    """
    try:
        return [(after, Blueprint.read(text)) for after, text in snapshots.settings()]
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise UserError(f"how decisions were made cannot be read: {why}") from None


def resumed(
    journal: Journal,
    snapshots: Snapshots,
    settings: Sequence[tuple[int, Blueprint]],
    archive: Archive | None = None,
    until: int | None = None,
) -> tuple[JournalReplay, list[str]]:
    """A replay from as late as possible, and notes about snapshots that were of no use.

    It begins no later than after entry `until`.

    Raises:
        UserError: the journal has lost its beginning, and no snapshot can stand for it.
        StoreFailure: the store cannot be read.
    """
    notes: list[str] = []
    for snapshot in snapshots.newest():
        if until is not None and snapshot.seq > until:
            continue
        try:
            _check(snapshot, journal)
            return JournalReplay(settings, snapshot, archive), notes
        except UnusableSnapshot as unfit:
            notes.append(f"snapshot of entry {snapshot.seq} is not used: {unfit}")
    base = journal.base()
    if base.seq > 1:
        raise UserError(
            f"begins with entry {base.seq}, and no snapshot of that time can be used",
            where=journal.url,
            hint="; ".join([*notes, WHOLE_AGAIN]),
        )
    return JournalReplay(settings, None, archive), notes


def _check(snapshot: StateSnapshot, journal: Journal) -> None:
    """Whether a snapshot belongs to the journal and to this program.

    Raises:
        Unfit: it does not.
    """
    if snapshot.version != __version__:
        raise UnusableSnapshot(f"it was made by version {snapshot.version}")
    if not snapshot.sound:
        raise UnusableSnapshot("its bytes are not as they were written")
    if journal.digest(snapshot.seq) != snapshot.digest:
        raise UnusableSnapshot("the journal has another entry there")
