"""Figures of a run that are so: one interval, joules of jobs that add up, and an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import Bug, UserError
from wattherd.estimate.restart_cost import constant
from wattherd.experiments.schedule.assumptions import assumptions
from wattherd.experiments.schedule.run import (
    ComparedRun,
    ComparisonSetup,
    check_conserved,
    simulate,
)
from wattherd.experiments.schedule.scheduler_context import Given
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.event import JobSubmitted, NodeLost, NodeReturned
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, Share, View
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.liveness import Liveness
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import t4_nodes, timed

T4_W, IDLE_W = 70.0, 10.0


def run(jobs: list[JobSpec], policy: str = "fifo", *gpus: int, **more: Any) -> ComparedRun:
    chosen = preset("none")
    restart_s = more.pop("restart_s", 0.0)
    given = Given(
        jobs=ReadJobs(specs=tuple(jobs)), cluster=t4_nodes(*(gpus or (4,))), restart_s=restart_s
    )
    setting = ComparisonSetup(preset=replace(chosen, restart_s=restart_s), given=given, **more)
    return simulate(setting, policy)


def joules(done: ComparedRun) -> dict[str, float]:
    found = done.row["energy_j"]
    assert isinstance(found, dict)
    return found


def test_a_budget_that_changes_long_after_the_last_job_changes_no_figure() -> None:
    jobs = [timed("a", 4, lasts_s=100.0), timed("b", 2, at_s=50.0, lasts_s=100.0)]
    near = run(jobs, budget=((0.0, 10_000.0),)).row
    far = run(jobs, budget=((0.0, 10_000.0), (1e7, 9_000.0))).row
    for row in (near, far):
        del row["cpu_s"]
    assert near == far


def test_what_was_before_the_first_submission_is_no_part_of_the_run() -> None:
    early = run([timed("a", 4, lasts_s=100.0)], budget=((0.0, 10_000.0),))
    late = run([timed("a", 4, at_s=5000.0, lasts_s=100.0)], budget=((0.0, 10_000.0),))
    assert joules(late) == joules(early)
    assert late.row["fragmentation_pct"] == early.row["fragmentation_pct"]


def test_idle_time_between_jobs_counts() -> None:
    jobs = [timed("a", 4, lasts_s=100.0), timed("b", 4, at_s=300.0, lasts_s=100.0)]
    done = run(jobs, faults=(NodeLost(at_s=1e6, node="n0"),))
    assert joules(done)["idle"] == pytest.approx(200 * 4 * IDLE_W)
    assert joules(done)["run"] == pytest.approx(200 * 4 * T4_W)


def test_jobs_that_wait_for_ever_add_nothing_after_the_last_one_ended() -> None:
    """No budget that is known now lets b run; time goes on, and nobody holds anything."""
    jobs = [timed("a", 1, lasts_s=100.0), timed("b", 4, at_s=10.0, lasts_s=100.0)]
    steps = ((0.0, 130.0), (1e6, 120.0))
    assert joules(run(jobs, budget=steps, sets_aside=False))["idle"] == pytest.approx(
        100 * 3 * IDLE_W
    )


def test_a_job_whose_node_was_lost_holds_nothing_until_it_starts_again() -> None:
    jobs = [timed("a", 4, lasts_s=1000.0), timed("b", 4, lasts_s=1000.0)]
    done = run(jobs, "fifo", 4, 4, faults=(NodeLost(at_s=100.0, node="n1"),), history=True)
    held = {one.job_id: (one.energy_j, one.gpu_s) for one in done.outcomes}
    assert held["b"] == (pytest.approx(1100 * 4 * T4_W), pytest.approx(4 * 1100))
    assert sum(one.energy_j for one in done.outcomes) == pytest.approx(joules(done)["run"])
    assert done.stretches is not None
    assert [row[1:3] for row in done.stretches.rows() if row[0] == "b"] == [
        (0.0, 100.0),
        (1000.0, 2000.0),
    ]


@pytest.mark.parametrize("restart_s", [60.0, 300.0])
def test_gandiva_ends_however_long_a_restart_takes(restart_s: float) -> None:
    jobs = [timed(f"j{n}", 4, lasts_s=900.0) for n in range(4)]
    done = run(jobs, "gandiva", restart_s=restart_s)
    assert done.row["finished"] == 4
    assert done.row["makespan_s"] <= 1.2 * (4 * 900.0) + 4 * restart_s  # type: ignore[operator]


class Restless:
    """Stops what runs and starts it again, every ten seconds."""

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if job.wanted and view.woke:
                draft.stop(job, StopReason.TIME_SLICE)
            elif not job.wanted:
                draft.start(job, [Share(0, 1)])
                draft.wake_at(view.now_s + 10.0)


def restless(*jobs: JobSpec, restart_s: float) -> Core:
    core = Core(CoreConfig(cluster=t4_nodes(8), planner=Restless()))
    plant = DurationPlant(cost=constant(restart_s))
    given = [JobSubmitted(at_s=job.submit_s, job=job) for job in jobs]
    SimWorld(core, plant, given, watchers=[Liveness(core)], record=False).run()
    return core


def test_a_run_in_which_nobody_gets_further_stops_and_tells_why() -> None:
    with pytest.raises(UserError, match="no job got any further in 1000 runs") as caught:
        restless(timed("a", lasts_s=100.0), timed("b", lasts_s=100.0), restart_s=10.0)
    assert "job a was started 50" in str(caught.value)


def test_slow_progress_is_progress() -> None:
    core = restless(timed("a", lasts_s=1500.0), restart_s=9.0)
    assert not core.jobs


def test_accounts_that_differ_are_a_bug() -> None:
    check_conserved(1e9, 1e9 + 10.0)
    with pytest.raises(Bug, match=r"jobs drew 27\.6 J, the devices that they held 3\.6 J"):
        check_conserved(27.6, 3.6)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "drf", "capacity", "gandiva"])
def test_joules_of_jobs_are_those_of_the_devices_they_held(policy: str) -> None:
    """Under a cut, restarts, a lost node and an end in the middle: `simulate` compares them."""
    jobs = [timed(f"j{n}", 1 + n % 4, at_s=7.0 * n, lasts_s=50.0 + 9 * n) for n in range(20)]
    done = run(
        jobs,
        policy,
        4,
        4,
        budget=((0.0, 500.0), (60.0, 350.0), (150.0, 450.0)),
        restart_s=3.0,
        cap_delay_s=2.0,
        faults=(NodeLost(at_s=90.0, node="n1"), NodeReturned(at_s=200.0, node="n1")),
        until_s=400.0,
    )
    assert done.row["finished"] < 20  # type: ignore[operator]


def test_draw_that_a_delay_exempts_is_told() -> None:
    """Nobody announced the cut; until the caps are in force 5 s later the draw is above it."""
    jobs = [timed("a", 4, lasts_s=100.0)]
    done = run(jobs, budget=((0.0, 280.0), (50.0, 260.0)), cap_delay_s=5.0)
    assert done.row["over_budget_s"] == 0.0
    assert done.row["exempt_s"] == pytest.approx(5.0)
    assert done.row["exempt_j"] == pytest.approx(5.0 * 20.0)


def test_what_is_assumed_is_said_with_numbers() -> None:
    given = Given(jobs=ReadJobs(specs=(timed("a"), timed("b"))), cluster=t4_nodes(4))
    setting = ComparisonSetup(preset=preset("none"), given=given, cap_delay_s=5.0)
    told = assumptions(setting)
    assert told[0] == "A cap is in force 5.0 s after its order (caps.delay)."
    assert told[1].startswith(
        "Draw above a budget within 5.0 s of a change that nobody announced is"
    )
    assert "A restart takes no time (restart)." in told
    assert any(one.startswith("Watts of 2 of 2 jobs on T4 are a prior: 70 W") for one in told)
