"""Which ranks of a synchronous run hold the others up, by what each needs without waiting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

SLOW = 1.5
"""Times the median of the others: beyond what unequal parts of a batch or a noisy node make."""
LEAST_S = 1e-3
"""Of a step: shorter ones are not told apart by clocks and systems."""


def slow_ranks(own_s: Mapping[int, float], factor: float = SLOW) -> dict[int, float]:
    """Ranks that need at least `factor` times the median of the others, and how many times.

    `own_s` are mean seconds a step by rank, without waiting. A rank that is slow does not count
    for the median it is held against; fewer than half of the ranks can be slow.
    """
    found = {}
    for rank, seconds in own_s.items():
        others = [other_s for other, other_s in own_s.items() if other != rank]
        usual_s = max(statistics.median(others), LEAST_S) if others else seconds
        if seconds >= LEAST_S and seconds >= factor * usual_s and others:
            found[rank] = seconds / usual_s
    return found
