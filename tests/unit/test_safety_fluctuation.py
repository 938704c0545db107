"""What other load wanders by before an answer is kept; what devices take along is not."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety.contract import Floats
from wattherd.engine.safety.other_load_rises import FARTHEST, SPREADS, Fluctuation

AHEAD_S = 8.0


def after(
    other_w: Floats, devices_w: Floats, *, slope: float = 0.0, told: bool = True,
    ahead_s: float = AHEAD_S, foreseen_w: float = 0.0,
) -> float:  # fmt: skip
    """The spread of one level, W, after looks once a second at `other_w` (T,)."""
    learned = Fluctuation(1)
    for at_s, (one, own) in enumerate(zip(other_w, devices_w, strict=True)):
        learned.note(
            np.array([one]), np.array([foreseen_w]), np.array([own]), np.array([slope]),
            np.array([one + own]), told=np.array([told]), ahead_s=np.array([ahead_s]),
            now_s=float(at_s), step_s=1.0,
        )  # fmt: skip
    return float(learned.spread_w[0])


def test_a_steady_load_keeps_nothing() -> None:
    assert after(np.full(200, 500.0), np.full(200, 2000.0)) == 0.0


@pytest.mark.parametrize("spread_w", [5.0, 20.0])
def test_a_wandering_load_keeps_as_many_deviations_as_are_stated(spread_w: float) -> None:
    """Of independent looks two differ by the root of two."""
    noise_w = np.random.default_rng(1).normal(0, spread_w / np.sqrt(2), 3000)
    kept_w = after(500.0 + noise_w, np.full(3000, 2000.0))
    assert kept_w == pytest.approx(SPREADS * spread_w, rel=0.3)


def test_a_slow_answer_needs_more_than_a_quick_one() -> None:
    walk_w = 500.0 + np.cumsum(np.random.default_rng(2).normal(0, 2, 1000))
    own_w = np.full(1000, 2000.0)
    assert after(walk_w, own_w, ahead_s=20.0) > 1.5 * after(walk_w, own_w, ahead_s=4.0)


def test_what_comes_with_the_devices_is_paid_for_with_their_watts() -> None:
    own_w = 2000.0 + 200.0 * np.sin(0.5 * np.arange(300.0))
    assert after(0.2 * own_w, own_w, slope=0.2) == pytest.approx(0.0, abs=1e-6)
    assert after(0.2 * own_w, own_w, slope=0.0) > 50.0


def test_a_ramp_that_was_foreseen_is_no_surprise() -> None:
    ramp_w, own_w = 500.0 + 2.0 * np.arange(300), np.full(300, 2000.0)
    assert after(ramp_w, own_w, foreseen_w=20.0) == 0.0
    assert after(ramp_w, own_w) > 10.0
    assert after(ramp_w[::-1], own_w, foreseen_w=20.0) > 10.0  # it fell: nobody foresaw that


def test_what_nobody_told_teaches_nothing() -> None:
    noise_w = np.random.default_rng(3).normal(0, 20, 300)
    assert after(500.0 + noise_w, np.full(300, 2000.0), told=False) == 0.0


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_switch_is_no_wandering(share: float) -> None:
    step_w = share * FARTHEST * 2500.0
    kept_w = after(500.0 + step_w * (np.arange(300) >= 290), np.full(300, 2000.0))
    assert (kept_w == 0.0) == (share > 1.0)


def test_watts_that_were_never_other_load_are_no_move() -> None:
    learned, own_w = Fluctuation(2), np.full(2, 2000.0)
    other_w = np.full(2, 500.0)
    for at_s in range(100):
        if at_s == 50:
            learned.shift(np.array([100.0, 0.0]))
        other_w = np.array([500.0 if at_s < 50 else 400.0, 500.0])
        learned.note(
            other_w, np.zeros(2), own_w, np.zeros(2), other_w + own_w,
            told=np.ones(2, dtype=np.bool_), ahead_s=np.full(2, AHEAD_S),
            now_s=float(at_s), step_s=1.0,
        )  # fmt: skip
    assert learned.spread_w.tolist() == [0.0, 0.0]
    assert other_w.tolist() == [400.0, 500.0]


def test_a_level_whose_meter_is_found_to_tell_otherwise_begins_anew() -> None:
    learned, rng = Fluctuation(2), np.random.default_rng(4)
    own_w = np.full(2, 2000.0)
    for at_s in range(100):
        other_w = 500.0 + rng.normal(0, 20, 2)
        learned.note(
            other_w, np.zeros(2), own_w, np.zeros(2), other_w + own_w,
            told=np.ones(2, dtype=np.bool_), ahead_s=np.array([4.0, 12.0]),
            now_s=float(at_s), step_s=1.0,
        )  # fmt: skip
    assert (learned.spread_w > 20.0).all()
    learned.forget(np.array([True, False]))
    assert learned.spread_w[0] == 0.0
    assert learned.spread_w[1] > 20.0
