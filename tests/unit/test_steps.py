"""The loss curve: exact on exact curves, sensible on noisy ones, honest where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.steps import LossCurve, fit_loss, smoothed


def curve(
    b0: float, b1: float, b2: float, last: float, count: int = 40
) -> list[tuple[float, float]]:
    return [(k, 1 / (b0 * k + b1) + b2) for k in np.linspace(1, last, count).tolist()]


def test_steps_to_a_target_invert_the_curve() -> None:
    made = LossCurve(b0=0.01, b1=0.5, b2=0.1, error=0.0)
    assert made.loss(50) == pytest.approx(1 / (0.01 * 50 + 0.5) + 0.1)
    # 1 / (0.3 - 0.1) = 5 = 0.01 k + 0.5
    assert made.steps_to(0.3) == pytest.approx(450)
    assert made.loss(made.steps_to(0.3)) == pytest.approx(0.3)


def test_a_target_at_or_below_the_floor_is_never_reached() -> None:
    made = LossCurve(b0=0.01, b1=0.5, b2=0.1, error=0.0)
    assert made.steps_to(0.1) == math.inf
    assert LossCurve(b0=0.0, b1=0.5, b2=0.0, error=0.0).steps_to(1.0) == math.inf


@given(
    b0=st.floats(0.001, 0.1), b1=st.floats(0.1, 1.0), b2=st.floats(0.0, 0.5),
    seen=st.floats(0.3, 1.0),
)  # fmt: skip
def test_steps_left_are_found_from_a_part_of_an_exact_curve(
    b0: float, b1: float, b2: float, seen: float
) -> None:
    whole = 30 / b0
    made = fit_loss(curve(b0, b1, b2, whole * seen))
    target = 1 / (b0 * whole + b1) + b2
    assert made.steps_to(target) == pytest.approx(whole, rel=0.02)


def test_noise_of_two_percent_costs_a_tenth_of_the_estimate() -> None:
    chance = np.random.default_rng(1)
    points = [
        (k, loss * math.exp(0.02 * chance.standard_normal()))
        for k, loss in curve(0.01, 0.3, 0.2, 1000, 100)
    ]
    target = 1 / (0.01 * 2000 + 0.3) + 0.2
    assert fit_loss(points).steps_to(target) == pytest.approx(2000, rel=0.1)


def test_coefficients_are_never_negative_even_where_the_loss_rises() -> None:
    made = fit_loss([(k, 1.0 + 0.01 * k) for k in range(1, 30)])
    assert made.b0 >= 0
    assert made.b1 >= 0
    assert made.b2 >= 0
    assert made.steps_to(0.5) == math.inf


def test_the_fit_is_as_good_as_a_general_solver_at_the_same_floor() -> None:
    scipy = pytest.importorskip("scipy.optimize")
    chance = np.random.default_rng(3)
    points = [
        (k, loss * math.exp(0.05 * chance.standard_normal()))
        for k, loss in curve(0.02, 0.4, 0.15, 500, 60)
    ]
    made = fit_loss(points)
    steps = np.array([k for k, _ in points])
    seen = np.array(smoothed([loss for _, loss in points]))
    above = seen - made.b2
    weight = above**2 / seen
    rows = np.column_stack([steps * weight, weight])
    wanted = scipy.nnls(rows, above / seen)[0]
    assert [made.b0, made.b1] == pytest.approx(wanted.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "steps", [[0.0] * 6, [7.0] * 6], ids=["all at the start", "all at one step"]
)
def test_points_at_one_step_give_a_constant(steps: list[float]) -> None:
    made = fit_loss([(k, 2.0) for k in steps])
    assert made.loss(steps[0]) == pytest.approx(2.0, rel=1e-3)


def test_an_outlier_is_pulled_between_its_neighbours() -> None:
    assert smoothed([5.0, 9.0, 4.0, 3.0]) == [5.0, 5.0, 4.0, 3.0]
    assert smoothed([1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([(1, 1.0)] * 4, "too few for a curve"),
        ([(1, 1.0)] * 5 + [(2, 0.0)], "positive"),
        ([(1, math.nan)] * 6, "positive"),
    ],
)
def test_bad_points_are_refused(points: list[tuple[float, float]], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        fit_loss(points)
