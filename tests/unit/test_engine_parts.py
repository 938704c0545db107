"""Rules of the core's parts, each tried alone: a rule that is turned round fails here by name."""

from __future__ import annotations

import pytest

from wattherd.engine.core.capacity import Book
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.core.plan import shed
from wattherd.engine.core.view import Questions
from wattherd.engine.jobs.lifecycle import State, Trigger
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.estimate.power_curve import prior
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import WAKE, StartJob, StopJob, WakeAt
from wattherd.model.event import BudgetChanged, JobSubmitted, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.schedule.drf import Drf

NODES = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=8000, memory_mib=8000, gpu_count=4, gpu_model="T4")
        for name in ("n0", "n1")
    )
)
IDLE_W, FLOOR_W = 10.0, 60.0
"""Of a T4, by the catalogue."""


def a_job(name: str, number: int, *, gpus: int = 1, priority: int = 0) -> JobRecord:
    role = TaskRole(count=gpus, min_count=1, max_count=4)
    return JobRecord(
        spec=JobSpec(id=name, submit_s=0.0, roles=(role,), priority=priority), number=number
    )


def a_draft(watts: PowerAccount, *jobs: JobRecord) -> GuardedDraft:
    planned, live = Book(NODES), {job.id: job for job in jobs}
    return GuardedDraft(planned, live, set(), watts, Questions(), 0.0)


def flat(budget_w: float | None) -> PowerAccount:
    watts = PowerAccount(NODES, WaterFilling(), prior)
    watts.set_budget(budget_w, [])
    return watts


def test_the_catalogue_is_as_these_tests_take_it() -> None:
    curve = prior(a_job("a", 0).spec, "T4")
    assert (flat(1.0).drawn_mw, curve.floor_w) == (8 * IDLE_W * 1000, FLOOR_W)


def test_shedding_takes_the_lowest_priority_first_and_then_the_newest() -> None:
    watts = flat(10_000.0)
    jobs = [a_job("old", 0), a_job("new", 1), a_job("first", 2, priority=1)]
    draft = a_draft(watts, *jobs)
    for node, job in enumerate(jobs):
        assert draft.start(job, [Share(node % 2, 1)]) is None
    least_w = FLOOR_W - IDLE_W
    watts.set_budget(8 * IDLE_W + 2 * least_w, jobs)
    draft = GuardedDraft(
        draft._planned, {job.id: job for job in jobs}, set(), watts, Questions(), 0.0
    )
    stopped = shed(draft, jobs, watts, 0.0, CoreConfig(cluster=NODES, planner=Drf()))
    assert [job.id for job in stopped] == ["new"]
    assert draft.stops == {"new": StopReason.BUDGET_CUT}


@pytest.mark.parametrize(("spares", "gone"), [(True, ["large"]), (False, ["small", "large"])])
def test_who_need_not_go_stays_but_in_old_journals(spares: bool, gone: list[str]) -> None:
    watts = flat(10_000.0)
    jobs = [a_job("old", 0), a_job("large", 1, gpus=2), a_job("small", 2)]
    draft = a_draft(watts, *jobs)
    for job, share in zip(jobs, (Share(0, 1), Share(0, 2), Share(1, 1)), strict=True):
        assert draft.start(job, [share]) is None
    watts.set_budget(8 * IDLE_W + 2 * (FLOOR_W - IDLE_W), jobs)
    config = CoreConfig(cluster=NODES, planner=Drf(), spares=spares)
    assert [job.id for job in shed(draft, jobs, watts, 0.0, config)] == gone
    assert set(draft.stops) == set(gone)


@pytest.mark.parametrize(("plans_first", "gone"), [(True, "planned"), (False, "runs")])
def test_nobody_who_runs_stops_for_one_that_is_still_to_start(plans_first: bool, gone: str) -> None:
    """Though that one is older: it waits for devices of one that goes, and has nothing to lose."""
    watts = flat(10_000.0)
    jobs = [a_job("planned", 0, priority=1), a_job("runs", 1)]
    draft = a_draft(watts, *jobs)
    for node, job in enumerate(jobs):
        assert draft.start(job, [Share(node, 1)]) is None
    jobs[1].apply(Trigger.START, 0.0, "")
    watts.set_budget(8 * IDLE_W + FLOOR_W - IDLE_W, jobs)
    config = CoreConfig(cluster=NODES, planner=Drf(), plans_first=plans_first)
    assert [job.id for job in shed(draft, jobs, watts, 0.0, config)] == [gone]


def test_what_was_found_at_work_is_booked_beyond_a_budget_and_then_the_newest_stops() -> None:
    """It draws, whatever a budget says; who waits starts on none of its watts."""
    there, at_work = {"found"}, [Share(0, 1, gpus=(2, 3))]

    class Seats(Drf):
        def plan(self, view: View, draft: Draft) -> None:
            for job in view.entered():
                if job.id in there:
                    assert draft.start(job, at_work) is None
            if not any(job.id == "found" for job in view.live()):
                super().plan(view, draft)

    config = CoreConfig(cluster=NODES, planner=Seats(), round_s=0.0, is_there=there.__contains__)
    core = Core(config)
    core.handle(BudgetChanged(at_s=0.0, budget_w=8 * IDLE_W + 2 * (FLOOR_W - IDLE_W)))
    for name, gpus in (("runs", 1), ("found", 2)):
        role = TaskRole(gpu_count=gpus)
        core.handle(JobSubmitted(at_s=0.0, job=JobSpec(id=name, submit_s=0.0, roles=(role,))))
        commands = core.handle(Woke(at_s=0.0, key=WAKE))
        assert [one.job_id for one in commands if isinstance(one, StartJob)] == [name]
        assert core.jobs[name].state is State.STARTING
        there.discard(name)
    assert any(isinstance(one, WakeAt) and one.at_s == 0.0 for one in commands)
    stops = [one for one in core.handle(Woke(at_s=0.0, key=WAKE)) if isinstance(one, StopJob)]
    assert [one.job_id for one in stops] == ["found"]


def test_a_refused_resize_leaves_no_watts_for_another_job() -> None:
    watts = flat(8 * IDLE_W + 2 * (FLOOR_W - IDLE_W))
    runs, waits = a_job("runs", 0, gpus=2), a_job("waits", 1)
    draft = a_draft(watts, runs, waits)
    assert draft.start(runs, [Share(0, 2)]) is None
    wider = draft.start(runs, [Share(0, 4)])
    assert wider is not None
    assert wider.code is ReasonCode.WAITING_FOR_POWER
    refusal = draft.start(waits, [Share(1, 1)])
    assert refusal is not None
    assert (refusal.code, refusal.available) == (ReasonCode.WAITING_FOR_POWER, 0.0)


def test_a_refusal_names_the_domain_nearest_to_the_devices() -> None:
    tree = PowerTree(
        (
            TreeDomain(name="site", budget_w=90.0),
            TreeDomain(name="row", parent="site", budget_w=90.0),
            TreeDomain(name="rack", parent="row", budget_w=50.0, nodes=("n0", "n1")),
        )
    )
    job = a_job("a", 0)
    draft = a_draft(PowerAccount(NODES, WaterFilling(), prior, tree), job)
    refusal = draft.start(job, [Share(0, 1)])
    assert refusal is not None
    assert refusal.unit == "W at rack"


def test_time_that_was_attained_is_that_of_all_runs() -> None:
    job = a_job("a", 0)
    for begin_s, end_s in ((10.0, 30.0), (100.0, 150.0)):
        job.active, job.held_since_s = True, begin_s
        job.settle(end_s)
        job.active = False
    assert (job.attained_s, job.service_s(500.0)) == (70.0, 70.0)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_job_that_was_forgotten_is_no_repetition(forgotten: bool) -> None:
    core = Core(CoreConfig(cluster=NODES, planner=Drf()))
    too_large = JobSpec(id="a", submit_s=0.0, roles=(TaskRole(count=100),))
    first = core.handle(JobSubmitted(at_s=0.0, job=too_large))
    assert core.finished == {"a": State.FAILED}
    if forgotten:
        core.forget("a")
    again = core.handle(JobSubmitted(at_s=0.0, job=too_large))
    assert again == (first if forgotten else [])
