"""When a model of watts should be fitted anew: new data, age, or intervals that no longer hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wattherd.errors import UserError


class RefitReason(StrEnum):
    """Why."""

    DRIFT = "drift"
    SAMPLES = "samples"
    AGE = "age"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitTerms:
    """`every_s` is the greatest age, `growth` the share of new rows; `doubt` of a false alarm.

    Raises:
        UserError: a number that makes no sense.
    """

    every_s: float = 7 * 86400.0
    growth: float = 0.2
    doubt: float = 0.01

    def __post_init__(self) -> None:
        """Refuse what would refit always or never."""
        if self.every_s <= 0 or self.growth <= 0 or not 0 < self.doubt < 1:
            raise UserError("above zero, and a doubt below one", field="--every, --growth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is known of a fitted model: its rows, half-width of its intervals (logs), coverage."""

    rows: int
    half_width: float
    coverage: float


def should_refit(
    model: Fitted, errors: Sequence[float], age_s: float, terms: RefitTerms
) -> RefitReason | None:
    """The first reason that holds; `errors` are logs of predicted / measured on rows unseen.

    Drift is told by an exact binomial test: so many misses of the intervals or more would happen
    with a probability below `doubt` if each missed with 1 - coverage.
    """
    misses = sum(abs(error) > model.half_width for error in errors)
    if misses and _at_least(misses, len(errors), 1.0 - model.coverage) < terms.doubt:
        return RefitReason.DRIFT
    if len(errors) >= terms.growth * model.rows:
        return RefitReason.SAMPLES
    return RefitReason.AGE if age_s >= terms.every_s else None


def _at_least(count: int, of: int, chance: float) -> float:
    """Probability of `count` or more successes of `of`."""
    return math.fsum(
        math.exp(_log_ways(of, k) + k * math.log(chance) + (of - k) * math.log1p(-chance))
        for k in range(count, of + 1)
    )


def _log_ways(of: int, k: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
