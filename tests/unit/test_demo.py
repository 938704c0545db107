"""What the demonstration asks for, and what it takes for a failure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from wattherd.server.demo import (
    Course,
    crossings,
    full_w,
    job_documents,
    part_done,
    problems,
)
from wattherd.workload.job_file import JobFile

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def sample(at_s: float, draw_w: float, budget_w: float | None) -> dict[str, Any]:
    at = (BEGAN + timedelta(seconds=at_s)).isoformat()
    return {"at": at, "draw_w": draw_w, "budget_w": budget_w}


def job(**changes: Any) -> dict[str, Any]:
    return {
        "name": "one", "state": "Running", "progress": 0.0, "total": None, "reason": None, **changes
    }  # fmt: skip


def test_its_jobs_are_job_files_with_names_of_their_own() -> None:
    documents = job_documents("/programs", "/python", {"A": "1"}, scale=0.01)
    files = [JobFile.model_validate(one) for one in documents]
    assert len({one.name for one in files}) == 6
    assert all(str(step) in files[0].run for step in (140, 256))


def test_a_quarter_is_cut_midway_and_given_back_in_the_end() -> None:
    course = Course(full_w({"nodes": [{"gpus": [{}, {}]}], "gpu_max_w": 5.0}))
    budgets = []
    for done in (0.0, 0.0, 0.2, 0.5, 0.6, 0.9, 1.0):
        due = course.due(done)
        budgets.append(due and due.document)
    cut = {"budget": 6.75, "in": 6.0}
    assert budgets == [{"budget": 9.0}, None, None, cut, None, {"budget": 9.0}, None]


def test_work_is_counted_where_its_amount_is_known() -> None:
    half = job(progress=50.0, total=100.0)
    assert part_done([half, job(state="Succeeded"), job(), job()]) == pytest.approx(0.375)


def test_above_the_budget_is_above() -> None:
    calm = [sample(0, 5, None), sample(10, 8, 9), sample(20, 6, 6)]
    assert not list(crossings(calm))
    late = sample(30, 6.1, 6)
    assert list(crossings([*calm, late])) == [late]


def test_what_went_wrong_is_told() -> None:
    failed = job(state="Failed", reason={"text": "out of memory"})
    told = list(problems([failed, job(state="Succeeded")], [sample(0, 1, 2), sample(10, 3, 2)]))
    assert told == [
        "one is Failed: out of memory",
        "the draw was above the budget in 1 samples, by up to 1.00 W",
    ]
    assert list(problems([], [])) == ["no draw was measured"]
