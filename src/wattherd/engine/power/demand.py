"""What planned jobs ask of the power policy, kept up to date as single jobs come and go.

Two ways to keep it, for two kinds of policies, with the same words (`put`, `drop`, `give`):

* `DemandClasses`: jobs that ask for the same stand together. A cluster runs thousands of jobs but
  only a few kinds of them, and below one budget two jobs of a kind differ in nothing. A policy that
  serves classes at once (`SharesByClass`) then costs by kinds, not by jobs.
* `DemandRows`: a row a job, in the order of submission, as columns of arrays. Below several budgets
  each job has a place of its own in the tree, so that hardly two are alike.

Both remember the caps given last, so that only jobs whose cap changes are touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.domain_headroom import Branches, branch_table
from wattherd.estimate.power_curve import PowerCurve
from wattherd.policy.power.choices import Floats, Ints
from wattherd.policy.power.contract import Asks, CapLevel, CurveNumbers, PowerAsk, ask_rows

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
            for job, cap_w, before_w in zip(one.jobs, caps, one.caps, strict=True):
                if cap_w != before_w and job.wanted_cap_w != cap_w:
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


def _whole_cap_w(watts: float, curve: PowerCurve) -> float:
    return whole_watts(curve.cap_w(watts), curve.cap_w(curve.floor_w))


# Rounded down: whole watts that were rounded up would be more than was shared out. The millionth
# forgives a float that means 200 and says 199.9999999.
def whole_watts(cap_w: float, floor_w: float) -> float:
    """A cap as drivers take it: in whole watts, but never below what the device can do."""
    return max(float(int(cap_w + 1e-6)), floor_w)


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
