"""What planned jobs ask of the power policy, and what their devices count.

*Devices and machines* draw so much idle and at most: one count for everybody. The core's account
(`engine.power.account`) and that of Kubernetes (`kube.account.domains`) count the same machines by
these numbers (`node_idle_mw`, `device_rise_mw`), in milliwatts.

*The usable curve* is the part of its power curve that a job is to use. A job with an energy budget
may pay so many joules for a second's work (`EnergyPrices`), which on a concave curve is a range of
caps; on some GPUs it would cost more. A job that was measured to have no use for all its watts
leaves the rest to others (`MeasuredDemands`). That only makes it ask for less: what counts against
budgets stays the cap in force, and a lower cap counts once it has been read back, so that a demand
that proves wrong breaks no budget. It costs its job the time until its cap is raised again.

Work counts in seconds of one device at its highest draw. At a cap of p watts a second of it costs
p / (rate(p) / highest rate) joules: on a concave curve that falls to the thriftiest cap and rises
from there on, so that the caps within a price are an interval (`thrifty`).

*The demand* of all planned jobs is kept up to date as single jobs come and go, in two ways, for two
kinds of policies, with the same words (`put`, `drop`, `give`):

* `DemandClasses`: jobs that ask for the same stand together. A cluster runs thousands of jobs but
  only a few kinds of them, and below one budget two jobs of a kind differ in nothing. A policy that
  serves classes at once (`SharesByClass`) then costs by kinds, not by jobs.
* `DemandRows`: a row a job, in the order of submission, as columns of arrays. Below several budgets
  each job has a place of its own in the tree, so that hardly two are alike.

Both remember the caps given last, so that only jobs whose cap changes are touched.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress, pairwise
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GpuModel
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.domain_headroom import Branches, branch_table
from wattherd.estimate.power_curve import CurveOf, PowerCurve
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.power.choices import Floats, Ints
from wattherd.policy.power.contract import Asks, CapLevel, CurveNumbers, PowerAsk, ask_rows

# --- Watts of devices as the account counts them ----------------------------------------------


# Rounded once, where a number of watts enters. Python's round is to even at a half: it does not
# matter which, as long as budgets and caps take the same way.
def as_mw(watts: float) -> int:
    """Watts in whole milliwatts."""
    return round(watts * 1000)


def device_idle_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What one GPU of a node draws idle; 0 where there is none."""
    return as_mw(gpus[node.gpu_model].idle_w) if node.gpu_count else 0


def device_rise_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What one GPU of a node draws above that at most, uncapped; 0 where there is none."""
    if not node.gpu_count:
        return 0
    # Each rounded and then subtracted, as the account does: the difference may round otherwise.
    return as_mw(gpus[node.gpu_model].max_w) - device_idle_mw(node, gpus)


def node_idle_mw(node: NodeSpec, gpus: Mapping[str, GpuModel]) -> int:
    """What a node draws while nothing runs on it: the machine and all of its GPUs."""
    return device_idle_mw(node, gpus) * node.gpu_count + as_mw(node.idle_w)


# --- The part of its curve that a job is to use -----------------------------------------------


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


# --- What planned jobs ask for ----------------------------------------------------------------
ClassKey = tuple[int, int, PowerCurve]
"""Devices, priority and curve: what jobs of a class have in common."""
_SPARE_CURVES = 32
"""Curves that are remembered beyond two a job."""


@dataclass(slots=True)
class _Class:
    """Jobs with one ask, in order of submission, and the caps (W) given last (0: none)."""

    ask: PowerAsk
    numbers: list[int] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    caps: list[float] = field(default_factory=list)


# The order of classes decides ties: of two classes that gain alike the earlier one is served first,
# and it is the order in which their first jobs came. A job that is dropped and put again may move
# its class to the end, so that a plan that is taken back has to restore the order as well
# (`restore_order`): else a trial that came to nothing would decide whom the last watts go to.
class DemandClasses:
    """Classes of equal asks."""

    def __init__(self) -> None:
        """Nobody asks."""
        self._classes: dict[ClassKey, _Class] = {}
        self._of: dict[str, ClassKey] = {}
        # Kept as a sum: where budgets carry it no policy is asked at all, and that is one
        # comparison.
        self.top_mw = 0
        """What all devices would draw uncapped."""

    def __len__(self) -> int:
        """How many jobs ask."""
        return len(self._of)

    def put(self, job: JobRecord, ask: PowerAsk) -> None:
        """A job asks for watts from now on."""
        key = (ask.devices, ask.priority, ask.curve)
        self._of[job.id] = key
        one = self._classes.get(key)
        if one is None:
            one = self._classes[key] = _Class(ask)
        # Within a class by submission: the first `full` of a class get the higher cap, and who that
        # is must not depend on who was planned last.
        at = bisect_left(one.numbers, job.number)
        one.numbers.insert(at, job.number)
        one.jobs.insert(at, job)
        # No cap is zero, so that a newcomer's differs from whatever it is given.
        one.caps.insert(at, 0.0)
        self.top_mw += _top_mw(ask)

    def drop(self, job: JobRecord) -> None:
        """A job asks no more."""
        key = self._of.pop(job.id, None)
        if key is None:
            return
        one = self._classes[key]
        at = bisect_left(one.numbers, job.number)
        del one.numbers[at], one.jobs[at], one.caps[at]
        self.top_mw -= _top_mw(one.ask)
        if not one.jobs:
            del self._classes[key]

    def order(self) -> tuple[ClassKey, ...]:
        """The classes as they are served, for `restore_order`."""
        return tuple(self._classes)

    def restore_order(self, order: Sequence[ClassKey]) -> None:
        """Those of these classes that are there are served in this order, before all others."""
        # Classes that came since are not part of the order and stay, in theirs, behind it.
        there = dict.fromkeys((*(key for key in order if key in self._classes), *self._classes))
        if tuple(self._classes) != tuple(there):
            self._classes = {key: self._classes[key] for key in there}

    def classes(self) -> list[tuple[PowerAsk, int]]:
        """Each ask, and how many jobs ask it."""
        return [(one.ask, len(one.jobs)) for one in self._classes.values()]

    def uncapped(self) -> list[CapLevel]:
        """Levels at which every device may draw all it can."""
        return [
            CapLevel(full=count, high_w=top_w, partial_w=top_w, low_w=top_w)
            for ask, count in self.classes()
            for top_w in (ask.curve.max_w,)
        ]

    def forget_caps(self) -> None:
        """Caps were given in another way since."""
        for one in self._classes.values():
            one.caps = [0.0] * len(one.jobs)

    # Only changes are touched. A class whose caps are as before is one comparison of lists,
    # whatever its size; that is what makes sharing cost by kinds.
    def give(self, levels: Sequence[CapLevel]) -> list[JobRecord]:
        """Set the planned caps by `levels`, in whole watts; returns jobs whose cap changed."""
        changed: list[JobRecord] = []
        for one, level in zip(self._classes.values(), levels, strict=True):
            caps = _caps(level, len(one.jobs), one.ask.curve)
            if caps == one.caps:
                continue
            # Of thousands mostly a few get another cap than before: nothing is done for the rest.
            changes = map(ne, caps, one.caps)
            for job, cap_w in compress(zip(one.jobs, caps, strict=True), changes):
                if job.wanted_cap_w != cap_w:
                    job.wanted_cap_w = cap_w
                    changed.append(job)
            one.caps = caps
        return changed


# At most one job of a class gets an amount between the two levels: the rest of a piece that is too
# small for all of them.
def _caps(level: CapLevel, count: int, curve: PowerCurve) -> list[float]:
    high_w = _whole_cap_w(level.high_w, curve)
    if level.full >= count:
        return [high_w] * count
    partial_w, low_w = _whole_cap_w(level.partial_w, curve), _whole_cap_w(level.low_w, curve)
    return [high_w] * level.full + [partial_w] + [low_w] * (count - level.full - 1)


# Rounded down: whole watts that were rounded up would be more than was shared out. The millionth
# forgives a float that means 200 and says 199.9999999.
def _whole_cap_w(watts: float, curve: PowerCurve) -> float:
    """The cap as drivers take it: in whole watts, but never below what the device can do."""
    return max(float(int(curve.cap_w(watts) + 1e-6)), curve.cap_w(curve.floor_w))


def _top_mw(ask: PowerAsk) -> int:
    return ask.devices * round(ask.curve.max_w * 1000)


# Columns beside the objects: policies compute on arrays; to gather those from all asks anew would
# cost by jobs at every plan. A row is put and taken where its job stands in order of submission,
# the same order in which ties fall for classes.
class DemandRows:
    """Jobs that share no device, their asks, and what stands above their devices."""

    def __init__(self) -> None:
        """Nobody asks."""
        self._numbers: list[int] = []
        self._jobs: list[JobRecord] = []
        self._asks: list[PowerAsk] = []
        self._columns = ask_rows(())
        self._given_w: Floats = np.zeros(0)
        self._curves: dict[PowerCurve, int] = {}
        """Each curve that a job had lately, and its number."""
        self._curve: Ints = np.zeros(0, dtype=np.int64)
        """(J,) which of them is each job's."""
        self.branches: Ints = branch_table(())
        """(J, L, 3) as in `domain_headroom.Branches`."""

    def __len__(self) -> int:
        """How many jobs ask."""
        return len(self._jobs)

    # The lists are handed out as they are, for the time of one sharing: nothing is put or dropped
    # meanwhile.
    @property
    def asks(self) -> Asks:
        """The asks of all jobs."""
        return Asks(self._asks, self._columns, CurveNumbers(tuple(self._curves), self._curve))

    def put(self, job: JobRecord, ask: PowerAsk, branches: Branches) -> None:
        """A job asks for watts from now on."""
        at = bisect_left(self._numbers, job.number)
        self._numbers.insert(at, job.number)
        self._jobs.insert(at, job)
        self._asks.insert(at, ask)
        self._columns = _with_row(self._columns, at, ask_rows((ask,)))
        # NaN differs from everything, itself included: a newcomer is told its cap in any case.
        self._given_w = _with_row(self._given_w, at, np.array([np.nan]))
        number = self._curves.setdefault(ask.curve, len(self._curves))
        self._curve = _with_row(self._curve, at, np.array([number]))
        if len(self._curves) > _SPARE_CURVES + 2 * len(self._jobs):
            self._number_curves_anew()
        depth = max(self.branches.shape[1], len(branches))
        row = branch_table((branches,), depth)
        if depth > self.branches.shape[1]:
            more = branch_table([()] * len(self.branches), depth - self.branches.shape[1])
            self.branches = np.concatenate((self.branches, more), axis=1)
        self.branches = _with_row(self.branches, at, row)

    def _number_curves_anew(self) -> None:
        # Curves that are learned change with every measurement; those that nobody has any more
        # would be worked out at every sharing, for nothing.
        self._curves = {}
        numbers = [self._curves.setdefault(ask.curve, len(self._curves)) for ask in self._asks]
        self._curve = np.array(numbers, dtype=np.int64)

    def drop(self, job: JobRecord) -> None:
        """A job asks no more."""
        at = bisect_left(self._numbers, job.number)
        if at == len(self._numbers) or self._numbers[at] != job.number:
            return
        del self._numbers[at], self._jobs[at], self._asks[at]
        self._columns = _without_row(self._columns, at)
        self._given_w = _without_row(self._given_w, at)
        self._curve = _without_row(self._curve, at)
        self.branches = _without_row(self.branches, at)

    def forget_caps(self) -> None:
        """Caps were given in another way since."""
        self._given_w = np.full(len(self._jobs), np.nan)

    def give(self, caps_w: Sequence[float]) -> list[JobRecord]:
        """Set the planned caps; returns jobs whose cap changed."""
        given_w = np.array(caps_w, dtype=np.float64)
        changed = []
        for at in np.flatnonzero(given_w != self._given_w).tolist():
            job, cap_w = self._jobs[at], caps_w[at]
            if job.wanted_cap_w != cap_w:
                job.wanted_cap_w = cap_w
                changed.append(job)
        self._given_w = given_w
        return changed


def _with_row(table: NDArray[Any], at: int, row: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate((table[:at], row, table[at:]))


def _without_row(table: NDArray[Any], at: int) -> NDArray[Any]:
    return np.concatenate((table[:at], table[at + 1 :]))
