"""Share watts out by level: everybody gets the same, except who wants less or must have more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints

SPENT_W = 1e-6
"""A budget with less left than that has nothing left."""
ARRIVED_W = 1e-10
"""So close to its budget a group has arrived, whatever its size."""
STEPS = 80
"""Bisection alone would need that many to reach the last bit."""


# Max-min fair means: no device could have more unless one that has as much or less gave it up. So
# the answer is one, whatever the order of devices.
def fill(fleet: Fleet, budget_w: Floats, low_w: Floats, high_w: Floats) -> Floats:
    """Watts (N,) in [low, high] within the budgets (F + 1,) of all levels, as far as lows allow.

    From the lowest levels up, each lets its devices have what the ones below granted, up to a level
    of its own. What fits into nested budgets is a polymatroid, on which that is max-min fair and
    leaves no watt that somebody could still have (Megiddo, 1974).
    """
    if float(budget_w[-1]) <= low_w.sum() + SPENT_W:
        return low_w.copy()
    given_w = np.maximum(high_w, low_w)
    if np.array_equal(given_w, low_w):  # nobody wants more
        return given_w
    for path in fleet.paths:
        height_w = heights(budget_w, path, low_w, given_w)
        if np.isfinite(height_w).any():
            given_w = np.maximum(np.minimum(given_w, height_w[path]), low_w)
    return given_w


def steps_that_fit(fleet: Fleet, room_w: Floats, cost_w: Floats, order: Ints) -> Bools:
    """Devices (N,) that may take one step more, of `cost_w` (N,), within the room (F + 1,) left.

    `order` names them by their turn. Those are taken whose turn comes before any level above them
    is full: a little less than would fit, at once for all levels.
    """
    fits = np.zeros(fleet.size, dtype=np.bool_)
    if not len(order):
        return fits
    fits[order] = True
    # A path's entry `count` stands for no level (`FeedLevels.ancestors`), and that is never full.
    padded_w = np.append(room_w, np.inf)
    for path in fleet.paths:
        group = path[order]
        by_group = np.argsort(group, kind="stable")
        own, cost = group[by_group], cost_w[order][by_group]
        spent_w = np.cumsum(cost)
        begins = np.flatnonzero(np.append(np.True_, own[1:] != own[:-1]))
        before_w = np.repeat(spent_w[begins] - cost[begins], np.diff(np.append(begins, len(own))))
        fits[order[by_group]] &= spent_w - before_w <= padded_w[own]
    return fits


def level(budget_w: float, low_w: Floats, high_w: Floats) -> float:
    """The highest h with sum(clip(h, low, high)) <= budget; 0 where the lows alone exceed it."""
    alone = np.zeros(len(low_w), dtype=np.int64)
    return float(heights(np.array([budget_w]), alone, low_w, high_w)[0])


def heights(budget_w: Floats, group: Ints, low_w: Floats, high_w: Floats) -> Floats:
    """For each group g (G + 1,) the highest h with sum(clip(h, low, high)) <= `budget_w[g]`.

    Infinite where all of `high_w` fits, 0 where the lows alone do not; group G is nobody's. The sum
    grows piecewise linearly in h: Newton's steps hit the right piece and then the very point,
    bisection keeps them from going round. All groups take their steps at once.
    """
    count = len(budget_w)
    found = np.full(count + 1, np.inf)
    tight = np.bincount(group, high_w, count + 1)[:count] > budget_w
    rows = np.flatnonzero(np.append(tight, np.False_)[group])
    if not len(rows):
        return found
    highest_w = float(high_w[rows].max())
    beyond_w = np.bincount(group, low_w, count + 1)[:count] - budget_w
    near_w = 1e-13 * np.abs(budget_w) + ARRIVED_W
    # Where the lows alone are too much no height helps. Those who look for theirs then go on to the
    # last bit.
    lost = tight & (beyond_w > near_w)
    sought = tight & ~lost
    if lost.any():
        rows, near_w = rows[sought[group[rows]]], np.full(count, ARRIVED_W)
    numbers, own = np.flatnonzero(sought), (np.cumsum(sought) - 1)[group[rows]]
    found[numbers] = _sought(
        budget_w[numbers], own, low_w[rows], high_w[rows], near_w=near_w[numbers], most_w=highest_w
    )
    # At 0 everybody has its low and nobody more. That these are too much is found by whoever
    # compares with the budget; sharing cannot mend it.
    found[:count][tight & (beyond_w > 0)] = 0.0
    return found


def _sought(
    room: Floats, own: Ints, low: Floats, high: Floats, *, near_w: Floats, most_w: float
) -> Floats:
    """The heights (G,) at which the sums of the groups' devices, `own` (n,), meet their `room`."""
    left, found = np.arange(len(room)), np.zeros(len(room))
    least, most = np.zeros(len(room)), np.full(len(room), most_w)
    # The even share is the answer where no bound is in the way, and a beginning elsewhere.
    height = np.maximum(room / np.maximum(np.bincount(own, minlength=len(room)), 1), 0.0)
    height = np.minimum(height, most)
    for _ in range(STEPS):
        found[left] = height
        here = _each(height, own)
        gap = room - np.bincount(own, np.minimum(np.maximum(here, low), high), len(left))
        if (np.abs(gap) <= near_w).all():
            return found
        least, most = np.where(gap >= 0, height, least), np.where(gap <= 0, height, most)
        # Of the side that the step goes to: at a corner the pieces on its left and right differ.
        up = gap > 0
        pieces = (low <= here) & (here < high)
        if not up.all():
            up = _each(up, own)
            pieces = (pieces & up) | ((low < here) & (here <= high) & ~up)
        # A sum in a single place waits for every addend; a count need not.
        alone = len(left) == 1
        slope = np.count_nonzero(pieces) if alone else np.bincount(own, pieces, len(left))
        newton = height + gap / np.maximum(slope, 1.0)
        middle = 0.5 * (least + most)
        inside = (newton > least) & (newton < most) & (slope > 0)
        arrived = np.abs(gap) <= ARRIVED_W
        height = np.where(arrived, height, np.where(inside, newton, middle))
        # Groups that have arrived are left behind, and their devices with them.
        if 2 * np.count_nonzero(arrived) > len(left):
            found[left] = height
            stay = ~arrived
            ours = np.flatnonzero(stay[own])
            own = (np.cumsum(stay) - 1)[own[ours]]
            low, high = low[ours], high[ours]
            left, room, near_w, height = left[stay], room[stay], near_w[stay], height[stay]
            least, most = least[stay], most[stay]
    found[left] = height
    return found


def _each(values: NDArray[Any], own: Ints) -> NDArray[Any]:
    """The value of every device's own group; one group's goes for all as it is."""
    return values if len(values) == 1 else values[own]
