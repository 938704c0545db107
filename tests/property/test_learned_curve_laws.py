"""Laws of isotonic regression and of learned curves under arbitrary samples."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattherd.estimate.learned_curve import CurvePrior, CurveSample, LearnedCurve, non_falling

VALUES = st.floats(-100, 100)
PAIRS = st.lists(st.tuples(VALUES, st.floats(0.1, 10)), min_size=1, max_size=12)
CAPS = (100.0, 175.0, 250.0)
SAMPLES = st.lists(
    st.builds(CurveSample, st.sampled_from(CAPS), st.floats(1, 1e4), st.floats(1e-6, 1e6)),
    max_size=25,
)


@given(PAIRS)
def test_isotonic_regression_rises_keeps_the_mean_and_is_idempotent(pairs) -> None:  # type: ignore[no-untyped-def]
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    fitted = non_falling(values, weights)
    assert (np.diff(fitted) >= -1e-9).all()
    assert np.isclose(fitted @ weights, values @ weights, atol=1e-6)
    assert np.allclose(non_falling(fitted, weights), fitted)


@given(PAIRS, st.lists(st.floats(0, 20), min_size=12, max_size=12), VALUES)
def test_no_other_rising_sequence_is_nearer(pairs, steps, low) -> None:  # type: ignore[no-untyped-def]
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    other = low + np.cumsum(steps)[: len(values)]
    best = weights @ (non_falling(values, weights) - values) ** 2
    assert best <= weights @ (other - values) ** 2 + 1e-6


@given(SAMPLES)
def test_curves_never_fall_and_stay_finite_whatever_is_sampled(samples: list[CurveSample]) -> None:
    curve = LearnedCurve.start(CurvePrior(caps_w=CAPS, idle_w=30, max_w=250))
    for sample in samples:
        curve = curve.learned(sample)
    points = curve.points()
    for below, above in pairwise(points):
        assert above.rate >= below.rate > 0
        assert above.power_w >= below.power_w > 0
    assert np.isfinite(curve.rate_sd()).all()
    assert np.linalg.eigvalsh(curve.rate.covariance).min() > -1e-9
    assert curve.samples == len(samples)
