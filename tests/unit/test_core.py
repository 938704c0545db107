"""The core as a table of small stories: events in, commands out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.lifecycle import FINAL, TABLE, State, Trigger, diagram, step
from wattherd.errors import Bug
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import FinishJob, RejectJob, SetCap, StartJob, StopJob, WakeAt
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    Event,
    JobCancelled,
    JobExited,
    JobHeld,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.tiresias import Tiresias


def a_core(nodes: int = 2, gpus: int = 4, **config: Any) -> Core:
    specs = [
        NodeSpec(name=f"n{i}", cpu_milli=64_000, memory_mib=65_536, gpu_count=gpus, gpu_model="T4")
        for i in range(nodes)
    ]
    config.setdefault("planner", Tiresias(thresholds_gpu_s=(100.0,)))
    return Core(CoreConfig(cluster=ClusterSpec(tuple(specs)), **config))


def a_job(name: str, gpus: int = 1, **more: Any) -> JobSpec:
    return JobSpec(id=name, submit_s=0.0, roles=(TaskRole(count=gpus),), **more)


def tell(core: Core, event: Event) -> list[Any]:
    commands = core.handle(event)
    validate(core)
    return commands


def submit(core: Core, job: JobSpec, at_s: float = 0.0) -> list[Any]:
    return tell(core, JobSubmitted(at_s=at_s, job=job))


def run(core: Core, job: JobSpec, at_s: float = 0.0) -> StartJob:
    (start,) = [c for c in submit(core, job, at_s) if isinstance(c, StartJob)]
    tell(core, JobStarted(at_s=at_s, job_id=job.id, attempt=start.attempt))
    return start


def test_a_job_that_fits_is_started_at_once_on_one_node() -> None:
    start = run(a_core(), a_job("a", 3))
    assert [len(one.gpus) for one in start.allocations] == [3]
    assert start.attempt == 1


def test_a_job_that_exits_well_is_finished_and_forgotten() -> None:
    core = a_core()
    run(core, a_job("a", 3))
    assert tell(core, JobExited(at_s=9.0, job_id="a", attempt=1)) == [
        FinishJob(job_id="a", state="Succeeded")
    ]
    assert not core.jobs


def test_a_job_wider_than_the_cluster_is_rejected_with_numbers() -> None:
    (reject,) = submit(a_core(), a_job("a", 9))
    assert isinstance(reject, RejectJob)
    assert (reject.reason.code, reject.reason.asked, reject.reason.available) == (
        ReasonCode.NEVER_FITS,
        9,
        8,
    )


def test_a_failure_is_retried_after_a_growing_wait_until_restarts_are_used_up() -> None:
    core = a_core()
    run(core, a_job("a", restarts=2, backoff_s=10.0))
    waits = []
    for attempt in (1, 2):
        commands = tell(core, JobExited(at_s=0.0, job_id="a", attempt=attempt, exit_code=1))
        (wake,) = [c for c in commands if isinstance(c, WakeAt)]
        waits.append(wake.at_s - core.now_s)
        (start,) = [
            c for c in tell(core, Woke(at_s=wake.at_s, key=wake.key)) if isinstance(c, StartJob)
        ]
        assert start.attempt == attempt + 1
    assert waits == [10.0, 20.0]
    last = tell(core, JobExited(at_s=99.0, job_id="a", attempt=3, exit_code=1))
    assert last == [FinishJob(job_id="a", state="Failed")]


def test_exit_143_goes_back_to_the_queue_without_counting_as_a_failure() -> None:
    core = a_core()
    run(core, a_job("a"))
    commands = tell(core, JobExited(at_s=5.0, job_id="a", attempt=1, exit_code=143))
    assert [type(c) for c in commands] == [StartJob]


def test_dependants_wait_for_success_and_fail_with_their_parents() -> None:
    core = a_core()
    run(core, a_job("a"))
    assert submit(core, a_job("b", after=("a",))) == []
    assert submit(core, a_job("c", after=("b",))) == []
    assert core.jobs["b"].state is State.BLOCKED
    commands = tell(core, JobExited(at_s=1.0, job_id="a", attempt=1))
    assert [c.job_id for c in commands if isinstance(c, StartJob)] == ["b"]
    commands = tell(core, JobExited(at_s=2.0, job_id="b", attempt=1, exit_code=1))
    assert {c.job_id: c.state for c in commands if isinstance(c, FinishJob)} == {
        "b": "Failed",
        "c": "Failed",
    }


@pytest.mark.parametrize("kind", ["jobs", "arrays", "notok"])
def test_the_end_of_a_long_chain_does_not_stop_the_core(kind: str) -> None:
    """Each ends as the one before it did: thousands of ends in one turn."""
    core, last = a_core(), 2_000
    core.handle(JobSubmitted(at_s=0.0, job=a_job("j-0", begin_s=1e6)))
    for number in range(1, last):
        before = f"a-{number - 1}" if kind == "arrays" and number > 1 else f"j-{number - 1}"
        ends = (
            {"after_notok": (before,)} if kind == "notok" and number == 1 else {"after": (before,)}
        )
        more: dict[str, Any] = {}
        if kind == "arrays":
            more = {"array": f"a-{number}", "array_index": 0, "array_count": 1}
        core.handle(JobSubmitted(at_s=0.0, job=a_job(f"j-{number}", **ends, **more)))
    commands = core.handle(JobCancelled(at_s=1.0, job_id="j-0"))
    over = [one.job_id for one in commands if isinstance(one, FinishJob)]
    if kind == "notok":  # the second one runs, then
        core.handle(JobStarted(at_s=1.0, job_id="j-1", attempt=1))
        commands = core.handle(JobExited(at_s=2.0, job_id="j-1", attempt=1, exit_code=1))
        over += [one.job_id for one in commands if isinstance(one, FinishJob)]
    assert over == [f"j-{number}" for number in range(last)]
    assert not core.jobs
    validate(core)


def test_news_of_an_earlier_run_is_ignored() -> None:
    core = a_core()
    run(core, a_job("a", restarts=1))
    tell(core, JobExited(at_s=1.0, job_id="a", attempt=1, exit_code=143))
    assert tell(core, JobExited(at_s=2.0, job_id="a", attempt=1)) == []
    assert core.jobs["a"].attempt == 2


def test_a_repeated_submission_changes_nothing() -> None:
    core = a_core()
    run(core, a_job("a"))
    assert submit(core, a_job("a", 2)) == []


def test_a_hold_stops_the_job_and_a_release_lets_it_start_again() -> None:
    core = a_core()
    run(core, a_job("a"))
    (stop,) = tell(core, JobHeld(at_s=1.0, job_id="a"))
    assert isinstance(stop, StopJob)
    tell(core, JobStopped(at_s=2.0, job_id="a", attempt=1))
    assert core.jobs["a"].state is State.HELD
    (start,) = tell(core, JobReleased(at_s=3.0, job_id="a"))
    assert isinstance(start, StartJob)


def test_a_cancelled_job_is_stopped_first_and_then_gone() -> None:
    core = a_core()
    run(core, a_job("a"))
    assert [type(c) for c in tell(core, JobCancelled(at_s=1.0, job_id="a"))] == [StopJob]
    assert tell(core, JobStopped(at_s=2.0, job_id="a", attempt=1)) == [
        FinishJob(job_id="a", state="Cancelled")
    ]


def test_a_time_limit_ends_the_job() -> None:
    core = a_core()
    (start,) = submit(core, a_job("a", time_limit_s=60.0))
    (wake,) = tell(core, JobStarted(at_s=5.0, job_id="a", attempt=start.attempt))
    assert isinstance(wake, WakeAt)
    assert wake.at_s == 60.0
    assert [type(c) for c in tell(core, Woke(at_s=60.0, key=wake.key))] == [StopJob]
    assert tell(core, JobStopped(at_s=61.0, job_id="a", attempt=1)) == [
        FinishJob(job_id="a", state="TimedOut")
    ]


def test_a_lost_node_sends_its_jobs_back_to_the_queue_and_is_not_used_again() -> None:
    core = a_core()
    start = run(core, a_job("a", 4))
    lost = core.config.cluster.nodes[start.allocations[0].node].name
    (again,) = [c for c in tell(core, NodeLost(at_s=1.0, node=lost)) if isinstance(c, StartJob)]
    assert again.allocations[0].node != start.allocations[0].node
    assert submit(core, a_job("b", 4)) == []
    (back,) = tell(core, NodeReturned(at_s=2.0, node=lost))
    assert isinstance(back, StartJob)
    assert back.job_id == "b"


def test_a_preempted_job_gives_way_only_when_it_has_really_stopped() -> None:
    core = a_core(nodes=1)
    run(core, a_job("old", 4))
    (stop,) = submit(core, a_job("new", 4), at_s=50.0)  # old has 200 GPU s, past its threshold
    assert (type(stop), stop.job_id) == (StopJob, "old")
    commands = tell(core, JobStopped(at_s=55.0, job_id="old", attempt=1))
    assert [(type(c), c.job_id) for c in commands] == [(StartJob, "new")]


def test_a_waiting_job_knows_why() -> None:
    core = a_core(nodes=1)
    run(core, a_job("a", 4))
    submit(core, a_job("b", 2))
    reason = core.jobs["b"].reason
    assert reason is not None
    assert (reason.code, reason.asked, reason.available) == (ReasonCode.WAITING_FOR_GPUS, 2, 0)


def test_without_a_budget_nothing_is_capped() -> None:
    assert run(a_core(), a_job("a", 4)).cap_w is None


def test_under_a_budget_a_job_starts_at_a_cap_that_fits() -> None:
    core = a_core(nodes=1, power=Uniform())
    tell(core, BudgetChanged(at_s=0.0, budget_w=260.0))  # 4 T4: 40 W idle, 240 W to 280 W busy
    assert run(core, a_job("a", 4)).cap_w == 65.0


def test_a_job_that_cannot_get_its_least_cap_waits_for_power() -> None:
    """Beside another one; alone it would fit."""
    core = a_core(nodes=2, power=Uniform())
    tell(core, BudgetChanged(at_s=0.0, budget_w=80.0 + 50.0 + 199.0))
    run(core, a_job("first", 1))
    assert submit(core, a_job("a", 4)) == []
    reason = core.jobs["a"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_POWER
    assert reason.asked == 200.0
    assert reason.available == 199.0


def test_a_budget_cut_lowers_first_and_raises_only_after_the_read_back() -> None:
    core = a_core(nodes=1, power=Uniform())
    tell(core, BudgetChanged(at_s=0.0, budget_w=280.0))
    run(core, a_job("a", 2))
    run(core, a_job("b", 2))
    lower = tell(core, BudgetChanged(at_s=9.0, budget_w=250.0))
    assert {(c.job_id, c.cap_w) for c in lower if isinstance(c, SetCap)} == {
        ("a", 62.0),
        ("b", 62.0),
    }
    assert core.watts.run_w == 280.0  # the old caps count until the new ones are read back
    for name in ("a", "b"):
        tell(core, CapApplied(at_s=9.5, job_id=name, attempt=1, cap_w=62.0))
    assert core.watts.run_w == 248.0


def test_a_deep_cut_stops_the_least_important_newest_job() -> None:
    core = a_core(nodes=1, power=Uniform())
    tell(core, BudgetChanged(at_s=0.0, budget_w=280.0))
    run(core, a_job("keep", 2, priority=1))
    run(core, a_job("drop", 2))
    commands = tell(core, BudgetChanged(at_s=9.0, budget_w=200.0))
    assert [c.job_id for c in commands if isinstance(c, StopJob)] == ["drop"]


def test_the_story_tells_every_step() -> None:
    core = a_core()
    run(core, a_job("a"))
    whats = [entry.what for entry in core.story("a")]
    assert whats == ["submitted", "Queued -> Starting (start)", "Starting -> Running (started)"]


def test_a_step_outside_the_table_is_a_bug() -> None:
    with pytest.raises(Bug, match="no transition from Queued by"):
        step(State.QUEUED, Trigger.STARTED)


def test_every_state_can_be_reached_and_only_final_ones_are_left_by_nothing() -> None:
    assert set(TABLE.values()) | {State.QUEUED} == set(State)
    assert {state for state, _ in TABLE} == set(State) - FINAL


def test_the_diagram_shows_every_transition() -> None:
    assert diagram().count("-->") == len(TABLE) + 1 + len(FINAL)


def test_the_page_in_the_documentation_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md"
    assert diagram() in page.read_text()
