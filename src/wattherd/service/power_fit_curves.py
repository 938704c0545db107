"""`power learn`: how much of the known-curve optimum curves learned online reach (JSON document).

Every job starts from the power law and hands in noisy samples. It first samples where it knows
least, then every second time at the cap that the allocation with the learned curves gives it, so
that what is used is also what is checked. In the end the caps chosen are judged by the measured
curves, which the learner never sees: against the optimum within the budget, or within the watts
truly drawn where these are more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.learned_curve import CurvePrior, LearnedCurve, Sample
from wattherd.estimate.measured_curve import Count, JobCurve, Point
from wattherd.policy.power.allocation import allocate, one_budget

SCHEMA = "wattherd.learn/1"
LOOK_AROUND = 6
"""Samples of a job before any goes to the allocated cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Budgets as shares of the summed draw at each job's highest-draw point, and the noise.

    `paused_w` lets jobs pause at that draw.

    Raises:
        UserError: no budget, share, sample or noise that makes sense.
    """

    shares: tuple[float, ...] = (0.6, 0.7, 0.8)
    samples: int = 20
    noise_sd: float = 0.05
    seeds: tuple[int, ...] = (1,)
    idle_w: float = 30.0
    paused_w: float | None = None

    def __post_init__(self) -> None:
        """Refuse what teaches nothing."""
        if not self.shares or any(not 0 < share <= 1 for share in self.shares):
            raise UserError("shares lie above 0, up to 1", field="--shares", hint="0.6,0.7,0.8")
        if self.samples < 1:
            raise UserError("at least one sample", field="--samples")
        if not 0 <= self.noise_sd < 1:
            raise UserError("noise lies from 0 to below 1", field="--noise", hint="0.05")


def lesson(curves: Sequence[JobCurve], terms: Lesson) -> dict[str, Any]:
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
        "restarts": sum(run["restarts"] for run in runs),
    }


def _run(curves: Sequence[JobCurve], terms: Lesson, share: float, seed: int) -> dict[str, Any]:
    budget_w = share * sum(max(point.power_w for point in curve.points) for curve in curves)
    optimum = _optimum(curves, terms, budget_w)
    learned = _taught(curves, terms, budget_w, seed)
    caps = _allocated(learned, curves, terms, budget_w)
    drawn_w = math.fsum(
        _measured(curve, cap).power_w if cap else terms.paused_w or 0.0
        for curve, cap in zip(curves, caps, strict=True)
    )
    reached = _objective(curves, caps)
    fair = optimum if drawn_w <= budget_w else _optimum(curves, terms, drawn_w)
    return {
        "budget_share": share,
        "seed": seed,
        "budget_w": budget_w,
        "optimum": optimum,
        "learned": reached,
        "of_optimum": reached / fair,
        "drawn_of_budget": drawn_w / budget_w,
        "restarts": sum(one.restarts for one in learned),
    }


def _taught(
    curves: Sequence[JobCurve], terms: Lesson, budget_w: float, seed: int
) -> list[LearnedCurve]:
    """Every job's curve after its samples."""
    chance = np.random.default_rng(seed)
    learned = [LearnedCurve.start(prior_of(curve, terms)) for curve in curves]
    for number in range(terms.samples):
        if number >= LOOK_AROUND and number % 2:
            given = _allocated(learned, curves, terms, budget_w)
            # A job that would pause is worth another look all the same.
            caps = [cap or one.least_known() for cap, one in zip(given, learned, strict=True)]
        else:
            caps = [one.least_known() for one in learned]
        for at, (curve, cap) in enumerate(zip(curves, caps, strict=True)):
            sample = _sample(_measured(curve, cap), chance, terms.noise_sd)
            learned[at] = learned[at].learned(sample)
    return learned


def prior_of(curve: JobCurve, terms: Lesson) -> CurvePrior:
    """The power law over a job's caps: nothing else of the job is known."""
    caps = tuple(sorted(point.cap_w for point in curve.points))
    return CurvePrior(
        caps_w=caps,
        idle_w=min(terms.idle_w, caps[0] / 2),
        max_w=caps[-1],
        devices=curve.devices,
        noise_sd=max(terms.noise_sd, 0.01),
    )


def _sample(true: Point, chance: np.random.Generator, noise_sd: float) -> Sample:
    watts, rate = np.exp(chance.normal(0.0, noise_sd, 2))
    return Sample(true.cap_w, true.power_w * float(watts), true.rate * float(rate))


def _allocated(
    learned: Sequence[LearnedCurve], curves: Sequence[JobCurve], terms: Lesson, budget_w: float
) -> list[float | None]:
    """A cap for every job by the learned curves (None: paused).

    At least the least draw is asked for, because early guesses may put it above the budget.
    """
    guessed = [
        one.job_curve(curve.job, curve.weight) for one, curve in zip(learned, curves, strict=True)
    ]
    choices = [curve.choices(Count.DRAW, paused_w=terms.paused_w) for curve in guessed]
    least_w = math.fsum(one[0].watts for one in choices)
    chosen = allocate(choices, one_budget(len(choices), max(budget_w, least_w)))
    points = [one[at].point for one, at in zip(choices, chosen, strict=True)]
    return [point.cap_w if point else None for point in points]


def _measured(curve: JobCurve, cap_w: float) -> Point:
    return next(point for point in curve.points if point.cap_w == cap_w)


def _optimum(curves: Sequence[JobCurve], terms: Lesson, budget_w: float) -> float:
    choices = [curve.choices(Count.DRAW, paused_w=terms.paused_w) for curve in curves]
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
