"""Plans rest: what can wait is planned together, what cannot ends the rest."""

from __future__ import annotations

import math

import pytest

from wattherd.model.command import WAKE
from wattherd.model.event import (
    BudgetChanged,
    Event,
    JobCancelled,
    JobExited,
    JobProgressed,
    JobSubmitted,
    NodeReturned,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.journal.core_loop import GAP_S, LONGEST_S, PART, PlanPause

SUBMITTED = JobSubmitted(
    at_s=10.0, job=JobSpec(id="j-1", submit_s=10.0, roles=(TaskRole(count=1),))
)


def after_a_plan(processor_s: float) -> PlanPause:
    rest = PlanPause()
    rest.woken(10.0)
    rest.heard(Woke(at_s=10.0, key=WAKE))
    rest.planned(processor_s)
    return rest


def test_the_first_plan_is_made_at_once() -> None:
    assert PlanPause().due_s({WAKE: 3.0}) == 3.0
    assert PlanPause().due_s({}) == math.inf


def test_a_quick_plan_rests_for_the_gap_alone() -> None:
    rest = after_a_plan(0.0001)
    rest.heard(SUBMITTED)
    assert rest.due_s({WAKE: 10.0}) == 10.0 + GAP_S
    assert rest.due_s({WAKE: 11.0}) == 11.0


@pytest.mark.parametrize(("processor_s", "rest_s"), [(0.02, 0.02 / PART), (5.0, LONGEST_S)])
def test_submissions_wait_the_longer_the_more_a_plan_took(
    processor_s: float, rest_s: float
) -> None:
    rest = after_a_plan(processor_s)
    rest.heard(SUBMITTED)
    rest.heard(JobProgressed(at_s=10.0, job_id="j-0", attempt=1, progress=3.0))
    assert rest.due_s({WAKE: 10.0}) == pytest.approx(10.0 + rest_s)


@pytest.mark.parametrize(
    "event",
    [
        JobExited(at_s=10.0, job_id="j-0", attempt=1, exit_code=0),
        JobCancelled(at_s=10.0, job_id="j-0"),
        BudgetChanged(at_s=10.0, budget_w=5.0),
        NodeReturned(at_s=10.0, node="n"),
        Woke(at_s=10.0, key="backoff:j-0#1"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_frees_or_takes_something_ends_the_rest(event: Event) -> None:
    rest = after_a_plan(0.02)
    rest.heard(event)
    rest.heard(SUBMITTED)
    assert rest.due_s({WAKE: 10.0}) == 10.0 + GAP_S
    rest.heard(Woke(at_s=10.0, key=WAKE))
    assert rest.due_s({WAKE: 10.0}) == pytest.approx(10.0 + 0.02 / PART)


def test_wake_ups_of_jobs_do_not_wait_for_plans() -> None:
    rest = after_a_plan(0.02)
    assert rest.due_s({WAKE: 10.0, "limit:j-0#1": 10.02}) == 10.0 + GAP_S
