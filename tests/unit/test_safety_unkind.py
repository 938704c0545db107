"""The safety loop in rooms that flatter nobody: what may be above a limit, and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safety_room import CALM, Room, a_fleet, a_loop, limits
from wattherd.engine.safety.contract import Breaker, Floats, Readings, SafetyConfig
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.engine.safety.meters import Meters

SETTLE = 8


@pytest.mark.parametrize("share", [0.2, 0.35])
def test_steady_other_load_is_found_at_once_and_the_rest_is_used(share: float) -> None:
    fleet = a_fleet()
    room = Room(fleet, base=lambda _: share * 2800)
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2800), 120)[:, -1]
    assert (drawn_w[SETTLE:] <= 2800).all()
    assert drawn_w[30:].mean() - share * 2800 >= 0.95 * (1 - share) * 2800


def test_what_a_feed_with_a_meter_draws_beyond_all_devices_counts() -> None:
    """Node meters would show 1.82 times the GPUs' draw; here only the rack's meter does."""
    fleet = a_fleet(4)
    room = Room(fleet, rest_share=0.82, sees_rest=False)
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2300), 120)[:, -1]
    assert (drawn_w[20:] <= 2300).all()
    assert drawn_w[40:].mean() >= 0.95 * 2300


@pytest.mark.parametrize("metered", [True, False])
def test_parts_of_a_device_that_no_cap_acts_on_are_no_defiance(metered: bool) -> None:
    fleet = a_fleet(4, metered=np.array([metered]))
    room = Room(fleet, rest_share=0.82)
    loop = a_loop(fleet)
    drawn_w = room.run(loop, limits(fleet, 2300), 150)[:, -1]
    assert (drawn_w[20:] <= 2300).all()
    assert drawn_w[60:].mean() >= 0.95 * 2300
    assert not loop.caps.defiant.any()


def test_a_rising_other_load_is_met_before_it_arrives() -> None:
    fleet = a_fleet()
    room = Room(fleet, base=lambda at: 2800 * (0.05 + 0.25 * float(np.clip((at - 30) / 60, 0, 1))))
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2800), 140)[:, -1]
    assert (drawn_w[SETTLE:] <= 1.005 * 2800).all()  # when it begins to rise nobody knows how fast
    assert (drawn_w[45:] <= 2800).all()
    assert drawn_w[100:].mean() >= 0.95 * 2800


@pytest.mark.long
def test_a_compressor_is_a_surprise_only_the_first_times() -> None:
    fleet = a_fleet()
    room = Room(fleet, base=lambda at: 420.0 * (at % 60 >= 30))
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2800), 600)[:, -1]
    assert (drawn_w[:120] > 2800).any()  # nobody can know of it
    assert (drawn_w[150:] <= 2800).all()


def test_other_load_beside_the_feeds_is_read_at_the_sites_meter() -> None:
    fleet = a_fleet(8, 2, metered=np.array([False, False]), site_metered=True)
    room = Room(fleet, base=lambda _: 600.0, base_at=2)
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2800), 100)[:, -1]
    assert (drawn_w[SETTLE:] <= 2800).all()
    assert drawn_w[40:].mean() >= 0.96 * 2800


def test_stated_other_load_counts_where_no_meter_shows_it() -> None:
    unmetered = {"metered": np.array([False]), "base_w": np.array([600.0, 0.0])}
    fleet = a_fleet(8, 1, **unmetered)
    room = Room(fleet, base=lambda _: 600.0)
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2800), 60)[:, -1]
    assert (drawn_w[SETTLE:] <= 2800).all()
    assert drawn_w[30:].mean() >= 0.96 * 2800


def test_devices_that_cannot_reach_their_floor_do_not_stay_on_it() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet, reachable_w=120.7), a_loop(fleet)
    room.run(loop, limits(fleet, 2000), 30)
    low_w = room.run(loop, limits(fleet, 900), 60)[:, -1]
    assert low_w[SETTLE:] == pytest.approx(np.full(60 - SETTLE, 8 * 120.7), rel=0.01)
    assert not loop.caps.defiant.any()
    assert loop.caps.counted_w == pytest.approx(np.full(8, 121.0), abs=2.0)
    assert "floor-not-reached" in {note.kind for note in loop.notes()}
    back_w = room.run(loop, limits(fleet, 2000), 90)[:, -1]
    assert (back_w <= 2000).all()
    assert back_w[60:].mean() >= 0.95 * 2000


def test_a_fleet_found_at_caps_that_it_cannot_reach_leaves_them() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet, reachable_w=130.0), a_loop(fleet)
    room.cap_w[:], room.told_w[:], room.draw_w[:] = 100.0, 100.0, 130.0
    drawn_w = room.run(loop, limits(fleet, 2000), 150)[:, -1]
    assert (drawn_w <= 2000).all()
    assert drawn_w[100:].mean() >= 0.95 * 2000


def test_caps_that_lead_to_more_are_counted_so_without_a_feed_meter() -> None:
    fleet = a_fleet(8, 1, metered=np.array([False]))
    room = Room(fleet, regulates_at=1.045)
    drawn_w = room.run(a_loop(fleet), limits(fleet, 2000), 120)[:, -1]
    assert (drawn_w[SETTLE:] <= 2000).all()
    assert drawn_w[40:].mean() >= 0.96 * 2000


@pytest.mark.long
@pytest.mark.parametrize("step_w", [20.0, 40.0])
def test_coarse_meters_are_neither_frozen_nor_missing(step_w: float) -> None:
    fleet = a_fleet()
    room, loop = Room(fleet, device_step_w=step_w, level_step_w=step_w), a_loop(fleet)
    unsafe = []
    for second in range(240):
        rng = np.random.default_rng(second // 3)
        room.demand_w = 400.0 * rng.uniform(0.8, 1.0, 8)
        room.follow(loop.cycle(room.read(), limits(fleet, 2400)))
        unsafe.append(loop.safe_mode or np.isnan(loop.seen.draw_w).any())
    assert not any(unsafe)
    assert room.levels_w()[-1] >= 0.94 * 2400
    assert "coarse-meter" in {note.kind for note in loop.notes()}


def test_a_feed_meter_that_stands_still_while_its_devices_move_is_frozen() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet), a_loop(fleet)
    room.run(loop, limits(fleet, 2800), 5)
    room.level_step_w = 5000.0  # it says 5,000 W for ever, or 0
    room.base = lambda _: 0.0
    frozen = []
    for second in range(60):
        room.demand_w = 150.0 + 200.0 * (second // 10 % 2)
        room.follow(loop.cycle(room.read(), limits(fleet, 2800)))
        frozen.append("frozen-meter" in {note.kind for note in loop.notes()})
    assert sum(frozen[-30:]) >= 5  # where it stands still; it also goes from 0 to 5,000 and back


@pytest.mark.parametrize("step_w", [5.0, 25.0])
def test_knobs_that_round_are_done_and_the_limit_is_used(step_w: float) -> None:
    fleet = a_fleet(step_w=np.full(8, step_w))
    room, loop = Room(fleet, knob_step_w=step_w), a_loop(fleet)
    drawn_w = room.run(loop, limits(fleet, 1760), 60)[:, -1]
    assert (drawn_w[SETTLE:] <= 1760).all()
    assert drawn_w[30:].mean() >= 0.95 * 1760
    assert not loop.caps.late.any()


class MadMeter(Room):
    """The site's meter tells nonsense for two minutes."""

    def read(self) -> Readings:
        readings = super().read()
        if not 60 <= self.at_s < 180:
            return readings
        said_w = (65535.0, -1.0, float("nan"), 0.0, 65535.0, 65535.0, readings.site_w, 0.0)
        return replace(readings, site_w=said_w[self.at_s * 5 % 8])


def test_a_mad_meter_switches_nothing_off_and_is_forgotten() -> None:
    rated_w = np.array([4000.0, 2000.0])
    fleet = replace(a_fleet(site_metered=True), breaker=Breaker(rated_w=rated_w))
    room, loop = MadMeter(fleet, base=lambda _: 300.0), a_loop(fleet)
    off = False
    for _ in range(300):
        orders = loop.cycle(room.read(), rated_w)
        off |= bool(orders.switch_off.any())
        room.follow(orders)
        assert room.at_s < SETTLE or room.levels_w()[-1] <= 2000.0
    assert not off
    assert room.levels_w()[-1] >= 0.95 * 2000.0


def test_a_meter_that_tells_milliwatts_is_no_meter() -> None:
    rated_w = np.array([4000.0, 2000.0])
    fleet = replace(a_fleet(), breaker=Breaker(rated_w=rated_w))

    class Milli(Room):
        def read(self) -> Readings:
            readings = super().read()
            return replace(readings, feed_w=readings.feed_w * 1000.0)

    room = Milli(fleet)
    drawn_w = room.run(a_loop(fleet), rated_w, 90)[:, -1]
    assert (drawn_w[SETTLE:] <= 2000.0).all()
    assert drawn_w[60:].mean() >= 0.95 * 2000.0


def test_a_knob_with_a_number_of_its_own_is_not_late_for_ever() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet, lowest_w=115.0), a_loop(fleet)
    room.run(loop, limits(fleet, 2000), 20)
    room.run(loop, limits(fleet, 850), 40)
    assert not loop.caps.late.any()
    assert loop.caps.counted_w == pytest.approx(np.full(8, 115.0), rel=0.015)
    back_w = room.run(loop, limits(fleet, 2000), 60)[:, -1]
    assert back_w[40:].mean() >= 0.96 * 2000


def test_a_feed_without_a_meter_costs_nothing() -> None:
    fleet = a_fleet(4, 1, metered=np.array([False]))
    drawn_w = Room(fleet).run(a_loop(fleet), limits(fleet, 800), 60)[:, -1]
    assert drawn_w[30:].mean() >= 0.97 * 800


def test_devices_without_meters_are_counted_by_their_feeds() -> None:
    fleet = a_fleet(8, 1, device_metered=np.zeros(8, dtype=bool))
    room, loop = Room(fleet, base=lambda _: 500.0), a_loop(fleet)
    drawn_w = room.run(loop, limits(fleet, 2800), 100)[:, -1]
    assert not loop.safe_mode
    assert (drawn_w[SETTLE:] <= 2800).all()
    assert drawn_w[40:].mean() >= 0.95 * 2800


def test_a_boasting_knob_counts_at_what_it_had_and_mends() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet), a_loop(fleet)
    room.run(loop, limits(fleet, 2800), 30)
    room.deaf[:2] = True
    drawn_w = room.run(loop, limits(fleet, 1800), 40)[:, -1]
    assert (drawn_w[SETTLE:] <= 1800).all()
    assert loop.caps.defiant.tolist() == [True] * 2 + [False] * 6
    room.deaf[:] = False
    room.run(loop, limits(fleet, 2800), 90)
    assert not loop.caps.defiant.any()
    assert room.levels_w()[-1] >= 0.97 * 2800


def test_devices_meters_that_begin_to_read_half_free_no_watt() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet), a_loop(fleet)
    room.run(loop, limits(fleet, 2400), 40)
    for _ in range(40):
        readings = room.read()
        readings.draw_w[:2] *= 0.5
        room.follow(loop.cycle(readings, limits(fleet, 2400)))
        assert room.levels_w()[-1] <= 2400
    assert room.cap_w[:2].min() > 250.0  # nor do they cost their devices their caps
    assert room.levels_w()[-1] >= 0.92 * 2400


def test_a_feed_meter_that_begins_to_read_half_frees_no_watt() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet, base=lambda _: 500.0), a_loop(fleet)
    room.run(loop, limits(fleet, 2800), 60)
    for _ in range(40):
        readings = room.read()
        readings.feed_w[:] *= 0.5
        room.follow(loop.cycle(readings, limits(fleet, 2800)))
    assert room.levels_w()[-1] <= 2800


@pytest.mark.long
def test_slow_swings_of_all_devices_stay_below_the_limit_once_they_were_seen() -> None:
    """Caps that hold a mean: 40 % above for 5 s, below for 5 s."""
    fleet = a_fleet()
    room, loop, drawn_w = Room(fleet), a_loop(fleet), []
    for second in range(200):
        room.regulates_at = 1.4 if second % 10 < 5 else 0.6
        room.follow(loop.cycle(room.read(), limits(fleet, 2400)))
        drawn_w.append(room.levels_w()[-1])
    assert max(drawn_w[60:]) <= 2400
    assert max(drawn_w[60:]) >= 0.75 * 2400
    assert "swing" in {note.kind for note in loop.notes()}


def test_a_successor_starts_as_sure_as_its_predecessor_was() -> None:
    fleet = a_fleet(8, 1, device_metered=np.zeros(8, dtype=bool))
    room, loop = Room(fleet, base=lambda _: 700.0, regulates_at=1.03), a_loop(fleet)
    before_w = room.run(loop, limits(fleet, 2800), 100)[-1, -1]
    for _ in range(5):
        loop = SafetyLoop(fleet, CALM, state=loop.state())
        drawn_w = room.run(loop, limits(fleet, 2800), 20)[:, -1]
        assert (drawn_w <= 2800).all()
        assert drawn_w.min() >= 0.98 * before_w
    assert loop.found_w == pytest.approx(np.full(8, 400.0))


def test_the_same_readings_give_the_same_orders() -> None:
    def told() -> list[list[float]]:
        fleet = a_fleet(8, 2)
        room, loop, orders = Room(fleet, base=lambda at: 10.0 * (at % 40)), a_loop(fleet), []
        for _ in range(80):
            orders.append(loop.cycle(room.read(), limits(fleet, 2400)))
            room.follow(orders[-1])
        return [one.cap_w.tolist() for one in orders]

    assert told() == told()


def test_a_wrong_belief_that_a_device_gets_no_lower_does_not_outlive_a_limit() -> None:
    fleet = a_fleet()
    room, loop = Room(fleet), a_loop(fleet)
    room.run(loop, limits(fleet, 2400), 40)
    loop.caps.response.reach_w = np.full(loop.fleet.size, 290.0)
    drawn_w = room.run(loop, limits(fleet, 1600), 60)[:, -1]
    assert (drawn_w[15:] <= 1600).all()
    assert drawn_w[40:].mean() >= 0.95 * 1600


@pytest.mark.parametrize("jump_s", [-3600.0, -30.0, 3600.0])
def test_a_clock_that_jumps_neither_lifts_the_limit_nor_keeps_devices_down(jump_s: float) -> None:
    """An hour back, and the loop's windows would have stood still for an hour."""
    fleet = a_fleet()
    room, loop = Room(fleet), a_loop(fleet)
    drawn_w = []
    for second in range(90):
        readings, limit_w = room.read(), 2000.0 if 40 <= second < 50 else 2800.0
        if second >= 30:
            now_s = readings.now_s + jump_s
            readings = replace(readings, now_s=now_s, draw_at_s=np.full(fleet.size, now_s),
                               feed_at_s=np.full(1, now_s), site_at_s=now_s)  # fmt: skip
        room.follow(loop.cycle(readings, limits(fleet, limit_w)))
        drawn_w.append(room.levels_w()[-1])
        assert second < SETTLE or drawn_w[-1] <= 2800
    assert max(drawn_w[46:50]) <= 2000
    assert min(drawn_w[80:]) >= 0.95 * 2800


def test_a_device_that_tells_impossible_numbers_is_not_heard_until_it_stopped() -> None:
    """Its 1 W between 65,535 W and less than nothing would pass for other load of the rack."""
    fleet = a_fleet(10)
    meters, told = Meters(fleet, SafetyConfig()), [300.0, -1.0, 65535.0, 1.0, 1.0, 300.0]
    rng, seen = np.random.default_rng(0), []
    for at_s in range(90):
        draw_w = 300.0 + rng.normal(0, 1, 10)
        if 30 <= at_s < 60:
            draw_w[0] = told[at_s % 6]
        readings = Readings(
            now_s=float(at_s), draw_w=draw_w, draw_at_s=np.full(10, float(at_s)),
            cap_w=np.full(10, 310.0), feed_w=np.array([3000.0 + rng.normal()]),
            feed_at_s=np.array([float(at_s)]), off=np.zeros(10, dtype=np.bool_),
        )  # fmt: skip
        seen.append(float(meters.judge(readings).draw_w[0]))
    assert np.isfinite(seen[:30]).all()
    assert np.isnan(seen[34:60]).all()
    assert np.isfinite(seen[-5:]).all()


def test_no_device_draws_five_times_what_it_can() -> None:
    fleet = a_fleet(2)
    meters = Meters(fleet, SafetyConfig())
    for at_s in range(3):
        readings = Readings(
            now_s=float(at_s), draw_w=np.array([300.0 + at_s, 65535.0]),
            draw_at_s=np.full(2, float(at_s)), cap_w=np.full(2, 310.0),
            feed_w=np.array([650.0 + at_s]), feed_at_s=np.array([float(at_s)]),
            off=np.zeros(2, dtype=np.bool_),
        )  # fmt: skip
        seen = meters.judge(readings)
    assert np.isfinite(seen.draw_w[0])
    assert np.isnan(seen.draw_w[1])


@pytest.mark.parametrize(
    ("step_w", "led"), [(9.7, False), (9.7, True), (1.0, True)], ids=["load", "caps", "crept"]
)
def test_whole_watts_that_stand_still_after_a_climb_are_not_frozen(
    step_w: float, led: bool
) -> None:
    """A climb shows other digits at every look. That is no habit, and what it ends in is a cap."""
    meters = Meters(a_fleet(6), SafetyConfig())
    for at_s in range(240):
        draw_w = np.full(6, np.round(min(200.0 + step_w * (at_s % 80), 236.0)))
        cap_w = draw_w if led else np.full(6, 236.0)
        seen = meters.judge(in_order(float(at_s), draw_w, cap_w))
        assert seen.missing_share == 0.0
    assert not meters.frozen.any()


@pytest.mark.parametrize("decimals", [0, 1, 6])
@pytest.mark.parametrize("led", [False, True], ids=["steady", "led"])
def test_a_meter_that_flickered_at_every_look_and_stands_still_is_frozen(
    decimals: int, led: bool
) -> None:
    meters = Meters(a_fleet(6), SafetyConfig())
    for at_s in range(80):
        cap_w = np.full(6, 240.0 + 5.0 * (at_s // 4 % 3 if led else 0))
        draw_w = np.round(cap_w - 30.0 - 25.0 * np.sin(2.4 * at_s + np.arange(6)), decimals)
        draw_w[0] = draw_w[0] if at_s < 60 else 200.0
        meters.judge(in_order(float(at_s), draw_w, cap_w))
    assert meters.frozen[0]
    assert not meters.frozen[1:].any()


def in_order(now_s: float, draw_w: Floats, cap_w: Floats) -> Readings:
    """What all meters show of that draw at once, those of one feed included."""
    return Readings(
        now_s=now_s, draw_w=draw_w, draw_at_s=np.full(len(draw_w), now_s), cap_w=cap_w,
        feed_w=np.array([draw_w.sum()]), feed_at_s=np.array([now_s]),
        off=np.zeros(len(draw_w), dtype=np.bool_),
    )  # fmt: skip
