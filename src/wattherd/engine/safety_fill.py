"""Share watts out by level: everybody gets the same, except who wants less or must have more."""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_terms import Fleet, Floats


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
    """Caps (N,) in [low, high] within the budgets (F + 1,) of feeds and site, as far as lows allow.

    A device gets the lower of its feed's level and the site's, which keeps both budgets.
    """
    site = level(float(budget_w[-1]), low_w, high_w)
    levels = np.empty(fleet.feeds)
    order = np.argsort(fleet.feed, kind="stable")
    ends = np.searchsorted(fleet.feed[order], np.arange(fleet.feeds + 1))
    for feed in range(fleet.feeds):
        own = order[ends[feed] : ends[feed + 1]]
        levels[feed] = level(float(budget_w[feed]), low_w[own], high_w[own])
    return np.asarray(np.clip(np.minimum(levels, site)[fleet.feed], low_w, high_w))
