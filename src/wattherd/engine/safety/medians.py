"""Medians of the last few looks, entry by entry.

Of three or five rows, comparisons alone find the middle one. They give the very numbers that a sort
gives, at a tenth of its time: the loop needs a dozen of them in every cycle.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Floats


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
