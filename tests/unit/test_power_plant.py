"""The machine room against hand-made numbers: caps that hold means, meters, knobs, breakers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from wattherd.engine.safety.contract import Breaker, Fleet, Orders, Readings
from wattherd.sim.power_plant import (
    STEP_S,
    Capping,
    Knobs,
    OtherLoad,
    PlantRoom,
    PowerPlant,
)
from wattherd.sim.power_plant_breakers import BANDS, TripBand
from wattherd.sim.power_plant_faults import drawn_fault
from wattherd.sim.power_plant_meters import PlantMeter, PlantMeters

EXACT = PlantMeter(noise=0.0)
EXACTLY = PlantMeters(device=EXACT, feed=EXACT, site=EXACT)


def a_room(count: int = 4, **more: object) -> PlantRoom:
    fleet = Fleet(
        feed=np.arange(count) % 2,
        floor_w=np.full(count, 100.0),
        max_w=np.full(count, 400.0),
        breaker=Breaker(rated_w=np.full(3, 1e9)),
    )
    parts = {
        "found_w": fleet.max_w,
        "idle_w": np.full(count, 50.0),
        "lag_s": np.full(count, 0.01),
        "delay_s": 0.5,
        "heat": np.zeros(3),
        "job": np.arange(count),
        "instruments": EXACTLY,
        **more,
    }
    return PlantRoom(fleet=fleet, **parts)  # type: ignore[arg-type]


def a_plant(*kinds: str, **more: object) -> PowerPlant:
    room = a_room(**more)
    fault = drawn_fault(
        kinds, np.random.default_rng(3), room.fleet.feed.tolist(), share=0.5,
        hit_feeds=np.array([True, False]), window_s=(5.0, 100.0),
    )  # fmt: skip
    return PowerPlant(room, np.random.default_rng(4), fault)


def order(plant: PowerPlant, watts: float, lease_s: float = np.inf) -> None:
    none = np.zeros(plant.room.fleet.size, dtype=bool)
    each_w = np.full(len(none), watts)
    plant.order(Orders(cap_w=each_w, lease_s=lease_s, switch_off=none, switch_on=none))


def let_pass(plant: PowerPlant, seconds: float, demand_w: float = 400.0) -> np.ndarray:
    """Draws of the first device, step by step."""
    drawn = []
    for _ in range(round(seconds / STEP_S)):
        plant.step(np.full(plant.room.fleet.size, demand_w))
        drawn.append(plant.draw_w[0])
    return np.array(drawn)


def read_after(plant: PowerPlant, seconds: float, demand_w: float = 400.0) -> Readings:
    let_pass(plant, seconds, demand_w)
    return plant.read()


# --- devices ----------------------------------------------------------------------------------


def test_a_cap_that_holds_a_mean_lets_a_burst_through_and_then_holds_it() -> None:
    """143 % of the cap for half a second after a pause, as measured on a B300; not for ever."""
    plant = a_plant(capping=Capping(window_s=1.0))
    order(plant, 280)
    let_pass(plant, 5, 80)
    drawn = let_pass(plant, 5)
    assert drawn[:4].min() > 1.39 * 280
    assert drawn[-10:] == pytest.approx(np.full(10, 280), rel=0.02)
    hard = a_plant()
    order(hard, 280)
    let_pass(hard, 5, 80)
    assert let_pass(hard, 5).max() < 1.02 * 280


def test_a_cap_below_what_a_device_reaches_leaves_it_there() -> None:
    plant = a_plant(capping=Capping(reachable_w=120.7))
    order(plant, 100)
    assert let_pass(plant, 5)[-10:] == pytest.approx(np.full(10, 120.7), rel=0.02)
    assert plant.cap_w[0] == 100
    assert let_pass(plant, 2, 60)[-1] == pytest.approx(60, rel=0.03)


def test_caps_lead_to_more_than_they_say_and_uncapped_parts_draw_beside() -> None:
    plant = a_plant(capping=Capping(regulates_at=1.045, rest_share=0.82, rest_w=10.0))
    order(plant, 200)
    let_pass(plant, 5)
    assert plant.draw_w == pytest.approx(np.full(4, 209), rel=0.02)
    assert plant.levels_w()[-1] == pytest.approx(4 * (209 * 1.82 + 10), rel=0.02)


def test_other_load_and_cooling_that_follows_are_drawn_where_they_hang() -> None:
    other = OtherLoad(watts=np.array([[0.0, 70.0, 30.0]]), cooling=np.array([0.0, 0.0, 0.1]),
                      cooling_lag_s=1.0)  # fmt: skip
    plant = a_plant(other=other)
    let_pass(plant, 20)
    assert plant.levels_w() == pytest.approx([800, 870, 1600 + 100 + 160], rel=0.02)


# --- knobs ------------------------------------------------------------------------------------


def test_knobs_round_and_clamp_without_a_word_and_say_so_when_read() -> None:
    plant = a_plant(knobs=Knobs(step_w=25.0, lowest_w=150.0, highest_w=350.0))
    for watts, becomes in ((211.0, 200.0), (213.0, 225.0), (110.0, 150.0), (390.0, 350.0)):
        order(plant, watts)
        assert read_after(plant, 2).cap_w.tolist() == [becomes] * 4


def test_slow_knobs_take_their_median_and_carry_out_the_newest_of_waiting_orders() -> None:
    count = 400
    plant = a_plant(count=count, delay_s=3.0, knobs=Knobs(spread=0.6))
    order(plant, 300)
    let_pass(plant, 3.0)
    share = (plant.cap_w == 300).mean()
    assert 0.43 < share < 0.57
    for watts in (290, 280, 270):
        order(plant, watts)
        let_pass(plant, 1.0)
    let_pass(plant, 60)
    assert (plant.cap_w == 270).all()


def test_a_knob_tells_the_cap_it_had_some_time_ago() -> None:
    plant = a_plant(delay_s=0.1, knobs=Knobs(readback_s=2.0))
    told = []
    for _ in range(6):
        told.append(plant.read().cap_w[0])
        order(plant, 200)
        let_pass(plant, 1)
    assert told == [400, 400, 400, 200, 200, 200]


def test_a_watchdog_lowers_whoever_hears_it_and_a_lost_knob_keeps_its_cap() -> None:
    plant = a_plant("knob-lost", knobs=Knobs(leases_at_devices=False))
    let_pass(plant, 6)
    order(plant, 300, lease_s=10)
    let_pass(plant, 9)
    lost = plant.fault.hits
    assert plant.cap_w.tolist() == np.where(lost, 400, 300).tolist()
    let_pass(plant, 4)
    assert plant.cap_w.tolist() == np.where(lost, 400, 100).tolist()
    assert np.isnan(plant.read().cap_w).tolist() == lost.tolist()
    assert plant.read().draw_w == pytest.approx(plant.draw_w)


def test_lost_orders_are_sent_again_until_they_are_read_back() -> None:
    plant = a_plant("orders-lost")
    let_pass(plant, 6)
    for _ in range(40):
        order(plant, 200)
        let_pass(plant, 1)
        plant.read()
    assert (plant.cap_w == 200).all()


# --- meters -----------------------------------------------------------------------------------


def test_a_coarse_meter_shows_multiples_of_its_step() -> None:
    meter = PlantMeter(resolution_w=40.0, noise=0.0)
    plant = a_plant(instruments=PlantMeters(device=meter))
    for demand_w, shown_w in ((99.0, 80.0), (101.0, 120.0), (139.0, 120.0)):
        assert read_after(plant, 1, demand_w).draw_w.tolist() == [shown_w] * 4


def test_a_slow_meter_repeats_itself_and_shows_the_mean_of_its_window_late() -> None:
    meter = PlantMeter(period_s=5.0, window_s=4.0, delay_s=1.0, stamped=True, noise=0.0)
    plant = a_plant(instruments=PlantMeters(device=None, feed=None, site=meter))
    let_pass(plant, 20, 100)
    seen = [read_after(plant, 1, 100 + 10 * n) for n in range(15)]
    watts = [one.site_w for one in seen]
    assert 3 <= len(set(watts)) <= 4
    ages = [one.now_s - one.site_at_s for one in seen]
    assert 1.0 <= min(ages) < max(ages) < 6.1
    # Demand rises by 40 W a second: a mean of 4 s that is 1 to 6 s late trails by 3 to 8 s of it.
    trails = [4 * (100 + 10 * n) - one for n, one in enumerate(watts)][8:]
    assert 2.4 * 40 < min(trails) < max(trails) < 8.1 * 40
    assert np.isnan(seen[0].draw_w).all()
    assert np.isnan(seen[0].feed_w).all()


def test_a_skewed_clock_shows_in_times_only() -> None:
    plant = a_plant(instruments=PlantMeters(feed=PlantMeter(stamped=True, skew_s=-20.0, noise=0.0)))
    seen = read_after(plant, 30)
    assert (seen.feed_at_s - seen.now_s).tolist() == [-20.0, -20.0]
    assert seen.feed_w == pytest.approx([800, 800], rel=0.02)


# --- breakers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "multiple", "not_before_s", "not_after_s"),
    [
        ("iec-b", 1.13, 3_600, np.inf),
        ("iec-b", 1.45, 0, 3_600),
        ("iec-c", 2.55, 1, 60),
        ("iec-b", 2.99, 0.1, 60),
        ("iec-b", 5.0, 0, 0),
        ("iec-c", 10.0, 0, 0),
        ("iec-d", 20.0, 0, 0),
        ("ul-489", 1.0, np.inf, np.inf),
        ("ul-489", 1.35, 0, 7_200),
        ("ul-489", 2.0, 10, 360),
    ],
)
def test_bands_keep_to_the_points_of_their_standards(
    name: str, multiple: float, not_before_s: float, not_after_s: float
) -> None:
    band = BANDS[name]
    assert band.early.seconds_to_trip(multiple) >= 0.999 * not_before_s
    assert band.late.seconds_to_trip(multiple) <= 1.001 * not_after_s
    assert band.early.seconds_to_trip(multiple) <= band.late.seconds_to_trip(multiple)


def tripped_after(band: TripBand, watts: float) -> tuple[float | None, float | None]:
    plant = a_plant(band=band, rated_w=np.array([400.0, 1e9, 1e9]), found_w=np.full(4, 400.0))
    early = late = None
    for _ in range(3_000):
        let_pass(plant, STEP_S, watts)
        early = plant.now_s if plant.trips and early is None else early
        late = plant.now_s if plant.sure_trips and late is None else late
        if early:
            break
    return early, late


def test_a_breaker_trips_on_the_early_edge_and_darkens_what_hangs_below() -> None:
    early, late = tripped_after(BANDS["ul-489"], 300.0)  # two devices on 400 W: 1.5 times
    assert early == pytest.approx(60 / (1.5**2 - 1), rel=0.03)
    assert late is None
    assert tripped_after(BANDS["ul-489"], 195.0) == (None, None)


# --- speed ------------------------------------------------------------------------------------


@pytest.mark.long
def test_64_devices_pass_900_seconds_at_ten_steps_a_second_within_seconds() -> None:
    plant = a_plant(count=64, capping=Capping(window_s=1.0), knobs=Knobs(step_w=5.0, spread=0.6))
    began_s = time.process_time()
    for second in range(900):
        plant.read()
        order(plant, 300 + second % 7)
        let_pass(plant, 1)
    # About 0.8 s on a quiet core: the rest is for a busy one.
    assert time.process_time() - began_s < 4.0
