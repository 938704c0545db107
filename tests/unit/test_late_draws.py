"""Devices' meters with news every 30 s, as DCGM's exporter has, beside levels' of every second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from safety_room import Room, a_fleet, a_loop, limits
from wattherd.engine.safety.contract import Readings
from wattherd.engine.safety.late_meters import LateDraws
from wattherd.engine.safety.meters import TrustedReadings
from wattherd.engine.safety.response import DrawResponse

EVERY = 30
LIMIT_W = 2_400.0


@dataclass
class Exported(Room):
    """A room whose devices are read every 30 s; the numbers are told again until then."""

    exported: tuple[float, np.ndarray] = field(init=False)
    stamped_when_asked: bool = False
    every: int = EVERY

    def read(self) -> Readings:
        readings = super().read()
        if self.at_s % self.every == 0:
            self.exported = (float(self.at_s), readings.draw_w)
        at_s, draw_w = self.exported
        stamp_s = readings.now_s if self.stamped_when_asked else at_s
        return replace(readings, draw_w=draw_w, draw_at_s=np.full(len(draw_w), stamp_s))


def test_what_devices_took_since_their_news_is_no_other_load_and_the_limit_is_used() -> None:
    fleet = a_fleet(site_metered=True)
    loop, room = a_loop(fleet), Exported(fleet)
    drawn_w = room.run(loop, limits(fleet, LIMIT_W), 150)[:, -1]
    assert loop.base.peak_w[-1] < 0.03 * LIMIT_W
    assert drawn_w[80:].mean() >= 0.95 * LIMIT_W
    assert drawn_w[5:].max() <= LIMIT_W


def test_a_cut_and_its_end_leave_nothing_to_wait_for() -> None:
    fleet = a_fleet(site_metered=True)
    loop, room = a_loop(fleet), Exported(fleet)
    room.run(loop, limits(fleet, LIMIT_W), 100)
    cut_w = room.run(loop, limits(fleet, 0.7 * LIMIT_W), 70)[:, -1]
    assert cut_w[8:].max() <= 0.7 * LIMIT_W
    assert cut_w[20:].mean() >= 0.95 * 0.7 * LIMIT_W
    assert room.run(loop, limits(fleet, LIMIT_W), 60)[30:, -1].mean() >= 0.95 * LIMIT_W


@pytest.mark.parametrize("at_s", [75, 89, 91, 104])
def test_other_load_that_comes_between_two_news_is_believed_at_once(at_s: int) -> None:
    fleet = a_fleet(site_metered=True)
    room = Exported(fleet, base=lambda s: 600.0 * (s >= at_s), base_at=1)
    drawn_w = room.run(a_loop(fleet), limits(fleet, LIMIT_W), 180)[:, -1]
    over = np.flatnonzero(drawn_w > 1.001 * LIMIT_W)
    assert set(over[over > 5]) <= set(range(at_s - 1, at_s + 5)), over
    assert drawn_w[150:].mean() >= 0.93 * LIMIT_W


def test_devices_that_do_not_follow_a_cut_do_not_fall_with_those_that_do() -> None:
    fleet = a_fleet(site_metered=True)
    loop, room = a_loop(fleet), Exported(fleet)
    room.run(loop, limits(fleet, LIMIT_W), 100)
    room.deaf[:2] = True
    drawn_w = room.run(loop, limits(fleet, 0.7 * LIMIT_W), 60)[:, -1]
    assert drawn_w[12:].max() <= 1.02 * 0.7 * LIMIT_W  # for a second, as they are found out


def _up_to_now(level_w: float, *, cap_w: float, told_w: float = 300.0, renews_s: float = 30.0,
               level_renews_s: float = 1.0) -> np.ndarray:  # fmt: skip
    """Of 8 devices, told under a cap of 300 W, what they are taken to draw now."""
    fleet = a_fleet(site_metered=True)
    late, response = LateDraws(fleet), DrawResponse(fleet)
    renews = np.append(np.full(8, renews_s), np.full(2, level_renews_s))
    draw_w = np.full(8, told_w)
    for now_s, cap in ((0.0, 300.0), (10.0, cap_w)):
        level = np.full(2, 8 * told_w + 100.0 if now_s == 0 else level_w)
        readings = Readings(
            now_s=now_s, draw_w=draw_w, draw_at_s=np.zeros(8), cap_w=np.full(8, cap),
            feed_w=level[:1], feed_at_s=np.zeros(1), off=np.zeros(8, dtype=bool),
            site_w=float(level[1]), site_at_s=now_s,
        )  # fmt: skip
        seen = TrustedReadings(
            draw_w=draw_w, feed_w=level[:1], agreed=np.ones(1, dtype=bool), missing_share=0.0,
            now_w=draw_w, level_w=level, level_now_w=level,
            still=np.zeros(8, dtype=bool), alarmed=np.zeros(2, dtype=bool),
        )  # fmt: skip
        found = late.up_to_now(
            readings, seen, renews_s=renews, response=response,
            counted_w=np.full(8, max(cap, 300.0)), other_w=np.full(2, 100.0),
        )  # fmt: skip
    return found.now_w


def test_a_rise_is_the_devices_as_far_as_their_caps_rose_and_their_level_shows_it() -> None:
    assert _up_to_now(2900.0, cap_w=350.0) == pytest.approx(350.0)
    assert _up_to_now(2700.0, cap_w=350.0) == pytest.approx(325.0)
    assert _up_to_now(3900.0, cap_w=350.0) == pytest.approx(350.0)
    assert _up_to_now(2900.0, cap_w=300.0) == pytest.approx(300.0)
    assert _up_to_now(2500.0, cap_w=350.0) == pytest.approx(300.0)


def test_who_did_not_press_against_its_cap_is_not_expected_to_follow_it() -> None:
    assert _up_to_now(1900.0, cap_w=350.0, told_w=150.0) == pytest.approx(150.0)


def test_a_fall_is_believed_as_far_as_the_level_shows_it() -> None:
    assert _up_to_now(1700.0, cap_w=200.0) == pytest.approx(200.0)
    assert _up_to_now(2100.0, cap_w=200.0) == pytest.approx(250.0)
    assert _up_to_now(2500.0, cap_w=200.0) == pytest.approx(300.0)


def test_meters_of_now_and_those_below_meters_as_late_are_left_as_they_are() -> None:
    assert _up_to_now(2900.0, cap_w=350.0, renews_s=1.0) == pytest.approx(300.0)
    assert _up_to_now(2900.0, cap_w=350.0, level_renews_s=30.0) == pytest.approx(300.0)


def test_other_load_that_goes_with_its_level_is_waited_for_all_the_same() -> None:
    """Devices' news that fall into that moment do not make it theirs."""
    fleet = a_fleet(site_metered=True)
    loop = a_loop(fleet)
    room = Exported(
        fleet, base=lambda s: 600.0 * (40 <= s < 90 or s >= 130), base_at=1, every=5,
    )  # fmt: skip
    drawn_w = room.run(loop, limits(fleet, LIMIT_W), 170)[:, -1]
    assert drawn_w[46:].max() <= 1.001 * LIMIT_W
