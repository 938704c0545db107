"""Scenarios of `wattherd power bench` in rooms as data sheets and field data describe them.

Each world has one unkindness: other load on a feed, caps that hold a mean, floors that cannot be
reached, coarse, slow or missing meters, coarse or slow knobs, loads that swing together. All have a
cut of a quarter in the middle, so that coming back is scored too. Numbers and their sources are at
the worlds; nothing here was fitted to a controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from wattherd.engine.safety.contract import Breaker, Fleet, Floats, Ints
from wattherd.errors import UserError
from wattherd.experiments.power_bench.measured import measured_gpus_w, measured_w
from wattherd.experiments.power_bench.scenarios import EXPONENTS, PLANS, BenchScenario, build_plan
from wattherd.sim.power_plant import (
    EXACT_CAPS,
    PLAIN_KNOBS,
    STEP_S,
    Capping,
    Knobs,
    OtherLoad,
    PlantRoom,
)
from wattherd.sim.power_plant_breakers import BANDS
from wattherd.sim.power_plant_meters import PLAIN_METERS, PlantMeter, PlantMeters
from wattherd.spelling import hint_for

STEPS = round(1 / STEP_S)
FULL_S, QUICK_S = 360, 180
CUT_FROM, CUT_TO = 0.45, 0.65
UNLIMITED_W = 1e12
"""Of a feed that has neither limit nor breaker."""
SURPRISE = 0.005
"""Other load that rises by more than this share of the limit within a second is a surprise."""
JOB_DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """A device by its data sheet: lowest and highest cap, and draw without work."""

    floor_w: float
    max_w: float
    idle_w: float


A100 = DeviceSheet(floor_w=100.0, max_w=400.0, idle_w=55.0)
A40 = DeviceSheet(floor_w=100.0, max_w=300.0, idle_w=30.0)
H100 = DeviceSheet(floor_w=200.0, max_w=700.0, idle_w=70.0)
NODE = DeviceSheet(floor_w=3_600.0, max_w=10_200.0, idle_w=2_000.0)
"""Eight H100 and all that is around them."""

Load = Callable[[np.random.Generator, int, int, DeviceSheet], Floats]
"""What (steps, devices, kind) ask for: watts (steps, devices)."""
Shape = Callable[[Floats], Floats]
"""A share of the limit at given parts of the scenario's time (seconds, its length being known)."""


# --- loads ---------------------------------------------------------------------------------------


def steady(level: float = 1.0) -> Load:
    """Everybody asks for `level` of the maximum, with a flicker of a percent."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        flicker = 1.0 + 0.01 * np.repeat(
            rng.standard_normal((steps // STEPS + 1, count)), STEPS, axis=0
        )
        return np.asarray(level * kind.max_w * flicker[:steps])

    return load


def phases(level: float = 1.0) -> Load:
    """Synchronous jobs that dip to half for 4 to 15 s every one to three minutes (MLPerf, H100)."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        asked_w = steady(level)(rng, steps, count, kind)
        for first in range(0, count, JOB_DEVICES):
            at = int(rng.integers(100, 900))
            while at < steps:
                length = int(rng.integers(40, 150))
                asked_w[at : at + length, first : first + JOB_DEVICES] *= rng.uniform(0.35, 0.6)
                at += length + int(rng.integers(600, 1_800))
        return asked_w

    return load


def coming_and_going(busy_s: float = 60.0, idle_s: float = 25.0) -> Load:
    """Each device is busy and idle by turns, for random times of those means."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        asked_w = steady()(rng, steps, count, kind)
        for column in range(count):
            at = int(rng.exponential(busy_s) * STEPS)
            while at < steps:
                length = int(rng.exponential(idle_s) * STEPS) + 1
                asked_w[at : at + length, column] = kind.idle_w
                at += length + int(rng.exponential(busy_s) * STEPS)
        return asked_w

    return load


def pausing(from_s: float, to_s: float) -> Load:
    """Every second device idles for a while: its watts go to the others, and have to come back."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        asked_w = steady()(rng, steps, count, kind)
        asked_w[int(from_s * STEPS) : int(to_s * STEPS), ::2] = kind.idle_w
        return asked_w

    return load


def swing(hertz: float, depth: float = 0.8) -> Load:
    """All devices of one job rise and fall together, by `depth` of the maximum (square wave)."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        at_s = np.arange(steps) * STEP_S + rng.uniform(0.0, 1.0 / hertz)
        high = np.where((at_s * hertz) % 1.0 < 0.5, 1.0, 1.0 - depth)
        return np.asarray(np.outer(kind.max_w * high, np.ones(count)))

    return load


def bursts(multiple: float = 1.43, every_s: float = 2.0, long_s: float = 0.5) -> Load:
    """Each device bursts to `multiple` of its maximum at times of its own (B300 under a cap)."""

    def load(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
        at_s = np.arange(steps)[:, None] * STEP_S + rng.uniform(0.0, every_s, count)
        high = at_s % every_s < long_s
        return np.asarray(kind.max_w * np.where(high, multiple, 0.8))

    return load


def replayed_nodes(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
    """MLPerf's nodes of eight H100, AC power every 2 s."""
    seconds = steps // STEPS
    by_second = measured_w(rng, seconds, count // JOB_DEVICES, JOB_DEVICES, kind.max_w)
    at = np.arange(steps) / STEPS
    columns = [np.interp(at, np.arange(seconds), column) for column in by_second.T]
    return np.stack(columns, axis=1)


def replayed_gpus(rng: np.random.Generator, steps: int, count: int, kind: DeviceSheet) -> Floats:
    """A training node's eight H100 every 100 ms, checkpoints and all."""
    return np.minimum(measured_gpus_w(rng, steps, count), kind.max_w)


# --- other load ----------------------------------------------------------------------------------


def always(share: float) -> Shape:
    """The same all the time."""
    return lambda at_s: np.full(len(at_s), share)


def ramp(low: float, high: float, from_s: float, over_s: float) -> Shape:
    """From `low` to `high` within `over_s`."""
    return lambda at_s: low + (high - low) * np.clip((at_s - from_s) / over_s, 0.0, 1.0)


def daily(mean: float, swing_by: float, period_s: float) -> Shape:
    """A day, at the speed of the scenario."""
    return lambda at_s: mean + swing_by * np.sin(2.0 * np.pi * at_s / period_s)


def switched(share: float, on_s: float, off_s: float) -> Shape:
    """A compressor: all or nothing."""
    return lambda at_s: np.where(at_s % (on_s + off_s) >= off_s, share, 0.0)


def coming_once(low: float, share: float, from_s: float, to_s: float) -> Shape:
    """Somebody else's job, beside what is always there: it begins and ends once."""
    return lambda at_s: np.where((at_s >= from_s) & (at_s < to_s), low + share, low)


# --- worlds --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRoom:
    """A room, its load and its limit; `limit` is a share of the most that devices draw."""

    about: str
    kind: DeviceSheet = A100
    count: int = 8
    limit: float = 0.75
    feeds: int = 2
    racks: int = 0
    """Racks below the feeds; 0: devices hang on feeds."""
    feed_limit: float | None = 0.6
    """Of each feed, as a share of the site's, all of it where there is but one; None: feeds have
    neither limit nor breaker."""
    load: Load = field(default_factory=steady)
    other: Shape | None = None
    other_at: int = 0
    """The level, of feeds and site counted from the first feed, that other load hangs on."""
    stated: float = 0.0
    """Of the limit: other load at its level that the operator states, because no meter shows it."""
    cooling: float = 0.0
    """Watts per watt of all devices, on the last feed, which then has no devices."""
    capping: Capping = EXACT_CAPS
    knobs: Knobs = PLAIN_KNOBS
    instruments: PlantMeters = PLAIN_METERS
    delay_s: float = 0.5
    lag_s: float = 0.3
    cycle_s: float = 1.0
    response_s: float = 10.0
    surprises_s: tuple[int, ...] = ()
    """Seconds of what no controller could know, beside jumps of other load."""
    cut: float = 0.25
    cut_ramp_s: float = 0.0
    told_ratings: bool = True
    """Whether the controller is told the breakers' ratings."""
    band: str = "ul-489"
    measured: bool = False


IPMI = PlantMeter(resolution_w=40.0, period_s=1.0, noise=0.0005)
SLOW_KNOB = Knobs(spread=0.6, readback_s=2.0, leases_at_devices=False)
"""Baseboard controllers: a median of 3 s, one order in twenty takes more than 8 s."""

WORLDS: Mapping[str, BenchRoom] = {
    "gpus-on-rack-meter": BenchRoom(
        about="GPU caps below a rack meter: nodes draw 1.82 times their GPUs",
        count=4, feeds=1, feed_limit=None, limit=0.79, told_ratings=False,
        capping=Capping(rest_share=0.82), instruments=PlantMeters(sees_rest=False),
    ),
    "cooling-feed": BenchRoom(
        about="cooling on a feed of its own, 16.5 % of the devices' draw",
        feed_limit=None, cooling=0.165, limit=0.8,
    ),
    "other-load-20": BenchRoom(
        about="steady other load, 20 % of the limit, on a metered feed",
        feeds=1, feed_limit=None, limit=0.9, other=always(0.20),
    ),
    "other-load-35": BenchRoom(
        about="steady other load, 35 % of the limit, on a metered feed",
        feeds=1, feed_limit=None, limit=1.0, other=always(0.35),
    ),
    "other-load-ramping": BenchRoom(
        about="other load rises from 5 to 30 % of the limit within a minute",
        feed_limit=None, limit=0.9, other=ramp(0.05, 0.30, 40.0, 60.0),
    ),
    "other-load-daily": BenchRoom(
        about="other load rises and falls by 12 % of the limit, a day in four minutes",
        feed_limit=None, limit=0.9, other=daily(0.2, 0.12, 240.0),
    ),
    "other-load-switched": BenchRoom(
        about="a compressor of 15 % of the limit, 40 s on and 50 s off",
        feed_limit=None, limit=0.9, other=switched(0.15, 40.0, 50.0),
    ),
    "other-load-site-meter": BenchRoom(
        about="other load beside the feeds, seen by the site's meter alone",
        limit=0.9, other=always(0.2), other_at=2,
        instruments=PlantMeters(feed=None, site=PlantMeter()),
    ),
    "floor-not-reached": BenchRoom(
        about="A40s draw 120.7 W at their lowest cap of 100 W; half of them pause for a minute",
        kind=A40, feeds=1, feed_limit=None, limit=0.62, load=pausing(50.0, 110.0),
        capping=Capping(reachable_w=120.7), delay_s=2.0, knobs=Knobs(readback_s=1.0),
        response_s=15.0, surprises_s=(110,),
    ),
    "coarse-meters": BenchRoom(
        about="nodes' meters in steps of 40 W, each second, loads almost steady",
        kind=NODE, load=phases(0.7), limit=0.9, instruments=PlantMeters(device=IPMI, feed=IPMI),
    ),
    "coarse-meters-measured": BenchRoom(
        about="the same with MLPerf's nodes replayed",
        kind=NODE, load=replayed_nodes, limit=0.7, measured=True,
        instruments=PlantMeters(device=IPMI, feed=IPMI),
    ),
    "slow-meters": BenchRoom(
        about="meters renewed every 5 s, means of 5 s, 2 s late",
        response_s=30.0,
        instruments=PlantMeters(
            device=PlantMeter(period_s=5.0, window_s=5.0, delay_s=1.0),
            feed=PlantMeter(period_s=5.0, window_s=5.0, delay_s=2.0),
        ),
    ),
    "late-clocks": BenchRoom(
        about="meters tell their own time, feeds' clocks 20 s behind",
        instruments=PlantMeters(feed=PlantMeter(stamped=True, skew_s=-20.0)),
    ),
    "knob-steps-5": BenchRoom(
        about="knobs round to 5 W", feeds=1, limit=0.55, knobs=Knobs(step_w=5.0),
    ),
    "knob-steps-25": BenchRoom(
        about="knobs round to 25 W", feeds=1, limit=0.55, knobs=Knobs(step_w=25.0),
    ),
    "knob-clamps": BenchRoom(
        about="every second board clamps caps to 250 to 350 W without a word",
        feeds=1, limit=0.7,
        knobs=Knobs(lowest_w=np.tile([100.0, 250.0], 4), highest_w=np.tile([400.0, 350.0], 4)),
    ),
    "slow-knobs": BenchRoom(
        about="orders take a median of 3 s, lognormal; read back 2 s late",
        delay_s=3.0, knobs=SLOW_KNOB, response_s=35.0,
    ),
    "no-feed-meter": BenchRoom(
        about="feeds without a meter, devices with one",
        count=4, kind=A40, feeds=1, limit=2 / 3, instruments=PlantMeters(feed=None),
    ),
    "high-caps": BenchRoom(
        about="caps lead to 4.5 % more than they say; feeds without a meter",
        feeds=1, capping=Capping(regulates_at=1.045), instruments=PlantMeters(feed=None),
    ),
    "site-meter-only": BenchRoom(
        about="a meter at the site, none at feeds and devices",
        instruments=PlantMeters(device=None, feed=None, site=PlantMeter()),
    ),
    "swing-0.1": BenchRoom(
        about="sixteen GPUs swing by 80 % together, 0.1 Hz; caps hold means of 1 s",
        kind=H100, count=16, load=swing(0.1), capping=Capping(window_s=1.0),
    ),
    "swing-0.5": BenchRoom(
        about="the same at 0.5 Hz",
        kind=H100, count=16, load=swing(0.5), capping=Capping(window_s=1.0),
    ),
    "swing-2.5": BenchRoom(
        about="the same at 2.5 Hz",
        kind=H100, count=16, load=swing(2.5), capping=Capping(window_s=1.0),
    ),
    "bursts": BenchRoom(
        about="bursts to 143 % for 500 ms, each device at its own times; caps hold means of 1 s",
        kind=H100, count=16, load=bursts(), capping=Capping(window_s=1.0),
    ),
    "gpus-measured": BenchRoom(
        about="H100s of a training node replayed at 100 ms; caps hold means of 0.5 s",
        kind=H100, count=16, load=replayed_gpus, limit=0.5, capping=Capping(window_s=0.5),
        measured=True,
    ),
    "deep-tree": BenchRoom(
        about="64 GPUs in eight racks on two feeds, other load on one, limits ramped down in 20 s",
        kind=H100, count=64, racks=8, load=phases(), other=always(0.1), other_at=0, limit=0.8,
        cut_ramp_s=20.0, capping=Capping(window_s=0.3), instruments=PlantMeters(site=PlantMeter()),
    ),
    "other-load-stated": BenchRoom(
        about="other load of 20 % of the limit that no meter shows and the site file states",
        feeds=1, feed_limit=None, limit=0.9, other=always(0.20), stated=0.20,
        instruments=PlantMeters(feed=None),
    ),
    "swing-0.5-fast": BenchRoom(
        about="the swing at 0.5 Hz, the loop ten times a second, NVML's meters and knobs",
        kind=H100, count=16, load=swing(0.5), capping=Capping(window_s=1.0), delay_s=0.2,
        cycle_s=0.1,
    ),
    "ordinary-racks": BenchRoom(
        about="GPU caps, IPMI rack meters, 1.82 of the GPUs, slow knobs, cooling, jobs with phases",
        kind=H100, count=32, feeds=5, feed_limit=None, limit=0.7, load=phases(), cooling=0.165,
        capping=Capping(window_s=0.5, regulates_at=1.02, rest_share=0.82), delay_s=1.5,
        knobs=Knobs(step_w=5.0, spread=0.4, readback_s=1.0, leases_at_devices=False),
        instruments=PlantMeters(feed=IPMI, site=PlantMeter(period_s=2.0), sees_rest=False),
        response_s=20.0,
    ),
    "other-load-ends": BenchRoom(
        about="other load of 10 % of the limit, and 15 % more for a minute and a half, once",
        feed_limit=None, limit=0.9, other=coming_once(0.10, 0.15, 60.0, 150.0), cut=0.0,
    ),
    "other-load-large": BenchRoom(
        about="a small machine on a rack of others: they draw 70 % of its limit, then 80, then 70",
        count=2, feeds=1, feed_limit=None, limit=2.75, other=coming_once(0.70, 0.10, 60.0, 150.0),
        cut=0.0,
    ),
}  # fmt: skip
ORDER = tuple(WORLDS)
"""Of random streams: a new world goes to the end of the table, so that the others keep theirs."""
NAMES = (*PLANS, *WORLDS)
"""All scenarios."""


def is_measured(name: str) -> bool:
    """Whether a scenario needs the measured loads."""
    return PLANS[name].measured if name in PLANS else WORLDS[name].measured


def build(name: str, *, seed: int, quick: bool) -> BenchScenario:
    """A scenario by name.

    Raises:
        UserError: there is none of that name, or it needs data that are not there.
    """
    if name in PLANS:
        return build_plan(name, seed=seed, quick=quick)
    if name not in WORLDS:
        hint = hint_for(name, list(NAMES))
        raise UserError(f"no scenario {name!r}", field="--scenario", hint=hint)
    seconds = QUICK_S if quick else FULL_S
    rng = np.random.default_rng([seed, 1_000 + ORDER.index(name)])
    return build_world(name, WORLDS[name], rng, seconds=seconds, seed=seed)


def build_world(
    name: str, world: BenchRoom, rng: np.random.Generator, *, seconds: int, seed: int
) -> BenchScenario:
    """The scenario of a world.

    Raises:
        UserError: it needs data that are not there.
    """
    kind, count, feeds = world.kind, world.count, world.feeds
    levels = world.racks + feeds + 1
    capping = world.capping
    most_w = count * (kind.max_w * (1.0 + capping.rest_share) + capping.rest_w)
    site_w = float(world.limit * np.mean(most_w))
    limit_w: Floats = np.outer(_cut(world, seconds), _levels_w(world, site_w))
    fine_w = world.load(rng, seconds * STEPS, count, kind)
    other = _other(world, site_w, seconds, levels)
    room = _room(world, rng, limit_w[0], other)
    demand_w = fine_w.reshape(seconds, STEPS, count).mean(axis=1)
    jobs = int(room.job.max()) + 1
    return BenchScenario(
        name=name,
        seed=seed,
        about=world.about,
        room=room,
        limit_w=limit_w,
        demand_w=demand_w,
        fine_w=fine_w,
        exponent=np.resize(EXPONENTS, jobs),
        top_w=np.array([np.quantile(demand_w[:, room.job == job], 0.9) for job in range(jobs)]),
        ahead_s=0,
        event_s=int(CUT_FROM * seconds) if world.cut else None,
        level_names=_level_names(world),
        fault_feed=world.racks,
        cycle_s=world.cycle_s,
        response_s=world.response_s,
        surprises_s=(*world.surprises_s, *_surprises(other, site_w, seconds)),
    )


def _cut(world: BenchRoom, seconds: int) -> Floats:
    """The limit's share of itself, second by second: down in a step or a ramp, up in a step."""
    at_s = np.arange(seconds, dtype=np.float64)
    down = np.clip((at_s - int(CUT_FROM * seconds) + 1) / max(world.cut_ramp_s, 1.0), 0.0, 1.0)
    return 1.0 - world.cut * np.where(at_s < int(CUT_TO * seconds), down, 0.0)


def _levels_w(world: BenchRoom, site_w: float) -> Floats:
    share = world.feed_limit if world.feeds > 1 else 1.0
    feed_w = UNLIMITED_W if world.feed_limit is None or share is None else share * site_w
    rack_w = 1.3 * site_w / world.racks if world.racks else 0.0
    return np.array([rack_w] * world.racks + [feed_w] * world.feeds + [site_w])


def _level_names(world: BenchRoom) -> tuple[str, ...]:
    racks = (f"rack-{number}" for number in range(world.racks))
    return (*racks, *(f"feed-{number}" for number in range(world.feeds)), "site")


def _other(world: BenchRoom, site_w: float, seconds: int, levels: int) -> OtherLoad | None:
    if world.other is None and not world.cooling:
        return None
    watts = np.zeros((seconds * STEPS + 1, levels))
    if world.other is not None:
        at_s: Floats = STEP_S * np.arange(len(watts), dtype=np.float64)
        watts[:, world.racks + world.other_at] = site_w * world.other(at_s)
    cooling = np.zeros(levels)
    cooling[levels - 2] = world.cooling
    return OtherLoad(watts=watts, cooling=cooling)


def _surprises(other: OtherLoad | None, site_w: float, seconds: int) -> tuple[int, ...]:
    if other is None:
        return ()
    by_second = other.watts[: seconds * STEPS : STEPS].sum(axis=1)
    rises = np.flatnonzero(np.diff(by_second) > SURPRISE * site_w)
    return tuple(int(at) for at in rises)


def _hung(world: BenchRoom) -> tuple[Ints, Ints]:
    """The level that each device (N,) hangs on, and the one that each feed (F,) hangs in."""
    used = world.feeds - (world.cooling > 0)
    numbers = np.arange(world.count)
    site = world.racks + world.feeds
    if world.racks:
        feed = numbers * world.racks // world.count
        above = [world.racks + rack * used // world.racks for rack in range(world.racks)]
    else:
        feed, above = numbers % used, []
    return feed, np.array([*above, *([site] * world.feeds)])


def _stated_w(world: BenchRoom, limit_w: Floats) -> Floats | None:
    if not world.stated:
        return None
    stated_w = np.zeros(len(limit_w))
    stated_w[world.racks + world.other_at] = world.stated * limit_w[-1]
    return stated_w


def _room(
    world: BenchRoom, rng: np.random.Generator, limit_w: Floats, other: OtherLoad | None
) -> PlantRoom:
    kind, count = world.kind, world.count
    feed, above = _hung(world)
    told_w = limit_w if world.told_ratings else np.full(len(limit_w), UNLIMITED_W)
    instruments = world.instruments
    knobs = np.broadcast_to(np.asarray(world.knobs.step_w, dtype=np.float64), (count,))
    fleet = Fleet(
        feed=feed,
        above=above,
        floor_w=np.full(count, kind.floor_w),
        max_w=np.full(count, kind.max_w),
        breaker=Breaker(rated_w=told_w),
        step_w=knobs.copy() if knobs.any() else None,
        metered=np.array([one is not None for one in instruments.feeds(len(limit_w) - 1)]),
        site_metered=instruments.site is not None,
        device_metered=None if instruments.device else np.zeros(count, dtype=np.bool_),
        base_w=_stated_w(world, limit_w),
    )
    return PlantRoom(
        fleet=fleet,
        found_w=np.full(count, kind.max_w),
        idle_w=np.full(count, kind.idle_w),
        lag_s=world.lag_s * rng.uniform(0.7, 1.3, count),
        delay_s=world.delay_s,
        heat=np.full(len(limit_w), 0.3),
        job=np.arange(count) // JOB_DEVICES,
        capping=world.capping,
        knobs=world.knobs,
        instruments=instruments,
        other=other,
        band=BANDS[world.band],
        rated_w=limit_w,
        looks=world.cycle_s >= 1.0,
    )
