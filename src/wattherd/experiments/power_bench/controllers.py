"""Controllers of `wattherd power bench`: ours, two without feedback, one that knows the future.

Ours is the one that ships, in the configuration that ships: nothing is told to it here that
`wattherd power hold` does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wattherd.engine.safety.aims import Aims
from wattherd.engine.safety.contract import (
    Controller,
    Fleet,
    Floats,
    Orders,
    Readings,
    SafetyConfig,
)
from wattherd.engine.safety.fill import fill
from wattherd.engine.safety.loop import NEVER_LAPSES, SafetyLoop
from wattherd.estimate.power_curve import PowerCurve
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.sim.power_plant import BOOT_S, PlantRoom
from wattherd.sim.power_plant_faults import PlantFault

OVERSUBSCRIBED = 0.90
"""Open-loop controllers trust that devices draw this share of their caps together."""

CURVE_POINTS = 17
MEAN_MARGIN = 0.15
"""Kept free by who knows the future where caps hold means: for what begins before a cap bites."""

Maker = Callable[[BenchScenario, Floats | None], Controller]
"""Makes a controller; the second argument is the journal of a predecessor that was killed."""


def _orders(cap_w: Floats) -> Orders:
    none = np.zeros(len(cap_w), dtype=np.bool_)
    return Orders(cap_w=cap_w, lease_s=NEVER_LAPSES, switch_off=none, switch_on=none)


@dataclass(slots=True)
class Static:
    """Equal caps from the limits alone, as if devices drew `share` of their caps together."""

    fleet: Fleet
    share: float = 1.0
    _cap_w: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has been ordered."""
        self._cap_w = self.fleet.max_w.copy()

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:  # noqa: ARG002
        """Divide the limits; nothing is read."""
        count = self.fleet.levels(np.ones(self.fleet.size))
        cap_w = self.fleet.least(limit_w / (self.share * np.maximum(count, 1)))
        self._cap_w = np.clip(cap_w, self.fleet.floor_w, self.fleet.max_w)
        return _orders(self._cap_w)

    def leave(self, readings: Readings) -> Orders:  # noqa: ARG002
        """It does not know what it found."""
        return _orders(self._cap_w)


@dataclass(slots=True)
class ProportionalShare:
    """Every device's cap is the same share of the limit at all times: a yardstick, no contender.

    No controller that sees neither swings nor bursts coming does better where caps hold means.
    """

    fleet: Fleet
    share: float

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:  # noqa: ARG002
        """So much of the lowest limit above each device."""
        count = self.fleet.levels(np.ones(self.fleet.size))
        cap_w = self.share * self.fleet.least(limit_w / np.maximum(count, 1))
        return _orders(np.clip(cap_w, self.fleet.floor_w, self.fleet.max_w))

    def leave(self, readings: Readings) -> Orders:
        """It found nothing."""
        return self.cycle(readings, np.full(self.fleet.feeds + 1, np.inf))


@dataclass(slots=True)
class Clairvoyant:
    """Knows demand, limits and the fault ahead of time; the same knobs as everybody.

    What still trips under it could not be avoided. Devices whose knobs will fail go to their floor
    before; those that will reboot are counted at their maximum meanwhile.
    """

    scenario: BenchScenario
    fault: PlantFault
    horizon_s: int = 60
    margin: float = 0.02
    _other_free_w: Floats = field(init=False)

    def __post_init__(self) -> None:
        """What other load leaves of the limits, for all time."""
        self._other_free_w = self.scenario.limit_w - self.scenario.other_w()

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:  # noqa: ARG002
        """Caps for the hardest of the seconds to come."""
        room = self.scenario.room
        fleet, capping, now_s = room.fleet, room.capping, readings.now_s
        second = min(round(now_s), self.scenario.seconds - 1)
        ahead = slice(second, second + self._far(now_s))
        margin = self.margin + MEAN_MARGIN * bool(np.any(capping.window_s))
        budget_w = (self._other_free_w[ahead] * (1.0 - margin)).min(axis=0)
        hits = self.fault.hits & self._concerns(now_s)
        counted_w = np.where(hits, self._wall_w(self._worst_w(now_s)), 0.0)
        demand_w = self.scenario.demand_w[second : second + 10].max(axis=0) * 1.02
        high_w = self._wall_w(np.clip(demand_w, fleet.floor_w, fleet.max_w))
        low_w = self._wall_w(np.maximum(fleet.floor_w, capping.reachable_w))
        wall_w = fill(
            fleet,
            budget_w - fleet.levels(counted_w),
            np.where(hits, 0.0, np.minimum(low_w, high_w)),
            np.where(hits, 0.0, high_w),
        )
        cap_w = (wall_w - capping.rest_w) / ((1.0 + capping.rest_share) * capping.regulates_at)
        step_w = np.maximum(np.asarray(room.knobs.step_w, dtype=np.float64), 1e-9)
        cap_w = np.clip(np.floor(cap_w / step_w) * step_w, fleet.floor_w, fleet.max_w)
        return _orders(np.where(hits, fleet.floor_w, cap_w))

    def _wall_w(self, cap_w: Floats) -> Floats:
        """What devices draw at most at these caps, all parts together."""
        capping = self.scenario.room.capping
        held_w = cap_w * capping.regulates_at
        return np.asarray(held_w * (1.0 + capping.rest_share) + capping.rest_w)

    def leave(self, readings: Readings) -> Orders:  # noqa: ARG002
        """It needs no reading to know what was there."""
        return _orders(self.scenario.room.found_w)

    def _far(self, now_s: float) -> int:
        """As far as it must look: while it is dead it cannot act."""
        dead = "controller-killed" in self.fault.kinds and now_s < self.fault.end_s
        return self.horizon_s + (int(self.fault.end_s - self.fault.start_s) if dead else 0)

    def _concerns(self, now_s: float) -> bool:
        fault = self.fault
        knobs = fault.slow or fault.silent or fault.ignores or fault.reboots
        return knobs and fault.start_s - 60 <= now_s < fault.end_s + 60

    def _worst_w(self, now_s: float) -> Floats:
        fleet, fault = self.scenario.room.fleet, self.fault
        fresh = fault.reboots and -10 <= now_s - fault.start_s < BOOT_S + 15
        return fleet.max_w if fresh else fleet.floor_w


SHIPPED = SafetyConfig(wake_found=False)
"""What `wattherd power hold` builds from a site file that states no constants; a test holds the two
together."""


def _wattherd(scenario: BenchScenario, journal: Floats | None) -> Controller:
    """The loop as `wattherd power hold` runs it: no curves, no stops, no past of the breakers."""
    return SafetyLoop(scenario.room.fleet, SHIPPED, journal)


def _with_curves(scenario: BenchScenario, journal: Floats | None) -> Controller:
    """The same loop with jobs' curves, and a shell that stops jobs: where a core is there."""
    config = replace(SHIPPED, stops_jobs=True)
    return SafetyLoop(scenario.room.fleet, config, journal, _aims(scenario))


def _aims(scenario: BenchScenario) -> Aims:
    """The jobs' curves as they would have been measured beforehand, shared out by water-filling."""
    room = scenario.room
    asks = [
        PowerAsk(
            job_id=str(number),
            devices=int((scenario.job == number).sum()),
            curve=_curve(float(top_w), float(exponent), room),
        )
        for number, (top_w, exponent) in enumerate(
            zip(scenario.top_w, scenario.exponent, strict=True)
        )
    ]
    return Aims(room.fleet, asks, scenario.job, WaterFilling())


def _curve(top_w: float, exponent: float, room: PlantRoom) -> PowerCurve:
    floor_w, idle_w = float(room.fleet.floor_w[0]), float(room.idle_w[0])
    watts = np.linspace(floor_w, max(top_w, floor_w + 1.0), CURVE_POINTS)
    rates = ((watts - idle_w) / (watts[-1] - idle_w)) ** exponent
    return PowerCurve(tuple(watts.tolist()), tuple(rates.tolist()))


MAKERS: Mapping[str, Maker] = {
    "wattherd": _wattherd,
    "with-curves": _with_curves,
    "uniform": lambda scenario, _: Static(scenario.room.fleet),
    "open-loop": lambda scenario, _: Static(scenario.room.fleet, OVERSUBSCRIBED),
}
