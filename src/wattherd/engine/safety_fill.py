"""Share watts out by level: everybody gets the same, except who wants less or must have more."""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_terms import Fleet, Floats

SPENT_W = 1e-6
"""A budget with less left than that has nothing left."""


def level(budget_w: float, low_w: Floats, high_w: Floats) -> float:
    """The highest L with sum(clip(L, low, high)) <= budget; 0 where the lows alone exceed it.

    The sum grows piecewise linearly in L, with kinks at the lows and highs: sort them, add slopes.
    """
    if low_w.sum() > budget_w:
        return 0.0
    if high_w.sum() <= budget_w:
        return float("inf")
    kinks = np.concatenate((low_w, high_w))
    order = np.argsort(kinks, kind="stable")
    kinks = kinks[order]
    steps = np.concatenate((np.ones(len(low_w)), -np.ones(len(high_w))))[order]
    slopes = np.cumsum(steps)
    sums = low_w.sum() + np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(kinks))))
    at = int(np.searchsorted(sums, budget_w, side="right")) - 1
    rise_w = (budget_w - sums[at]) / slopes[at] if slopes[at] > 0 else 0.0
    return float(kinks[at] + rise_w)


def fill(fleet: Fleet, budget_w: Floats, low_w: Floats, high_w: Floats) -> Floats:
    """Caps (N,) in [low, high] within the budgets (F + 1,) of all levels, as far as lows allow.

    From the lowest levels up, each lets its devices have what the ones below granted, up to a level
    of its own. What fits into nested budgets is a polymatroid, on which that is max-min fair and
    leaves no watt that somebody could still have (Megiddo, 1974).
    """
    if float(budget_w[-1]) <= low_w.sum() + SPENT_W:
        return low_w.copy()
    given_w = np.maximum(high_w, low_w)
    for number, rows in enumerate(fleet.rows):
        height_w = level(float(budget_w[number]), low_w[rows], given_w[rows])
        given_w[rows] = np.maximum(np.minimum(given_w[rows], height_w), low_w[rows])
    return given_w
