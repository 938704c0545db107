"""How fast a device works at how many watts: points of (watts, relative rate), made concave.

A curve runs from its lowest cap to its highest draw. Where nothing was measured, the prior is
rate = ((watts - idle) / (max - idle)) ** exponent: for LLM training on A100 the exponent fits
0.3 to 0.5, for the Zeus measurements on V100 0.37 (median).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.errors import UserError
from wattherd.model.job import JobSpec

PRIOR_EXPONENT = 0.37
PRIOR_POINTS = 17


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Ascending watts and the rate at each, concave; per device.

    Raises:
        UserError: fewer than one point, watts not ascending, or a rate that falls.
    """

    watts: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what could not be searched."""
        if not self.watts or len(self.watts) != len(self.rates):
            raise UserError("a power curve needs as many rates as watts, at least one")
        if any(b <= a for a, b in zip(self.watts, self.watts[1:], strict=False)):
            raise UserError("watts of a power curve must ascend", field="watts")
        if any(b < a for a, b in zip(self.rates, self.rates[1:], strict=False)):
            raise UserError("more watts must not be slower", field="rate")

    @property
    def floor_w(self) -> float:
        """The lowest cap it works at."""
        return self.watts[0]

    @property
    def max_w(self) -> float:
        """What it draws uncapped."""
        return self.watts[-1]

    def rate(self, cap_w: float) -> float:
        """Rate at a cap, linear between points; 0 below the floor, the highest above the top."""
        if cap_w < self.watts[0]:
            return 0.0
        if cap_w >= self.watts[-1]:
            return self.rates[-1]
        high = bisect_right(self.watts, cap_w)
        low_w, high_w = self.watts[high - 1], self.watts[high]
        share = (cap_w - low_w) / (high_w - low_w)
        return self.rates[high - 1] + share * (self.rates[high] - self.rates[high - 1])

    def cap_w(self, watts: float) -> float:
        """The cap at which a device draws `watts`: these, where all devices are of one model."""
        return watts

    def segments(self) -> list[tuple[float, float]]:
        """(rate gained per watt, watts) piece by piece, steepest first on a concave curve."""
        return [
            ((self.rates[i + 1] - self.rates[i]) / width, width)
            for i in range(len(self.watts) - 1)
            if (width := self.watts[i + 1] - self.watts[i]) > 0
        ]


CurveOf = Callable[[JobSpec, str], PowerCurve]
"""The power curve of a job on a GPU model."""


def concave_hull(points: Sequence[tuple[float, float]]) -> PowerCurve:
    """The least concave curve above measured (watts, rate) points, from the lowest watts up."""
    hull: list[tuple[float, float]] = []
    for watts, rate in sorted(points):
        if hull and rate <= hull[-1][1]:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], (watts, rate)):
            hull.pop()
        hull.append((watts, rate))
    return PowerCurve(tuple(w for w, _ in hull), tuple(r for _, r in hull))


@lru_cache(maxsize=256)
def under_one_cap(curves: tuple[PowerCurve, ...]) -> PowerCurve:
    """The curve of a synchronous job on devices of several kinds that all have the same cap.

    No kind works below its floor, so that the cap is above all of them; the slowest kind, relative
    to its best, holds the others up. Devices counted at the cap draw no more than that.
    """
    floor_w = max(one.floor_w for one in curves)
    steps = sorted({floor_w, *(watts for one in curves for watts in one.watts if watts > floor_w)})
    rates = [min(one.rate(watts) / one.rates[-1] for one in curves) for watts in steps]
    return PowerCurve(tuple(steps), tuple(rates))


@dataclass(frozen=True, slots=True)
class MixedCurve(PowerCurve):
    """The curve of a job across GPU models, by what its devices draw on average.

    They have one cap, and none draws more than its model can: a cap of 250 W is 250 W on an A100
    and 70 W on a T4. Watts are shared out by what is drawn, so that `watts` are means, and `cap_w`
    leads back to the cap.
    """

    parts: tuple[tuple[int, float], ...]
    """How many devices there are of each model, and the most that one draws."""
    caps_w: tuple[float, float]
    """The lowest and the highest cap, at the first and the last of `watts`."""

    def cap_w(self, watts: float) -> float:
        """The cap at which the devices draw `watts` on average, between lowest and highest."""
        if watts <= self.watts[0]:
            return self.caps_w[0]
        if watts >= self.watts[-1]:
            return self.caps_w[1]
        devices = sum(count for count, _ in self.parts)
        left_w = watts * devices
        for count, top_w in sorted(self.parts, key=lambda part: part[1]):
            if left_w <= devices * top_w:
                break
            left_w, devices = left_w - count * top_w, devices - count
        return min(max(left_w / devices, self.caps_w[0]), self.caps_w[1])


@lru_cache(maxsize=256)
def by_mean_draw(curve: PowerCurve, parts: tuple[tuple[int, float], ...]) -> MixedCurve:
    """`curve`, which is by caps, by mean draw; `parts` as in `MixedCurve`.

    Above the cap at which a small model draws all it can, a watt of the mean is more than a watt of
    the cap: the least concave curve above is taken, as of measured points.
    """
    devices = sum(count for count, _ in parts)

    def mean_w(cap_w: float) -> float:
        return sum(count * min(cap_w, top_w) for count, top_w in parts) / devices

    points = [(mean_w(cap_w), rate) for cap_w, rate in zip(curve.watts, curve.rates, strict=True)]
    hull = concave_hull(points)
    watts, rates = hull.watts, hull.rates
    if watts[-1] < points[-1][0]:
        # The hull ends where nothing is gained any more; uncapped is further up.
        watts, rates = (*watts, points[-1][0]), (*rates, points[-1][1])
    return MixedCurve(watts, rates, parts, (curve.floor_w, curve.max_w))


def _above(one: tuple[float, float], two: tuple[float, float], three: tuple[float, float]) -> bool:
    """Whether `two` lies on or below the line from `one` to `three`."""
    left = (two[1] - one[1]) * (three[0] - one[0])
    right = (three[1] - one[1]) * (two[0] - one[0])
    return left <= right


def prior_curve(gpu: GpuModel, exponent: float = PRIOR_EXPONENT) -> PowerCurve:
    """The curve assumed for a GPU of which nothing was measured."""
    floor_w = gpu.min_cap_w if gpu.min_cap_w is not None else gpu.max_w / 2
    span = gpu.max_w - gpu.idle_w
    steps = [floor_w + (gpu.max_w - floor_w) * i / (PRIOR_POINTS - 1) for i in range(PRIOR_POINTS)]
    return PowerCurve(
        tuple(steps), tuple(((watts - gpu.idle_w) / span) ** exponent for watts in steps)
    )


def prior(spec: JobSpec, gpu_model: str) -> PowerCurve:
    """What is assumed of a job that was never measured."""
    del spec
    return prior_of(gpu_model)


@cache
def prior_of(gpu_model: str) -> PowerCurve:
    """The curve assumed for any job on a GPU model."""
    return prior_curve(GPUS[gpu_model])
