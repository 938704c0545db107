"""The safety loop in machine rooms that nobody drew by hand: trees, meters, knobs, loads by chance.

Each room is physically possible and can be held: what its devices draw at their floors, with other
load at its highest, fits below three quarters of every limit, also while it is cut, and whatever no
cap acts on is seen by a meter above it. Without a fault nothing is ever above a limit once the
response has passed; with one, no breaker trips on the early edge of its band.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from effort import times
from wattherd.engine.safety.contract import Floats
from wattherd.experiments.power_bench.controllers import MAKERS
from wattherd.experiments.power_bench.run import run_log
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.experiments.power_bench.scores import RunLog, scores
from wattherd.experiments.power_bench.worlds import (
    A40,
    A100,
    H100,
    NODE,
    BenchRoom,
    DeviceSheet,
    Shape,
    always,
    build_world,
    coming_and_going,
    daily,
    phases,
    ramp,
    steady,
    switched,
)
from wattherd.sim.power_plant import Capping, Knobs
from wattherd.sim.power_plant_faults import KINDS, drawn_fault, no_fault
from wattherd.sim.power_plant_meters import PlantMeter, PlantMeters

SECONDS = 150
FREE = 0.75
ROOMS = times(80)


def a_meter(rng: np.random.Generator, kind: DeviceSheet) -> PlantMeter:
    """Plain, coarse, or slow and late."""
    one = rng.integers(3)
    if one == 0:
        return PlantMeter()
    if one == 1:
        return PlantMeter(
            resolution_w=round(kind.max_w * rng.uniform(0.002, 0.006), 1), noise=0.0005
        )
    return PlantMeter(
        period_s=float(rng.choice([1.0, 2.0, 5.0])),
        window_s=float(rng.choice([0.0, 1.0, 3.0])),
        delay_s=float(rng.choice([0.0, 0.5, 1.5])),
        stamped=bool(rng.random() < 0.5),
    )


def a_world(rng: np.random.Generator) -> BenchRoom:
    """Other load, knobs, meters and loads of a room; its limit is not looked for yet."""
    kind = [A100, A40, H100, NODE][rng.integers(4)]
    feeds = int(rng.integers(1, 4))
    racks = feeds * int(rng.choice([0, 0, 2, 3]))
    has_rest = kind is not NODE and rng.random() < 0.4
    shape = _other(rng)
    other_at = int(rng.integers(feeds + 1))
    site = a_meter(rng, kind) if rng.random() < 0.5 or other_at == feeds else None
    # What no cap acts on must be seen from above: by the feeds' meters, or else by the site's.
    feed = a_meter(rng, kind) if site is None or rng.random() < 0.7 else None
    meters = PlantMeters(
        device=a_meter(rng, kind) if rng.random() < 0.85 else None,
        feed=feed, site=site, sees_rest=bool(rng.random() < 0.5),
    )  # fmt: skip
    delay_s, spread = float(rng.uniform(0.1, 1.5)), float(rng.choice([0.0, 0.4]))
    slowest_s = max(
        one.period_s + one.window_s + one.delay_s
        for one in (meters.device, feed, site)
        if one is not None
    )
    return BenchRoom(
        about="by chance",
        kind=kind,
        count=int(rng.choice([6, 12, 18])),
        feeds=feeds,
        racks=racks,
        feed_limit=None if rng.random() < 0.3 else 0.75,
        load=[steady(), phases(), coming_and_going()][rng.integers(3)],
        other=shape,
        other_at=other_at,
        capping=Capping(
            window_s=float(rng.choice([0.0, 0.2, 0.5])),
            regulates_at=float(rng.choice([1.0, 1.02, 1.045])),
            reachable_w=kind.floor_w * float(rng.choice([0.0, 1.0, 1.2])),
            rest_share=float(rng.uniform(0.2, 0.82)) if has_rest else 0.0,
        ),
        knobs=Knobs(
            step_w=float(rng.choice([0.0, 1.0, 5.0, 25.0])),
            spread=spread,
            readback_s=float(rng.choice([0.0, 1.0])),
            leases_at_devices=bool(rng.random() < 0.5),
        ),
        instruments=meters,
        delay_s=delay_s,
        lag_s=float(rng.uniform(0.1, 1.0)),
        # Two cycles, the knob at its slowest, the lag four times, and the slowest meter twice.
        response_s=float(np.ceil(8.0 + delay_s * np.exp(2.5 * spread) + 2.0 * slowest_s)),
        cut=float(rng.choice([0.0, 0.15, 0.25])),
        cut_ramp_s=float(rng.choice([0.0, 15.0])),
        told_ratings=bool(rng.random() < 0.7),
        band=str(rng.choice(["ul-489", "iec-b", "iec-c"])),
    )


def _other(rng: np.random.Generator) -> Shape | None:
    """A shape of other load, within what air conditioning and neighbours do."""
    which = rng.integers(5)
    if which == 0:
        return None
    if which == 1:
        return always(float(rng.uniform(0.02, 0.25)))
    if which == 2:
        low = float(rng.uniform(0.02, 0.1))
        return ramp(low, low + float(rng.uniform(0.05, 0.15)), 30.0, 60.0)
    if which == 3:
        return daily(0.12, float(rng.uniform(0.02, 0.08)), float(rng.uniform(120, 240)))
    return switched(float(rng.uniform(0.05, 0.12)), 35.0, 45.0)


def a_room(seed: int) -> BenchScenario:
    """A room with a limit at which it can be held, and which its load exceeds."""
    rng = np.random.default_rng([seed, 2_026])
    world = a_world(rng)
    for limit in np.linspace(0.5, 1.5, 41):
        tried = dataclasses.replace(world, limit=float(limit))
        scenario = build_world(
            f"room-{seed}", tried, np.random.default_rng([seed, 7]), seconds=SECONDS, seed=seed
        )
        if _can_be_held(scenario):
            # It is taken over while it is held: caps are found at their floors. In a room that
            # begins uncapped far above a breaker's rating, that trips before any knob can act.
            held = dataclasses.replace(scenario.room, found_w=scenario.room.fleet.floor_w.copy())
            return dataclasses.replace(scenario, room=held)
    raise AssertionError("no limit lets the room be held")


def _can_be_held(scenario: BenchScenario) -> bool:
    room = scenario.room
    capping = room.capping
    least_w = np.maximum(room.fleet.floor_w, capping.reachable_w) * capping.regulates_at
    floors_w = room.fleet.levels(least_w * (1.0 + capping.rest_share))
    return bool((floors_w + scenario.other_w() <= FREE * scenario.limit_w).all())


def let_through_w(scenario: BenchScenario, log: RunLog) -> Floats:
    """What devices draw (T, F + 1) beyond what their caps in force lead to, in this second or the
    last: caps that hold a mean let the beginning of a rise through, whoever sets them."""
    room, capping = scenario.room, scenario.room.capping
    if not np.any(capping.window_s):
        return np.zeros_like(log.level_w)
    cap_w = np.maximum(log.cap_w, np.vstack((log.cap_w[:1], log.cap_w[:-1])))
    kept_w = np.maximum(cap_w * capping.regulates_at, capping.reachable_w)
    beyond_w = np.maximum(log.draw_w - kept_w, 0.0) * (1.0 + capping.rest_share)
    beyond_w = np.maximum(beyond_w, np.vstack((beyond_w[:1], beyond_w[:-1])))
    return np.array([room.fleet.levels(row) for row in beyond_w])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(ROOMS))
def test_without_a_fault_no_limit_is_exceeded_after_the_response(seed: int) -> None:
    scenario = a_room(seed)
    fleet = scenario.room.fleet
    log = run_log(scenario, no_fault(fleet.size, fleet.feeds), MAKERS["wattherd"])
    level_w = log.level_w - let_through_w(scenario, log)
    found = scores(scenario, dataclasses.replace(log, level_w=level_w))
    assert log.trips == 0, found
    assert found["over_limit_s"] == 0, found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(ROOMS))
def test_with_one_fault_no_breaker_trips(seed: int) -> None:
    scenario = a_room(seed)
    fleet = scenario.room.fleet
    rng = np.random.default_rng([seed, 77])
    fault = drawn_fault(
        (KINDS[seed % len(KINDS)],), rng, fleet.feed.tolist(),
        hit_feeds=np.arange(fleet.feeds) == scenario.fault_feed, share=0.15,
        window_s=(0.3 * SECONDS, 0.8 * SECONDS), hit_site=not fleet.read.any(),
    )  # fmt: skip
    log = run_log(scenario, fault, MAKERS["wattherd"])
    assert log.trips == 0, (fault.kinds, log.trip_log)


@pytest.mark.parametrize("seed", range(8))
def test_rooms_differ_and_are_the_same_for_the_same_seed(seed: int) -> None:
    room, again, other = a_room(seed), a_room(seed), a_room(seed + 1)
    assert np.array_equal(room.limit_w, again.limit_w)
    assert np.array_equal(room.demand_w, again.demand_w)
    assert room.limit_w[0, -1] != other.limit_w[0, -1]
