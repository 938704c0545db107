"""Dominant resource fairness (Ghodsi et al., NSDI'11): the fair share over several resources.

A user's dominant share is the largest part that he holds of any resource, each divided by his
weight for it. Whoever has the least dominant share is served next. Where every task of a user is
alike this is strategy-proof, envy-free and Pareto-efficient.
"""

from __future__ import annotations

from collections.abc import Sequence

Vector = Sequence[float]
"""One number per resource, always in the same order."""


def dominant_share(held: Vector, capacity: Vector, weights: Vector | None = None) -> float:
    """Max over r of held_r / (w_r C_r); a resource that nobody has does not count (section 4)."""
    weighing = weights or [1.0] * len(capacity)
    return max(
        (
            have / (weight * whole)
            for have, whole, weight in zip(held, capacity, weighing, strict=True)
            if whole > 0
        ),
        default=0.0,
    )
