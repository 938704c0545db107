"""How many watts jobs were measured to have a use for: the rest of their share is for others.

A demand only makes a job ask for less. What counts against budgets stays the cap in force, and a
lower cap counts once it has been read back, so that a demand that proves wrong breaks no budget: it
costs its job the time until its cap is raised again.
"""

from __future__ import annotations

import math
from functools import lru_cache

from wattherd.estimate.power_curve import PowerCurve


# Why only the ask is lowered. A job that computes little now may compute much in a second. Its
# floor stays what its curve says, its cap in force counts in full: a demand that was measured wrong
# costs speed until the next measurement and never a budget.
class Demands:
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
    top_w = max(most_w, curve.floor_w)
    watts = (*(one for one in curve.watts if one < top_w), top_w)
    return PowerCurve(watts, tuple(curve.rate(one) for one in watts))
