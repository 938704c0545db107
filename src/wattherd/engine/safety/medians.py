"""Medians of the last few looks, and extremes of the last seconds, entry by entry.

Of three or five rows, comparisons alone find the middle one. They give the very numbers that a sort
gives, at a tenth of its time: the loop needs a dozen of them in every cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats


def median(looks: Floats) -> Floats:
    """The middle one of the looks (T, n) for each entry; NaN where one of them is."""
    if len(looks) == 3:
        first, second, third = looks
        return _of_three(first, second, third)
    if len(looks) == 5:
        # The lowest and the highest of the first four are no middle of five: three are left.
        one, two, three, four, five = looks
        low = np.maximum(np.minimum(one, two), np.minimum(three, four))
        high = np.minimum(np.maximum(one, two), np.maximum(three, four))
        return _of_three(low, high, five)
    return np.asarray(np.median(looks, axis=0))


def median_of_known(looks: Floats) -> Floats:
    """The middle one of three looks (3, n), of those that are known; NaN where none is."""
    found = median(looks)
    rows = np.flatnonzero(np.isnan(found))
    if len(rows):
        # `np.nanmedian` warns of what was never read; to mute that would mute all threads.
        last = np.sort(looks[:, rows], axis=0)
        known = (~np.isnan(last)).sum(axis=0)
        low, high = np.maximum((known - 1) // 2, 0), np.maximum(known // 2, 0)
        every = np.arange(len(rows))
        found[rows] = (last[low, every] + last[high, every]) / 2.0
    return found


def second_highest(looks: Floats) -> Floats:
    """What at least two of the looks (T, n) have reached; none of them is NaN."""
    highest, second = np.maximum(looks[0], looks[1]), np.minimum(looks[0], looks[1])
    for row in looks[2:]:
        second = np.maximum(second, np.minimum(highest, row))
        highest = np.maximum(highest, row)
    return np.asarray(second)


def _of_three(first: Floats, second: Floats, third: Floats) -> Floats:
    low, high = np.minimum(first, second), np.maximum(first, second)
    return np.maximum(low, np.minimum(high, third))


def nine_tenths(values: Floats) -> float:
    """What nine tenths of the values do not exceed, as `np.quantile` has it; 0 of none."""
    if not len(values):
        return 0.0
    place = 0.9 * (len(values) - 1)
    before = int(place)
    after = min(before + 1, len(values) - 1)
    sorted_ = np.partition(values, (before, after))
    low, high, part = float(sorted_[before]), float(sorted_[after]), place - before
    # From the nearer of the two, so that the end is met exactly.
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part


@dataclass(slots=True)
# Two windows take turns, and the older one is dropped when the newer one is full: that needs no
# list of looks. The price is a memory that lasts for one to two windows and not for exactly one.
class Extremes:
    """Lowest, highest and second highest values of the last one to two windows, by entry."""

    window_s: float
    low: Floats
    high: Floats
    _turned_s: float = -np.inf

    def __init__(self, size: int, window_s: float) -> None:
        self.window_s = window_s
        self.low = np.full((2, size), np.inf)
        # The two highest of either window: the second highest of both must be among these four.
        self.high = np.full((4, size), -np.inf)
        self._turned_s = -np.inf

    def note(self, value: Floats, now_s: float) -> None:
        """Take a value; NaN is none."""
        if now_s - self._turned_s >= self.window_s:
            self._turned_s = now_s
            self.low[1] = self.low[0]
            self.low[0] = np.inf
            self.high[2:] = self.high[:2]
            self.high[:2] = -np.inf
        self.low[0] = np.fmin(self.low[0], value)
        known = np.where(np.isnan(value), -np.inf, value)
        self.high[1] = np.maximum(self.high[1], np.minimum(self.high[0], known))
        self.high[0] = np.maximum(self.high[0], known)

    @property
    def lowest(self) -> Floats:
        """Infinity where there is no value."""
        return np.asarray(self.low.min(axis=0))

    @property
    def highest(self) -> Floats:
        """Minus infinity where there is no value."""
        return np.asarray(np.maximum(self.high[0], self.high[2]))

    @property
    def second(self) -> Floats:
        """What was reached at least twice."""
        return second_highest(self.high)

    def forget(self, which: Bools) -> None:
        """Of these entries no value was taken."""
        self.low[:, which] = np.inf
        self.high[:, which] = -np.inf

    def shift(self, by: Floats) -> None:
        """All values were less by that."""
        self.low -= by
        self.high -= by
