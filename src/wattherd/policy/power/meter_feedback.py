"""The draw of a whole fleet, from what is believed of each job and what a meter read of their sum.

Errors of beliefs are Gaussian, and a sum of watts is linear in them, to first order in logs: the
meter's readings of earlier rounds condition the next sum exactly (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, 2.2, with allocations as inputs). That takes back what an
optimiser underestimates by picking caps that look cheap, and narrows the bound that protects the
budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.estimate.fleet_curves import Beliefs, Floats

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

    beliefs: Beliefs
    readings: tuple[FeedbackReading, ...]
    paused_w: float
    inverse: Floats
    found_w: Floats

    @classmethod
    def of(
        cls, beliefs: Beliefs, readings: Sequence[FeedbackReading], meter_sd: float, paused_w: float
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
