"""A curve learned from noisy samples: known cases, faded knowledge, wild samples, shifts."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.learned_curve import (
    CurvePrior,
    CurveSample,
    LearnedCurve,
    non_falling,
)

CAPS = (100.0, 150.0, 200.0, 250.0)
RATES = (0.35, 0.75, 0.95, 1.0)


def a_prior(**changes: float) -> CurvePrior:
    return CurvePrior(caps_w=CAPS, idle_w=30, max_w=250, **changes)  # type: ignore[arg-type]


def taught(curve: LearnedCurve, seed: int, rounds: int, *, scale: float = 1.0) -> LearnedCurve:
    chance = np.random.default_rng(seed)
    for number in range(rounds * len(CAPS)):
        at = number % len(CAPS)
        noise = np.exp(chance.normal(0, 0.05, 2))
        rate = scale * RATES[at] * noise[0]
        curve = curve.learned(CurveSample(CAPS[at], 0.9 * CAPS[at] * noise[1], rate))
    return curve


def test_pooling_averages_what_falls_by_weight() -> None:
    assert non_falling([1.0, 3.0, 2.0, 4.0], [1, 1, 3, 1]).tolist() == [1.0, 2.25, 2.25, 4.0]
    assert non_falling([], []).tolist() == []


def test_before_any_sample_the_curve_is_the_power_law() -> None:
    curve = LearnedCurve.start(CurvePrior(caps_w=(100, 200, 300), idle_w=30.0, max_w=300.0))
    rates = [point.rate for point in curve.points()]
    assert rates == pytest.approx([(70 / 270) ** 0.37, (170 / 270) ** 0.37, 1.0])


def test_a_single_sample_sets_the_unit_and_leaves_the_shape() -> None:
    curve = LearnedCurve.start(a_prior()).learned(CurveSample(250, 200, 4000.0))
    rates = [point.rate for point in curve.points()]
    assert rates[-1] == pytest.approx(4000, rel=0.01)
    assert rates[0] / rates[-1] == pytest.approx((70 / 220) ** 0.37, rel=0.05)


def test_samples_bring_the_curve_to_the_truth_and_doubt_down() -> None:
    start = LearnedCurve.start(a_prior()).learned(CurveSample(250, 225, 1.0))
    curve = taught(start, 5, rounds=20)
    found = [point.rate for point in curve.points()]
    assert found == pytest.approx(RATES, rel=0.06)
    assert (curve.rate_sd() < 0.045).all()
    assert (start.rate_sd()[:-1] > 0.05).all()
    assert curve.restarts == 0


def test_what_is_not_sampled_becomes_doubtful_again() -> None:
    curve = taught(LearnedCurve.start(a_prior(memory=0.99)), 1, rounds=5)
    before = curve.rate_sd()[0]
    for _ in range(60):
        curve = curve.learned(CurveSample(250, 225, 1.0))
    assert curve.rate_sd()[0] > 1.5 * before


def test_one_wild_sample_neither_restarts_nor_bends_the_curve() -> None:
    curve = taught(LearnedCurve.start(a_prior()), 2, rounds=6)
    after = curve.learned(CurveSample(250, 225, 10.0))
    assert after.restarts == 0
    assert after.points()[-1].rate == pytest.approx(curve.points()[-1].rate, rel=0.15)


def test_a_shift_restarts_the_curve_which_then_finds_the_new_truth() -> None:
    curve = taught(LearnedCurve.start(a_prior()), 3, rounds=6)
    shifted = taught(curve, 4, rounds=5, scale=0.5)
    assert shifted.restarts == 1
    found = [point.rate for point in shifted.points()]
    assert found == pytest.approx([0.5 * rate for rate in RATES], rel=0.1)


def test_the_pause_belongs_to_the_hull() -> None:
    curve = taught(LearnedCurve.start(a_prior()), 3, rounds=6)
    assert curve.hull(paused_w=40).watts[0] == 40
    assert curve.hull(paused_w=40).rates[0] == 0


@pytest.mark.parametrize(
    "sample", [CurveSample(120, 90, 1), CurveSample(100, 0, 1), CurveSample(100, 90, float("nan"))]
)
def test_what_is_no_sample_is_refused(sample: CurveSample) -> None:
    with pytest.raises(UserError):
        LearnedCurve.start(a_prior()).learned(sample)


def test_caps_must_ascend_above_idle() -> None:
    with pytest.raises(UserError, match="ascend"):
        CurvePrior(caps_w=(200, 100), idle_w=30, max_w=250)
    with pytest.raises(UserError, match="idle"):
        CurvePrior(caps_w=(100, 200), idle_w=100, max_w=250)
