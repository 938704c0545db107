"""`power learn`: how much of the known-curve optimum curves learned online reach (JSON document).

Every job starts from the power law and hands in noisy samples, one per round while it runs and no
more than `samples`; the budget is to hold in every round and afterwards. The final caps are judged
by the measured curves, which the learner never sees, against the optimum within the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.fleet_curves import FleetCurves, FleetTerms
from wattherd.estimate.learned_curve import CurveSample
from wattherd.estimate.measured_curve import CountedWatts, JobCurve, MeasuredPoint
from wattherd.policy.power.allocation import allocate, one_budget
from wattherd.policy.power.learning import Caps, ExplorationTerms, LearningAllocator

SCHEMA = "wattherd.learn/1"
LEAST_NOISE = 0.002
"""Relative error assumed of samples that have none, so that something can be weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningScenario:
    """Budgets as shares of the summed draw at each job's highest-draw point, and the noise.

    `paused_w` lets jobs pause at that draw; `meter_sd` is the relative error of a meter that reads
    all jobs together once per round (None: no meter).

    Raises:
        UserError: no budget, share, sample or noise that makes sense.
    """

    shares: tuple[float, ...] = (0.6, 0.7, 0.8)
    samples: int = 20
    noise_sd: float = 0.05
    seeds: tuple[int, ...] = (1,)
    meter_sd: float | None = None
    idle_w: float = 30.0
    paused_w: float | None = None

    @property
    def rounds(self) -> int:
        """A paused job hands in nothing, so that there are half as many rounds again."""
        return self.samples if self.paused_w is None else math.ceil(1.5 * self.samples)

    def __post_init__(self) -> None:
        """Refuse what teaches nothing."""
        if not self.shares or any(not 0 < share <= 1 for share in self.shares):
            raise UserError(
                "a share must be above 0 and at most 1", field="--shares", hint="0.6,0.7,0.8"
            )
        if self.samples < 1:
            raise UserError("at least one sample", field="--samples")
        if self.meter_sd is not None and not 0 < self.meter_sd < 1:
            raise UserError(
                "noise of a meter lies above 0, below 1", field="--meter-noise", hint="0.002"
            )
        if not 0 <= self.noise_sd < 1:
            raise UserError("noise lies from 0 to below 1", field="--noise", hint="0.05")


def lesson(curves: Sequence[JobCurve], terms: LearningScenario) -> dict[str, Any]:
    """The document of one file: a run per budget and seed.

    Raises:
        UserError: a budget below what all jobs need at least.
    """
    runs = [_run(curves, terms, share, seed) for share in terms.shares for seed in terms.seeds]
    return {
        "schema": SCHEMA,
        "jobs": len(curves),
        "samples": terms.samples,
        "noise": terms.noise_sd,
        "worst_of_optimum": min(run["of_optimum"] for run in runs),
        "budgets": [
            _summary([run for run in runs if run["budget_share"] == share])
            for share in terms.shares
        ],
        "runs": runs,
    }


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all seeds of one budget."""
    reached = [run["of_optimum"] for run in runs]
    drawn = [run["drawn_of_budget"] for run in runs]
    return {
        "budget_share": runs[0]["budget_share"],
        "optimum": runs[0]["optimum"],
        "median_of_optimum": median(reached),
        "worst_of_optimum": min(reached),
        "median_drawn_of_budget": median(drawn),
        "most_drawn_of_budget": max(drawn),
        "most_drawn_while_learning": max(run["drawn_while_learning"] for run in runs),
        "runs_over_budget": sum(one > 1 for one in drawn),
        "median_progress_while_learning": median(run["progress_while_learning"] for run in runs),
        "restarts": sum(run["restarts"] for run in runs),
    }


def _run(
    curves: Sequence[JobCurve], terms: LearningScenario, share: float, seed: int
) -> dict[str, Any]:
    budget_w = share * sum(max(point.power_w for point in curve.points) for curve in curves)
    optimum = _optimum(curves, terms, budget_w)
    learner = _started(curves, terms, budget_w)
    chance = np.random.default_rng(seed)
    most_w, progress = 0.0, list[float]()
    left = [terms.samples] * len(curves)
    for _ in range(terms.rounds):
        plan = learner.planned()
        most_w = max(most_w, _drawn(curves, plan.caps_w, terms))
        progress.append(_objective(curves, plan.caps_w))
        samples = [
            _sample(_measured(curve, cap), chance, terms.noise_sd) if cap and more else None
            for curve, cap, more in zip(curves, plan.caps_w, left, strict=True)
        ]
        left = [more - (one is not None) for more, one in zip(left, samples, strict=True)]
        learner = learner.told(plan, samples, _metered(curves, plan.caps_w, terms, chance))
    caps = learner.planned().caps_w
    drawn_w, reached = _drawn(curves, caps, terms), _objective(curves, caps)
    # Watts taken beyond the budget earn nothing: they are held against a larger optimum.
    fair = optimum if drawn_w <= budget_w else _optimum(curves, terms, drawn_w)
    return {
        "budget_share": share,
        "seed": seed,
        "budget_w": budget_w,
        "optimum": optimum,
        "learned": reached,
        "of_optimum": reached / fair,
        "drawn_of_budget": drawn_w / budget_w,
        "drawn_while_learning": most_w / budget_w,
        "progress_while_learning": math.fsum(progress) / len(progress) / optimum,
        "restarts": int(learner.curves.alarms.restarts.sum()),
    }


def _started(
    curves: Sequence[JobCurve], terms: LearningScenario, budget_w: float
) -> LearningAllocator:
    """Of every job, only its caps and devices are known."""
    fleet = FleetCurves.start(
        [[point.cap_w for point in curve.points] for curve in curves],
        [curve.devices for curve in curves],
        FleetTerms(idle_w=terms.idle_w, noise_sd=max(terms.noise_sd, LEAST_NOISE)),
    )
    return LearningAllocator(
        curves=fleet,
        weights=tuple(curve.weight for curve in curves),
        budget_w=budget_w,
        paused_w=terms.paused_w,
        exploration=ExplorationTerms(rounds=terms.rounds),
        meter_sd=terms.meter_sd,
    )


def _metered(
    curves: Sequence[JobCurve], caps: Caps, terms: LearningScenario, chance: np.random.Generator
) -> float | None:
    """What the meter above all jobs reads; None without one."""
    if terms.meter_sd is None:
        return None
    return _drawn(curves, caps, terms) * float(np.exp(chance.normal(0.0, terms.meter_sd)))


def _drawn(curves: Sequence[JobCurve], caps: Caps, terms: LearningScenario) -> float:
    """Watts truly drawn."""
    return math.fsum(
        _measured(curve, cap).power_w if cap else terms.paused_w or 0.0
        for curve, cap in zip(curves, caps, strict=True)
    )


def _sample(true: MeasuredPoint, chance: np.random.Generator, noise_sd: float) -> CurveSample:
    watts, rate = np.exp(chance.normal(0.0, noise_sd, 2))
    return CurveSample(true.cap_w, true.power_w * float(watts), true.rate * float(rate))


def _measured(curve: JobCurve, cap_w: float) -> MeasuredPoint:
    return next(point for point in curve.points if point.cap_w == cap_w)


def _optimum(curves: Sequence[JobCurve], terms: LearningScenario, budget_w: float) -> float:
    choices = [curve.choices(CountedWatts.DRAW, paused_w=terms.paused_w) for curve in curves]
    chosen = allocate(choices, one_budget(len(choices), budget_w))
    worth = sum(one[at].value for one, at in zip(choices, chosen, strict=True))
    return worth / sum(curve.weight for curve in curves)


def _objective(curves: Sequence[JobCurve], caps: Sequence[float | None]) -> float:
    worth = sum(
        curve.weight * _measured(curve, cap).rate / curve.best_rate
        for curve, cap in zip(curves, caps, strict=True)
        if cap
    )
    return worth / sum(curve.weight for curve in curves)
