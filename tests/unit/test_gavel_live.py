"""Gavel on jobs that report for themselves: who goes to which type, whom unkind ones harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.experiments.schedule.live import live_scheduler
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import BudgetChanged, Event, TenantLimited
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.gavel_live import LiveGavel
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.testing.reporting_world import ReportingWorld, Told, Training

GOALS = ("max-min", "max-min-agnostic", "makespan", "ftf", "fifo")


def site(fast: int = 1, slow: int = 1) -> ClusterSpec:
    """Slots of two types of which the catalogue knows nothing; `fast` comes first by its name."""
    counts = {"fast": fast, "slow": slow}
    return ClusterSpec(
        tuple(
            NodeSpec(name=name, cpu_milli=64_000, memory_mib=65_536, gpu_count=n, gpu_model=name)
            for name, n in counts.items()
        )
    )


def job(
    name: str, steps: float, *, at_s: float = 0.0, gpus: int = 1, gain: float = 1.0,
    tells: Callable[[float], Told | None] | None = None, kind: str = "train", **fields: Any,
) -> Training:  # fmt: skip
    """Ten steps a second on `slow`, `gain` times as many on `fast`."""
    roles = fields.pop("roles", (TaskRole(count=gpus, command=(kind,)),))
    spec = replace(JobSpec(id=name, submit_s=at_s, roles=roles), **fields)
    on = {"fast": gain}
    return Training(spec=spec, steps=steps, per_s=lambda _: 10.0, tells=tells, on=on)


def world(
    *jobs: Training, goal: str = "max-min", cluster: ClusterSpec | None = None,
    events: tuple[Event, ...] = (), answers: bool = True,
) -> ReportingWorld:  # fmt: skip
    cluster = site() if cluster is None else cluster
    built = live_scheduler(
        f"gavel-{goal}", SchedulerContext(jobs=ReadJobs(specs=()), cluster=cluster)
    )
    computers: Mapping[str, Any] = built.computers if answers else {}
    return ReportingWorld(built.planner, cluster, jobs, events, computers)


def on(lived: ReportingWorld) -> dict[str, str]:
    return {name: run.model for name, run in lived._runs.items()}


def three() -> list[Training]:
    """Two that are four times as fast on `fast`, and one that gains nothing by it."""
    return [
        job("quick1", 9000.0, gain=4.0, kind="gains"),
        job("quick2", 9000.0, gain=4.0, kind="gains"),
        job("same", 9000.0, kind="same"),
    ]


@pytest.mark.parametrize("goal", GOALS)
def test_all_get_through_and_nobody_is_left_out(goal: str) -> None:
    jobs = [job(f"j{n}", 400.0 + 300 * n, at_s=4.0 * n, gain=1.0 + n % 3) for n in range(8)]
    lived = world(*jobs, goal=goal).run(4000)
    assert len(lived.ended_s) == 8, (goal, lived.starts)


def test_time_on_the_fast_type_goes_to_those_that_gain_by_it() -> None:
    lived = world(*three()).run(300)
    standings = lived.core._memory["gavel-live"].account.standings
    assert standings["same"].share(0) < 0.05 < 0.45 < standings["quick1"].share(0)
    lived.run(3000)
    told = lived.core.speeds.rates(lived.core.config)
    spec = lived._jobs["quick1"].spec
    ratio = told.steps_per_s(spec, "fast", 1).per_s / told.steps_per_s(spec, "slow", 1).per_s
    assert ratio == pytest.approx(4.0, rel=0.2), "both types were seen"
    blind = world(*three(), goal="max-min-agnostic").run(3000)
    assert len(lived.ended_s) == len(blind.ended_s) == 3
    assert max(lived.ended_s.values()) < max(blind.ended_s.values())


def test_a_newcomer_starts_at_once_where_there_is_room_though_nobody_answers() -> None:
    lived = world(job("a", 4000.0), job("b", 900.0, at_s=7.0), answers=False).run(60)
    assert lived.starts["b"][0][0] == 7.0


def test_without_answers_all_get_through_all_the_same() -> None:
    jobs = [job(f"j{n}", 300.0, at_s=3.0 * n) for n in range(6)]
    assert len(world(*jobs, answers=False).run(3000).ended_s) == 6


def test_those_that_wait_are_told_when_the_next_round_begins() -> None:
    lived = world(*(job(f"j{n}", 9000.0) for n in range(4)), goal="fifo").run(20)
    waiting = [one for one in lived.core.jobs.values() if not one.wanted]
    assert len(waiting) == 2
    assert all("next round" in one.reason.text() for one in waiting if one.reason)


def test_the_story_says_where_a_speed_comes_from() -> None:
    lived = world(job("a", 3000.0, gain=4.0), job("b", 3000.0, gain=4.0)).run(300)
    found = " ".join(lived.stories["a"] + lived.stories["b"])
    assert "goes to fast; speeds: fast 1 x (taken for equal)" in found or "(stated)" in found, found


LIES: dict[str, Callable[[float], Told | None]] = {
    "silence": lambda _: None,
    "no number": lambda _: Told(progress=math.nan, total=math.nan, loss=math.nan),
    "always nearly done": lambda _: Told(progress=99.0, total=100.0),
    "a total that runs away": lambda done: Told(progress=done, total=done + 1),
    "an endless total": lambda done: Told(progress=done, total=1e300),
    "steps in millions": lambda done: Told(progress=1e6 * done, total=9e12),
    "below zero": lambda done: Told(progress=-done, total=-1.0),
    "a count that swings": lambda done: Told(progress=done % 7, total=8.0),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("goal", ["max-min", "makespan", "ftf"])
def test_a_liar_leaves_others_their_share(lie: str, goal: str) -> None:
    liar = job("liar", 3000.0, tells=LIES[lie], kind="lies")
    others = [job(f"j{n}", 900.0, at_s=2.0 * n) for n in range(3)]
    lived = world(liar, *others, goal=goal).run(2500)
    assert len(lived.ended_s) == 4, (lie, lived.starts)
    assert max(lived.ended_s[f"j{n}"] for n in range(3)) < 900.0, lived.ended_s


@pytest.mark.parametrize("goal", ["max-min", "fifo"])
def test_nobody_is_stopped_for_what_the_guard_refuses(goal: str) -> None:
    kept = job("kept", 50.0, at_s=40.0, tenant="none")
    closed = TenantLimited(at_s=0.0, tenant="none", most_gpus=0)
    running = [job("a", 3000.0), job("b", 3000.0)]
    lived = world(*running, kept, goal=goal, events=(closed,)).run(250)
    assert {name: len(starts) for name, starts in lived.starts.items()} == {"a": 1, "b": 1}


def test_a_budget_cut_in_the_middle_and_back() -> None:
    one_w = 2 * 10.0 + 70.0
    cut = BudgetChanged(at_s=100.0, budget_w=one_w)
    back = BudgetChanged(at_s=300.0, budget_w=None)
    jobs = [job(f"j{n}", 900.0, at_s=5.0 * n) for n in range(4)]
    lived = world(*jobs, events=(cut, back)).run(4000)
    assert len(lived.ended_s) == 4, lived.starts


def test_jobs_of_several_roles_and_without_gpus_run_as_they_are() -> None:
    roles = tuple(TaskRole(name=f"r{n}", command=("x",)) for n in range(2))
    gang = job("gang", 300.0, at_s=5.0, roles=roles)
    plain = job("cpu", 300.0, roles=(TaskRole(gpu_count=0, command=("x",)),))
    lived = world(job("a", 600.0), job("b", 600.0), gang, plain).run(2000)
    assert set(lived.ended_s) == {"a", "b", "gang", "cpu"}
    assert len(lived.starts["gang"]) == len(lived.starts["cpu"]) == 1


def test_a_job_of_one_type_only_and_one_too_wide_for_any_type() -> None:
    wide = job("wide", 300.0, gpus=3)
    bound = job("bound", 300.0, gpu_models=("slow",))
    lived = world(wide, bound, cluster=site(2, 2)).run(1000)
    assert set(lived.ended_s) == {"wide", "bound"}, "across types where no single one has room"
    assert on(world(bound, cluster=site(2, 2)).run(10)) == {"bound": "slow"}


def test_an_unknown_goal_is_refused() -> None:
    with pytest.raises(UserError, match="no Gavel goal"):
        LiveGavel(goal="fairness")


def test_the_journal_replayed_gives_the_same_decisions_also_from_a_snapshot_within() -> None:
    lived = world(*three(), *(job(f"j{n}", 500.0, at_s=30.0 * n) for n in range(3))).run(600)
    said = [commands for _, commands in lived.lived]
    config = replace(lived.core.config, planner=LiveGavel(goal="max-min"))
    again = Core(config)
    assert [again.handle(event) for event, _ in lived.lived] == said
    half = len(said) // 2
    begun = Core(config)
    assert [begun.handle(event) for event, _ in lived.lived[:half]] == said[:half]
    thawed = thaw(freeze(FrozenState(begun, ReplayState(), {}, 0)), config).core
    assert [thawed.handle(event) for event, _ in lived.lived[half:]] == said[half:]
