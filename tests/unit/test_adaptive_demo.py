"""The report of the second demonstration, from documents of jobs as the API tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattherd.experiments.schedule.live import live_scheduler
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.adaptive_demo import (
    JOBS,
    LONG,
    POLICIES,
    SHORT,
    STEPS,
    Lived,
    job_documents,
    report,
)
from wattherd.testing.reporting_world import ReportingWorld, Told, Training
from wattherd.workload.job_file import validated_job


def job(name: str, end_s: int, *story: str, state: str = "Succeeded") -> dict[str, Any]:
    at = "2026-11-26T10:00:{:02}.000+00:00".format
    lines = [{"at": at(7 + n), "what": what} for n, what in enumerate(story)]
    ended = at(end_s) if state == "Succeeded" else None
    return {"name": name, "state": state, "submitted": at(0), "finished": ended, "story": lines}


def test_ten_job_files_of_mixed_length_and_predictability() -> None:
    made = [validated_job(one, "demo") for one in job_documents("/p", "python", {})]
    assert len(made) == len(JOBS) == 10
    assert all((one.spec().least_width, one.spec().most_width) == (1, 2) for one in made)
    open_ended = [one for one in made if one.run is not None and "--open-ended" in one.run]
    assert len(open_ended) == 4
    assert len({one.name for one in made}) == 10


def test_the_report_has_means_and_every_change_with_its_reason() -> None:
    before = Lived("fifo")
    before.note([job("a", 40), job("b", 20)])
    after = Lived("aiturbo")
    after.note([job("a", 20, "It was started.", "resized from 2 to 1 GPUs: why"), job("b", 10)])
    after.note([job("a", 20), job("b", 10)])  # stories end with their jobs
    text = report([before, after])
    assert "| fifo | 30.0 s | 1.00 | - | 2 of 2 | 0 |" in text
    assert "| aiturbo | 15.0 s | 2.00 | - | 2 of 2 | 1 |" in text
    assert "- 8 s, a: resized from 2 to 1 GPUs: why" in text
    assert "fifo: who was resized, when and why\n\nNobody." in text


def test_a_job_that_did_not_end_is_not_counted_as_one_that_did() -> None:
    run = Lived("fifo")
    run.note([job("a", 40), job("b", 0, state="Running")])
    assert "| fifo | 40.0 s | 1.00 | - | 1 of 2 | 0 |" in report([run])


def test_work_that_was_done_before_a_job_was_through_is_counted_whatever_the_time() -> None:
    """One after the other, the short one second and first."""
    long_one, short = "mlp-0", "cnn-1"
    runs = []
    for order in ((long_one, short), (short, long_one)):
        run = Lived(order[0])
        first = [job(order[0], 30), {**job(order[1], 0, state="Running"), "progress": 0.0}]
        run.note(first)
        run.note([job(order[0], 30), job(order[1], 31)])
        runs.append(run)
    whole = LONG + SHORT
    assert runs[0].mean_work / runs[1].mean_work == pytest.approx((LONG + whole) / (SHORT + whole))
    half = Lived("half", scale=2.0)
    half.note([{**job(long_one, 0, state="Running"), "progress": float(STEPS["mlp"])},
               job(short, 5)])  # fmt: skip
    everything = sum(length for _, length, _ in JOBS)
    assert half.mean_work == pytest.approx((LONG / 2 + SHORT) / everything)


def at_width(width: int) -> float:
    """Each of the four slots is half a core, and steps are counted so that a core makes one a
    second."""
    return width / 2


def without_total(done: float) -> Told:
    return Told(progress=done)


def played(policy: str) -> ReportingWorld:
    """The ten of the demonstration, on a machine that does nothing else; restarts take 2 s."""
    trainings = []
    for number, (program, length, tells) in enumerate(JOBS):
        roles = (TaskRole(count=2, command=(program,)),)
        spec = JobSpec(id=f"{program}-{number}", submit_s=0.0, roles=roles, min_width=1,
                       max_width=2)  # fmt: skip
        told = None if tells else without_total
        trainings.append(
            Training(spec=spec, steps=25 * length, per_s=at_width, restart_s=2.0, tells=told)
        )
    cluster = ClusterSpec(
        (NodeSpec(name="here", cpu_milli=2000, memory_mib=4096, gpu_count=4, gpu_model="slot"),)
    )
    given = SchedulerContext(jobs=ReadJobs(specs=()), cluster=cluster)
    planner = live_scheduler(policy, given).planner
    return ReportingWorld(planner, cluster, trainings).run(2000)


def test_the_ten_are_through_sooner_as_the_guide_says() -> None:
    """Without other load: what a run beside other work shows is not the planners' doing."""
    mean_s = {}
    for policy in POLICIES:
        lived = played(policy)
        assert len(lived.ended_s) == 10, policy
        mean_s[policy] = lived.mean_s()
    ratio = {policy: mean_s["fifo"] / one for policy, one in mean_s.items()}
    assert ratio["wattherd"] > ratio["aiturbo"] > 1.0, ratio
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "learned-speed.md").read_text()
    row = f"restarts of 2 s | {ratio['aiturbo']:.2f} | {ratio['wattherd']:.2f} |"
    assert row in guide, ratio


def test_what_shortest_first_could_reach_without_restarts_is_what_the_guide_says() -> None:
    lengths = [length for _, length, _ in JOBS]
    bound = _mean_end(lengths) / _mean_end(sorted(lengths))
    assert bound == pytest.approx(1.8, abs=0.05)


def _mean_end(lengths: list[float]) -> float:
    """One after the other on two cores, each on the one that is free first."""
    free = [0.0, 0.0]
    ends = []
    for length in lengths:
        at = free.index(min(free))
        free[at] += length
        ends.append(free[at])
    return sum(ends) / len(ends)
