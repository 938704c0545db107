"""The power curve of one job, learned while it runs from noisy samples of (cap, watts, rate).

Logarithms of rate and of watts at the job's caps are two Gaussian vectors. Both start from the
power law of the GPU type with an unknown scale, and neighbouring caps are correlated (a Gaussian
process with a squared-exponential kernel over log caps; Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006, 2.2), so that a sample at one cap teaches about the next. Every sample
is one Kalman update. Old knowledge fades towards the prior's uncertainty, a single wild sample
counts less (Huber's weight), and Page's two-sided cumulative sum restarts the curve after a shift
(Page, Continuous Inspection Schemes, Biometrika 1954). All values are immutable, so that a policy
may keep them in its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import MeasuredPoint
from wattherd.estimate.power_curve import PRIOR_EXPONENT, PowerCurve, concave_hull

# --- Isotonic regression: the nearest sequence that never falls, by pool adjacent violators.
#
# Barlow, Bartholomew, Bremner, Brunk: Statistical Inference under Order Restrictions (1972), 1.2.
# Measured rates fall with more watts only by noise; what is allocated must not be misled by it.


def non_falling(values: Sequence[float], weights: Sequence[float]) -> NDArray[np.float64]:
    """The sequence (N,) of least weighted squared distance to `values` (N,) that never falls.

    `weights` (N,) are above zero, for example one over each value's variance.
    """
    means: list[float] = []
    masses: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, length = float(value), float(weight), 1
        while means and means[-1] >= mean:
            before, heavy = means.pop(), masses.pop()
            mean = (before * heavy + mean * mass) / (heavy + mass)
            mass, length = mass + heavy, length + lengths.pop()
        means.append(mean)
        masses.append(mass)
        lengths.append(length)
    return np.repeat(np.array(means, dtype=np.float64), lengths)


Floats = NDArray[np.float64]

SCALE_SD = 5.0
"""Log of the first rate's unit: a factor of e**5 either way, that is, unknown."""
SHAPE_SD = 0.3
"""How far a job's curve bends away from the power law, in logs (Zeus, A40: 0.2 to 0.5)."""
DRIFT_SD = 0.1
LENGTH = 0.35
"""Log caps over which that deviation keeps its sign: 150 and 210 W are one length apart."""
ROUGH_SD = 0.02
"""What is left of each cap alone."""
TYPICAL_DRAW = 0.8
"""Watts drawn per watt of cap, before anything was measured."""
_SURPRISE_AT = 3.0
_ALLOWED = 0.5
_ALARM = 6.0
_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class CurveSample:
    """At this cap of each device the whole job drew `power_w` and worked at `rate`."""

    cap_w: float
    power_w: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrior:
    """What is believed before the first sample: `caps_w` (K,) ascending, on so many devices.

    `noise_sd` is the relative error of a sample, `memory` what is kept of knowledge from one
    sample to the next (1: nothing fades).

    Raises:
        UserError: no cap, caps that do not ascend, or none above idle.
    """

    caps_w: tuple[float, ...]
    idle_w: float
    max_w: float
    devices: int = 1
    exponent: float = PRIOR_EXPONENT
    noise_sd: float = 0.05
    memory: float = 0.998

    def __post_init__(self) -> None:
        """Refuse caps from which no curve can be drawn."""
        ascending = all(a < b for a, b in zip(self.caps_w, self.caps_w[1:], strict=False))
        if not (self.caps_w and ascending):
            raise UserError("caps of a curve must ascend", field="caps_w")
        if not self.idle_w < self.caps_w[0]:
            raise UserError("the lowest cap must be above idle", field="idle_w")

    def log_rate(self) -> Floats:
        """Log of the power law at every cap (K,), 0 at the highest watts."""
        share = (np.array(self.caps_w) - self.idle_w) / (self.max_w - self.idle_w)
        return np.asarray(self.exponent * np.log(np.minimum(share, 1.0)), dtype=np.float64)

    def log_watts(self) -> Floats:
        """Log of the draw expected at every cap (K,)."""
        return np.asarray(np.log(TYPICAL_DRAW * self.devices * np.array(self.caps_w)))

    def covariance(self, scale_sd: float) -> Floats:
        """Of the deviations from the prior's logs (K, K)."""
        logs = np.log(np.array(self.caps_w))
        apart = (logs[:, None] - logs[None, :]) / LENGTH
        smooth = SHAPE_SD**2 * np.exp(-0.5 * apart**2)
        return np.asarray(scale_sd**2 + smooth + ROUGH_SD**2 * np.eye(len(logs)))


@dataclass(frozen=True, slots=True)
class _Surprises:
    """Page's cumulative sum of one sign, and over how many samples it has been above zero."""

    total: float = 0.0
    samples: int = 0

    def plus(self, step: float) -> _Surprises:
        total = self.total + step - _ALLOWED
        return _Surprises(total, self.samples + 1) if total > 0 else _Surprises()


@dataclass(frozen=True, slots=True)
class _Belief:
    """A Gaussian over logs at the caps, and its surprises upwards and downwards."""

    mean: Floats
    covariance: Floats
    high: _Surprises = _Surprises()
    low: _Surprises = _Surprises()

    def told(self, at: int, value: float, prior: CurvePrior, drift: Floats) -> _Belief:
        """After one observed log at cap number `at`."""
        faded = prior.memory * self.covariance + (1.0 - prior.memory) * drift
        noise = prior.noise_sd**2
        off = value - float(self.mean[at])
        surprise = off / math.sqrt(float(faded[at, at]) + noise)
        if abs(surprise) > _SURPRISE_AT:
            noise *= (surprise / _SURPRISE_AT) ** 2
        gain = faded[:, at] / (faded[at, at] + noise)
        step = max(-_SURPRISE_AT, min(_SURPRISE_AT, surprise))
        return _Belief(
            self.mean + gain * off,
            faded - np.outer(gain, faded[at, :]),
            self.high.plus(step),
            self.low.plus(-step),
        )

    @property
    def shifted(self) -> int:
        """How many samples ago a shift began that has now become certain; 0: none has."""
        worst = max(self.high, self.low, key=lambda one: one.total)
        return worst.samples if worst.total >= _ALARM else 0


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """What is known of one job; `learned` gives the next value, nothing changes in place."""

    prior: CurvePrior
    rate: _Belief
    watts: _Belief
    samples: int = 0
    restarts: int = 0
    recent: tuple[CurveSample, ...] = ()

    @classmethod
    def start(cls, prior: CurvePrior) -> LearnedCurve:
        """Nothing but the prior."""
        spread = prior.covariance(SCALE_SD)
        return cls(prior, _Belief(prior.log_rate(), spread), _Belief(prior.log_watts(), spread))

    def learned(self, sample: CurveSample) -> LearnedCurve:
        """The curve after one more sample; restarted if it shows that the job has changed.

        Raises:
            UserError: watts or rate not above zero, or a cap that is none of the job's.
        """
        after = self.told(sample)
        ago = max(after.rate.shifted, after.watts.shifted)
        if not ago:
            return after
        fresh = LearnedCurve.start(self.prior)
        for new in after.recent[-ago:]:
            fresh = fresh.told(new)
        return replace(fresh.calm(), samples=after.samples, restarts=self.restarts + 1)

    def calm(self) -> LearnedCurve:
        """With all surprises forgotten."""
        rate = replace(self.rate, high=_Surprises(), low=_Surprises())
        return replace(
            self, rate=rate, watts=replace(self.watts, high=_Surprises(), low=_Surprises())
        )

    def told(self, sample: CurveSample) -> LearnedCurve:
        """The curve after one more sample, without a restart."""
        at, prior = self._at(sample), self.prior
        drift = prior.covariance(DRIFT_SD)
        rate = self.rate.told(at, math.log(sample.rate), prior, drift)
        watts = self.watts.told(at, math.log(sample.power_w), prior, drift)
        recent = (*self.recent, sample)[-_REMEMBERED:]
        return LearnedCurve(prior, rate, watts, self.samples + 1, self.restarts, recent)

    def _at(self, sample: CurveSample) -> int:
        if not (0 < sample.power_w < math.inf and 0 < sample.rate < math.inf):
            raise UserError("watts and rate must be above zero", field="sample")
        if sample.cap_w not in self.prior.caps_w:
            raise UserError(f"{sample.cap_w:g} W is none of the job's caps", field="cap_w")
        return self.prior.caps_w.index(sample.cap_w)

    def rate_sd(self) -> Floats:
        """Relative uncertainty of the rate at every cap (K,)."""
        return np.asarray(np.sqrt(np.diag(self.rate.covariance)))

    def points(self) -> tuple[MeasuredPoint, ...]:
        """Cap, watts and rate at every cap, by cap; neither watts nor rate ever falls."""
        rates = np.exp(_rising(self.rate))
        watts = np.exp(_rising(self.watts))
        return tuple(
            MeasuredPoint(cap, float(drawn), float(rate))
            for cap, drawn, rate in zip(self.prior.caps_w, watts, rates, strict=True)
        )

    def hull(self, *, paused_w: float | None = None) -> PowerCurve:
        """Concave hull of the whole job's (watts, rate), from a pause at `paused_w` if given."""
        points = [(point.power_w, point.rate) for point in self.points()]
        return concave_hull(points if paused_w is None else [(paused_w, 0.0), *points])


def _rising(belief: _Belief) -> Floats:
    """Means with violations of order pooled by how certain each is."""
    return non_falling(belief.mean.tolist(), (1.0 / np.diag(belief.covariance)).tolist())
