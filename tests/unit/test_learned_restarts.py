"""What restarts cost, by whom it was learned."""

from __future__ import annotations

import pytest

from wattherd.estimate.job_rate import RateSource
from wattherd.estimate.learned_restarts import (
    LEAST_RESTART_S,
    MOST_JOBS,
    MOST_RESTART_S,
    PRIOR,
    LearnedRestarts,
)


def test_nothing_learned_is_a_prior_that_says_so() -> None:
    assert LearnedRestarts().of("a", "k") == PRIOR
    assert PRIOR.source is RateSource.PRIOR


def test_only_the_first_report_of_a_run_counts() -> None:
    learned = LearnedRestarts()
    for after_s in (4.0, 90.0, 500.0):
        learned.heard("a", "k", 1, after_s)
    assert learned.of("a", "k") == (4.0, RateSource.LEARNED_JOB)
    learned.heard("a", "k", 2, 8.0)
    assert learned.of("a", "k").seconds == 6.0


def test_a_kind_is_the_median_of_its_jobs_whatever_one_of_them_does() -> None:
    learned = LearnedRestarts()
    for n in range(5):
        learned.heard(f"j{n}", "k", 1, 3.0 + n / 10)
    for attempt in range(1, 50):
        learned.heard("liar", "k", attempt, 1e9)
    assert learned.of("new", "k") == (pytest.approx(3.25), RateSource.LEARNED_KIND)
    assert learned.of("new", "tenant\nk") == PRIOR, "kinds of two tenants are two"
    assert learned.of("liar", "k").seconds == MOST_RESTART_S


def test_a_clock_that_goes_back_costs_no_less_than_nothing() -> None:
    learned = LearnedRestarts()
    learned.heard("a", "", 1, -5.0)
    assert learned.of("a", "").seconds == LEAST_RESTART_S


def test_memory_is_bounded() -> None:
    learned = LearnedRestarts()
    for n in range(1000):
        learned.heard(f"j{n}", "k", 1, 1.0 if n < 900 else 9.0)
        learned.forget({"j5"}, 1)
    assert learned.of("new", "k").seconds == 9.0, f"the last {MOST_JOBS}"
    assert learned.of("j5", "").seconds == 1.0
    assert learned.of("j6", "") == PRIOR
