"""The part of its power curve that a job is to use: what its joules allow, what it has a use for.

A job with an energy budget may pay so many joules for a second's work (`EnergyPrices`), which on a
concave curve is a range of caps; on some GPUs it would cost more. A job that was measured to have
no use for all its watts leaves the rest to others (`MeasuredDemands`). That only makes it ask for
less: what counts against budgets stays the cap in force, and a lower cap counts once it has been
read back, so that a demand that proves wrong breaks no budget. It costs its job the time until its
cap is raised again.

Work counts in seconds of one device at its highest draw. At a cap of p watts a second of it costs
p / (rate(p) / highest rate) joules: on a concave curve that falls to the thriftiest cap and rises
from there on, so that the caps within a price are an interval (`thrifty`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.power_curve import CurveOf, PowerCurve
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode


def price_j(curve: PowerCurve, cap_w: float) -> float:
    """Joules for a second's work at full speed, done under this cap."""
    rate = curve.rate(cap_w)
    return cap_w * curve.rates[-1] / rate if rate > 0 else float("inf")


# On a straight piece watts over rate only falls or only rises, so that its least is at an end.
def thriftiest_w(curve: PowerCurve) -> float:
    """The cap at which work costs least; it is a corner of the curve."""
    return min(curve.watts, key=lambda watts: (price_j(curve, watts), watts))


@lru_cache(maxsize=4096)
def thrifty(curve: PowerCurve, most_j: float) -> PowerCurve:
    """The curve where a second's work costs at most `most_j`, else the thriftiest cap alone."""
    # One point and not nothing, where even that is too dear: who asks for a curve needs one, and
    # that the joules will not do is said elsewhere (`refuse`, `EnergyBudgets.short`).
    best_w = thriftiest_w(curve)
    if price_j(curve, best_w) >= most_j:
        return PowerCurve((best_w,), (curve.rate(best_w),))
    low_w = _edge(curve, most_j, best_w, curve.watts[: curve.watts.index(best_w) + 1][::-1])
    high_w = _edge(curve, most_j, best_w, curve.watts[curve.watts.index(best_w) :])
    inside = [watts for watts in curve.watts if low_w < watts < high_w]
    # The corners inside stay, so that rates between them are as on the whole curve.
    watts = sorted({low_w, *inside, high_w})
    return PowerCurve(tuple(watts), tuple(curve.rate(one) for one in watts))


def _edge(curve: PowerCurve, most_j: float, best_w: float, outwards: tuple[float, ...]) -> float:
    """How far from the thriftiest cap the price stays within `most_j`, along these corners."""
    edge_w = best_w
    for near_w, far_w in pairwise(outwards):
        if price_j(curve, far_w) > most_j:
            return _crossing(curve, most_j, near_w, far_w)
        edge_w = far_w
    return edge_w


def _crossing(curve: PowerCurve, most_j: float, near_w: float, far_w: float) -> float:
    """Where the price is `most_j` on a straight piece: p top = most (rate + slope (p - near))."""
    near = curve.rate(near_w)
    slope = (curve.rate(far_w) - near) / (far_w - near_w)
    top = curve.rates[-1]
    return most_j * (near - slope * near_w) / (top - most_j * slope)


# Why a price and not a cap. Joules divided by work is what a second's work may cost; watts over
# rate is what it costs at a cap. On a concave curve that price falls towards one thriftiest cap and
# rises on both sides of it, so a budget of joules is a range of caps: the part of the curve that
# the job can afford (`thrifty`).
class EnergyPrices:
    """Of jobs with an energy budget; `models` are the GPU models by node, empty for none."""

    def __init__(self, models: Sequence[str], curve_of: CurveOf) -> None:
        """No job has an energy budget."""
        self._models, self._curve_of = models, curve_of
        self._most_j: dict[str, float] = {}

    def set(self, job_id: str, most_j: float | None) -> None:
        """The most that a second's work of a job may cost, None if that is not known."""
        self.forget(job_id)
        if most_j is not None:
            self._most_j[job_id] = most_j

    def forget(self, job_id: str) -> None:
        """A job has no energy budget, or is over."""
        self._most_j.pop(job_id, None)

    def within(self, job_id: str, curve: PowerCurve) -> PowerCurve:
        """The part of a job's curve that it can afford."""
        most_j = self._most_j.get(job_id) if self._most_j else None
        return curve if most_j is None else thrifty(curve, most_j)

    def least_j(self, spec: JobSpec) -> float | None:
        """Joules for a second's work at the thriftiest cap of any GPU that the job can use."""
        models = {*self._models} - {""}
        able = models & {*spec.gpu_models} if spec.gpu_models else models
        return min((self._least_j(spec, model) for model in sorted(able)), default=None)

    def _least_j(self, spec: JobSpec, model: str) -> float:
        curve = self._curve_of(spec, model)
        return price_j(curve, thriftiest_w(curve))

    def too_dear(self, spec: JobSpec) -> list[int]:
        """Nodes on whose GPUs the joules of a job would not do."""
        most_j = self._most_j.get(spec.id)
        if most_j is None:
            return []
        least_j = {model: self._least_j(spec, model) for model in {*self._models} - {""}}
        return [at for at, one in enumerate(self._models) if one and least_j[one] > most_j]

    def refuse(
        self, job: JobRecord, allocations: Iterable[Allocation], now_s: float
    ) -> Reason | None:
        """Why the joules of a job would not do on these GPUs, though they might on others."""
        most_j = self._most_j.get(job.id)
        models = sorted({self._models[one.node] for one in allocations if one.gpus})
        if most_j is None or not models:
            return None
        # Across models the dearest counts: whatever part of the work it does, the rest costs no
        # more.
        least_j = max(self._least_j(job.spec, model) for model in models)
        if least_j <= most_j:
            return None
        return Reason(
            code=ReasonCode.ENERGY_BUDGET,
            since_s=now_s,
            asked=least_j,
            available=most_j,
            unit="J per second of work",
            unblocks=f"a thriftier GPU than {', '.join(models)}",
        )


# Why only the ask is lowered. A job that computes little now may compute much in a second. Its
# floor stays what its curve says, its cap in force counts in full: a demand that was measured wrong
# costs speed until the next measurement and never a budget.
class MeasuredDemands:
    """Of running jobs, in watts per device."""

    def __init__(self) -> None:
        """Everybody has a use for all that it can draw."""
        self._most_w: dict[str, float] = {}

    def set(self, job_id: str, most_w: float | None) -> None:
        """A job has a use for so much, None: for all that it can draw."""
        self._most_w.pop(job_id, None)
        if most_w is not None:
            # Whole watts, as caps are: a demand that trembles by a tenth of a watt would re-share
            # the site each time.
            self._most_w[job_id] = float(math.ceil(most_w))

    def forget(self, job_id: str) -> None:
        """Its run is over: the next one may be different."""
        self._most_w.pop(job_id, None)

    def of(self, job_id: str) -> float | None:
        """What a job has a use for, None where that is all."""
        return self._most_w.get(job_id)

    def within(self, job_id: str, curve: PowerCurve) -> PowerCurve:
        """The part of a job's curve that it has a use for."""
        most_w = self._most_w.get(job_id)
        return curve if most_w is None or most_w >= curve.max_w else _up_to(curve, most_w)


@lru_cache(maxsize=4096)
def _up_to(curve: PowerCurve, most_w: float) -> PowerCurve:
    # A device cannot be capped below its floor, however little it has a use for.
    top_w = max(most_w, curve.floor_w)
    watts = (*(one for one in curve.watts if one < top_w), top_w)
    return PowerCurve(watts, tuple(curve.rate(one) for one in watts))
