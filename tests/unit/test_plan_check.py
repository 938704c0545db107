"""Plans of somebody else's that make no sense are taken back, and those who wait are told why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.experiments.schedule import workloads
from wattherd.experiments.schedule.plugin_policies import scheduler_from
from wattherd.experiments.schedule.run import simulate
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Share
from wattherd.policy.schedule.fifo_gang import FifoGang

JOBS = tuple(
    JobSpec(id=f"j{n}", submit_s=float(n), roles=(TaskRole(count=1),), duration_s=60.0)
    for n in range(4)
)
Odd = Callable[[Any, Any, Any], object]


class Planner:
    """First in, first out, and something odd with every job."""

    def __init__(self, odd: Odd) -> None:
        self.odd = odd

    def plan(self, view: Any, draft: Any) -> None:
        FifoGang().plan(view, draft)
        for job in view.live():
            self.odd(view, draft, job)


def told(odd: Odd) -> set[str]:
    """What the jobs of a run wait for at its end, which comes: nobody waits for ever."""
    schedule_env = pytest.importorskip(
        "wattherd.experiments.schedule.schedule_env", reason="extra rl", exc_type=ImportError
    )
    setup = schedule_env.Ground(gpus=2, jobs=4).setup(1)
    built = scheduler_from("odd", lambda: lambda given: BuiltScheduler(planner=Planner(odd)))
    given = replace(setup.given, jobs=ReadJobs(specs=JOBS))
    preset = replace(setup.preset, schedulers={"odd": built})
    run = simulate(replace(setup, preset=preset, given=given), "odd")
    return {why for _, why in run.unfinished}


def test_ours_in_its_place_runs_all_jobs() -> None:
    assert told(lambda view, draft, job: None) == set()


def waits(reason: Any) -> Odd:
    return lambda view, draft, job: None if job.wanted else draft.wait(job, reason)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (lambda view, draft, job: draft.wake_at(math.nan), "`wake_at` of nan"),
        (lambda view, draft, job: draft.wake_at(math.inf), "`wake_at` of inf"),
        (lambda view, draft, job: draft.wake_at(view.now_s), "`wake_at` of a time that has passed"),
        (lambda view, draft, job: draft.wake_at("soon"), "TypeError"),
        (lambda view, draft, job: draft.compute("none", {}), "`compute` of 'none', which none"),
        (lambda view, draft, job: draft.tell(job, None), "`tell` of j0 with None"),
        (lambda view, draft, job: draft.stop(job, "so"), "`stop` of j0 with 'so'"),
        (lambda view, draft, job: draft.undo(99), "the plan has no mark 99"),
        (lambda view, draft, job: draft.wait(job, None), "no attribute 'code'"),
        (lambda view, draft, job: draft.start(job, None), "TypeError"),
        (lambda view, draft, job: draft.start(job, [Share(0, "all")]), "TypeError"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_makes_no_sense_is_taken_back(odd: Odd, said: str) -> None:
    found = told(odd)
    assert len(found) == 1
    assert "its scheduler 'odd' to be mended: " in next(iter(found))
    assert said in next(iter(found))


@pytest.mark.parametrize("shares", [[Share(-1, 1)], [Share(7, 1)], [Share(0, -1), Share(0, 2)], []])
def test_what_the_guard_refuses_is_no_matter_to_others(shares: list[Share]) -> None:
    assert told(lambda view, draft, job: draft.start(job, shares)) == set()


def test_two_jobs_of_one_id_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(workloads, "loaded", lambda seam, kind: lambda path: [*JOBS, JOBS[2]])
    with pytest.raises(UserError, match="'mine' gave two jobs the id 'j2'"):
        workloads._read_by_package("mine", tmp_path)
    monkeypatch.setattr(workloads, "loaded", lambda seam, kind: lambda path: JOBS)
    assert workloads._read_by_package("mine", tmp_path) == JOBS


def test_other_drafts_are_not_looked_at() -> None:
    from wattherd.experiments.schedule.plan_check import nonsense

    assert nonsense(SimpleNamespace(), 0.0, ()) == ""
