"""A wrong clock is told from a late meter; either is heard, and what cannot be told is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from wattherd.engine.safety import Breaker, Fleet, Readings
from wattherd.engine.safety.late_meters import MeterClocks

Floats = NDArray[np.float64]
MAX_AGE_S = 5.0


def a_fleet() -> Fleet:
    """Two racks of three devices."""
    return Fleet(
        feed=np.repeat([0, 1], 3), floor_w=np.full(6, 100.0), max_w=np.full(6, 700.0),
        breaker=Breaker(rated_w=np.array([3000.0, 3000.0, 6000.0])), site_metered=True,
    )  # fmt: skip


class Plant:
    """Devices whose draw moves every few seconds, and a meter of rack 0 with a clock of its own."""

    def __init__(self, *, other_w: Callable[[int], float] = lambda _: 300.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.fleet, self.other_w = a_fleet(), other_w
        self.draw_w = np.repeat(rng.uniform(200, 600, (60, 6)), 5, axis=0)
        self.noise = rng.normal(1.0, 5e-4, len(self.draw_w))

    def rack_w(self, at_s: int) -> float:
        """What truly flows to rack 0."""
        return float(self.draw_w[max(at_s, 0), :3].sum()) + self.other_w(at_s)

    def read(self, now_s: int, *, stamp_s: float, of_s: int) -> Readings:
        """The meter tells of `of_s` and says that it is of `stamp_s`."""
        draw_w = self.draw_w[now_s]
        told_w = self.rack_w(of_s) * self.noise[now_s]
        return Readings(
            now_s=float(now_s), draw_w=draw_w, draw_at_s=np.full(6, float(now_s)), cap_w=draw_w,
            feed_w=np.array([told_w, draw_w[3:].sum()]), feed_at_s=np.array([stamp_s, now_s]),
            off=np.zeros(6, dtype=np.bool_), site_w=draw_w.sum() + 300.0, site_at_s=float(now_s),
        )  # fmt: skip

    def lived(
        self, stamp: Callable[[int], float], of: Callable[[int], int], until_s: int = 60
    ) -> Readings:
        """The readings of the last look, put right."""
        clocks = MeterClocks(self.fleet, MAX_AGE_S)
        for now_s in range(until_s):
            found = clocks.put_right(self.read(now_s, stamp_s=stamp(now_s), of_s=of(now_s)))
        return found


@pytest.mark.parametrize("skew_s", [-3600.0, -86_400.0, -25.0, -9.3, -3.0, 2.0, 9.3, 25.0, 3600.0])
def test_a_meter_of_a_wrong_clock_is_heard(skew_s: float) -> None:
    plant = Plant()
    found = plant.lived(lambda now_s: now_s + skew_s, lambda now_s: now_s)
    assert found.feed_at_s[0] == pytest.approx(59.0, abs=0.5)
    assert found.feed_w[0] == pytest.approx(plant.rack_w(59), rel=0.01)


@pytest.mark.parametrize("late_s", [8, 20, 40])
def test_a_late_meter_is_brought_up_to_now(late_s: int) -> None:
    """Other load is what it was then; devices are what they are now."""
    plant = Plant()
    found = plant.lived(lambda now_s: now_s - late_s, lambda now_s: now_s - late_s, 100)
    assert found.feed_at_s[0] == pytest.approx(99.0, abs=0.5)
    assert found.feed_w[0] == pytest.approx(plant.rack_w(99), rel=0.02)


def test_a_neighbours_steps_say_nothing_of_clocks() -> None:
    plant = Plant(other_w=lambda at_s: 300.0 + 900.0 * (at_s // 25 % 2))
    for until_s in range(40, 120, 7):
        found = plant.lived(lambda now_s: now_s - 12.0, lambda now_s: now_s, until_s)
        assert found.feed_at_s[0] == pytest.approx(until_s - 1, abs=0.5)


def test_what_moves_by_nothing_that_is_known_stays_as_it_says() -> None:
    rng = np.random.default_rng(4)
    walk_w = 2000.0 + np.cumsum(rng.normal(0, 300, 400))
    plant = Plant(other_w=lambda at_s: float(walk_w[max(at_s, 0)]))
    found = plant.lived(lambda now_s: now_s - 12.0, lambda now_s: now_s, 100)
    assert found.feed_at_s[0] == 99.0 - 12.0


def test_a_stamp_that_stands_still_is_no_clock() -> None:
    plant = Plant()
    found = plant.lived(lambda now_s: min(now_s, 30) - 9.0, lambda now_s: min(now_s, 30))
    assert found.feed_at_s[0] < 59.0 - MAX_AGE_S


def test_a_clock_that_is_put_on_by_an_hour_is_found_anew() -> None:
    plant, known = Plant(), []
    clocks = MeterClocks(plant.fleet, MAX_AGE_S)
    for now_s in range(120):
        skew_s = -3600.0 if now_s >= 60 else 0.0
        found = clocks.put_right(plant.read(now_s, stamp_s=now_s + skew_s, of_s=now_s))
        known.append(abs(found.feed_at_s[0] - now_s) < 1.0)
    assert all(known[:60])
    assert not any(known[60:65])
    assert all(known[100:])


def test_a_device_is_heard_again_only_if_it_moves_with_its_cap() -> None:
    fleet, rng = a_fleet(), np.random.default_rng(1)
    clocks = MeterClocks(fleet, MAX_AGE_S)
    cap_w = np.repeat(rng.uniform(200, 600, (20, 6)), 5, axis=0)
    for now_s in range(100):
        draw_w = cap_w[now_s].copy()
        draw_w[1] = 50.0 - now_s / 10  # says little, whatever it is ordered
        stamp_s = np.full(6, now_s + 30.0)
        found = clocks.put_right(
            Readings(
                now_s=float(now_s), draw_w=draw_w, draw_at_s=stamp_s, cap_w=cap_w[now_s],
                feed_w=np.full(2, np.nan), feed_at_s=np.full(2, np.nan),
                off=np.zeros(6, dtype=np.bool_),
            )
        )  # fmt: skip
    assert found.draw_at_s[0] == pytest.approx(99.0)
    assert found.draw_at_s[1] == 129.0


def test_readings_of_right_clocks_are_left_alone() -> None:
    plant = Plant()
    clocks = MeterClocks(plant.fleet, MAX_AGE_S)
    for now_s in range(20):
        readings = plant.read(now_s, stamp_s=now_s - 1.0, of_s=now_s)
        assert clocks.put_right(readings) is readings


def test_what_others_tell_is_not_touched() -> None:
    """Less than nothing beside a late meter is for the judge of meters, and so is no number."""
    plant = Plant()
    clocks = MeterClocks(plant.fleet, MAX_AGE_S)
    for now_s in range(60):
        readings = plant.read(now_s, stamp_s=now_s - 12.0, of_s=now_s - 12)
        odd_w = readings.feed_w * np.array([1.0, -1.0])
        found = clocks.put_right(replace(readings, feed_w=odd_w, site_w=float("nan")))
    assert found.feed_at_s[0] == 59.0
    assert found.feed_w[1] == odd_w[1]
    assert np.isnan(found.site_w)


def test_garbage_in_between_hides_no_clock() -> None:
    plant = Plant()
    clocks = MeterClocks(plant.fleet, MAX_AGE_S)
    for now_s in range(60):
        readings = plant.read(now_s, stamp_s=now_s - 12.0, of_s=now_s)
        times = 1e6 if now_s in (3, 17) else 1.0
        found = clocks.put_right(replace(readings, feed_w=readings.feed_w * times))
    assert found.feed_at_s[0] == pytest.approx(59.0, abs=0.5)
