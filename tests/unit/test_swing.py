"""Swing, ramps and spectrum of draws whose answer is known from arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.swing import Samples, evenly, response, swing, welch


def sampled(watts: np.ndarray, rate_hz: float = 10.0, averaged_s: float = 0.0) -> Samples:
    return Samples(at_s=np.arange(len(watts)) / rate_hz, watts=watts, averaged_s=averaged_s)


def wave(hz: float, half_w: float, seconds: float = 600.0, rate_hz: float = 10.0) -> np.ndarray:
    return 1_000.0 + half_w * np.sin(2 * np.pi * hz * np.arange(0, seconds, 1 / rate_hz))


@given(hz=st.floats(0.05, 4.5), half_w=st.floats(1.0, 1e5))
def test_a_pure_oscillation_is_found_with_its_frequency_and_height(
    hz: float, half_w: float
) -> None:
    found = swing(sampled(wave(hz, half_w)))
    assert found.strongest is not None
    assert found.strongest.frequency_hz == pytest.approx(hz, abs=0.005)
    assert found.strongest.swing_w == pytest.approx(2 * half_w, rel=0.03)
    assert found.strongest.share > 0.98


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(4_096, 9_000))
def test_the_spectrum_holds_all_of_the_variance(seed: int, size: int) -> None:
    noise_w = np.random.default_rng(seed).normal(0.0, 30.0, size)
    spectrum = welch(noise_w, 0.1)
    variance = spectrum.density.sum() * spectrum.frequency_hz[0]
    assert variance == pytest.approx(noise_w.var(), rel=0.15)


def test_bands_hold_what_swings_in_them_and_nothing_else() -> None:
    found = swing(sampled(wave(0.05, 100.0) + wave(1.0, 50.0)))
    rms_w = [band.rms_w for band in found.bands]
    assert rms_w[0] == pytest.approx(100 / 2**0.5, rel=0.03)
    assert rms_w[2] == pytest.approx(50 / 2**0.5, rel=0.03)
    assert max(rms_w[1] or 0.0, rms_w[3] or 0.0) < 1.0


def test_what_sampling_hides_is_called_unseen_and_not_zero() -> None:
    found = swing(sampled(wave(0.05, 100.0, rate_hz=0.5, seconds=2_000.0), rate_hz=0.5))
    assert found.seen_up_to_hz == pytest.approx(0.25)
    assert [band.seen_to_hz for band in found.bands] == [0.1, 0.25, None, None]
    assert [band.rms_w is None for band in found.bands] == [False, False, True, True]


def test_what_a_meters_averaging_took_away_is_put_back_as_far_as_it_can_be() -> None:
    # Half a hertz seen through means of a second keeps 2 / pi of its height.
    true_w = 200.0
    assert float(response(0.5, 1.0)) == pytest.approx(2 / np.pi)
    weakened = wave(0.5, true_w / 2 * 2 / np.pi)
    found = swing(sampled(weakened, averaged_s=1.0))
    assert found.strongest is not None
    assert found.strongest.swing_w == pytest.approx(true_w, rel=0.03)
    assert found.seen_up_to_hz == pytest.approx(0.603, abs=0.001)
    assert found.bands[-1].rms_w is None


@given(
    slope=st.floats(-5_000.0, 5_000.0), seconds=st.integers(1, 20), rate_hz=st.sampled_from([2, 10])
)
def test_a_ramp_is_as_steep_as_it_was_made(slope: float, seconds: int, rate_hz: int) -> None:
    at_s = np.arange(0, 120, 1 / rate_hz)
    watts = 1e6 + slope * np.clip(at_s - 50.0, 0.0, seconds)
    found = swing(sampled(watts, rate_hz))
    assert found.ramp_up_w_s == pytest.approx(max(slope, 0.0), abs=1e-3)
    assert found.ramp_down_w_s == pytest.approx(max(-slope, 0.0), abs=1e-3)
    assert found.worst_swing_w == pytest.approx(abs(slope) * min(seconds, 10.0), rel=0.06, abs=1e-3)


def test_uneven_samples_are_put_on_an_even_grid_and_gaps_are_told() -> None:
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.uniform(0.08, 0.12, 4_000))
    at_s[2_000:] += 7.0
    watts = 1_000.0 + 100.0 * np.sin(2 * np.pi * 0.2 * at_s)
    found = swing(Samples(at_s=at_s, watts=watts))
    assert found.longest_gap_s == pytest.approx(7.0, abs=0.2)
    assert found.strongest is not None
    assert found.strongest.frequency_hz == pytest.approx(0.2, abs=0.01)
    step_s, even_w = evenly(Samples(at_s=at_s, watts=watts))
    assert len(even_w) == pytest.approx((at_s[-1] - at_s[0]) / step_s, abs=1)


def test_a_draw_that_never_moves_swings_by_nothing() -> None:
    found = swing(sampled(np.full(500, 300.0)))
    assert (found.worst_swing_w, found.ramp_up_w_s, found.strongest) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("at_s", "watts", "says"),
    [
        (np.arange(5.0), np.ones(5), "5 samples"),
        (np.zeros(50), np.ones(50), "do not rise"),
        (np.arange(50.0), np.full(50, np.nan), "no numbers"),
    ],
)
def test_what_cannot_be_judged_is_refused(at_s: np.ndarray, watts: np.ndarray, says: str) -> None:
    with pytest.raises(UserError, match=says):
        swing(Samples(at_s=at_s, watts=watts))
