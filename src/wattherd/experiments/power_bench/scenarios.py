"""What a scenario of `wattherd power bench` is, and the ones in a large orderly machine room.

That room has 40 nodes of eight H100 (10.2 kW) in ten racks on two feeds. What each scenario states
(limits, breaker curve, response, share of devices that a fault hits) is in `BenchScenario` and
printed with the results. The rooms that are not orderly are in `worlds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety.contract import Breaker, Fleet, Floats, Ints
from wattherd.experiments.power_bench.measured import measured_w
from wattherd.sim.power_plant import STEP_S, PlantRoom

NODES, FEEDS, RACKS, JOB_NODES = 40, 2, 10, 4
MAX_W, FLOOR_W, IDLE_W = 10_200.0, 3_600.0, 2_000.0
"""An eight-H100 node: highest draw, lowest cap, and draw without work."""
LIMIT_SHARE = 0.70
FEED_SHARE, RACK_SHARE = 0.55, 0.12
"""Each feed and each rack may carry this share of the site's limit: more than their even parts."""
EXPONENTS = (0.30, 0.52)
"""Of rate against watts: fine-tuning and pre-training of Emerald's A100 field trial."""
BREAKER_S = 60.0
DELAY_S, RESPONSE_S = 1.0, 8.0
"""Knob delay; and what loop, knob and four lags of the slowest node take together."""
FAULT_SHARE = 0.15
FULL_S, QUICK_S = 600, 240
FAULT_WINDOW = (0.40, 0.70)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchScenario:
    """A second per row: `limit_w` (T, F + 1), `demand_w` (T, N); limits are known `ahead_s` before.

    `event_s` is when the limit falls for good, None where it does not. A job's rate is
    ((draw - idle) / (demand - idle)) to its exponent, `top_w` (J,) what each of its nodes draws
    uncapped, dips and flicker aside. `fine_w` (T / STEP_S, N) is the same demand step by step.
    `surprises_s` are seconds in which other load rises so fast that no controller could have known.
    """

    name: str
    seed: int
    room: PlantRoom
    limit_w: Floats
    demand_w: Floats
    exponent: Floats
    top_w: Floats
    ahead_s: int
    event_s: int | None
    level_names: tuple[str, ...]
    fault_feed: int = 0
    """The feed whose meter a fault on meters hits; the site's is hit where no feed has one."""
    cycle_s: float = 1.0
    """How often the controller is asked."""
    response_s: float = RESPONSE_S
    fault_share: float = FAULT_SHARE
    fine_w: Floats | None = None
    surprises_s: tuple[int, ...] = ()
    about: str = ""

    def demand_at_w(self, second: int, step: int) -> Floats:
        """What loads ask for (N,) in one step of a second."""
        if self.fine_w is None:
            return np.asarray(self.demand_w[second])
        return np.asarray(self.fine_w[second * round(1 / STEP_S) + step])

    def other_w(self) -> Floats:
        """Other load (T, F + 1) on and below each level when devices draw all that fits."""
        fleet, other = self.room.fleet, self.room.other
        if other is None:
            return np.zeros_like(self.limit_w)
        rows = other.watts[: self.seconds * round(1 / STEP_S)]
        own_w = rows.reshape(self.seconds, -1, fleet.feeds + 1).mean(axis=1)
        cooling = float(other.cooling.sum())
        room_w = (self.limit_w[:, -1] - own_w.sum(axis=1)) / (1.0 + cooling)
        fits_w = np.minimum(self.wall_demand_w().sum(axis=1), room_w)
        own_w = own_w + np.outer(fits_w, other.cooling)
        return np.stack([fleet.tree.sums(row) for row in own_w])

    def wall_demand_w(self) -> Floats:
        """What devices would draw (T, N) with all their parts if no limit held them."""
        capping, fleet = self.room.capping, self.room.fleet
        capped_w = np.minimum(self.demand_w, fleet.max_w)
        return np.asarray(capped_w * (1.0 + capping.rest_share) + capping.rest_w)

    def usable_w(self) -> Floats:
        """What devices may draw (T,) together: every limit less other load, bounded by demand."""
        fleet = self.room.fleet
        left_w = np.maximum(self.limit_w - self.other_w(), 0.0)
        demand_w = self.wall_demand_w()
        below_w = np.stack([fleet.own(row) for row in demand_w])
        for number in range(fleet.feeds + 1):
            below_w[:, number] = np.minimum(below_w[:, number], left_w[:, number])
            if number < fleet.feeds:
                below_w[:, fleet.tree.above[number]] += below_w[:, number]
        return np.asarray(below_w[:, -1])

    @property
    def job(self) -> Ints:
        """Which job each node (N,) works for."""
        return self.room.job

    @property
    def seconds(self) -> int:
        """How long it lasts."""
        return len(self.limit_w)

    @property
    def fault_window_s(self) -> tuple[float, float]:
        """When faults begin and end."""
        return FAULT_WINDOW[0] * self.seconds, FAULT_WINDOW[1] * self.seconds

    def known_limit_w(self, second: int) -> Floats:
        """The lowest limits (F + 1,) announced for the time that a response from now on takes."""
        far = min(self.ahead_s, int(np.ceil(self.response_s)))
        return np.asarray(self.limit_w[second : second + far + 1].min(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How a scenario differs from the others: level of the load and share of the limit by time.

    `spread` is how far jobs' own levels lie from that of all, as a share of it.
    """

    load: Callable[[Floats], Floats]
    limit: Callable[[Floats], Floats]
    spread: float = 0.1
    heat: float = 0.3
    ahead_s: int = 0
    event: float | None = None
    measured: bool = False
    about: str = ""


def _flat(level: float) -> Callable[[Floats], Floats]:
    return lambda part: np.full(len(part), level)


def _between(part: Floats, start: float, end: float) -> Floats:
    return np.asarray(((part >= start) & (part < end)).astype(float))


def _two_peaks(part: Floats) -> Floats:
    return np.asarray(0.58 + 0.42 * (_between(part, 0.2, 0.35) + _between(part, 0.5, 0.65)))


def _response_event(part: Floats) -> Floats:
    """Down by a tenth first, by a quarter next, back in one step."""
    return np.asarray(1 - 0.10 * _between(part, 0.42, 0.85) - 0.15 * _between(part, 0.5, 0.85))


PLANS: Mapping[str, _Plan] = {
    "nominal": _Plan(
        about="forty nodes, two thirds busy", load=_flat(0.68), limit=_flat(1.0), spread=0.5
    ),
    "step-25": _Plan(
        about="a quarter less at once",
        load=_flat(0.95),
        limit=lambda part: 1 - 0.25 * _between(part, 0.45, 0.85),
        event=0.45,
    ),
    "demand-response": _Plan(
        about="an event known 30 s ahead",
        load=_flat(0.90),
        limit=_response_event,
        ahead_s=30,
        event=0.5,
    ),
    "two-peaks": _Plan(about="load above the limit twice", load=_two_peaks, limit=_flat(1.0)),
    "breaker-near-trip": _Plan(
        about="breakers at 0.8 of a trip", load=_flat(1.0), limit=_flat(1.0), heat=0.8
    ),
    "nominal-measured": _Plan(
        about="MLPerf nodes replayed, 2 s", load=_flat(1.0), limit=_flat(1.0), measured=True
    ),
}
ORDER = ("breaker-near-trip", "demand-response", "nominal", "step-25", "two-peaks",
         "nominal-measured")  # fmt: skip
"""Of random streams: a new scenario goes to the end, so that the others keep theirs."""


def build_plan(name: str, *, seed: int, quick: bool) -> BenchScenario:
    """One of `PLANS`.

    Raises:
        UserError: it needs data that are not there.
    """
    plan = PLANS[name]
    seconds = QUICK_S if quick else FULL_S
    rng = np.random.default_rng([seed, ORDER.index(name)])
    room = _room(rng, plan.heat)
    part = np.arange(seconds) / seconds
    jobs = NODES // JOB_NODES
    if plan.measured:
        demand_w = measured_w(rng, seconds, jobs, JOB_NODES, MAX_W)
        top_w = np.quantile(demand_w.reshape(seconds, jobs, JOB_NODES), 0.9, axis=(0, 2))
    else:
        level = plan.load(part)[:, None] * rng.uniform(1 - plan.spread, 1 + plan.spread, jobs)
        demand_w = _demand(rng, level, room)
        top_w = IDLE_W + (MAX_W - IDLE_W) * np.clip(level.max(axis=0), 0.0, 1.0)
    return BenchScenario(
        name=name,
        seed=seed,
        room=room,
        limit_w=np.outer(plan.limit(part), room.fleet.breaker.rated_w),
        demand_w=demand_w,
        exponent=rng.permutation(np.resize(EXPONENTS, jobs)),
        top_w=top_w,
        ahead_s=plan.ahead_s,
        level_names=(
            *(f"rack-{number}" for number in range(RACKS)),
            *(f"feed-{number}" for number in range(FEEDS)),
            "site",
        ),
        fault_feed=RACKS,
        about=plan.about,
        event_s=None if plan.event is None else round(plan.event * seconds),
    )


def _room(rng: np.random.Generator, heat: float) -> PlantRoom:
    max_w = np.full(NODES, MAX_W)
    site_w = LIMIT_SHARE * max_w.sum()
    shares = [RACK_SHARE] * RACKS + [FEED_SHARE] * FEEDS + [1.0]
    feed = np.arange(NODES) % FEEDS
    # Jobs take nodes in their order: each of them sits on both feeds and in two to four racks.
    rack = (np.arange(NODES) // FEEDS + 1) // JOB_NODES % (RACKS // FEEDS) * FEEDS + feed
    fleet = Fleet(
        feed=rack,
        above=np.array([*(RACKS + number % FEEDS for number in range(RACKS)),
                        *([RACKS + FEEDS] * FEEDS)]),
        floor_w=np.full(NODES, FLOOR_W),
        max_w=max_w,
        breaker=Breaker(rated_w=site_w * np.array(shares), constant_s=BREAKER_S),
    )  # fmt: skip
    # Somebody had capped a quarter of the nodes before us; they must find their caps again.
    found_w = np.where(rng.random(NODES) < 0.25, 0.9 * MAX_W, MAX_W)
    return PlantRoom(
        fleet=fleet,
        found_w=found_w,
        idle_w=np.full(NODES, IDLE_W),
        lag_s=rng.uniform(0.3, 1.2, NODES),
        delay_s=DELAY_S,
        heat=np.full(fleet.feeds + 1, heat),
        job=np.repeat(np.arange(NODES // JOB_NODES), JOB_NODES),
    )


def _demand(rng: np.random.Generator, level: Floats, room: PlantRoom) -> Floats:
    """Synchronous jobs of four nodes at `level` (T, J) of the maximum, with dips and flicker.

    Dips to 35 to 60 % for 4 to 15 s every 1 to 3 min are what evaluation and checkpoints do to the
    nodes of MLPerf's H100 submissions (2.4 to 4.4 kW of 7 kW).
    """
    level = level.copy()
    seconds, jobs = level.shape
    for job in range(jobs):
        at = int(rng.integers(20, 120))
        while at < seconds:
            length = int(rng.integers(4, 16))
            level[at : at + length, job] *= rng.uniform(0.35, 0.60)
            at += length + int(rng.integers(60, 180))
    nodes = np.repeat(level, JOB_NODES, axis=1) * (1 + 0.01 * rng.standard_normal((seconds, NODES)))
    span_w = room.fleet.max_w - room.idle_w
    return np.asarray(room.idle_w + span_w * np.clip(nodes, 0.0, 1.0))
