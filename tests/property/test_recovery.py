"""A service that starts from a snapshot stands where one stands that lived everything through."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from itertools import cycle
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")

from wattherd import __version__
from wattherd.engine.core.core import Core
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.experiments.schedule.simulators import preset
from wattherd.local.devices import slots
from wattherd.model.event import (
    BudgetChanged,
    JobCancelled,
    JobHeld,
    JobProgressed,
    JobReleased,
    NodeLost,
    NodeReturned,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.gandiva_nodes import GandivaJob, GandivaNodes
from wattherd.server.journal import snapshot_codec as frozen
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.journal.moved_classes import JOINED, MOVED
from wattherd.server.journal.snapshot_codec import UnusableSnapshot, freeze, thaw
from wattherd.server.recovery.replay import JournalReplay, ReplayedEntry
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.store.entry import JournalEntry
from wattherd.store.snapshots import StateSnapshot
from wattherd.testing.live import MemoryJournal, PaperExecutor, SetClock

MACHINE = slots("here", 4)
POLICIES = sorted(preset("none").schedulers)
Action = tuple[str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("submit", "submit", "tell", "tell", "end", "fail", "hold", "release", "cancel",
             "budget", "progress", "lose", "return", "wait")
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)  # fmt: skip


def blueprint(policy: str, count: int = 4) -> Blueprint:
    machine = slots("here", count)
    return Blueprint.of(ServeConfig(policy=policy), machine)


def possible(policy: str) -> bool:
    try:
        blueprint(policy).scheduler()
    except UserError:
        return False  # needs measurements that jobs handed in one by one do not have
    return True


class World:
    """A keeper and runs that do what the actions say."""

    def __init__(self, plan: Blueprint) -> None:
        scheduler = plan.scheduler()
        self.hands = PaperExecutor()
        self.clock = SetClock()
        self.journal = MemoryJournal()
        self.keeper = CoreLoop(
            Core(plan.core_config(scheduler)),
            self.journal,
            self.clock,
            computers=scheduler.computers,
        )
        self.keeper.recover(self.hands)

    def do(self, kind: str, number: int) -> None:
        self.clock.at_s += 1.5 * number
        keeper, runs = self.keeper, sorted(self.hands.runs)
        job = f"j-{number + 1}"
        match kind:
            case "submit":
                role = TaskRole(count=1 + number % 2)
                after = (job,) if number == 4 else ()
                spec = JobSpec(
                    id="new", submit_s=0.0, roles=(role,), duration_s=10.0 + number, after=after,
                    restarts=number % 2, backoff_s=2.0, priority=number, user=f"u{number % 2}",
                )  # fmt: skip
                keeper.submit(spec, {"name": kind, "n": number}, by="ann", key=f"k{number}")
            case "hold" | "release" | "cancel":
                events: dict[str, Any] = {
                    "hold": JobHeld, "release": JobReleased, "cancel": JobCancelled
                }  # fmt: skip
                keeper.post(events[kind](at_s=0.0, job_id=job), by="bob")
            case "budget":
                budget_w = None if number == 5 else MACHINE.gpu.max_w * (1 + number)
                keeper.post(BudgetChanged(at_s=0.0, budget_w=budget_w), by="ops")
            case "lose":
                keeper.tell(NodeLost(at_s=0.0, node="here"))
            case "return":
                keeper.tell(NodeReturned(at_s=0.0, node="here"))
            case "tell" | "end" | "fail" | "progress" if runs:
                self._tell(kind, runs[number % len(runs)], number)
        for _ in range(4):
            keeper.turn()

    def _tell(self, kind: str, key: tuple[str, int], number: int) -> None:
        hands = self.hands
        if kind == "end" or kind == "fail":
            event = hands.exited(key, int(kind == "fail"))
        elif kind == "progress":
            event = JobProgressed(
                at_s=0.0, job_id=key[0], attempt=key[1], progress=float(number), loss=0.5
            )
        elif key in hands.stops:
            event = hands.stopped(key)
        else:
            event = hands.started(key)
        self.keeper.tell(event)


def entries_of(policy: str, actions: list[Action]) -> list[JournalEntry]:
    world = World(blueprint(policy))
    for action in actions:
        world.do(*action)
    return world.journal.kept


def cut(
    plan: Blueprint, entries: list[JournalEntry], at: int
) -> tuple[list[ReplayedEntry], JournalReplay]:
    """What follows entry `at` for who starts from a snapshot of it."""
    before = JournalReplay([(0, plan)])
    for _ in before.live(entries[:at]):
        pass
    snapshot = StateSnapshot(
        seq=at, digest="", version=__version__, setting=plan.digest(), body=freeze(before.frozen())
    )
    after = JournalReplay([(0, plan)], snapshot)
    return list(after.live(entries[at:])), after


def standing(replay: JournalReplay) -> Any:
    core = replay.state.core
    validate(core)
    return (
        {job.id: _plain(job) for job in core.jobs.values()},
        core.finished,
        core.watts.budget_w,
        sorted(core.lost),
        replay.state.standing,
        {job_id: past for job_id, past in replay.history.jobs.items() if not past.over},
    )


def _plain(job: Any) -> Any:
    return {name: getattr(job, name) for name in job.__slots__ if name != "listed"}


MEMORIES = ["fifo-backfill", "drf", "gandiva", "tiresias"]
"""With nothing, little and much that a planner remembers from cycle to cycle."""


@given(actions=ACTIONS, at=st.floats(0, 1), policy=st.sampled_from(MEMORIES))
@settings(max_examples=times(100))
def test_snapshot_and_tail_are_as_good_as_everything(
    actions: list[Action], at: float, policy: str
) -> None:
    entries, plan = entries_of(policy, actions), blueprint(policy)
    whole = JournalReplay([(0, plan)])
    all_of_it = list(whole.live(entries))
    seq = round(at * len(entries))
    if not seq:
        return
    tail, late = cut(plan, entries, seq)
    assert [one.commands for one in tail] == [one.commands for one in all_of_it[seq:]]
    assert standing(late) == standing(whole)


A_DAY = [("submit", n % 4) for n in range(6)] + [
    (kind, n)
    for n in range(12)
    for kind in ("tell", "progress", "budget", "tell", "hold", "tell", "release", "end")
]


@pytest.mark.parametrize("policy", [name for name in POLICIES if possible(name)])
def test_every_policy_goes_on_from_a_snapshot(policy: str) -> None:
    entries, plan = entries_of(policy, [(kind, n % 6) for kind, n in A_DAY]), blueprint(policy)
    all_of_it = list(JournalReplay([(0, plan)]).live(entries))
    for seq in (1, len(entries) // 3, len(entries) // 2, len(entries) - 5):
        tail, _ = cut(plan, entries, seq)
        assert [one.commands for one in tail] == [one.commands for one in all_of_it[seq:]]


@given(actions=ACTIONS, at=st.floats(0, 1))
@settings(max_examples=times(40))
def test_another_policy_and_fewer_devices_take_every_job_over(
    actions: list[Action], at: float
) -> None:
    entries = entries_of("fifo-backfill", actions)
    replay = JournalReplay([(0, blueprint("fifo-backfill"))])
    for _ in replay.live(entries[: round(at * len(entries))]):
        pass
    before = dict(replay.state.core.jobs)
    finished = dict(replay.state.core.finished)
    replay.take_on(blueprint("drf", count=2))
    core = replay.state.core
    validate(core)
    assert set(core.jobs) == set(before)
    assert core.finished == finished
    assert not any(job.active for job in core.jobs.values())
    for job_id, job in core.jobs.items():
        assert (job.attempt, job.failures) == (before[job_id].attempt, before[job_id].failures)
        assert (job.state == "Held") <= (before[job_id].state in ("Held", "Stopping"))
    assert replay.state.standing.orders.runs == {}
    assert set(replay.state.standing.orders.specs) == set(before)


@pytest.mark.parametrize("kind", [GandivaJob, GandivaNodes, JobRecord])
def test_a_snapshot_of_objects_that_lacked_an_attribute_is_refused(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an upgrade within a version gave planner or core something more to remember."""
    entries, plan = entries_of("gandiva", [("submit", 0), ("tell", 0)]), blueprint("gandiva")
    replay = JournalReplay([(0, plan)])
    for _ in replay.live(entries):
        pass
    config = plan.core_config(plan.scheduler())
    body = freeze(replay.frozen())
    thaw(body, config)
    plain = frozen._attributes
    monkeypatch.setattr(
        frozen, "_attributes", lambda one: [*plain(one), "newer"] if one is kind else plain(one)
    )
    with pytest.raises(UnusableSnapshot, match=f"whose {kind.__name__} differs"):
        thaw(body, config)


@pytest.mark.parametrize("gone", ["engine.watts:Watts", "engine.tree_watts:TreeWatts"])
def test_a_snapshot_of_a_class_that_is_gone_is_refused(gone: str) -> None:
    """An upgrade joined or renamed it: the journal is replayed instead."""
    plan = blueprint("fifo")
    replay = JournalReplay([(0, plan)])
    for _ in replay.live(entries_of("fifo", [("submit", 0)])):
        pass
    head, _, rest = freeze(replay.frozen()).partition(b"\n")
    shapes = json.loads(head) | {f"wattherd.{gone}": ["base_mw", "budget_w"]}
    with pytest.raises(UnusableSnapshot):
        thaw(json.dumps(shapes).encode() + b"\n" + rest, plan.core_config(plan.scheduler()))


def test_classes_that_moved_are_read_where_snapshots_name_them_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written as before the move: under the old module, by the old name."""
    written = read_as_it_was(dict(MOVED), monkeypatch)
    moved = {"wattherd.engine.jobs.roster:Roster", "wattherd.policy.schedule.gandiva_nodes:Homes"}
    assert moved <= written.keys() & MOVED.keys()


def test_classes_of_joined_modules_are_read_where_snapshots_name_them_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: dict[str, str] = {}
    for now in {*JOINED.values()}:
        classes = [one for one in vars(import_module(now)).values() if isinstance(one, type)]
        here = sorted(one.__name__ for one in classes if one.__module__ == now)
        parts = cycle(was for was, at in JOINED.items() if at == now)
        names |= {f"{was}:{one}": f"{now}:{one}" for one, was in zip(here, parts, strict=False)}
    assert names.keys() & read_as_it_was(names, monkeypatch).keys()


def read_as_it_was(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Freeze with classes by other names and read that; the attributes of what was written."""
    plan = blueprint("gandiva")
    replay = JournalReplay([(0, plan)])
    for _ in replay.live(entries_of("gandiva", [("submit", 0), ("tell", 0)])):
        pass
    config, state = plan.core_config(plan.scheduler()), replay.frozen()
    before = {one.id: one.told() for one in state.core.jobs.values()}
    here: list[tuple[type, str, str, str]] = []
    for was, now in names.items():
        module, _, name = was.partition(":")
        at, _, called = now.partition(":")
        kind = getattr(import_module(at), called)
        house = sys.modules.get(module) or ModuleType(module)
        monkeypatch.setitem(sys.modules, module, house)
        monkeypatch.setattr(house, name, kind, raising=False)
        here.append((kind, kind.__module__, kind.__qualname__, kind.__name__))
        kind.__module__, kind.__qualname__, kind.__name__ = module, name, name
    try:
        body = freeze(state)
    finally:
        for kind, module, qualname, name in reversed(here):
            kind.__module__, kind.__qualname__, kind.__name__ = module, qualname, name
        monkeypatch.undo()
    head, _, rest = body.partition(b"\n")
    assert not any(now.encode() in head for now in names.values() if now not in names)
    assert b"GandivaNodes" not in rest or "GandivaNodes" not in "".join(names.values())
    thawed = thaw(body, config).core
    assert {one.id: one.told() for one in thawed.jobs.values()} == before
    written: dict[str, list[str]] = json.loads(head)
    return written


def test_a_job_that_waits_for_its_own_number_is_refused_and_nobody_else() -> None:
    world = World(blueprint("fifo"))
    strange = world.keeper.submit(JobSpec(id="new", submit_s=0.0, after=("j-1",)), {}, by="ann")
    plain = world.keeper.submit(JobSpec(id="new", submit_s=0.0), {}, by="bob")
    world.keeper.turn()
    with pytest.raises(UserError, match="waits for itself"):
        strange.result(0)
    assert plain.result(0) == "j-1"


def test_bytes_that_are_no_snapshot_make_nothing() -> None:
    import os
    import pickle

    plan = blueprint("fifo-backfill")
    config = plan.core_config(plan.scheduler())

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    for body in (b"", b"nonsense", pickle.dumps(Evil()), pickle.dumps((1, 2, 3, 4))):
        with pytest.raises(UnusableSnapshot):
            thaw(body, config)
