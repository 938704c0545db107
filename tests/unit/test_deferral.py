"""Rules for jobs that may wait: against every start, and against the linear program."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.errors import UserError
from wattherd.estimate.deferral import (
    ONE_START,
    RULES,
    THRESHOLD,
    Deferrable,
    DeferredRun,
    RateSignal,
    joined,
    optimum,
    outcome,
)
from wattherd.estimate.rates import EnergyRates, RateRow, hourly

HOUR_S = 3600.0


def job(hours: float = 2.0, at: float = 0.0, slack: float = 4.0, **fields: object) -> Deferrable:
    given_: dict[str, object] = {
        "name": "j", "submit_s": at * HOUR_S, "work_s": hours * HOUR_S, "gpus": 1.0,
        "watts": 1000.0, "deadline_s": (at + hours + slack) * HOUR_S, **fields,
    }  # fmt: skip
    return Deferrable(**given_)  # type: ignore[arg-type]


def plan(rule: str, values: list[float], one: Deferrable) -> list[tuple[float, float, int]]:
    pieces = RULES[rule](one, RateSignal(hourly(values), "carbon"))
    return [(piece.start_s / HOUR_S, piece.end_s / HOUR_S, piece.width) for piece in pieces]


def cost(one: Deferrable, pieces: list[DeferredRun], signal: RateSignal) -> float:
    return math.fsum(
        one.watts * piece.width * signal.integral(piece.start_s, piece.end_s) for piece in pieces
    )


# --- by hand ---------------------------------------------------------------------------------

VALUES = [300.0, 200.0, 400.0, 100.0, 150.0, 500.0, 120.0, 50.0]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("now", [(0, 2, 1)]),
        ("lowest-slot", [(3, 5, 1)]),
        ("lowest-window", [(3, 5, 1)]),
        ("carbon-time", [(3, 5, 1)]),
        ("wait-awhile", [(3, 5, 1)]),
    ],
)
def test_rules_choose_as_published(rule: str, expected: list[tuple[float, float, int]]) -> None:
    assert plan(rule, VALUES, job()) == expected


def test_a_window_may_begin_so_that_it_ends_with_a_step() -> None:
    # Half an hour of the dear step at its beginning is cheaper than at its end.
    assert plan("lowest-window", [10, 100, 1, 1, 50], job(2.5)) == [(2, 4.5, 1)]
    assert plan("lowest-window", [10, 20, 1, 1, 50], job(2.5, slack=2.5)) == [(1.5, 4, 1)]


def test_carbon_time_does_not_wait_for_little() -> None:
    # Waiting 20 hours saves 2 %; one hour saves 1 %.
    values = [100.0, 99.0, *[100.0] * 18, 98.0, 100.0, 100.0]
    assert plan("carbon-time", values, job(1.0, slack=21.0)) == [(1, 2, 1)]
    assert plan("lowest-window", values, job(1.0, slack=21.0)) == [(20, 21, 1)]


def test_the_threshold_waits_until_every_second_is_needed() -> None:
    # The low steps are hours 3 and 4 (30 % of six hours), where the job has its two hours.
    assert plan("threshold", VALUES[:6], job()) == [(3, 5, 1)]
    # Low only at the end of the wait, and too short: it begins when it must.
    assert plan("threshold", [9, 9, 9, 9, 9, 1], job(3.0, slack=3.0)) == [(0, 3, 1)]
    assert plan("threshold", [9, 8, 7, 6, 5, 4], job(3.0, slack=3.0)) == [(3, 6, 1)]


def test_wait_awhile_pauses_for_the_cheapest_hours() -> None:
    assert plan("wait-awhile", [5, 1, 5, 1, 5, 5], job()) == [(1, 2, 1), (3, 4, 1)]


def test_carbon_scaler_widens_a_job_where_energy_is_clean() -> None:
    elastic = job(2.0, slack=1.0, speeds=(1.0, 1.8))
    # Both clean hours on one width bring two hours of work: nothing is left for the dirty one.
    assert plan("carbon-scaler", [10, 100, 10], elastic) == [(0, 1, 1), (2, 3, 1)]
    # One clean hour on two widths brings 1.8, the rest is done at the next best.
    assert plan("carbon-scaler", [100, 10, 100], elastic) == [
        (0, pytest.approx(0.2), 1), (1, 2, 2),
    ]  # fmt: skip
    even = plan("carbon-scaler", [100, 100, 100], elastic)
    assert even == [(0, 2, 1)]  # wider costs more energy


# --- against everything ----------------------------------------------------------------------

JOBS = st.builds(
    job,
    st.sampled_from([0.5, 1.0, 2.25, 3.0]),
    at=st.sampled_from([0.0, 0.4, 1.0]),
    slack=st.sampled_from([0.0, 0.7, 2.0, 5.5]),
    speeds=st.sampled_from([(1.0,), (1.0, 1.9), (1.0, 1.8, 2.4)]),
)
RATES = st.lists(st.integers(0, 50).map(float), min_size=12, max_size=14)


@given(JOBS, RATES)
def test_every_rule_does_all_the_work_between_submission_and_deadline(
    one: Deferrable, values: list[float]
) -> None:
    signal = RateSignal(hourly(values), "carbon")
    for name, rule in RULES.items():
        pieces = rule(one, signal)
        work_s = sum((p.end_s - p.start_s) * one.speeds[p.width - 1] for p in pieces)
        assert work_s == pytest.approx(one.work_s), name
        assert pieces[0].start_s >= one.submit_s - 1e-6, name
        assert pieces[-1].end_s <= one.deadline_s + 1e-6, name
        assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(pieces))
        assert len(pieces) == 1 or name not in ONE_START


@given(JOBS, RATES)
def test_no_other_start_is_cheaper_than_the_lowest_window(
    one: Deferrable, values: list[float]
) -> None:
    signal = RateSignal(hourly(values), "carbon")
    best = cost(one, RULES["lowest-window"](one, signal), signal)
    for number in range(101):
        start_s = one.submit_s + number / 100 * (one.latest_s - one.submit_s)
        assert cost(one, [DeferredRun(start_s, start_s + one.work_s)], signal) >= best - 1e-3


@settings(max_examples=times(40))
@given(JOBS, RATES)
def test_carbon_scaler_and_wait_awhile_are_the_optimum_of_one_job(
    one: Deferrable, values: list[float]
) -> None:
    signal = RateSignal(hourly(values), "carbon")
    found = cost(one, RULES["carbon-scaler"](one, signal), signal)
    assert found == pytest.approx(optimum([one], signal), rel=1e-6, abs=1.0)
    rigid = job(one.work_s / HOUR_S, at=one.submit_s / HOUR_S,
                slack=(one.deadline_s - one.submit_s - one.work_s) / HOUR_S)  # fmt: skip
    least = optimum([rigid], signal)
    assert cost(rigid, RULES["wait-awhile"](rigid, signal), signal) == pytest.approx(
        least, rel=1e-6, abs=1.0
    )


@settings(max_examples=30)
@given(st.lists(JOBS, min_size=1, max_size=4), RATES)
def test_no_rule_beats_the_bound(jobs: list[Deferrable], values: list[float]) -> None:
    signal = RateSignal(hourly(values), "carbon")
    least = optimum(jobs, signal)
    assert least is not None
    for rule in RULES.values():
        assert sum(cost(one, rule(one, signal), signal) for one in jobs) >= least - 1.0


def test_a_limit_of_gpus_makes_the_optimum_dearer_and_too_low_a_one_impossible() -> None:
    jobs = [job(1.0, slack=3.0, name=str(number)) for number in range(4)]
    signal = RateSignal(hourly([10, 1, 10, 20]), "carbon")
    free, tight = optimum(jobs, signal), optimum(jobs, signal, 2.0)
    assert free == pytest.approx(4 * 1000 * HOUR_S)
    assert tight == pytest.approx((2 * 1 + 2 * 10) * 1000 * HOUR_S)
    assert optimum(jobs, signal, 0.9) is None


# --- figures ---------------------------------------------------------------------------------


def test_figures_of_a_plan() -> None:
    rates = hourly([100.0, 200.0, 300.0, 400.0])
    jobs = [job(1.0, slack=3.0), job(1.0, slack=3.0, gpus=2.0, watts=2000.0)]
    plans = [[DeferredRun(0, 1800), DeferredRun(3600, 5400)], [DeferredRun(1200, 4800)]]
    found = outcome("x", jobs, plans, rates)
    assert found.bill.co2e_kg == pytest.approx(0.05 + 0.1 + 2 * (2 / 3 * 0.1 + 1 / 3 * 0.2))
    assert found.mean_completion_s == (5400 + 4800) / 2
    assert found.mean_wait_s == 600.0
    assert (found.stops, found.missed, found.peak_gpus) == (1, 0, 3.0)


def test_pieces_that_follow_one_another_are_one() -> None:
    spans = [(0, 1), (1, 2), (2, 3, 2), (4, 5, 2)]
    expected = [(0, 2), (2, 3, 2), (4, 5, 2)]
    assert joined([DeferredRun(*one) for one in spans]) == [DeferredRun(*one) for one in expected]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"slack": -0.5}, "cannot be done by its deadline"),
        ({"hours": 0.0}, "cannot be done"),
        ({"speeds": (1.0, 0.9)}, "begin with 1 and rise"),
        ({"speeds": (0.5, 1.0)}, "begin with 1 and rise"),
        ({"speeds": (1.0, 1.2, 2.0)}, "must bring no more"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        job(**fields)  # type: ignore[arg-type]


def test_a_signal_ends_at_the_first_gap() -> None:
    assert (
        RateSignal(EnergyRates((RateRow(0, 1, 1.0, 1.0), RateRow(2, 3, 1.0, 1.0))), "carbon").ends_s
        == 1
    )
    with pytest.raises(UserError, match="no cost is given"):
        RateSignal(hourly([1.0, 2.0]), "cost")


def test_the_threshold_is_a_quantile_of_the_time() -> None:
    assert THRESHOLD == 0.3
