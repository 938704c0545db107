"""Share watts out by level: everybody gets the same, except who wants less or must have more."""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints

SPENT_W = 1e-6
"""A budget with less left than that has nothing left."""
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
    tight = np.append(np.bincount(group, high_w, count + 1)[:count] > budget_w, np.False_)
    rows = np.flatnonzero(tight[group])
    if not len(rows):
        return found
    numbers = np.flatnonzero(tight)
    own = (np.cumsum(tight) - 1)[group[rows]]
    low, high, room = low_w[rows], high_w[rows], budget_w[numbers]
    size = len(numbers)
    least, most = np.zeros(size), np.full(size, float(high.max()))
    # The even share is the answer where no bound is in the way, and a beginning elsewhere.
    height = np.maximum(room / np.maximum(np.bincount(own, minlength=size), 1), 0.0)
    height = np.minimum(height, most)
    for _ in range(STEPS):
        here = height[own]
        gap = room - np.bincount(own, np.clip(here, low, high), size)
        least, most = np.where(gap >= 0, height, least), np.where(gap <= 0, height, most)
        if (np.abs(gap) <= 1e-13 * np.abs(room) + 1e-10).all():
            break
        # Of the side that the step goes to: at a corner the pieces on its left and right differ.
        slope = np.bincount(own, np.where(gap[own] > 0, (low <= here) & (here < high),
                                          (low < here) & (here <= high)), size)  # fmt: skip
        newton = height + gap / np.maximum(slope, 1.0)
        middle = 0.5 * (least + most)
        inside = (newton > least) & (newton < most) & (slope > 0)
        height = np.where(np.abs(gap) <= 1e-10, height, np.where(inside, newton, middle))
    # At 0 everybody has its low and nobody more. That these are too much is found by whoever
    # compares with the budget; sharing cannot mend it.
    hopeless = np.bincount(own, low, size) > room
    found[numbers] = np.where(hopeless, 0.0, height)
    return found
