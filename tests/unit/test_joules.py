"""Energy budgets of jobs: never overrun, told early where they cannot do, kept by caps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.power.demand import price_j, thriftiest_w, thrifty
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, concave_hull, prior_curve
from wattherd.experiments.schedule.run import POWER_POLICIES, ComparedRun, ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob, StopJob, WakeAt
from wattherd.model.event import BudgetChanged, JobStarted, JobStopped, JobSubmitted, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.native import read_jobs

CLUSTER = parse_cluster("2x4:V100M16", known=GPUS)
V100 = prior_curve(GPUS["V100M16"])
BEST_J = price_j(V100, thriftiest_w(V100))
"""Joules for a second's work at the thriftiest cap."""


# --- thrift ----------------------------------------------------------------------------------


@st.composite
def curves(draw: st.DrawFn) -> PowerCurve:
    caps = sorted(draw(st.sets(st.integers(50, 400), min_size=1, max_size=8)))
    rates = sorted(draw(st.lists(st.floats(0.1, 10), min_size=len(caps), max_size=len(caps))))
    return concave_hull(list(zip(map(float, caps), rates, strict=True)))


@settings(max_examples=times(300))
@given(curve=curves(), factor=st.floats(0.5, 4.0), at=st.floats(0, 1))
def test_a_thrifty_curve_holds_the_caps_within_the_price_and_no_others(
    curve: PowerCurve, factor: float, at: float
) -> None:
    least_j = min(price_j(curve, cap_w) for cap_w in curve.watts)
    most_j = factor * least_j
    found = thrifty(curve, most_j)
    assert curve.floor_w <= found.floor_w <= found.max_w <= curve.max_w
    cap_w = curve.floor_w + at * (curve.max_w - curve.floor_w)
    if factor < 1:
        assert found.watts == (thriftiest_w(curve),)
    elif found.floor_w <= cap_w <= found.max_w:
        assert price_j(curve, cap_w) <= most_j * (1 + 1e-6)
        assert found.rate(cap_w) == pytest.approx(curve.rate(cap_w))
    elif not found.floor_w * (1 - 1e-9) <= cap_w <= found.max_w * (1 + 1e-9):
        assert price_j(curve, cap_w) >= most_j * (1 - 1e-6)


# --- in a simulated run ----------------------------------------------------------------------


def a_job(name: str, gpus: int, lasts_s: float, budget_j: float | None, **more: Any) -> JobSpec:
    return JobSpec(
        id=name,
        submit_s=more.pop("submit_s", 0.0),
        roles=(TaskRole(count=gpus),),
        duration_s=lasts_s,
        energy_budget_j=budget_j,
        **more,
    )


def run(specs: list[JobSpec], **more: Any) -> ComparedRun:
    given = SchedulerContext(jobs=ReadJobs(specs=tuple(specs)), cluster=CLUSTER)
    policy = more.pop("policy", "fifo-backfill")
    return simulate(ComparisonSetup(preset=preset("none"), given=given, **more), policy)


def test_a_budget_is_kept_without_any_budget_of_the_site_and_costs_time() -> None:
    free_j = 4 * 1000 * V100.max_w
    for share in (0.95, 0.8, 0.7):
        (outcome,) = run([a_job("a", 4, 1000.0, share * free_j)]).outcomes
        assert outcome.state == "Succeeded"
        assert outcome.energy_j <= share * free_j
        assert outcome.energy_j >= 0.97 * share * free_j, "what is allowed is used"
        assert outcome.jct_s is not None
        assert outcome.jct_s > 1000.0
    (outcome,) = run([a_job("a", 4, 1000.0, None)]).outcomes
    assert outcome.jct_s == 1000.0


def test_a_job_that_its_joules_cannot_do_is_rejected_with_the_numbers() -> None:
    (outcome,) = run([a_job("a", 4, 1000.0, 0.99 * 4 * 1000 * BEST_J)]).outcomes
    assert outcome.state == "Rejected"
    assert "EnergyBudget: asked" in outcome.detail
    assert "available" in outcome.detail
    (outcome,) = run([a_job("a", 4, 1000.0, 1.02 * 4 * 1000 * BEST_J)]).outcomes
    assert outcome.state == "Succeeded"


jobs = st.lists(
    st.tuples(
        st.integers(0, 600),
        st.integers(1, 6),
        st.integers(50, 900),
        st.sampled_from([None, 0.5, 0.75, 0.8, 0.95, 1.5]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=times(60))
@given(
    drawn=jobs,
    budget_w=st.sampled_from([None, 1500.0, 2000.0]),
    power=st.sampled_from(sorted(POWER_POLICIES)),
    policy=st.sampled_from(["tiresias", "fifo-backfill", "gandiva"]),
    in_tree=st.booleans(),
)
def test_no_job_draws_more_than_its_joules(
    drawn: list[tuple[int, int, int, float | None]],
    budget_w: float | None,
    power: str,
    policy: str,
    in_tree: bool,
) -> None:
    specs = [
        a_job(
            f"j{at}",
            gpus,
            float(lasts_s),
            None if share is None else share * gpus * lasts_s * V100.max_w,
            submit_s=float(submit_s),
        )
        for at, (submit_s, gpus, lasts_s, share) in enumerate(sorted(drawn, key=lambda one: one[0]))
    ]
    nodes = tuple(node.name for node in CLUSTER.nodes)
    tree = PowerTree((TreeDomain(name="site", nodes=nodes),)) if in_tree else None
    budget = ((0.0, budget_w), (400.0, 1300.0)) if budget_w else ()
    result = run(specs, budget=budget, power=power, policy=policy, tree=tree, until_s=50_000.0)
    assert result.row["over_budget_s"] == 0.0
    for spec, outcome in zip(specs, result.outcomes, strict=True):
        assert spec.id == outcome.job_id
        budget_j = float("inf") if spec.energy_budget_j is None else spec.energy_budget_j
        hopeless = budget_j * 0.999 < BEST_J * spec.gpus * (spec.duration_s or 0)
        # Without caps a wide job may wait for ever under a small budget.
        waits = {""} if power == "pause" and budget_w else set()
        assert outcome.state in ({"Rejected"} if hopeless else {"Succeeded"} | waits)
        assert outcome.energy_j <= budget_j * (1 + 1e-9)


# --- at the core -----------------------------------------------------------------------------


class Desk:
    """A core and one job of one GPU that does not say how long it takes."""

    def __init__(self, budget_j: float, grace_s: float = 0.0) -> None:
        self.core = Core(CoreConfig(cluster=CLUSTER, planner=Tiresias()))
        job = JobSpec(id="a", submit_s=0.0, energy_budget_j=budget_j, grace_s=grace_s)
        found = self.core.handle(JobSubmitted(at_s=0.0, job=job))
        self.started = [one for one in found if isinstance(one, StartJob)]
        self.first = [*found, *self.core.handle(JobStarted(at_s=0.0, job_id="a", attempt=1))]

    def wakes(self) -> list[float]:
        return [one.at_s for one in self.first if isinstance(one, WakeAt) and "joules" in one.key]


def kinds(commands: list[Command]) -> list[type]:
    return [type(one) for one in commands]


def test_a_run_of_unknown_length_is_stopped_before_its_joules_are_spent() -> None:
    desk = Desk(3000.0 * V100.max_w, grace_s=60.0)
    assert desk.wakes()[:1] == [pytest.approx(2940.0)]
    assert kinds(desk.core.handle(Woke(at_s=2000.0, key="joules:a#1"))) == []
    commands = desk.core.handle(Woke(at_s=2940.0, key="joules:a#1"))
    (stop,) = [one for one in commands if isinstance(one, StopJob)]
    assert (stop.reason, stop.grace_s) == (StopReason.ENERGY_BUDGET, 60.0)
    commands = desk.core.handle(JobStopped(at_s=3000.0, job_id="a", attempt=1))
    assert [one.state for one in commands if isinstance(one, FinishJob)] == ["Failed"]


def test_a_lower_cap_makes_joules_last_longer() -> None:
    desk = Desk(1000.0 * V100.max_w)
    idle_w = 7 * GPUS["V100M16"].idle_w
    desk.core.handle(BudgetChanged(at_s=500.0, budget_w=idle_w + 150.0))
    job = desk.core.jobs["a"]
    assert job.wanted_cap_w == 150.0
    # Not read back yet: counted at the old cap, so that it is stopped in time.
    assert StopJob in kinds(desk.core.handle(Woke(at_s=1000.0, key="joules:a#1")))


def test_a_budget_lifted_keeps_the_caps_that_joules_ask_for() -> None:
    core = Core(CoreConfig(cluster=CLUSTER, planner=Tiresias()))
    job = a_job("a", 1, 1000.0, 0.8 * 1000 * V100.max_w)
    core.handle(JobSubmitted(at_s=0.0, job=job))
    cap_w = core.jobs["a"].cap_w
    assert cap_w is not None
    assert cap_w < V100.max_w
    core.handle(BudgetChanged(at_s=1.0, budget_w=None))
    assert core.jobs["a"].wanted_cap_w == cap_w


def test_a_gpu_that_is_not_thrifty_enough_is_refused_and_says_so() -> None:
    t4 = prior_curve(GPUS["T4"])
    t4_j = price_j(t4, thriftiest_w(t4))
    assert t4_j < BEST_J
    between_j = 1000.0 * (BEST_J + t4_j) / 2
    core = Core(CoreConfig(cluster=parse_cluster("V100M16=1,T4=1", known=GPUS), planner=Tiresias()))
    commands = core.handle(JobSubmitted(at_s=0.0, job=a_job("a", 1, 1000.0, between_j)))
    assert not {RejectJob, StartJob} & set(kinds(commands))
    reason = core.jobs["a"].reason
    assert reason is not None
    assert reason.code is ReasonCode.ENERGY_BUDGET
    assert reason.unblocks == "a thriftier GPU than V100M16"
    # Schedulers that ask where a job has room go to the other node.
    mixed = SchedulerContext(
        jobs=ReadJobs(specs=(a_job("a", 1, 1000.0, between_j),)),
        cluster=parse_cluster("V100M16=1,T4=1", known=GPUS),
    )
    (outcome,) = simulate(
        ComparisonSetup(preset=preset("none"), given=mixed), "fifo-backfill"
    ).outcomes
    assert outcome.state == "Succeeded"
    assert outcome.energy_j <= between_j


# --- files -----------------------------------------------------------------------------------


def test_job_files_have_the_field(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("id,submit_s,gpus,duration_s,energy_budget_j\na,0,1,100,25000\nb,0,1,9,\n")
    assert [job.energy_budget_j for job in read_jobs(file)] == [25000.0, None]
    file.write_text("id,submit_s,energy_budget_j\na,0,0\n")
    with pytest.raises(UserError, match="is no budget") as refused:
        read_jobs(file)
    assert refused.value.field == "energy_budget_j"
