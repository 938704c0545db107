"""Meters that tell means of many seconds are found out; meters that count a part are made up for.

True draw is known here, means are taken over a plain list of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from safety_room import Room, a_fleet, a_loop, limits
from wattherd.engine.safety.contract import Fleet, Readings, SafetyConfig
from wattherd.engine.safety.mean_meters import MeanMeters
from wattherd.engine.safety.meters import Meters

BOARDS = 4


def fleet(**more: object) -> Fleet:
    return a_fleet(BOARDS, 1, site_metered=False, **more)


def steps_of_draw(second: int) -> float:
    return 380.0 if second < 90 or second > 200 else 190.0


def flat(second: int) -> float:
    return 380.0 + second % 3


def watch(
    window_s: int, board_w: Callable[[int], float], other_w: Callable[[int], float],
    *, seconds: int = 300, every_s: int = 1, whose: Fleet | None = None,
    noise: float = 0.001, meter: Callable[[list[float]], float] | None = None,
) -> tuple[MeanMeters, list[tuple[int, float, float]]]:  # fmt: skip
    """What it makes of a feed's meter: (second, truth, what it says of now)."""
    whose = fleet() if whose is None else whose
    meters, means = Meters(whose, SafetyConfig()), MeanMeters(whose)
    rng, told, story = np.random.default_rng(5), (float("nan"), float("nan")), []
    truth = [BOARDS * board_w(0) + other_w(0)] * 60
    for second in range(seconds):
        true_w = board_w(second)
        boards_w = true_w * (1 + noise * rng.standard_normal(BOARDS))
        # A meter whose last digit never flickers would be taken for frozen.
        truth.append(BOARDS * true_w * (1 + 2e-4 * rng.standard_normal()) + other_w(second))
        if second % every_s == 0:
            told_w = sum(truth[-window_s:]) / window_s if meter is None else meter(truth)
            told = (told_w, float(second))
        readings = Readings(
            now_s=float(second), draw_w=boards_w, draw_at_s=np.full(BOARDS, float(second)),
            cap_w=np.full(BOARDS, 400.0), feed_w=np.array([told[0]]), feed_at_s=np.array([told[1]]),
            off=np.zeros(BOARDS, dtype=bool),
        )  # fmt: skip
        seen = means.up_to_now(readings, meters.judge(readings), 0.08, readings.cap_w)
        story.append((second, truth[-1], float(seen.level_now_w[0])))
    return means, story


@pytest.mark.parametrize(("window_s", "every_s"), [(10, 1), (30, 1), (30, 5), (60, 60)])
def test_a_meter_of_means_is_found_out_and_tells_of_now(window_s: int, every_s: int) -> None:
    means, story = watch(window_s, steps_of_draw, lambda _: 300.0, every_s=every_s)
    assert means.window_s[0] == window_s
    # Some seconds after the second step: the plain mean would be off by up to 760 of 1820 W.
    late = [abs(says - true) / true for second, true, says in story if second > 205]
    assert max(late) < 0.02


@pytest.mark.parametrize("hold_s", [8, 20, 25])
def test_a_meter_that_decays_is_found_out_and_tells_of_now(hold_s: int) -> None:
    """A low-pass of the first order, as PDUs have them for their displays."""
    past: list[float] = []

    def told(truth: list[float]) -> float:
        was = past[-1] if past else truth[-1]
        past.append(was + (truth[-1] - was) * (1 - math.exp(-1 / hold_s)))
        return past[-1]

    means, story = watch(1, steps_of_draw, lambda _: 300.0, meter=told)
    assert means.found[0]
    assert means.late_s[0] == pytest.approx(hold_s, rel=0.3)
    late = [abs(says - true) / true for second, true, says in story if second > 215]
    assert max(late) < 0.05


@pytest.mark.parametrize("every_s", [1, 10])
def test_a_mean_that_began_with_the_loop_is_found_out_before_its_window_is_over(
    every_s: int,
) -> None:
    """As what a query tells of the last minute when its target is new."""

    def cut(second: int) -> float:
        return 380.0 if second < 4 else 150.0

    def told(truth: list[float]) -> float:
        since = truth[61:][-60:] or truth[60:]
        return sum(since) / len(since)

    means, story = watch(60, cut, lambda _: 300.0, meter=told, every_s=every_s, seconds=50)
    assert means.window_s[0] == 60
    late = [abs(says - true) / true for second, true, says in story if second > 40]
    assert max(late) < 0.03


def test_a_meter_of_now_is_never_taken_for_one_of_means() -> None:
    for other_w in (lambda _: 300.0, lambda s: 300.0 + 200.0 * (s % 80 > 40), lambda s: 2.0 * s):
        means, story = watch(1, steps_of_draw, other_w)
        assert means.window_s[0] == 0
        assert all(true == pytest.approx(says) for _, true, says in story)


def test_where_devices_stand_still_nothing_is_lost() -> None:
    _, story = watch(30, flat, lambda _: 300.0)
    assert all(says == pytest.approx(true, rel=0.01) for _, true, says in story[2:])


def test_noise_of_devices_meters_makes_no_mean_of_a_meter_of_now() -> None:
    means, story = watch(1, lambda _: 380.0, lambda _: 300.0, noise=0.05)
    assert means.window_s[0] == 0
    assert all(true == pytest.approx(says) for _, true, says in story)


def test_devices_without_meters_explain_no_mean() -> None:
    whose = fleet(device_metered=np.array([True] * (BOARDS - 1) + [False]))
    means, _ = watch(30, steps_of_draw, lambda _: 300.0, whose=whose)
    assert not means.found.any()


@pytest.mark.parametrize(("until", "heard_too"), [(400, False), (60, True)])
def test_a_device_that_was_never_read_hides_means_of_its_own_levels_only(
    until: int, heard_too: bool
) -> None:
    whose = a_fleet(2 * BOARDS, 2, site_metered=True)
    meters, means = Meters(whose, SafetyConfig()), MeanMeters(whose)
    rng, truth = np.random.default_rng(5), []
    silent = np.arange(2 * BOARDS) == 1  # of the second feed
    for second in range(300):
        board_w = np.full(2 * BOARDS, steps_of_draw(second))
        truth.append(whose.levels(board_w * (1 + 2e-4 * rng.standard_normal(2 * BOARDS))))
        told_w = np.mean(truth[-30:], axis=0)
        shown_w = board_w * (1 + 1e-3 * rng.standard_normal(2 * BOARDS))
        at_s = float(second)
        readings = Readings(
            now_s=at_s, draw_w=np.where(silent & (second < until), np.nan, shown_w),
            draw_at_s=np.full(2 * BOARDS, at_s), cap_w=np.full(2 * BOARDS, 400.0),
            feed_w=told_w[:-1], feed_at_s=np.full(2, at_s), site_w=float(told_w[-1]),
            site_at_s=at_s, off=np.zeros(2 * BOARDS, dtype=bool),
        )  # fmt: skip
        means.up_to_now(readings, meters.judge(readings), 0.08, readings.cap_w)
    assert means.found.tolist() == [True, heard_too, heard_too]
    assert means.window_s[0] == 30


class Decaying(Room):
    """The site's meter forgets by 1/e in 20 s, and has done so before the loop came."""

    shown_w = 3400.0

    def read(self) -> Readings:
        readings = super().read()
        self.shown_w += (readings.site_w - self.shown_w) * (1 - math.exp(-1 / 20))
        return replace(readings, site_w=self.shown_w)


def test_what_a_mean_tells_of_the_time_before_the_loop_is_not_waited_for() -> None:
    room = Decaying(a_fleet(8, 1, site_metered=True, metered=np.array([False])))
    drawn_w = room.run(a_loop(room.fleet), limits(room.fleet, 1760.0), 150)[:, -1]
    assert (drawn_w[8:] <= 1760.0).all()
    assert drawn_w[75:].mean() >= 0.95 * 1760.0


@pytest.mark.parametrize("hold_s", [20])
def test_a_step_of_others_behind_a_meter_that_decays_is_told_within_seconds(hold_s: int) -> None:
    past: list[float] = []

    def told(truth: list[float]) -> float:
        was = past[-1] if past else truth[-1]
        past.append(was + (truth[-1] - was) * (1 - math.exp(-1 / hold_s)))
        return past[-1]

    _, story = watch(1, steps_of_draw, lambda s: 300.0 + 400.0 * (s >= 260), meter=told)
    # Seven seconds after it, 30 % of it is on the meter itself.
    assert all(says >= 0.99 * true for second, true, says in story if second > 266)
    assert max(says / true for second, true, says in story if second > 216) < 1.15


class HalfCounted(Room):
    """The first feed's meter counts two of its four devices; the site's has a clamp of its own."""

    def read(self) -> Readings:
        readings = super().read()
        readings.feed_w[0] -= float(self.wall_w[[0, 2]].sum())
        return readings


def test_what_a_meter_that_counts_half_misses_is_found_on_the_one_above() -> None:
    room = HalfCounted(a_fleet(8, 2, site_metered=True), rest_share=0.15, sees_rest=False)
    loop = a_loop(room.fleet)
    drawn_w = room.run(loop, limits(room.fleet, 1e9, 1000.0), 240)
    # Before the meter has been short for half a minute nobody can tell it from a late one.
    assert drawn_w[60:, 0].max() <= 1000.0
    assert drawn_w[120:, 0].mean() >= 0.90 * 1000.0
    assert drawn_w[120:, 1].mean() >= 0.95 * 1000.0
    assert [one.level for one in loop.notes() if one.kind == "short-meter"] == [0]
