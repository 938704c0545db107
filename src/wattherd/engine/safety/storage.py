"""Storage that smooths a draw: what it can give and take, how long it lasts, and what it follows.

A battery, flywheel or capacitor bank beside the load, its inverter follows within a sample. The
grid's side follows the load's mean as fast as its ramps allow; storage gives or takes the rest, as
far as it can, and drifts back to half of its charge, within the same ramps, so that it can do
either again. It is never counted on for longer than its charge lasts; what it says of its charge is
believed at once where that is less than what went in and out, and slowly where it is more. How the
safety loop uses storage in a power tree is `stored_power`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wattherd.errors import UserError

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
