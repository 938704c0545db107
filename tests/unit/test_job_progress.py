"""How much a planner believes to be left of a job, and who says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.estimate.learned_steps import StepsLeft
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.job_progress import GUESSED, STATED, ReportedProgress

SERVED_S, YOUNG_S, PER_S = 100.0, 60.0, 2.0


def left_of(stated_s: float | None, told: StepsLeft | None = None, *, known: bool = True) -> Any:
    """Of a job that has run for `SERVED_S` on one GPU."""
    job = SimpleNamespace(
        spec=JobSpec(id="j", submit_s=0.0, duration_s=stated_s), service_s=lambda _: SERVED_S
    )
    rates = SimpleNamespace(steps_per_s=lambda *_: "seen" if known else None)
    view = SimpleNamespace(
        now_s=SERVED_S,
        rates=rates,
        steps_left=lambda _: told,
        step_worth=lambda *_: SimpleNamespace(share=1.0),
        nodes=lambda: [SimpleNamespace(gpu_model="T4", gpu_count=1)],
    )
    return ReportedProgress().left(view, job, 0.0, PER_S, YOUNG_S)  # type: ignore[arg-type]


def test_a_stated_length_counts_where_a_job_reports_nothing() -> None:
    assert left_of(250.0) == (PER_S * 150.0, True, STATED)


@pytest.mark.parametrize("stated_s", [None, SERVED_S, 1.0, 0.0])
def test_what_was_stated_too_short_is_a_guess_as_without(stated_s: float | None) -> None:
    """Else a job that says a minute and runs for a day would come first for that day."""
    assert left_of(stated_s) == (PER_S * YOUNG_S, False, GUESSED)


@pytest.mark.parametrize("known", [True, False])
def test_reports_come_before_what_was_stated_once_they_mean_time(*, known: bool) -> None:
    told = StepsLeft(steps=7.0, source="the total that it reports")
    assert left_of(250.0, told, known=known)[2] == (told.source if known else STATED)
