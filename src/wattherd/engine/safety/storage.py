"""Storage beside the load: what it can give and take, how long it lasts, and what is counted of it.

*By itself* it smooths a draw. A battery, flywheel or capacitor bank beside the load, its inverter
follows within a sample. The grid's side follows the load's mean as fast as its ramps allow; storage
gives or takes the rest, as far as it can, and drifts back to half of its charge, within the same
ramps, so that it can do either again. It is never counted on for longer than its charge lasts; what
it says of its charge is believed at once where that is less than what went in and out, and slowly
where it is more.

*In the power tree* what it gives counts while it is read to give it, and as it lasts. A battery
with its inverter hangs on a level like a device, and takes or gives watts as ordered. The loop uses
it for three things, in this order:

* *To bridge.* Draw above a limit is covered at once, from all of the charge: a cut that comes
  unannounced is met by the inverter in a second, while caps take their time.
* *To shave.* Where devices have a use for more than a limit leaves, charge above the `reserve` is
  spent on it, evenly over `LASTS_S`, so that it ends by a slope and not by an edge.
* *To recharge*, from watts that nobody has a use for, once nobody is counted at them either. Below
  its reserve it is charged within `RECHARGED_S`, and devices pay for that.

What may be counted on, and why no more:

* A level's meter shows the draw less what storage gives. So the same watts are added to what is
  read and to what is allowed: what the meter shows is held to the limit whatever storage says of
  itself, and the estimates of other load see a load that storage does not disturb.
* To the limit is added only what storage *was read to give* through the last seconds, no more than
  it is ordered to give on, and no more than its charge above the reserve lasts for. Storage that is
  empty, unread, or that says one thing and does another adds nothing.
* What it is ordered to take counts at once, before it takes it.
* Its charge is counted (`Storage`), and checked against what it says.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Readings
from wattherd.errors import UserError

# --- Storage by itself ------------------------------------------------------------------------
REST = 0.5
"""The charge to come back to: it may have to give or to take next."""
BACK_S = 30.0
"""A charge that is off is put right at a rate that would need so long for it."""
BELIEVED_S = 3600.0
"""A charge that is said to be more than was counted is believed at a rate of all in so long."""
LONGEST_S, SPENT = 60.0, 0.25
"""The mean is over a minute at most; full power must not take more than a quarter of the charge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSize:
    """Watts at the terminals either way, joules of charge, and the share that comes back of them.

    Raises:
        UserError: a size that stores nothing, or an efficiency outside (0, 1].
    """

    power_w: float
    energy_j: float
    efficiency: float = 0.9

    def __post_init__(self) -> None:
        """Refuse what is no storage."""
        for name in ("power_w", "energy_j"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError("stores nothing", field=name, hint="write 250kW,2kWh")
        if not 0 < self.efficiency <= 1:
            raise UserError(f"{self.efficiency:g} is outside 0 to 1", field="efficiency",
                            hint="the share that comes back: 0.9")  # fmt: skip


# Charge is counted, since what a battery says of itself is an estimate of its maker's. It may say
# less than was counted (ageing, cold), and that is believed at once; more would be watts that are
# perhaps not there. But losses are counted at their stated value, and one that is stated too high
# would count a battery empty for ever: so more is believed in time.
class Storage:
    """Its charge, as counted from what went in and out; half of the losses on either way."""

    def __init__(self, size: StorageSize, charge: float = REST) -> None:
        """Charged to that share."""
        self.size = size
        self.charge_j = size.energy_j * min(max(charge, 0.0), 1.0)
        self.lost_j = 0.0
        # The efficiency that makers state is of both ways together; its square root on each is the
        # usual assumption.
        self._one_way = math.sqrt(size.efficiency)

    def told(self, charge: float, step_s: float = 0.0) -> None:
        """It says how full it is (a share): less counts at once, more in the course of time."""
        if math.isfinite(charge):
            most_j = self.charge_j + self.size.energy_j * step_s / BELIEVED_S
            self.charge_j = min(most_j, min(max(charge, 0.0), 1.0) * self.size.energy_j)

    def most_w(self, for_s: float, *, above: float = 0.0) -> float:
        """What it can give for so long, of the charge above that share."""
        over_j = max(self.charge_j - above * self.size.energy_j, 0.0)
        lasting_w = over_j * self._one_way / for_s if for_s > 0 else math.inf
        return min(self.size.power_w, lasting_w)

    def room_w(self, for_s: float) -> float:
        """What it can take for so long."""
        left_j = max(self.size.energy_j - self.charge_j, 0.0)
        lasting_w = left_j / self._one_way / for_s if for_s > 0 else math.inf
        return min(self.size.power_w, lasting_w)

    def lasts_s(self, watts: float) -> float:
        """How long it can give so many watts; 0 where it cannot at all."""
        if watts > self.size.power_w:
            return 0.0
        return math.inf if watts <= 0 else self.charge_j * self._one_way / watts

    def give(self, watts: float, step_s: float) -> float:
        """Give so many watts (take them, where negative), as far as it can: what it really does."""
        if step_s <= 0:
            return 0.0
        found_w = min(max(watts, -self.room_w(step_s)), self.most_w(step_s))
        self.moved(found_w, step_s)
        return found_w

    def moved(self, watts: float, step_s: float) -> None:
        """It was seen to give so many watts (take them, where negative) for a step."""
        moved_j = watts * step_s
        # Watts are at the terminals: more than that leaves the charge, and less of it arrives
        # there.
        stored_j = moved_j / self._one_way if moved_j > 0 else moved_j * self._one_way
        self.charge_j = min(max(self.charge_j - stored_j, 0.0), self.size.energy_j)
        self.lost_j += abs(stored_j - moved_j)


# The grid's side moves first within its ramps, towards the mean of the load and a charge of one
# half; storage gives the difference. Where it cannot, the load shows on the grid, and the time is
# counted.
class Smoothing:
    """The grid's side of a load with storage beside it; ramps in W/s, infinite for none."""

    def __init__(self, storage: Storage, up_w_s: float, down_w_s: float) -> None:
        """Nothing was drawn yet."""
        self.storage = storage
        self._up_w_s, self._down_w_s = up_w_s, down_w_s
        self._grid_w: float | None = None
        self._mean_w = 0.0
        size = storage.size
        self._over_s = min(LONGEST_S, SPENT * size.energy_j / size.power_w)
        self.missed_s = 0.0
        """For how long it could not do what it should have."""

    def grid_w(self, load_w: float, step_s: float) -> float:
        """What is drawn from the grid while the load draws so much for a step."""
        storage = self.storage
        if self._grid_w is None:
            self._grid_w = self._mean_w = load_w
        # Exact for a load that stands still through the step, whatever its length: results must not
        # depend on how often somebody looks.
        self._mean_w += (load_w - self._mean_w) * -math.expm1(-step_s / self._over_s)
        missing_j = REST * storage.size.energy_j - storage.charge_j
        aim_w = max(self._mean_w + missing_j / BACK_S, 0.0)
        low_w = self._grid_w - self._down_w_s * step_s
        wanted_w = min(max(aim_w, low_w), self._grid_w + self._up_w_s * step_s)
        given_w = storage.give(load_w - wanted_w, step_s)
        self._grid_w = load_w - given_w
        if abs(self._grid_w - wanted_w) > 1e-6 * max(load_w, 1.0):
            self.missed_s += step_s
        return self._grid_w


# --- Storage in the power tree ----------------------------------------------------------------
LASTS_S = 60.0
"""What is counted on lasts for so long: slower than the slowest knob on record (45 s)."""
RECHARGED_S = 900.0
"""A reserve that is used up is charged at a rate that would need so long for the whole of it."""
SEEN_S = 5.0
"""What storage gave all this time is what meters have seen; none that is believed is older."""
OLD_S = 5.0
"""Older readings of storage count as none."""
EASES_S = 10.0
"""Charging grows by so much of its power a second: meters must be able to follow."""
WORTH = 0.01
"""Shaving less than that share of its power is not worth the losses."""
SPARE = 0.01
"""Share of a limit that recharging leaves alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStorage:
    """Storage that hangs on a level (feeds count from 0, the site last).

    `reserve` is the share of the charge that is kept for cuts.

    Raises:
        UserError: a reserve outside 0 to 1.
    """

    size: StorageSize
    level: int
    reserve: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what keeps more than there is."""
        if not 0 <= self.reserve < 1:
            raise UserError(f"{self.reserve:g} is outside 0 to 1", field="reserve",
                            hint="the share kept for cuts: 0.5")  # fmt: skip


@dataclass(slots=True)
class _Unit:
    """One storage: its charge as counted, and what it did of late (time, watts given)."""

    storage: Storage
    past: deque[tuple[float, float]]
    heard: bool = False
    plan_w: float = 0.0
    ordered_w: float = float("nan")


# All signs are the grid's gain: positive gives, negative takes.
class StoredPower:
    """The storage of a fleet's levels; arrays over storages (S,) or levels (F + 1,)."""

    def __init__(self, fleet: Fleet, storages: Sequence[LevelStorage] = ()) -> None:
        """Nothing is known of their charge: they count as empty until they were read."""
        for one in storages:
            if not 0 <= one.level <= fleet.feeds:
                raise UserError("hangs on an unknown level", field="level")
        self._fleet = fleet
        self.storages = tuple(storages)
        self._units = [_Unit(Storage(one.size, 0.0), deque()) for one in storages]
        nothing = np.zeros(fleet.feeds + 1)
        self.given_w: Floats = nothing
        """What is added to what meters read, by level."""
        self.counted_w: Floats = nothing
        """What is added to limits, by level: no more than `given_w`."""
        self._net_w: Floats = nothing
        self._at_s: Floats = nothing
        self._limit_w: Floats = nothing
        self._now_s = float("nan")

    @property
    def any(self) -> bool:
        """Whether there is any."""
        return bool(self.storages)

    @property
    def charge(self) -> Floats:
        """How full each one (S,) is counted to be, 0 to 1."""
        return np.array([one.storage.charge_j / one.storage.size.energy_j for one in self._units])

    @property
    def heard(self) -> Bools:
        """Which ones (S,) were read this cycle."""
        return np.array([one.heard for one in self._units], dtype=np.bool_)

    def take(self, readings: Readings, limit_w: Floats) -> tuple[Readings, Floats]:
        """The readings without what storage did to them, and limits (F + 1,) with what it gives."""
        if not self.any:
            return readings, limit_w
        now_s = readings.now_s
        step_s = 0.0 if np.isnan(self._now_s) else max(now_s - self._now_s, 0.0)
        self._now_s, self._limit_w = now_s, limit_w
        self._net_w = np.append(readings.feed_w, readings.site_w)
        self._at_s = np.append(readings.feed_at_s, readings.site_at_s)
        own_given_w, own_counted_w = np.zeros((2, self._fleet.feeds + 1))
        for number, (unit, where) in enumerate(zip(self._units, self.storages, strict=True)):
            self._hear(unit, readings, number, step_s)
            given_w, counted_w = self._counts(unit, where.reserve)
            own_given_w[where.level] += given_w
            own_counted_w[where.level] += counted_w
        # A battery below a feed relieves that feed and all levels above it, as the watts of a
        # device load them. The feed beside it has nothing of it.
        self.given_w = self._fleet.tree.sums(own_given_w)
        self.counted_w = self._fleet.tree.sums(own_counted_w)
        return replace(
            readings,
            feed_w=readings.feed_w + self.given_w[:-1],
            site_w=readings.site_w + float(self.given_w[-1]),
        ), limit_w + self.counted_w

    def order(self, counted_w: Floats, wanted_w: Floats, margin: float) -> Floats:
        """What each one (S,) is to give from now on, in watts; negative: take.

        `counted_w` (F + 1,) is what devices and other load count for, `wanted_w` what they would if
        limits left it to them. `margin` is the share of limits that stays free.
        """
        fleet, room_w = self._fleet, self._limit_w * (1.0 - margin)
        drawn_w = self._gross_w(counted_w)
        orders = np.zeros(len(self._units))
        # One after the other, each told what those before it give: two batteries on one way to the
        # site would otherwise both cover, or both take, the same watts.
        helped_w = np.zeros(fleet.feeds + 1)  # by storages that have their order already
        for number, (unit, where) in enumerate(zip(self._units, self.storages, strict=True)):
            path = self._path(where.level)
            if not unit.heard:
                # An inverter that nobody reads may be gone, or do what it likes: nothing is asked.
                unit.plan_w = unit.ordered_w = 0.0
                continue
            # The tightest level on the way to the site decides either way: the largest excess is
            # what must be given, the least room what may be taken.
            over_w = drawn_w[path] - helped_w[path] - room_w[path]
            short_w = wanted_w[path] - helped_w[path] - room_w[path]
            free_w = -short_w - SPARE * self._limit_w[path]
            unit.plan_w = self._plan(unit, where.reserve, over_w.max(), short_w.max(), free_w.min())
            # What is planned to be taken counts from now on, so that caps that nobody uses sink.
            # It is taken once they have, and once meters show it free.
            spare_w = -np.maximum(over_w, counted_w[path] - helped_w[path] - room_w[path])
            unit.ordered_w = max(unit.plan_w, -max(float(spare_w.min()), 0.0))
            orders[number] = unit.ordered_w
            own_w = np.zeros(fleet.feeds + 1)
            own_w[where.level] = unit.ordered_w
            helped_w = helped_w + fleet.tree.sums(own_w)
        return orders

    def _hear(self, unit: _Unit, readings: Readings, number: int, step_s: float) -> None:
        """Take what one says, if it says anything new enough."""
        now_s = readings.now_s
        told_w, told, at_s = (
            np.nan if one is None else float(one[number])
            for one in (readings.storage_w, readings.storage_charge, readings.storage_at_s)
        )
        unit.heard = bool(np.isfinite(told_w) and np.isfinite(told) and now_s - at_s <= OLD_S)
        if unit.heard:
            if not unit.past:
                # Nothing was counted yet, so that its first word is all there is.
                unit.storage.charge_j = min(max(told, 0.0), 1.0) * unit.storage.size.energy_j
            else:
                unit.storage.moved(unit.past[-1][1], step_s)
                unit.storage.told(told, step_s)
            unit.past.append((now_s, told_w))
        # The last word stays: what it did until it fell silent is in what meters read.
        while len(unit.past) > 1 and unit.past[1][0] <= now_s - SEEN_S:
            unit.past.popleft()
        if unit.past and not unit.heard and now_s - unit.past[-1][0] > 3 * SEEN_S:
            unit.past.clear()  # of whoever is silent for long, it is other load

    @staticmethod
    def _counts(unit: _Unit, reserve: float) -> tuple[float, float]:
        """What one adds to readings, and to limits."""
        if not unit.past:
            return 0.0, 0.0
        given_w = min(watts for _, watts in unit.past)
        # It may have stopped giving. Readings may still hold what it gave, but no limit is raised
        # by it from this very cycle on.
        if given_w > 0 and not unit.heard:
            return given_w, 0.0
        # What it was told to give no more is not counted on, though it may still be read to give
        # it.
        plan_w = given_w if np.isnan(unit.ordered_w) else unit.plan_w
        if min(given_w, plan_w) < 0:
            return given_w, min(given_w, plan_w)
        return given_w, min(given_w, plan_w, unit.storage.most_w(LASTS_S, above=reserve))

    def _plan(
        self, unit: _Unit, reserve: float, over_w: float, short_w: float, free_w: float
    ) -> float:
        """What one is to do: bridge, else shave, else recharge."""
        storage = unit.storage
        bridge_w = min(max(over_w, 0.0), storage.most_w(1.0))
        # Reckoned anew each cycle from what is left, so that it fades and never ends at once: caps
        # come down along with it.
        spend_w = min(max(short_w, 0.0), storage.most_w(LASTS_S, above=reserve))
        if spend_w < WORTH * storage.size.power_w:
            spend_w = 0.0
        if max(bridge_w, spend_w) > 0:
            return max(bridge_w, spend_w)
        # An owed reserve is charged whether watts are free or not: the next cut may come before any
        # are.
        owed_w = max(reserve * storage.size.energy_j - storage.charge_j, 0.0) > 0
        forced_w = reserve * storage.size.energy_j / RECHARGED_S if owed_w else 0.0
        take_w = min(max(free_w, forced_w, 0.0), storage.room_w(LASTS_S))
        easing_w = max(-unit.plan_w, 0.0) + storage.size.power_w / EASES_S
        return -min(take_w, easing_w)

    def _gross_w(self, counted_w: Floats) -> Floats:
        """What levels draw without storage: as read, with what storage gave at that moment.

        Where there is no meter, what is counted.
        """
        own_w = np.zeros((len(self._units), self._fleet.feeds + 1))
        for number, (unit, where) in enumerate(zip(self._units, self.storages, strict=True)):
            for level in self._path(where.level):
                own_w[number, level] = _then(unit.past, float(self._at_s[level]))
        # With what storage gave at the moment that each meter tells of. What it gives now is not in
        # the reading of a meter that lags, and added to it would make a load that nobody draws.
        gross_w = self._net_w + own_w.sum(axis=0)
        return np.where(np.isfinite(gross_w), gross_w, counted_w)

    def _path(self, level: int) -> list[int]:
        path, site = [level], self._fleet.feeds
        while path[-1] != site:
            path.append(int(self._fleet.tree.above[path[-1]]))
        return path


def _then(past: deque[tuple[float, float]], at_s: float) -> float:
    """What was given at a moment: the last word before it."""
    if not past:
        return 0.0
    before = [watts for time_s, watts in past if time_s <= at_s]
    return before[-1] if before else past[0][1]
