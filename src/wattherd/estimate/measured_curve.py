"""What was measured of a job under several power caps, and the choices that leaves.

Caps are those of one device, draw is that of the whole job, rates are in any unit of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from wattherd.errors import UserError


class Count(StrEnum):
    """Which watts of a point count against a budget: what was drawn, or what was allowed."""

    DRAW = "draw"
    CAP = "cap"


@dataclass(frozen=True, slots=True)
class Point:
    """Under this cap the job drew `power_w` and worked at `rate`."""

    cap_w: float
    power_w: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCurve:
    """A job's measured points, in no particular order, on so many `devices`.

    `domain` is the branch of the power tree that feeds it.

    Raises:
        UserError: no point, or a number that is no measurement.
    """

    job: str
    points: tuple[Point, ...]
    weight: float = 1.0
    devices: int = 1
    domain: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot have been measured."""
        if not self.points:
            raise UserError("has no measured point", where=f"job {self.job}", field="points")
        for point in self.points:
            for name in ("cap_w", "power_w", "rate"):
                self._check(name, getattr(point, name))
        self._check("weight", self.weight)

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

    def watts(self, point: Point, count: Count) -> float:
        """What a point counts against a budget."""
        return point.power_w if count is Count.DRAW else point.cap_w * self.devices

    def choices(self, count: Count, *, paused_w: float | None = None) -> tuple[Choice, ...]:
        """Points that no other beats in both watts and rate, by watts.

        Their value is weight x rate / best rate. `paused_w` adds a pause that draws as much and is
        worth nothing.
        """
        best = self.best_rate
        found = [] if paused_w is None else [Choice(paused_w, 0.0, None)]
        by_watts = sorted(self.points, key=lambda p: (self.watts(p, count), -p.rate, p.cap_w))
        for point in by_watts:
            value = self.weight * point.rate / best
            watts = self.watts(point, count)
            if not found or (value > found[-1].value and watts > found[-1].watts):
                found.append(Choice(watts, value, point))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a job: watts, what that is worth, and the point (None: paused)."""

    watts: float
    value: float
    point: Point | None
