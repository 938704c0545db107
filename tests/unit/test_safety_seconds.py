"""Means of a second: what a burst beyond caps is worth, however often the loop looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safety_room import a_fleet
from wattherd.engine.safety.contract import Bools, Fleet, Readings
from wattherd.engine.safety.meters import LastSecond, TrustedReadings
from wattherd.experiments.power_bench.controllers import MAKERS
from wattherd.experiments.power_bench.run import run_log
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.experiments.power_bench.scores import scores
from wattherd.experiments.power_bench.worlds import WORLDS, build, build_world, swing
from wattherd.sim.power_plant_faults import no_fault
from wattherd.sim.power_plant_meters import LOOKS, PlantMeter

SECONDS = 200


def seen(fleet: Fleet, watts: float) -> TrustedReadings:
    """All devices draw `watts`, and levels what hangs below them."""
    draw_w = np.full(fleet.size, watts)
    level_w = fleet.levels(draw_w)
    return TrustedReadings(
        draw_w=draw_w, feed_w=level_w[:-1], agreed=np.ones(fleet.feeds, dtype=np.bool_),
        missing_share=0.0, now_w=draw_w, level_w=level_w, level_now_w=level_w,
    )  # fmt: skip


def readings(fleet: Fleet, at_s: float, of_second: Bools | None = None) -> Readings:
    nothing = np.full(fleet.size, np.nan)
    feeds = np.full(fleet.feeds, np.nan)
    return Readings(
        now_s=at_s, draw_w=nothing, draw_at_s=nothing, cap_w=nothing, feed_w=feeds,
        feed_at_s=feeds, off=np.zeros(fleet.size, dtype=np.bool_), of_second=of_second,
    )  # fmt: skip


def news(fleet: Fleet, every_s: float = 0.1) -> np.ndarray:
    return np.full(fleet.size + fleet.feeds + 1, every_s)


def test_ten_looks_a_second_make_a_mean_and_one_stands_for_itself() -> None:
    fleet = a_fleet()
    fast, slow = LastSecond(fleet), LastSecond(fleet)
    for step in range(30):
        found = fast.mean(seen(fleet, 100.0 * (step % 10)), readings(fleet, step / 10), news(fleet))
    assert found.now_w == pytest.approx(450.0)
    assert found.of_second.all()
    for second in range(5):
        found = slow.mean(seen(fleet, 100.0 * second), readings(fleet, float(second)), news(fleet))
    assert found.now_w == pytest.approx(400.0)
    assert not found.of_second.any()


def test_what_is_not_read_now_has_no_mean() -> None:
    fleet, second = a_fleet(), LastSecond(a_fleet())
    for step in range(9):
        second.mean(seen(fleet, 100.0), readings(fleet, step / 10), news(fleet))
    lost = seen(fleet, 100.0)
    lost.now_w[0] = np.nan
    found = second.mean(lost, readings(fleet, 0.9), news(fleet))
    assert np.isnan(found.now_w[0])
    assert found.now_w[1:] == pytest.approx(100.0)


def test_a_clock_that_goes_back_leaves_no_look_behind() -> None:
    fleet, second = a_fleet(), LastSecond(a_fleet())
    second.mean(seen(fleet, 900.0), readings(fleet, 1000.0), news(fleet))
    found = second.mean(seen(fleet, 100.0), readings(fleet, 10.0), news(fleet))
    assert found.now_w == pytest.approx(100.0)


def test_beside_a_slow_meter_no_meter_tells_of_a_second() -> None:
    fleet, second = a_fleet(), LastSecond(a_fleet())
    every_s = news(fleet)
    every_s[-1] = 10.0
    for step in range(10):
        found = second.mean(seen(fleet, 10.0 * step), readings(fleet, step / 10), every_s)
    assert found.now_w == pytest.approx(90.0)
    assert not found.of_second.any()


def test_a_level_tells_means_by_its_meter_or_by_all_below() -> None:
    fleet = a_fleet()
    meters = np.ones(fleet.size + fleet.feeds + 1, dtype=np.bool_)
    assert (
        LastSecond(fleet)
        .mean(seen(fleet, 1.0), readings(fleet, 0.0, meters), news(fleet))
        .of_second.all()
    )
    feed = meters.copy()
    feed[fleet.size] = False
    told = (
        LastSecond(fleet).mean(seen(fleet, 1.0), readings(fleet, 0.0, feed), news(fleet)).of_second
    )
    assert not told[0]
    assert told[1 : fleet.feeds].all()


# --- in rooms ------------------------------------------------------------------------------------


def swinging(hertz: float, depth: float, seed: int, **more: object) -> BenchScenario:
    """Sixteen GPUs in step; caps hold means of a second."""
    world = replace(WORLDS["swing-0.5"], load=swing(hertz, depth))
    rng = np.random.default_rng([seed, 7])
    scenario = build_world("swing", world, rng, seconds=SECONDS, seed=seed)
    return replace(scenario, **more)  # type: ignore[arg-type]


def found(scenario: BenchScenario) -> dict[str, float]:
    fleet = scenario.room.fleet
    log = run_log(scenario, no_fault(fleet.size, fleet.feeds), MAKERS["wattherd"])
    return {**scores(scenario, log), "trips": log.trips}


@pytest.mark.long
@pytest.mark.parametrize("hertz", [0.1, 0.5, 1.0, 2.5])
def test_a_swing_is_held_and_the_limit_used_by_means_of_a_second(hertz: float) -> None:
    told = found(swinging(hertz, 0.8, seed=2))
    assert told["over_limit_s"] == 0
    assert told["usable_pct"] >= 75.0
    assert told["trips"] == 0


@pytest.mark.long
@pytest.mark.parametrize("hertz", [0.1, 0.5, 2.5])
def test_a_loop_that_looks_ten_times_a_second_does_the_same(hertz: float) -> None:
    told = found(swinging(hertz, 0.8, seed=1, cycle_s=0.1))
    assert told["over_limit_s"] == 0
    assert told["usable_pct"] >= 75.0  # caps in a fixed share of the limit use 81 % at 0.1 Hz


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 5])
def test_caps_that_come_back_in_a_swing_do_not_let_a_larger_burst_through(seed: int) -> None:
    """Raised by a sixth in the trough, caps let bursts through that are larger by two fifths."""
    told = found(build("swing-0.1", seed=seed, quick=False))
    assert told["over_limit_s"] == 0
    assert told["usable_pct"] >= 80.0


def test_a_meter_that_tells_moments_is_read_as_a_mean_of_many() -> None:
    assert PlantMeter().quick
    assert PlantMeter().of_second().window_s == 1.0
    assert PlantMeter(noise=0.01).of_second().noise == pytest.approx(0.01 / LOOKS**0.5)
    for slow in (PlantMeter(period_s=1.0), PlantMeter(window_s=10.0), PlantMeter(delay_s=0.5)):
        assert not slow.quick
