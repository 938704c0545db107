"""How many steps a job still needs, from its loss curve.

Stochastic gradient descent converges as 1/k: loss after k steps is l(k) = 1 / (b0 k + b1) + b2
(Optimus, EuroSys'18; AITurbo, HPDC'21). For a given floor b2 the rest is linear,
1 / (l - b2) = b0 k + b1, and fitted with b0, b1 >= 0; the floor is searched. Steps to a target loss
follow by inversion, k = (1 / (target - b2) - b1) / b0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.speed import Floats

LEAST_POINTS = 5
FLOORS = 24
"""Candidates for b2, spread evenly from 0 to just below the lowest loss seen; then refined."""
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """A fitted curve; `error` is the root mean square of what it misses, relative to the loss."""

    b0: float
    b1: float
    b2: float
    error: float

    def loss(self, step: float) -> float:
        """Loss after `step` steps."""
        return 1.0 / (self.b0 * step + self.b1) + self.b2

    def steps_to(self, target: float) -> float:
        """Steps from the start until the loss is `target`; infinite if it never is."""
        if target <= self.b2 or self.b0 <= 0:
            return math.inf
        return max((1.0 / (target - self.b2) - self.b1) / self.b0, 0.0)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Losses with outliers pulled back to within their neighbours (Optimus, section 3.1)."""
    kept = list(losses)
    for at in range(1, len(kept) - 1):
        low, high = sorted((kept[at - 1], losses[at + 1]))
        kept[at] = min(max(kept[at], low), high)
    return kept


def fit_loss(points: Sequence[tuple[float, float]]) -> LossCurve:
    """The curve through (step, loss) points.

    Raises:
        UserError: fewer than five points, or a loss that is not positive.
    """
    if len(points) < LEAST_POINTS:
        raise UserError(
            f"{len(points)} points are too few for a curve", hint=f"at least {LEAST_POINTS}"
        )
    steps = np.array([step for step, _ in points], dtype=float)
    seen = np.array(smoothed([loss for _, loss in points]))
    if not (np.isfinite(seen).all() and (seen > 0).all() and np.isfinite(steps).all()):
        raise UserError("a loss is not a positive number", field="loss")
    low, high = 0.0, float(seen.min()) * (1 - 1e-6)
    best, _ = _best_of(steps, seen, np.zeros(1))
    for _ in range(_ROUNDS):
        floors = np.linspace(low, high, FLOORS)
        curve, at = _best_of(steps, seen, floors)
        best = curve if curve.error < best.error else best
        low, high = float(floors[max(at - 1, 0)]), float(floors[min(at + 1, FLOORS - 1)])
    return best


def _best_of(steps: Floats, seen: Floats, floors: Floats) -> tuple[LossCurve, int]:
    """The best curve over these floors, and which floor it has."""
    above = seen - floors[:, None]
    # The weight turns the error of 1 / (l - b2) into the relative one of l, to first order.
    weight = above**2 / seen
    b0, b1 = _two_non_negative(steps * weight, weight, above / seen)
    with np.errstate(divide="ignore", invalid="ignore"):
        fitted = 1.0 / (b0[:, None] * steps + b1[:, None]) + floors[:, None]
        error = np.sqrt(np.mean(((fitted - seen) / seen) ** 2, axis=1))
    error = np.where(np.isfinite(error), error, np.inf)
    at = int(np.argmin(error))
    curve = LossCurve(
        b0=float(b0[at]), b1=float(b1[at]), b2=float(floors[at]), error=float(error[at])
    )
    return curve, at


def _two_non_negative(first: Floats, second: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Non-negative least squares with two columns, exactly, for every row of problems at once.

    Where the free solution has a negative coefficient, that one is 0 (the other is then not).
    """
    aa, ab, bb = ((x * y).sum(axis=1) for x, y in ((first, first), (first, second), (second,) * 2))
    ay, by = (first * wanted).sum(axis=1), (second * wanted).sum(axis=1)
    determinant = aa * bb - ab**2
    with np.errstate(divide="ignore", invalid="ignore"):
        free0, free1 = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        only0, only1 = ay / aa, by / bb
    second_alone = ~(determinant > 0) | (free0 < 0)
    first_alone = ~second_alone & (free1 < 0)
    b0 = np.where(second_alone, 0.0, np.where(first_alone, only0, free0))
    b1 = np.where(first_alone, 0.0, np.where(second_alone, only1, free1))
    return b0, b1
