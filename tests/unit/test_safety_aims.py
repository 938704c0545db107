"""Wishes of the slow loop: watts where they buy most progress, within every level's limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from wattherd.engine.safety.aims import NO_JOB, Aims
from wattherd.engine.safety.contract import Breaker, Fleet, Readings, SafetyConfig
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.water_filling import WaterFilling

FLEET = Fleet(
    feed=np.array([0, 1, 0, 1, 0]),
    floor_w=np.full(5, 100.0),
    max_w=np.full(5, 400.0),
    breaker=Breaker(rated_w=np.full(3, 1e9)),
)
JOB = np.array([0, 0, 1, 1, NO_JOB])
"""Both jobs sit on both feeds; the last device works for nobody."""


def a_curve(exponent: float, top_w: float = 400.0) -> PowerCurve:
    watts = np.linspace(100.0, top_w, 31)
    rates = ((watts - 60.0) / (top_w - 60.0)) ** exponent
    return PowerCurve(tuple(watts.tolist()), tuple(rates.tolist()))


FLAT = PowerAsk(job_id="flat", devices=2, curve=a_curve(0.2))
STEEP = PowerAsk(job_id="steep", devices=2, curve=a_curve(0.8))


class Counted:
    """Water-filling that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        self.asked += 1
        return WaterFilling().share_in(asks, limits)


def wishes(limit_w: Sequence[float], asks: Sequence[PowerAsk] = (FLAT, STEEP)) -> np.ndarray:
    return Aims(FLEET, asks, JOB, WaterFilling()).caps(0.0, np.array(limit_w))


def test_the_steeper_curve_gets_more_and_a_jobs_devices_get_the_same() -> None:
    caps = wishes([2_000, 2_000, 1_100])
    assert caps[0] == caps[1] < caps[2] == caps[3]
    assert caps[4] == 100.0
    assert caps.sum() == pytest.approx(1_100)


def test_no_watts_moved_between_the_jobs_would_buy_more() -> None:
    caps = wishes([2_000, 2_000, 1_000])

    def work(flat_w: float, steep_w: float) -> float:
        return FLAT.curve.rate(flat_w) + STEEP.curve.rate(steep_w)

    for moved_w in (-20.0, -10.0, 10.0, 20.0):
        assert work(caps[0] + moved_w, caps[2] - moved_w) <= work(caps[0], caps[2]) + 1e-9


def test_a_tight_feed_holds_both_jobs_back_on_the_other_one_too() -> None:
    caps = wishes([400, 2_000, 4_000])
    levels = FLEET.levels(caps)
    assert levels[0] <= 400 + 1e-6
    assert caps[1] == caps[0]
    assert caps[3] == caps[2]


def test_where_not_even_the_floors_fit_everybody_wishes_for_the_floor() -> None:
    assert wishes([2_000, 2_000, 450]).tolist() == [100.0] * 5


def test_watts_are_shared_anew_every_half_minute_and_when_a_limit_changes() -> None:
    policy = Counted()
    aims = Aims(FLEET, (FLAT, STEEP), JOB, policy)
    wide, tight = np.array([2_000.0, 2_000.0, 1_500.0]), np.array([2_000.0, 2_000.0, 900.0])
    for now_s, limit_w, expected in ((0, wide, 1), (29, wide, 1), (30, wide, 2), (31, tight, 3)):
        aims.caps(float(now_s), limit_w)
        assert policy.asked == expected


def test_a_job_with_another_number_of_devices_is_refused() -> None:
    with pytest.raises(UserError, match=r"flat.*2 devices work for it, not 3"):
        Aims(FLEET, (PowerAsk(job_id="flat", devices=3, curve=a_curve(0.2)), STEEP), JOB, Counted())


def test_the_loop_serves_wishes_first_and_lets_nothing_lie_about() -> None:
    short = PowerAsk(job_id="short", devices=2, curve=a_curve(0.5, top_w=200.0))
    aims = Aims(FLEET, (short, STEEP), JOB, WaterFilling())
    loop = SafetyLoop(FLEET, SafetyConfig(start_heat=0.0, unproven=0.0), aims=aims)
    limit_w, cap_w = np.array([2_000.0, 2_000.0, 1_400.0]), np.full(5, 100.0)
    for second in range(90):
        draw_w = cap_w * (1 - 1e-6 * second)
        readings = Readings(
            now_s=float(second), draw_w=draw_w, draw_at_s=np.full(5, float(second)),
            cap_w=cap_w.copy(), feed_w=FLEET.levels(draw_w)[:-1],
            feed_at_s=np.full(2, float(second)), off=np.zeros(5, dtype=bool),
        )  # fmt: skip
        cap_w = loop.cycle(readings, limit_w).cap_w
        assert cap_w.sum() <= 1_400
    assert cap_w[2:4].min() >= 390.0  # the steep job's wish
    assert cap_w.sum() >= 0.99 * 1_400  # and the rest to whoever draws all it may
