"""`tiresias-gittins` on a service: chances by jobs that ended here, and none while few have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from wattherd.engine.core.core import Core
from wattherd.estimate.learned_services import LEAST_JOBS
from wattherd.experiments.schedule.live import live_scheduler
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.command import Command
from wattherd.model.event import BudgetChanged, Event, JobCancelled
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.testing.reporting_world import ReportingWorld, Told, Training
from wattherd.testing.timed_world import t4_nodes

SHORT_S, LONG_S = 10.0, 900.0


def planner(name: str = "tiresias-gittins") -> Planner:
    given = SchedulerContext(jobs=ReadJobs(specs=()), cluster=t4_nodes(2))
    return live_scheduler(name, given).planner


def job(
    name: str, at_s: float, lasts_s: float,
    tells: Callable[[float], Told | None] | None = None, **fields: object,
) -> Training:  # fmt: skip
    role = TaskRole(command=("train",))
    spec = JobSpec(id=name, submit_s=at_s, roles=(role,))
    spec = replace(spec, **fields)  # type: ignore[arg-type]
    return Training(spec=spec, steps=lasts_s, per_s=lambda _: 1.0, tells=tells)


def past(many: int = LEAST_JOBS) -> list[Training]:
    """Nine of ten last ten seconds, the others a quarter of an hour; all are over by `THEN_S`."""
    return [job(f"past{n}", 20.0 * n, 30.0 if n % 10 else SHORT_S) for n in range(many)]


THEN_S = 40.0 * LEAST_JOBS


def world(
    *jobs: Training, name: str = "tiresias-gittins", gpus: int = 1, events: tuple[Event, ...] = ()
) -> ReportingWorld:
    return ReportingWorld(planner(name), t4_nodes(gpus), jobs, events)


def reason(lived: ReportingWorld, name: str) -> str:
    found = lived.core.jobs[name].reason
    return "" if found is None else found.text()


def long_and_late() -> tuple[Training, Training]:
    return job("long", THEN_S, LONG_S), job("late", THEN_S + 200.0, SHORT_S)


def test_before_enough_jobs_have_ended_it_is_tiresias_and_says_so() -> None:
    jobs = [job(f"j{n}", 3.0 * n, 40.0) for n in range(8)]
    lived, as_before = world(*jobs).run(2000), world(*jobs, name="tiresias").run(2000)
    assert lived.starts == as_before.starts
    waiting = world(*jobs).run(60)
    assert f"as tiresias until {LEAST_JOBS} jobs have succeeded, 0 so far" in reason(waiting, "j7")


def test_who_has_outlived_what_jobs_need_here_gives_way_to_a_newcomer() -> None:
    lived = world(*past(), *long_and_late()).run(5000)
    plain = world(*past(), *long_and_late(), name="tiresias").run(5000)
    assert len(lived.ended_s) == len(plain.ended_s) == LEAST_JOBS + 2
    assert lived.starts["late"][0][0] <= THEN_S + 212.0, lived.starts
    assert plain.starts["late"][0][0] >= THEN_S + LONG_S
    assert len(lived.starts["long"]) == 2, "stopped once, for the newcomer"


def test_those_who_wait_are_told_by_how_many_jobs() -> None:
    lived = world(*past(), *long_and_late(), job("third", THEN_S + 201.0, 5.0)).run(THEN_S + 203)
    assert f"Gittins index of {LEAST_JOBS} jobs that have succeeded" in reason(lived, "third")


def test_jobs_of_one_length_do_not_take_turns() -> None:
    """Nobody is stopped for one that promises no more: the index of equal lengths rises."""
    jobs = [job(f"past{n}", 39.0 * n, 60.0) for n in range(LEAST_JOBS)]
    more = [job(f"j{n}", THEN_S + n, 60.0) for n in range(6)]
    lived = world(*jobs, *more, gpus=2).run(4000)
    assert all(len(starts) == 1 for starts in lived.starts.values()), lived.starts


def test_turns_cost_less_than_they_bring() -> None:
    """Lengths over three decades, more jobs than room: at most a tenth of the time is restarts."""
    jobs = [job(f"j{n}", 15.0 * n, 3.0 * 10 ** (n % 7 / 2.5)) for n in range(120)]
    lived, plain = world(*jobs, gpus=2).run(40_000), world(*jobs, name="tiresias", gpus=2)
    assert len(lived.ended_s) == 120
    again = sum(map(len, lived.starts.values())) - 120
    assert 0 < 3.0 * again <= 0.1 * sum(one.steps for one in jobs), again
    assert lived.mean_s() < 0.8 * plain.run(40_000).mean_s(), (lived.mean_s(), plain.mean_s())


LIES: dict[str, Callable[[float], Told | None]] = {
    "silence": lambda _: None,
    "no number": lambda _: Told(progress=math.nan, total=math.nan, loss=math.nan),
    "always nearly done": lambda _: Told(progress=99.0, total=100.0),
    "a speed of zero": lambda done: Told(progress=done, rate_per_s=0.0),
    "steps in millions": lambda done: Told(progress=1e9 * done, total=1e12),
    "below zero": lambda done: Told(progress=-done, total=-1.0),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_job_says_moves_nothing_as_services_are_the_cores_own(lie: str) -> None:
    """But for the time of its restarts, of which a silent one tells nothing."""
    long, late = long_and_late()
    lived = world(*past(), replace(long, tells=LIES[lie]), late).run(6000)
    assert len(lived.ended_s) == LEAST_JOBS + 2
    assert lived.starts["late"][0][0] <= THEN_S + 612.0, (lie, lived.starts)


def test_jobs_that_fail_or_are_cancelled_are_no_lengths() -> None:
    jobs = [job(f"j{n}", 0.0, 1e6) for n in range(LEAST_JOBS + 5)]
    cuts = tuple(JobCancelled(at_s=10.0 + n, job_id=f"j{n}") for n in range(LEAST_JOBS + 5))
    lived = world(*jobs, gpus=4, events=cuts).run(200)
    assert lived.core.speeds.services.known().jobs == 0


def test_a_budget_cut_in_the_middle_stops_one_and_all_get_through() -> None:
    one_w = 2 * 10.0 + 70.0
    cut = BudgetChanged(at_s=THEN_S + 100.0, budget_w=one_w)
    back = BudgetChanged(at_s=THEN_S + 400.0, budget_w=None)
    jobs = [*past(), *(job(f"j{n}", THEN_S + 10.0 * n, 150.0) for n in range(6))]
    lived = world(*jobs, gpus=2, events=(cut, back)).run(9000)
    assert len(lived.ended_s) == LEAST_JOBS + 6


def answers(core: Core, lived: list[tuple[Event, list[Command]]]) -> list[list[Command]]:
    return [core.handle(event) for event, _ in lived]


def test_the_journal_replayed_gives_the_same_decisions_also_from_a_snapshot_within() -> None:
    jobs = [job(f"j{n}", 12.0 * n, 3.0 * 10 ** (n % 7 / 2.5)) for n in range(40)]
    lived = world(*jobs, gpus=2).run(20_000)
    said = [commands for _, commands in lived.lived]
    config = replace(lived.core.config, planner=planner())
    assert answers(Core(config), lived.lived) == said
    assert lived.core.speeds.services.known().index is not None
    for at in (len(said) // 3, 2 * len(said) // 3):
        begun = Core(config)
        assert answers(begun, lived.lived[:at]) == said[:at]
        again = thaw(freeze(FrozenState(begun, ReplayState(), {}, 0)), config).core
        assert answers(again, lived.lived[at:]) == said[at:]
