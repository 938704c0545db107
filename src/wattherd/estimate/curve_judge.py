"""Does a job's loss curve tell when it will be done? A small classifier that can run anywhere.

It looks at nothing but the points reported so far: how well 1 / (b0 k + b1) + b2 fits the recent
half of them, whether the forecast of the end holds still as points come in, and how many there
are. A logistic model over these, taught by past jobs, needs no library and takes microseconds, so
that it may be asked within a decision.

`GENERAL_JUDGE` is there before any job of a site has ended.
It was taught by 400 generated trainings, half of them predictable, looked at while they ran
(`workload.ps_profile.judge_of_the_past` on `PsMix()`, seed 1000): the judge that simulations of
AITurbo use. A prior, then: nothing here was learned from the jobs of a site.
`tests/unit/test_general_judge.py` teaches it anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.speed import Floats
from wattherd.estimate.steps import LossCurve, fit_loss

Point = tuple[float, float]
"""(step, loss)."""
LEAST_POINTS = 16
MOST_POINTS = 64
_STILL = 3.0
"""Forecasts that differ by more than e cubed are as unsteady as can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLook:
    """What a curve shows: its fit, the step at which it reaches the target, and how firmly."""

    curve: LossCurve
    ends_at: float
    drift: float
    points: int

    def features(self) -> tuple[float, ...]:
        """What the judge is shown: log error, log forecast drift, log count, any end at all."""
        return (
            math.log(max(self.curve.error, 1e-4)),
            self.drift,
            math.log(self.points),
            float(math.isfinite(self.ends_at)),
        )


FEATURES = 4


def look(points: Sequence[Point], target: float) -> CurveLook | None:
    """Fit the recent half, with and without its last third; None if there are too few points."""
    if len(points) < LEAST_POINTS:
        return None
    recent = points[len(points) // 2 :]
    now, before = fit_loss(recent), fit_loss(recent[: -max(len(recent) // 3, 1)])
    ends, ended = now.steps_to(target), before.steps_to(target)
    if math.isfinite(ends) and math.isfinite(ended):
        drift = min(abs(math.log((ends + 1) / (ended + 1))), _STILL)
    else:
        drift = _STILL
    return CurveLook(curve=now, ends_at=ends, drift=drift, points=len(points))


def thinned(points: list[Point]) -> list[Point]:
    """Every second point where there are more than can be of use; the last one stays."""
    return points if len(points) <= MOST_POINTS else points[::-2][::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveJudge:
    """Logistic model; `weights` for standardised features, bias last."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]

    def predictability(self, seen: CurveLook) -> float:
        """Probability that the forecast can be relied on."""
        total = self.weights[-1] + math.fsum(
            weight * (value - mean) / scale
            for weight, value, mean, scale in zip(
                self.weights, seen.features(), self.means, self.scales, strict=False
            )
        )
        return 1.0 / (1.0 + math.exp(-min(max(total, -50.0), 50.0)))


def taught(looks: Sequence[CurveLook], tells: Sequence[bool]) -> CurveJudge:
    """Fit by Newton's method, with a weak pull towards zero.

    Raises:
        UserError: past jobs of only one of both kinds.
    """
    label = np.array(tells, dtype=float)
    if not (0 < label.sum() < len(label)):
        raise UserError("past jobs must be of both kinds", field="tells")
    values = np.array([seen.features() for seen in looks])
    means, scales = values.mean(axis=0), values.std(axis=0)
    scales[scales == 0] = 1.0
    rows = np.column_stack([(values - means) / scales, np.ones(len(values))])
    weights = _newton(rows, label)
    return CurveJudge(
        weights=tuple(weights.tolist()),
        means=tuple(means.tolist()),
        scales=tuple(scales.tolist()),
    )


def _newton(rows: Floats, label: Floats, pull: float = 1e-2, rounds: int = 30) -> Floats:
    weights = np.zeros(rows.shape[1])
    for _ in range(rounds):
        guess = 1 / (1 + np.exp(-np.clip(rows @ weights, -50, 50)))
        slope = rows.T @ (guess - label) + pull * weights
        bend = (rows * (guess * (1 - guess))[:, None]).T @ rows + pull * np.eye(len(weights))
        weights = weights - np.linalg.solve(bend, slope)
    return weights


GENERAL_JUDGE = CurveJudge(
    weights=(-3.1290781776, -2.4071443800, 0.3656114531, 1.6864195819, -4.6761140751),
    means=(-2.9476902577, 1.2800193549, 3.9216116806, 0.7562761506),
    scales=(1.1969159827, 1.3360378196, 0.4011969774, 0.4293280035),
)
"""Weights of log error, log forecast drift, log count of points, any end at all; the bias last."""
