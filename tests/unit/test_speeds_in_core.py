"""What the core learns of speeds from its events: kept, handed on, told to planners."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.estimate.job_rate import RateSource
from wattherd.local.devices import slots
from wattherd.model.command import StartJob, WakeAt
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    JobExited,
    JobProgressed,
    JobStarted,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.documents.job_speed import speed_document, speed_words
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.server.journal.succession import succeed
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig, read_config

TYPES = {"east": 1, "west": 1}
PACE = {"east": 2.0, "west": 10.0}
"""Steps per second of every job here."""


def blueprint(policy: str = "fifo-first-fit@fastest", types: Any = None) -> Blueprint:
    config = ServeConfig.model_validate({"policy": policy})
    return Blueprint.of(config, slots("here", types or TYPES))


def core_of(policy: str = "fifo-first-fit@fastest", types: Any = None) -> Core:
    found = blueprint(policy, types)
    return Core(found.core_config(found.scheduler()))


def job(job_id: str, **fields: Any) -> JobSpec:
    role = TaskRole(command=("python", "train.py"))
    return JobSpec(id=job_id, submit_s=0.0, roles=(role,), **fields)


def tell(core: Core, *events: Any) -> list[Any]:
    """Hand events in, and wake the core as it asks for."""
    said = []
    for event in events:
        said += core.handle(event)
        for command in list(said):
            if isinstance(command, WakeAt) and command.at_s <= core.now_s:
                said += core.handle(Woke(at_s=core.now_s, key=command.key))
    return said


def type_of(core: Core, job_id: str) -> str:
    (where,) = core.jobs[job_id].allocations
    return core.config.cluster.nodes[where.node].gpu_model


def trained(core: Core, job_id: str, reports: int = 10, *, times: float = 1.0) -> list[Any]:
    """It runs for 2 s a report at the pace of its slot, and claims another."""
    said, began_s = [], core.now_s
    said += tell(core, JobStarted(at_s=began_s, job_id=job_id, attempt=1))
    for number in range(reports):
        pace = times * PACE.get(type_of(core, job_id), 2.0)
        said += tell(
            core,
            JobProgressed(
                at_s=began_s + 2.0 * number, job_id=job_id, attempt=1,
                progress=2.0 * number * pace, rate_per_s=1e9,
            ),
        )  # fmt: skip
    return said


def ended(core: Core, job_id: str) -> None:
    tell(core, JobExited(at_s=core.now_s + 1.0, job_id=job_id, attempt=1))


def taught() -> Core:
    core = core_of()
    tell(core, JobSubmitted(at_s=0.0, job=job("a")), JobSubmitted(at_s=0.0, job=job("b")))
    trained(core, "a")
    trained(core, "b")
    ended(core, "a")
    ended(core, "b")
    return core


def test_the_next_job_of_a_kind_goes_where_it_is_fastest() -> None:
    core = core_of()
    tell(core, JobSubmitted(at_s=0.0, job=job("a")))
    assert type_of(core, "a") == "east", "all slots are taken for equal: the first by name"
    core = taught()
    tell(core, JobSubmitted(at_s=core.now_s, job=job("c")))
    assert type_of(core, "c") == "west"
    assert speed_words(core, core.jobs["c"].spec) == [
        (
            "goes to the first of these with room: west, 5 x, learned from its kind (1 job);"
            " east, 1 x, learned from its kind (1 job)"
        ),
        "measured: 0.5 s a step on 1 east (1 job of kind `python train.py`)",
        "measured: 0.1 s a step on 1 west (1 job of kind `python train.py`)",
    ]


def test_another_kind_and_another_tenant_learn_nothing_from_it() -> None:
    for fields in ({"profile": "other"}, {"tenant": "b"}):
        core = taught()
        tell(core, JobSubmitted(at_s=core.now_s, job=job("c", **fields)))
        assert type_of(core, "c") == "east"
        assert [one["source"] for one in speed_document(core, core.jobs["c"].spec)["expected"]] == [
            "taken for equal", "taken for equal",
        ]  # fmt: skip


def test_what_was_learned_is_in_a_snapshot_and_goes_on_under_other_settings() -> None:
    core = taught()
    expected = speed_document(core, job("c"))
    found = blueprint()
    body = freeze(FrozenState(core, ReplayState(), {}, 0))
    again = thaw(body, found.core_config(found.scheduler())).core
    other = core_of("drf", {"east": 1, "west": 2})
    moved, _ = succeed(FrozenState(core, ReplayState(), {}, 0), other)
    for one in (again, moved.core):
        assert speed_document(one, job("c")) == expected
    tell(again, JobSubmitted(at_s=again.now_s, job=job("c")))
    assert type_of(again, "c") == "west"


def test_the_same_events_teach_the_same() -> None:
    one, two = taught(), taught()
    assert speed_document(one, job("c")) == speed_document(two, job("c"))
    config = one.config
    assert freeze(FrozenState(one, ReplayState(), {}, 0))
    assert one.speeds.rates(config).rate(job("c"), "west").source is RateSource.LEARNED_KIND


def test_what_a_job_reports_moves_no_watt_and_no_order() -> None:
    """Under a budget and a scheduler that is blind for speeds: the commands are the same."""

    def lived(times: float) -> list[Any]:
        core = core_of("priority-backfill")
        budget_w = 1.3 * core.config.gpus["east"].max_w
        said = tell(
            core,
            BudgetChanged(at_s=0.0, budget_w=budget_w),
            JobSubmitted(at_s=0.0, job=job("a")),
            JobSubmitted(at_s=0.0, job=job("b")),
        )
        said += [
            one
            for name in ("a", "b")
            if core.jobs[name].active
            for one in trained(core, name, times=times)
        ]
        return said

    assert lived(1.0) == lived(1e-6) == lived(-1e12)
    caps = [one.cap_w for one in lived(1.0) if isinstance(one, StartJob)]
    assert caps
    assert None not in caps, "the budget binds"


def test_a_speed_under_a_cap_is_told_with_the_cap_and_without() -> None:
    core = core_of(types={"east": 1})
    tell(core, JobSubmitted(at_s=0.0, job=job("a")))
    record, gpu = core.jobs["a"], core.config.gpus["east"]
    tell(core, JobStarted(at_s=0.0, job_id="a", attempt=1))
    record.cap_w = record.wanted_cap_w = 0.5 * gpu.max_w
    tell(core, CapApplied(at_s=1.0, job_id="a", attempt=1, cap_w=0.5 * gpu.max_w))
    assert record.cap_w == 0.5 * gpu.max_w
    slower = core.watts.speed(record)
    assert slower < 1
    for number in range(10):
        tell(
            core, JobProgressed(at_s=2.0 + 2 * number, job_id="a", attempt=1, progress=2.0 * number)
        )
    (row,) = [
        one for one in speed_document(core, record.spec)["measured"] if one["of"] == "this job"
    ]
    assert row["cap_w"] == pytest.approx(0.5 * gpu.max_w, rel=0.05)
    assert row["step_s"] == pytest.approx(1.0)
    assert row["uncapped_step_s"] == pytest.approx(slower)


def test_slots_of_several_types_are_nodes_of_one_machine() -> None:
    machine = slots("here", {"east": 1, "west": 3})
    assert [(one.name, one.gpu_count, one.gpu_model) for one in machine.nodes] == [
        ("here-east", 1, "east"), ("here-west", 3, "west"),
    ]  # fmt: skip
    assert sum(one.memory_mib for one in machine.nodes) <= machine.node.memory_mib
    places = [machine.place(number) for number in range(4)]
    assert places == [("here-east", 0), ("here-west", 0), ("here-west", 1), ("here-west", 2)]
    names = [one.name for one in machine.nodes]
    assert [machine.number(names.index(name), gpu) for name, gpu in places] == [0, 1, 2, 3]
    plain = slots("here", 4)
    assert plain.nodes == (plain.node,)
    assert [plain.number(0, gpu) for gpu in range(4)] == [0, 1, 2, 3]


def test_a_store_of_typed_slots_is_described_by_its_types_and_others_as_before() -> None:
    typed = blueprint()
    assert Blueprint.read(typed.text()) == typed
    plain = Blueprint.of(ServeConfig(), slots("here", 2))
    assert "parts" not in plain.text()
    assert not typed.follows_gently(plain)
    assert typed.follows_gently(blueprint("priority-backfill")), "what runs goes on"


def test_how_slots_are_written() -> None:
    assert read_config(None, {"slots": "4"}).slots == 4
    assert read_config(None, {"slots": "fast=2, slow=6"}).slots == {"fast": 2, "slow": 6}
    for wrong in ("fast=0", "fast", "a=1,a=2", "9x=1", "fast=", "0"):
        with pytest.raises(UserError, match="slots"):
            read_config(None, {"slots": wrong})
