"""Figures of a run that are so: one interval, joules of jobs that add up, and an end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import Bug, UserError
from wattherd.estimate.job_work import constant
from wattherd.experiments.schedule.assumptions import assumptions
from wattherd.experiments.schedule.run import (
    ComparedRun,
    ComparisonSetup,
    check_equal,
    simulate,
)
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command
from wattherd.model.event import Event, JobSubmitted, NodeLost, NodeReturned
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, Share, View
from wattherd.sim import collector, usage
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.liveness import Liveness
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import t4_nodes, timed

T4_W, IDLE_W = 70.0, 10.0


def run(jobs: list[JobSpec], policy: str = "fifo", *gpus: int, **more: Any) -> ComparedRun:
    chosen = preset("none")
    restart_s = more.pop("restart_s", 0.0)
    given = SchedulerContext(
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


def test_a_run_in_which_no_job_ever_begins_has_no_energy() -> None:
    done = run([timed("a", 5)], budget=((0.0, 900.0), (1e7, 800.0)))
    assert done.row["rejected"] == 1
    assert set(joules(done).values()) == {0.0}


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
    check_equal(1e9, 1e9 + 10.0, "jobs", "devices")
    with pytest.raises(Bug, match=r"jobs drew 27\.6 J, the devices 3\.6 J"):
        check_equal(27.6, 3.6, "jobs", "the devices")
    for one, other in ((math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)):
        with pytest.raises(Bug, match="drew"):
            check_equal(one, other, "jobs", "devices")


@pytest.mark.parametrize("lacks", ["job", "idle"])
def test_no_run_passes_whose_joules_do_not_add_up(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that sees nothing of the lost node, and one that counts no idle devices."""
    if lacks == "job":
        monkeypatch.setattr(collector, "NodeLost", type("Nothing", (), {}))
    else:
        monkeypatch.setattr(usage, "_GIVES_BACK", frozenset())
    jobs = [timed("a", 4, lasts_s=100.0), timed("b", 4, lasts_s=1000.0)]
    with pytest.raises(Bug, match="drew"):
        run(jobs, "fifo", 4, 4, faults=(NodeLost(at_s=50.0, node="n1"),))


class DeviceSums:
    """Joules from what each job's devices are and what cap is in force: no account is asked."""

    def __init__(self, core: Core) -> None:
        self.core, self.at_s, self.begun = core, 0.0, False
        self.job_j: dict[str, float] = {}
        self.idle_j = 0.0
        self._draw_w: dict[str, float] = {}
        self._idle_w = 0.0
        self._end: tuple[float, float] = (0.0, 0.0)

    def until(self, now_s: float) -> None:
        seconds = now_s - self.at_s if self.begun else 0.0
        for job_id, watts in self._draw_w.items():
            self.job_j[job_id] = self.job_j.get(job_id, 0.0) + watts * seconds
        self.idle_j += self._idle_w * seconds
        self.at_s = max(now_s, self.at_s)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        del commands
        if isinstance(event, JobSubmitted) and not self.begun:
            self.begun, self.at_s = True, event.at_s
        nodes = self.core.config.cluster.nodes
        free = [node.gpu_count for node in nodes]
        held_before, self._draw_w = bool(self._draw_w), {}
        for job in self.core.jobs.values():
            cap_w = math.inf if job.cap_w is None else job.cap_w
            for part in job.allocations:
                most_w = GPUS[nodes[part.node].gpu_model].max_w
                drawn_w = len(part.gpus) * min(cap_w, most_w)
                self._draw_w[job.id] = self._draw_w.get(job.id, 0.0) + drawn_w
                free[part.node] -= len(part.gpus)
        self._idle_w = sum(
            node.idle_w + count * GPUS[node.gpu_model].idle_w
            for node, count in zip(nodes, free, strict=True)
        )
        if held_before and not self._draw_w:
            self._end = self.at_s, self.idle_j

    @property
    def idle_until_the_last_job_j(self) -> float:
        return self.idle_j if self._draw_w else self._end[1]


MODELS = ("T4", "V100M16", "A100")


POLICIES = ("fifo", "srtf", "tiresias", "drf", "capacity", "gandiva", "priority-backfill", "gang")


@settings(max_examples=40, deadline=None)
@given(data=st.data(), policy=st.sampled_from(POLICIES))
def test_joules_of_any_run_add_up(data: st.DataObject, policy: str) -> None:
    """Lost nodes, cuts, restarts, caps that are late, several models, an end in the middle."""
    draw = data.draw
    number = st.integers(0, 1000)
    nodes = tuple(
        NodeSpec(
            name=f"n{at}",
            cpu_milli=64_000,
            memory_mib=65_536,
            gpu_count=draw(st.integers(1, 4)),
            gpu_model=draw(st.sampled_from(MODELS)),
            idle_w=draw(st.sampled_from([0.0, 150.0])),
        )
        for at in range(draw(st.integers(1, 4)))
    )
    jobs = [
        timed(
            f"j{at}", draw(st.integers(1, 5)), at_s=float(draw(number)) + 3.0,
            lasts_s=1.0 + draw(number),
        )
        for at in range(draw(st.integers(1, 10)))
    ]  # fmt: skip
    faults: list[Event] = []
    for _ in range(draw(st.integers(0, 3))):
        name, at_s = draw(st.sampled_from(nodes)).name, float(draw(number))
        faults.append(NodeLost(at_s=at_s, node=name))
        faults.append(NodeReturned(at_s=at_s + 1.0 + draw(number), node=name))
    all_w = sum(node.idle_w + node.gpu_count * GPUS[node.gpu_model].max_w for node in nodes)
    budget = tuple(
        (float(at_s), all_w * draw(st.floats(0.3, 1.1)))
        for at_s in sorted(draw(st.sets(number, max_size=3)))
    )
    restart_s = draw(st.sampled_from([0.0, 2.5, 30.0]))
    preset_ = replace(preset("none"), restart_s=restart_s)
    setting = ComparisonSetup(
        preset=preset_,
        given=SchedulerContext(
            jobs=ReadJobs(specs=tuple(jobs)), cluster=ClusterSpec(nodes), restart_s=restart_s
        ),
        budget=budget,
        cap_delay_s=draw(st.sampled_from([0.0, 5.0])),
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        until_s=draw(st.sampled_from([math.inf, 300.0, 900.0])),
    )
    sums: list[DeviceSums] = []

    def liveness(core: Core) -> DeviceSums:
        sums.append(DeviceSums(core))
        return sums[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("wattherd.experiments.schedule.run.Liveness", liveness)
        done = simulate(setting, policy)
    told = joules(done)
    of_jobs = {one.job_id: one.energy_j for one in done.outcomes if one.energy_j}
    assert of_jobs == pytest.approx({one: j for one, j in sums[0].job_j.items() if j}, rel=1e-6)
    assert told["run"] + told["wasted"] == pytest.approx(sum(sums[0].job_j.values()), rel=1e-6)
    assert told["idle"] == pytest.approx(sums[0].idle_until_the_last_job_j, rel=1e-6, abs=1e-3)
    assert min(told.values()) >= 0.0


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
    given = SchedulerContext(jobs=ReadJobs(specs=(timed("a"), timed("b"))), cluster=t4_nodes(4))
    setting = ComparisonSetup(preset=preset("none"), given=given, cap_delay_s=5.0)
    told = assumptions(setting)
    assert told[0] == "A cap is in force 5.0 s after its order (caps.delay)."
    assert told[1].startswith(
        "Draw above a budget within 5.0 s of a change that nobody announced is"
    )
    assert "A restart takes no time (restart)." in told
    assert any(one.startswith("Watts of 2 of 2 jobs on T4 are a prior: 70 W") for one in told)
