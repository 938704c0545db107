"""Caps for jobs whose curves are still being learned, within a hard budget from the first second.

Three kinds of rounds take turns. *Use* takes the caps that the beliefs make best. *Look* shares the
same watts so that the samples teach most about the caps that are in question: the allocator is the
same, the worth of a cap is what a sample there takes from the doubt (after Russo and Van Roy,
Learning to Optimize via Information-Directed Sampling, 2018, without their regret). The last rounds
only *settle*. In all of them the upper confidence bound of the fleet's draw stays within the
budget. Where a meter reads the sum of all jobs, what it read of earlier rounds corrects the total
predicted for the next one and narrows its bound (`MeterFeedback`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.fleet_curves import CurveBeliefs, FleetCurves, Floats
from wattherd.estimate.learned_curve import CurveSample
from wattherd.estimate.measured_curve import CurveChoice, MeasuredPoint
from wattherd.policy.power.allocation import allocate, one_budget

# --- The draw of a whole fleet, from what is believed of each job and what a meter read of their
# sum.
#
# Errors of beliefs are Gaussian, and a sum of watts is linear in them, to first order in logs: the
# meter's readings of earlier rounds condition the next sum exactly (Rasmussen and Williams,
# Gaussian Processes for Machine Learning, 2006, 2.2, with allocations as inputs). That takes back
# what an optimiser underestimates by picking caps that look cheap, and narrows the bound that
# protects the budget.

Picked = Sequence[int | None]
"""Number of the cap of each job; None: paused."""


@dataclass(frozen=True, slots=True)
class FeedbackReading:
    """Watts that a meter read of all jobs together while they ran at these caps."""

    picked: tuple[int | None, ...]
    metered_w: float


@dataclass(frozen=True, slots=True)
class MeterFeedback:
    """Beliefs with the errors (R,) found by R readings, solved against their covariance."""

    beliefs: CurveBeliefs
    readings: tuple[FeedbackReading, ...]
    paused_w: float
    inverse: Floats
    found_w: Floats

    @classmethod
    def of(
        cls,
        beliefs: CurveBeliefs,
        readings: Sequence[FeedbackReading],
        meter_sd: float,
        paused_w: float,
    ) -> MeterFeedback:
        """`meter_sd` is the relative error of a reading."""
        plain = cls(beliefs, tuple(readings), paused_w, np.zeros((0, 0)), np.zeros(0))
        if not readings:
            return plain
        off = np.array([one.metered_w - plain.expected(one.picked) for one in readings])
        noise = np.diag([(meter_sd * one.metered_w) ** 2 for one in readings])
        among = np.array([plain.with_readings(one.picked) for one in readings])
        inverse = np.linalg.inv(among + noise + 1e-9 * np.trace(among) * np.eye(len(off)))
        return cls(beliefs, tuple(readings), paused_w, inverse, off)

    def expected(self, picked: Picked) -> float:
        """Watts that the beliefs alone expect."""
        return math.fsum(
            self.paused_w if cap is None else float(self.beliefs.watts[job, cap])
            for job, cap in enumerate(picked)
        )

    def with_readings(self, picked: Picked) -> Floats:
        """Covariance (R,) in square watts of this sum with those that were read."""
        return np.array([self._covariance(picked, one.picked) for one in self.readings])

    def _covariance(self, one: Picked, other: Picked) -> float:
        both = [
            (job, a, b)
            for job, (a, b) in enumerate(zip(one, other, strict=True))
            if a is not None and b is not None
        ]
        jobs, first, second = np.array(both, dtype=np.int64).reshape(-1, 3).T
        watts = self.beliefs.watts
        shared = self.beliefs.log_watts_cov[jobs, first, second]
        return float((watts[jobs, first] * watts[jobs, second] * shared).sum())

    def draw(self, picked: Picked) -> tuple[float, float]:
        """Watts expected by beliefs and meter, and their standard deviation."""
        beliefs, expected = self.beliefs, self.expected(picked)
        variance = self._covariance(picked, picked)
        at = [(job, cap) for job, cap in enumerate(picked) if cap is not None]
        jobs, caps = np.array(at, dtype=np.int64).reshape(-1, 2).T
        shared = float(beliefs.shared_sd[jobs, caps].sum())
        if self.readings:
            gain = self.with_readings(picked) @ self.inverse
            expected += float(gain @ self.found_w)
            variance -= float(gain @ self.with_readings(picked))
        return expected, math.sqrt(max(variance, 0.0) + shared**2)


Caps = tuple[float | None, ...]
"""A cap per job; None: paused."""
NO_CURVE = 1.05
"""Before anything was drawn: how much above its cap a device may be."""
YOUNG = 6
"""Rounds in which the fleet's own curve is still being found."""
_TRIES = 20
_NEIGHBOUR, _TOP, _OTHER = 1.0, 0.5, 0.2
"""How much doubt matters at the cap in use and beside it, at the highest cap, and elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationTerms:
    """Confidence in standard deviations, while looking and at the end; rounds to settle.

    Raises:
        UserError: a number that makes no sense.
    """

    rounds: int = 20
    settle: int = 2
    looking_sd: float = 3.0
    using_sd: float = 2.5
    final_sd: float = 2.5

    def __post_init__(self) -> None:
        """Refuse what would not protect the budget."""
        if self.rounds < 1 or self.settle < 0:
            raise UserError("at least one round", field="rounds")
        if min(self.looking_sd, self.using_sd, self.final_sd) < 0:
            raise UserError("standard deviations are not below 0", field="final_sd")


@dataclass(frozen=True, slots=True)
class PlannedCaps:
    """Caps, the draw expected of them and its standard deviation."""

    caps_w: Caps
    watts: float
    watts_sd: float
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningAllocator:
    """What was learned of a fleet so far; `planned` proposes, `told` gives the next value."""

    curves: FleetCurves
    weights: tuple[float, ...]
    budget_w: float
    paused_w: float | None = None
    exploration: ExplorationTerms = ExplorationTerms()
    meter_sd: float | None = None
    readings: tuple[FeedbackReading, ...] = ()
    round: int = 0

    def planned(self) -> PlannedCaps:
        """Caps for the next round, or the final ones after the last."""
        if self.round == 0:
            return self._unknown()
        beliefs = self.curves.beliefs()
        best = self._safe(beliefs, self._worth(beliefs), in_use=True)
        if self._using():
            return best
        return self._safe(beliefs, _lesson(beliefs, best, self.curves), in_use=False)

    def _using(self) -> bool:
        left = self.exploration.rounds - self.round
        return left <= self.exploration.settle or self.round % 2 == 0

    def told(
        self,
        plan: PlannedCaps,
        samples: Sequence[CurveSample | None],
        metered_w: float | None = None,
    ) -> LearningAllocator:
        """After the jobs ran at the plan's caps, handed in samples, and a meter read their sum."""
        readings = self.readings
        # Early errors are those of the whole fleet's curve, and tell nothing of later ones.
        if metered_w is not None and plan.in_use and self.round > YOUNG:
            readings = (*readings, FeedbackReading(self._numbers(plan.caps_w), metered_w))
        curves = self.curves.told(samples)
        return replace(self, curves=curves, round=self.round + 1, readings=readings)

    def _numbers(self, caps_w: Caps) -> tuple[int | None, ...]:
        grid = self.curves.caps_w
        return tuple(None if cap is None else int(np.searchsorted(grid, cap)) for cap in caps_w)

    def _worth(self, beliefs: CurveBeliefs) -> Floats:
        return np.asarray(beliefs.relative_rate() * np.array(self.weights)[:, None])

    def _unknown(self) -> PlannedCaps:
        """As high as the caps themselves allow, when nothing was drawn yet."""
        caps, able = self.curves.caps_w, self.curves.able
        watts = NO_CURVE * self.curves.devices[:, None] * caps
        picked = self._picked(watts, np.broadcast_to(caps, able.shape), self.budget_w)
        return PlannedCaps(self._caps(picked), self.budget_w, 0.0, in_use=False)

    def _picked(self, watts: Floats, worth: Floats, room_w: float) -> list[int | None]:
        """A cap number per job within the room; the least of all where even that is too much."""
        choices = [
            _choices(watts[job], worth[job], np.flatnonzero(able).tolist(), self.paused_w)
            for job, able in enumerate(self.curves.able)
        ]
        least_w = math.fsum(one[0].watts for one in choices)
        taken = allocate(choices, one_budget(len(choices), max(room_w, least_w)))
        points = [one[at].point for one, at in zip(choices, taken, strict=True)]
        return [None if point is None else int(point.cap_w) for point in points]

    def _caps(self, picked: Sequence[int | None]) -> Caps:
        return tuple(None if at is None else float(self.curves.caps_w[at]) for at in picked)

    def _safe(self, beliefs: CurveBeliefs, worth: Floats, *, in_use: bool) -> PlannedCaps:
        """The best caps of which the upper bound of the draw is within the budget."""
        sure = self._sure(in_use=in_use)
        total = self._feedback(beliefs, self.readings if in_use else ())
        room_w = self.budget_w
        for _ in range(_TRIES):
            picked = self._picked(beliefs.watts, worth, room_w)
            watts, sd = total.draw(picked)
            over_w = watts + sure * sd - self.budget_w
            if over_w <= 0:
                return PlannedCaps(self._caps(picked), watts, sd, in_use)
            room_w = min(room_w, total.expected(picked)) - 0.8 * over_w - 1e-6
        return self._least(total, in_use=in_use)

    def _feedback(
        self, beliefs: CurveBeliefs, readings: Sequence[FeedbackReading]
    ) -> MeterFeedback:
        """A look goes where little was metered, and is not helped by readings from elsewhere."""
        return MeterFeedback.of(beliefs, readings, self.meter_sd or 0.0, self.paused_w or 0.0)

    def _sure(self, *, in_use: bool) -> float:
        """Standard deviations kept free: most while looking, or while the fleet is hardly known."""
        if self.round >= self.exploration.rounds:
            return self.exploration.final_sd
        known = in_use and self.round > YOUNG
        return self.exploration.using_sd if known else self.exploration.looking_sd

    def _least(self, total: MeterFeedback, *, in_use: bool) -> PlannedCaps:
        """The lowest caps, or all paused: there is nothing safer."""
        lowest = [int(np.flatnonzero(able)[0]) for able in self.curves.able]
        picked: list[int | None] = [*lowest] if self.paused_w is None else [None] * len(lowest)
        watts, sd = total.draw(picked)
        return PlannedCaps(self._caps(picked), watts, sd, in_use)


def _choices(
    watts: Floats, worth: Floats, caps: Sequence[int], paused_w: float | None
) -> list[CurveChoice]:
    """What no other cap beats in both; the point's cap is the cap's number."""
    found = [] if paused_w is None else [CurveChoice(paused_w, 0.0, None)]
    for at in sorted(caps, key=lambda at: (watts[at], -worth[at])):
        one = CurveChoice(
            float(watts[at]), float(worth[at]), MeasuredPoint(float(at), watts[at], worth[at])
        )
        if not found or (one.value > found[-1].value and one.watts > found[-1].watts):
            found.append(one)
    return found


def _lesson(beliefs: CurveBeliefs, best: PlannedCaps, curves: FleetCurves) -> Floats:
    """Worth (N, K) of a sample: the root of the weighted variance it takes from rate and watts."""
    noise = curves.terms.noise_sd**2
    matters = _matters(best, curves)
    found = np.zeros(matters.shape)
    for covariance in (beliefs.log_rate_cov, beliefs.log_watts_cov):
        taken = np.einsum("nab,na->nb", covariance**2, matters)
        taken /= np.einsum("naa->na", covariance) + noise
        # A unit that is unknown becomes known by any sample: no reason to prefer a cap.
        found += np.sqrt(np.minimum(taken, 1.0))
    return found


def _matters(best: PlannedCaps, curves: FleetCurves) -> Floats:
    """Weights (N, K) of the doubt at each cap."""
    count = len(curves.caps_w)
    made = np.full(curves.able.shape, _OTHER)
    for job, cap in enumerate(best.caps_w):
        if cap is not None:
            at = int(np.searchsorted(curves.caps_w, cap))
            made[job, max(at - 1, 0) : min(at + 2, count)] += _NEIGHBOUR
        made[job, int(np.flatnonzero(curves.able[job])[-1])] += _TOP
    return np.where(curves.able, made, 0.0)
