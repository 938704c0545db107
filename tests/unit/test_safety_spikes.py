"""Meters that spike or freeze for a while: believed while they show more, and not remembered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safety_room import Room, a_fleet, a_loop, limits
from wattherd.engine.safety.contract import Readings, SafetyConfig
from wattherd.engine.safety.meters import SPIKE_LOOKS, Meters, MeterSpikes

LIMIT_W = 2400.0
FROM_S, TO_S, MINUTE_S = 60, 110, 60


@dataclass
class Frozen(Room):
    """The feed's meter and the second device's stand still between `FROM_S` and `TO_S`."""

    stood: Readings | None = None

    def read(self) -> Readings:
        now = super().read()
        if self.stood is None or not FROM_S <= self.at_s < TO_S:
            self.stood = now
        second = np.arange(len(now.draw_w)) == 1
        draw_w = np.where(second, self.stood.draw_w, now.draw_w)
        return replace(now, draw_w=draw_w, feed_w=self.stood.feed_w)


@pytest.mark.long
@pytest.mark.parametrize(("rest_share", "base_w"), [(0.0, 0.0), (0.82, 600.0)])
def test_the_limit_is_used_again_within_a_minute_of_meters_that_stood_still(
    rest_share: float, base_w: float
) -> None:
    """Also where the limit is cut and lifted meanwhile, so that all moves while it is not told."""
    room = Frozen(a_fleet(), base=lambda _: base_w, rest_share=rest_share, sees_rest=False)
    limit_w, loop = LIMIT_W + base_w, a_loop(room.fleet)
    allowed_w = np.repeat([limit_w, 0.75 * limit_w, limit_w], [70, 30, 130])
    drawn_w = np.concatenate([
        room.run(loop, limits(room.fleet, watts), seconds)[:, -1]
        for watts, seconds in ((limit_w, 70), (0.75 * limit_w, 30), (limit_w, 130))
    ])  # fmt: skip
    at_s = np.arange(len(drawn_w))
    late = (at_s >= 10) & ~((at_s >= 70) & (at_s < 80))
    assert (drawn_w <= allowed_w)[late].all()
    assert drawn_w[TO_S + MINUTE_S :].mean() >= 0.95 * limit_w


def shown(looks: list[float], spikes: MeterSpikes, device_w: float = 1000.0) -> list[bool]:
    """Of other load that is read so, which looks pass for spikes."""
    return [
        bool(
            spikes.note(np.array([one]), np.array([device_w + one]), told=np.ones(1, bool),
                        step_s=1.0)[0]
        )
        for one in looks
    ]  # fmt: skip


def a_spiker() -> MeterSpikes:
    spikes = MeterSpikes(1)
    assert shown([0.0] * 5 + ([2000.0] + [0.0] * 5) * 3, spikes) == [False] * 23
    return spikes


def test_the_fourth_jump_that_may_be_over_at_once_is_not_remembered() -> None:
    assert shown([2000.0, 2000.0, 0.0, 100.0], a_spiker()) == [True, True, False, False]


def test_what_lasts_is_remembered_as_soon_as_it_has() -> None:
    passing = shown([2000.0] * 20, a_spiker())
    assert sum(passing) < SPIKE_LOOKS
    assert not any(passing[SPIKE_LOOKS:])


def test_a_meter_that_has_not_spiked_for_long_is_heard_again() -> None:
    spikes = a_spiker()
    assert not any(shown([0.0] * 1_200, spikes))
    assert shown([2000.0], spikes) == [False]


@given(
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=60), st.floats(100.0, 1e5),
    st.integers(SPIKE_LOOKS, 12),
)  # fmt: skip
def test_neither_small_moves_nor_loads_that_stay_make_a_spiker(
    moves: list[float], device_w: float, lasts: int
) -> None:
    """Whatever its load does: to be one, a meter must jump far and come back at once."""
    spikes = MeterSpikes(1)
    assert not any(shown([one * device_w for one in moves], spikes, device_w))
    high = [5.0 * device_w] * lasts + [0.0] * SPIKE_LOOKS
    assert not any(shown(high * 4, spikes, device_w))


def readings(now_s: float, draw_w: np.ndarray, feed_w: float, cap_w: float = 400.0) -> Readings:
    return Readings(
        now_s=now_s, draw_w=draw_w, draw_at_s=np.full(len(draw_w), now_s),
        cap_w=np.full(len(draw_w), cap_w), feed_w=np.array([feed_w]), feed_at_s=np.array([now_s]),
        off=np.zeros(len(draw_w), dtype=bool),
    )  # fmt: skip


@pytest.mark.parametrize(("first_w", "believed"), [(1800.0, True), (900.0, False)])
def test_a_frozen_meter_is_believed_at_once_only_when_it_shows_more(
    first_w: float, believed: bool
) -> None:
    meters, rng = Meters(a_fleet(4), SafetyConfig()), np.random.default_rng(3)
    for at_s in range(60):
        feed_w = 1200.0 if at_s >= 45 else 1200.0 + rng.normal(0.0, 2.0)
        seen = meters.judge(readings(at_s, 300.0 + rng.normal(0.0, 1.0, 4), feed_w))
    assert np.isnan(seen.level_now_w[0])
    seen = meters.judge(readings(60, 300.0 + rng.normal(0.0, 1.0, 4), first_w))
    assert np.isfinite(seen.level_now_w[0]) == believed
