"""Planned jobs by what they ask of the power policy: jobs that ask for the same stand together.

A cluster runs thousands of jobs but only a few kinds of them; a change of the plan then moves the
caps of a few jobs, found without asking for each of the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.engine.ledger import JobRecord
from wattherd.estimate.power_curve import PowerCurve
from wattherd.policy.power.contract import Ask, Level

_Key = tuple[int, int, PowerCurve]


@dataclass(slots=True)
class _Class:
    """Jobs with one ask, in order of submission, and the caps (W) given last (0: none)."""

    ask: Ask
    numbers: list[int] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    caps: list[float] = field(default_factory=list)


class Asking:
    """Classes of equal asks."""

    def __init__(self) -> None:
        """Nobody asks."""
        self._classes: dict[_Key, _Class] = {}
        self._of: dict[str, _Key] = {}
        self.top_mw = 0
        """What all devices would draw uncapped."""

    def put(self, job: JobRecord, ask: Ask) -> None:
        """A job asks for watts from now on."""
        key = (ask.devices, ask.priority, ask.curve)
        self._of[job.id] = key
        one = self._classes.get(key)
        if one is None:
            one = self._classes[key] = _Class(ask)
        at = bisect_left(one.numbers, job.number)
        one.numbers.insert(at, job.number)
        one.jobs.insert(at, job)
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

    def classes(self) -> list[tuple[Ask, int]]:
        """Each ask, and how many jobs ask it."""
        return [(one.ask, len(one.jobs)) for one in self._classes.values()]

    def uncapped(self) -> list[Level]:
        """Levels at which every device may draw all it can."""
        return [
            Level(full=count, high_w=top_w, partial_w=top_w, low_w=top_w)
            for ask, count in self.classes()
            for top_w in (ask.curve.max_w,)
        ]

    def forget_caps(self) -> None:
        """Caps were given in another way since."""
        for one in self._classes.values():
            one.caps = [0.0] * len(one.jobs)

    def give(self, levels: Sequence[Level]) -> list[JobRecord]:
        """Set the planned caps by `levels`, in whole watts; returns jobs whose cap changed."""
        changed: list[JobRecord] = []
        for one, level in zip(self._classes.values(), levels, strict=True):
            caps = _caps(level, len(one.jobs), one.ask.curve.floor_w)
            if caps == one.caps:
                continue
            for job, cap_w, before_w in zip(one.jobs, caps, one.caps, strict=True):
                if cap_w != before_w and job.wanted_cap_w != cap_w:
                    job.wanted_cap_w = cap_w
                    changed.append(job)
            one.caps = caps
        return changed


def _caps(level: Level, count: int, floor_w: float) -> list[float]:
    high_w = whole_watts(level.high_w, floor_w)
    if level.full >= count:
        return [high_w] * count
    partial_w, low_w = whole_watts(level.partial_w, floor_w), whole_watts(level.low_w, floor_w)
    return [high_w] * level.full + [partial_w] + [low_w] * (count - level.full - 1)


def whole_watts(cap_w: float, floor_w: float) -> float:
    """A cap as drivers take it: in whole watts, but never below what the device can do."""
    return max(float(int(cap_w + 1e-6)), floor_w)


def _top_mw(ask: Ask) -> int:
    return ask.devices * round(ask.curve.max_w * 1000)
