"""What was measured of a job under several power caps, and the choices that leaves.

Caps are those of one device, draw is that of the whole job, rates are in any unit of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from wattherd.errors import UserError
from wattherd.units import show_joules


class CountedWatts(StrEnum):
    """Which watts of a point count against a budget: what was drawn, or what was allowed."""

    DRAW = "draw"
    CAP = "cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetting:
    """How a job runs beside its cap: samples per step of one pass, passes per update, and layout.

    `batch_size` is over all data-parallel devices; `layout` names how the model is split
    (for example "tp2-pp4"; empty: not at all).

    Raises:
        UserError: no sample, or no pass.
    """

    batch_size: int
    accumulation: int = 1
    layout: str = ""

    def __post_init__(self) -> None:
        """Refuse what trains nothing."""
        if self.batch_size < 1 or self.accumulation < 1:
            hint = "whole numbers from 1"
            raise UserError("no sample or no pass", field="batch_size", hint=hint)

    @property
    def global_batch(self) -> int:
        """Samples per update of the weights, which is what convergence depends on."""
        return self.batch_size * self.accumulation


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """Under this cap (and in this setting) the job drew `power_w` and worked at `rate`."""

    cap_w: float
    power_w: float
    rate: float
    setting: JobSetting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCurve:
    """A job's measured points, in no particular order, on so many `devices`.

    `domain` is the branch of the power tree that feeds it. While it runs its cap is never below
    `floor_w`. With `energy_budget_j` it may draw so much for the `work` that remains, in units of
    rate x seconds.

    Raises:
        UserError: no point, a number that is no measurement, a budget for work that is not known,
            or one that no cap at or above the floor keeps.
    """

    job: str
    points: tuple[MeasuredPoint, ...]
    weight: float = 1.0
    devices: int = 1
    domain: str = ""
    priority: int = 0
    floor_w: float = 0.0
    work: float | None = None
    energy_budget_j: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot have been measured, and what cannot be kept."""
        if not self.points:
            raise UserError("has no measured point", where=f"job {self.job}", field="points")
        for point in self.points:
            for name in ("cap_w", "power_w", "rate"):
                self._check(name, getattr(point, name))
        self._check("weight", self.weight)
        self._check_floor()
        self._check_energy()

    def _check_floor(self) -> None:
        if not self._above_floor():
            top_w = max(point.cap_w for point in self.points)
            problem = f"{self.floor_w:g} W is above the highest measured cap, {top_w:g} W"
            hint = "a floor is a cap of each device, in watts"
            raise UserError(problem, where=f"job {self.job}", field="floor_w", hint=hint)

    def _check_energy(self) -> None:
        if self.energy_budget_j is None:
            return
        self._check("energy_budget_j", self.energy_budget_j)
        if self.work is None:
            hint = "add the column work"
            problem = "is a budget for work that is not known"
            raise UserError(problem, where=f"job {self.job}", field="energy_budget_j", hint=hint)
        self._check("work", self.work)
        if not self.allowed:
            best = min(self._above_floor(), key=self._energy_of)
            raise UserError(
                f"{show_joules(self.energy_budget_j)} do not last: the {self.work:g} units of work "
                f"left need {show_joules(self._energy_of(best))} under the thriftiest cap, "
                f"{best.cap_w:g} W",
                where=f"job {self.job}",
                field="energy_budget_j",
                hint="raise the budget or shorten the job",
            )

    def _above_floor(self) -> list[MeasuredPoint]:
        return [point for point in self.points if point.cap_w >= self.floor_w]

    def _energy_of(self, point: MeasuredPoint) -> float:
        return point.power_w * (self.work or 0.0) / point.rate

    def energy_j(self, point: MeasuredPoint) -> float | None:
        """What the remaining work takes at a point, None where it is not known."""
        return None if self.work is None else self._energy_of(point)

    @property
    def allowed(self) -> list[MeasuredPoint]:
        """Points at or above the floor at which the remaining work keeps its energy budget.

        The draw counts that was measured, whatever is counted against power budgets.
        """
        most_j = math.inf if self.energy_budget_j is None else self.energy_budget_j
        return [point for point in self._above_floor() if self._energy_of(point) <= most_j]

    def _check(self, name: str, value: float) -> None:
        if not (math.isfinite(value) and value > 0):
            hint = "a number above zero"
            raise UserError(
                f"{value} was not measured", where=f"job {self.job}", field=name, hint=hint
            )

    @property
    def best_rate(self) -> float:
        """The highest rate measured."""
        return max(point.rate for point in self.points)

    def watts(self, point: MeasuredPoint, count: CountedWatts) -> float:
        """What a point counts against a budget."""
        return point.power_w if count is CountedWatts.DRAW else point.cap_w * self.devices

    def choices(
        self, count: CountedWatts, *, paused_w: float | None = None
    ) -> tuple[CurveChoice, ...]:
        """Allowed points that no other beats in both watts and rate, by watts.

        Their value is weight x rate / best rate. `paused_w` adds a pause that draws as much and is
        worth nothing.
        """
        best = self.best_rate
        found = [] if paused_w is None else [CurveChoice(paused_w, 0.0, None)]
        by_watts = sorted(self.allowed, key=lambda p: (self.watts(p, count), -p.rate, p.cap_w))
        for point in by_watts:
            value = self.weight * point.rate / best
            watts = self.watts(point, count)
            if not found or (value > found[-1].value and watts > found[-1].watts):
                found.append(CurveChoice(watts, value, point))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CurveChoice:
    """One way to run a job: watts, what that is worth, and the point (None: paused)."""

    watts: float
    value: float
    point: MeasuredPoint | None
