"""Jobs that no budget in sight lets run: told at once, and nobody waits for them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.capacity import Book
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.core.feasibility import LeastPower
from wattherd.engine.core.view import Questions
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.estimate.power_curve import prior
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import (
    BudgetAnnounced,
    BudgetChanged,
    Event,
    JobSubmitted,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode
from wattherd.policy.contract import Planner, Quota, Share
from wattherd.policy.power.simple import Pause
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.queue.tree import equal_queues
from wattherd.testing.timed_world import Story, t4_nodes, timed

T4 = GPUS["T4"]
STEP_W = (T4.min_cap_w or 0) - T4.idle_w
"""What a GPU at its floor draws beyond idling."""


def idle_w(gpus: int) -> float:
    return gpus * T4.idle_w


QUEUES = equal_queues(["default"])
PLANNERS = (
    "fifo", "fifo-first-fit", "fifo-backfill", "sjf", "priority", "deadline", "srtf", "srsf",
    "tiresias", "drf", "capacity", "hived", "gandiva",
)  # fmt: skip


def scheduler(name: str, cluster: ClusterSpec) -> tuple[Planner, Quota | None]:
    given = SchedulerContext(jobs=ReadJobs(specs=()), cluster=cluster, queues=QUEUES)
    made = preset("none").scheduler(name, given)
    return made.planner, made.quota


def story(name: str, budget_w: float | None, *more: Event, until_s: float = 5000.0) -> Story:
    cluster = t4_nodes(4, 4)
    planner, quota = scheduler(name, cluster)
    jobs = [timed(f"j{at}", gpus, at_s=float(at)) for at, gpus in enumerate((1, 8, 1, 1))]
    events = [BudgetChanged(at_s=0.0, budget_w=budget_w), *more]
    return Story(planner, cluster, jobs, quota=quota, events=events, until_s=until_s)


@pytest.mark.parametrize("name", PLANNERS)
def test_nobody_waits_behind_a_job_that_no_budget_lets_run(name: str) -> None:
    """Two GPUs' worth of watts: the job of eight stands second in line, and the others run."""
    told = story(name, idle_w(8) + 2 * STEP_W)
    assert [told.starts(f"j{at}") != [] for at in range(4)] == [True, False, True, True]
    reason = told.core.jobs["j1"].reason
    assert reason is not None
    assert reason.code is ReasonCode.NEVER_FITS
    assert reason.asked == pytest.approx(idle_w(8) + 8 * STEP_W)
    assert reason.available == pytest.approx(idle_w(8) + 2 * STEP_W)
    assert f"idle devices draw {idle_w(8):g} W" in reason.text()


@pytest.mark.parametrize("name", PLANNERS)
def test_a_rise_lets_it_run_after_all_and_a_cut_sets_it_aside_again(name: str) -> None:
    rise = BudgetChanged(at_s=1000.0, budget_w=idle_w(8) + 8 * STEP_W)
    told = story(name, idle_w(8) + 2 * STEP_W, rise)
    assert told.starts("j1") == [pytest.approx(1000.0, abs=61.0)]
    assert not told.core.jobs
    cut = BudgetChanged(at_s=1050.0, budget_w=idle_w(8) + STEP_W)
    told = story(name, idle_w(8) + 2 * STEP_W, rise, cut)
    assert told.stops("j1")
    assert "NeverFits" in told.why("j1")
    later = JobSubmitted(at_s=1100.0, job=timed("small", at_s=1100.0))
    told = story(name, idle_w(8) + 2 * STEP_W, rise, cut, later)
    assert told.starts("small")


def test_an_announced_rise_makes_it_wait_for_that_time_and_not_for_ever() -> None:
    low, high = idle_w(8) + 2 * STEP_W, idle_w(8) + 8 * STEP_W
    rise = BudgetAnnounced(at_s=0.0, begins_s=3600.0, budget_w=high)
    told = story("fifo", low, rise, until_s=900.0)
    reason = told.core.jobs["j1"].reason
    assert reason is not None
    assert (reason.code, reason.due_s) == (ReasonCode.WAITING_FOR_BUDGET_RISE, 3600.0)
    assert "begins in about 60 min" in reason.text(now_s=0.0)
    assert told.starts("j2"), "who waits for a rise is not waited for either"
    back = BudgetAnnounced(at_s=10.0, begins_s=3600.0, budget_w=None)
    assert "NeverFits" in story("fifo", low, rise, back, until_s=900.0).why("j1")


def test_of_two_sources_the_lower_one_counts_whatever_the_other_announces() -> None:
    low, high = idle_w(8) + 2 * STEP_W, idle_w(8) + 8 * STEP_W
    grid = BudgetChanged(at_s=0.0, budget_w=low, source="grid")
    rise = BudgetAnnounced(at_s=0.0, begins_s=3600.0, budget_w=high)
    assert "NeverFits" in story("fifo", low, grid, rise, until_s=900.0).why("j1")
    over = BudgetAnnounced(at_s=0.0, begins_s=7200.0, budget_w=high, source="grid")
    told = story("fifo", low, grid, rise, over, until_s=900.0)
    reason = told.core.jobs["j1"].reason
    assert reason is not None
    assert reason.due_s == 7200.0


def test_below_what_idle_devices_draw_every_job_is_told_so() -> None:
    told = story("fifo", 20.0)
    assert not told.commands or not any(told.starts(f"j{at}") for at in range(4))
    for at in range(4):
        assert f"idle devices draw {idle_w(8):g} W" in told.why(f"j{at}")


def test_a_domain_below_its_idle_draw_is_named() -> None:
    tree = PowerTree(
        (
            TreeDomain(name="site", budget_w=5000.0),
            TreeDomain(name="rack", parent="site", budget_w=10.0, nodes=("n0",)),
            TreeDomain(name="other", parent="site", nodes=("n1",)),
        )
    )
    cluster = t4_nodes(4, 4)
    planner, quota = scheduler("fifo", cluster)
    core = Core(CoreConfig(cluster=cluster, planner=planner, quota=quota, tree=tree))
    core.handle(JobSubmitted(at_s=0.0, job=timed("wide", 8)))
    core.handle(JobSubmitted(at_s=0.0, job=timed("small", 4)))
    assert core.jobs["small"].wanted, "the other rack carries it"
    reason = core.jobs["wide"].reason
    assert reason is not None
    assert reason.code is ReasonCode.NEVER_FITS
    assert reason.unit == "W at rack"
    assert reason.available == 10.0


def test_without_the_rule_planners_wait_as_they_did() -> None:
    """Stores and logs of that time replay with what was decided then."""
    cluster = t4_nodes(4, 4)
    planner, quota = scheduler("fifo", cluster)
    core = Core(CoreConfig(cluster=cluster, planner=planner, quota=quota, sets_aside=False))
    core.handle(BudgetChanged(at_s=0.0, budget_w=idle_w(8) + 2 * STEP_W))
    for name, gpus in (("wide", 8), ("small", 1)):
        core.handle(JobSubmitted(at_s=0.0, job=timed(name, gpus)))
    assert core.jobs["wide"].reason.code is ReasonCode.WAITING_FOR_POWER
    assert not core.jobs["small"].wanted


# Against all placements that there are ----------------------------------------------------------

SMALL = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=4_000, memory_mib=64_000, gpu_count=gpus, gpu_model=model)
        for name, gpus, model in (("n0", 2, "T4"), ("n1", 3, "T4"), ("n2", 2, "V100M16"))
    )
)
TREES = st.tuples(
    st.sampled_from([None, 60.0, 90.0, 130.0]),
    st.sampled_from([None, 100.0, 160.0, 240.0]),
    st.sampled_from([None, 150.0, 260.0, 330.0, 480.0]),
    st.sampled_from([0.0, 0.07]),
).map(
    lambda given: PowerTree(
        (
            TreeDomain(name="site", budget_w=given[2]),
            TreeDomain(name="row", parent="site", budget_w=given[1], loss=given[3], nodes=("n1",)),
            TreeDomain(name="rack", parent="row", budget_w=given[0], nodes=("n0",)),
            TreeDomain(name="v100s", parent="site", budget_w=given[1], nodes=("n2",)),
        )
    )
)
JOBS = st.builds(
    lambda count, gpus, milli, cpu, models: JobSpec(
        id="j", submit_s=0.0, gpu_models=models,
        roles=(
            TaskRole(
                count=count, cpu_milli=cpu, gpu_count=gpus,
                gpu_milli=milli if gpus == 1 else 1000,
            ),
        ),
    ),
    st.integers(1, 5), st.sampled_from([0, 1, 1, 1, 2]), st.sampled_from([1000, 1000, 400]),
    st.sampled_from([500, 1500]), st.sampled_from([(), ("T4",), ("V100M16",)]),
)  # fmt: skip


def accepted(spec: JobSpec, watts: PowerAccount) -> bool | None:
    """Whether the guard takes any placement on the empty cluster; None: the nodes are too small."""
    role, possible = spec.roles[0], False
    for split in product(range(role.count + 1), repeat=len(SMALL.nodes)):
        if sum(split) != role.count:
            continue
        job = JobRecord(spec=spec, number=0)
        draft = GuardedDraft(Book(SMALL), {"j": job}, set(), watts, Questions(), 0.0)
        # One share a task: parts of one GPU are then put on the same device.
        shares = [Share(node, 1) for node, tasks in enumerate(split) for _ in range(tasks)]
        refusal = draft.start(job, shares)
        if refusal is None:
            draft.stop(job, "x")  # type: ignore[arg-type]
            return True
        power = ReasonCode.WAITING_FOR_POWER
        possible |= refusal.code is power
    return False if possible else None


@settings(max_examples=times(200), deadline=None)
@given(
    spec=JOBS,
    budget_w=st.sampled_from([60.0, 120.0, 190.0, 250.0, 330.0, 420.0]),
    policy=st.sampled_from([WaterFilling(), Pause()]),
)
def test_exactly_those_are_set_aside_that_the_guard_would_never_start(spec, budget_w, policy):
    watts = PowerAccount(SMALL, policy, prior)
    watts.set_budget(budget_w, [])
    truth = accepted(spec, watts)
    if truth is not None:
        found = LeastPower(watts, SMALL).shortage(spec, (round(budget_w * 1000),))
        assert (found is None) == truth


@settings(max_examples=times(200), deadline=None)
@given(spec=JOBS, tree=TREES, policy=st.sampled_from([WaterFilling(), Pause()]))
def test_under_a_tree_no_job_is_set_aside_that_the_guard_would_start(spec, tree, policy):
    watts = PowerAccount(SMALL, policy, prior, tree)
    truth = accepted(spec, watts)
    if truth is not None:
        found = LeastPower(watts, SMALL).shortage(spec, tuple(watts.held_mw))
        assert (found is None) == truth
