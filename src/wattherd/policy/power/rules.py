"""Ways to choose a measured point per job that are not the optimum: baselines, and other goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.estimate.measured_curve import Choice, JobCurve
from wattherd.policy.power.allocation import Limits, allocate
from wattherd.policy.power.pieces import SLACK_W

Chosen = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Jobs with their choices (ascending), and the budgets above them."""

    curves: Sequence[JobCurve]
    choices: Sequence[Sequence[Choice]]
    limits: Limits


def fits(question: Question, chosen: Sequence[int]) -> bool:
    """Whether every domain holds what is below it."""
    limits = question.limits
    watts = np.array([one[at].watts for one, at in zip(question.choices, chosen, strict=True)])
    room = limits.room_w.copy()
    for level in range(limits.path.shape[1]):
        here = limits.path[:, level] >= 0
        np.subtract.at(room, limits.path[here, level], (watts * limits.scale[:, level])[here])
    return bool((room >= -SLACK_W).all())


def water_filling(question: Question) -> Chosen:
    """The most of weight x relative rate."""
    return allocate(question.choices, question.limits)


def uniform(question: Question) -> Chosen:
    """The highest cap that all jobs can have alike."""
    caps = sorted({point.cap_w for curve in question.curves for point in curve.points})
    return _last_that_fits(question, caps, _under_cap)


def _under_cap(choices: Sequence[Choice], cap_w: float) -> int:
    """The best choice whose cap is no higher; the least one where there is none."""
    return max(
        (
            at
            for at, one in enumerate(choices)
            if one.point is not None and one.point.cap_w <= cap_w
        ),
        default=0,
    )


def proportional(question: Question) -> Chosen:
    """To every job the same part of its range of watts."""

    def at_part(choices: Sequence[Choice], part: float) -> int:
        low_w, high_w = choices[0].watts, choices[-1].watts
        return _at_most(choices, low_w + part * (high_w - low_w))

    return _last_that_fits(question, [step / 1000 for step in range(1001)], at_part)


def _at_most(choices: Sequence[Choice], watts: float) -> int:
    return max((at for at, one in enumerate(choices) if one.watts <= watts + SLACK_W), default=0)


def _last_that_fits(
    question: Question, levels: Sequence[float], at: Callable[[Sequence[Choice], float], int]
) -> Chosen:
    """Choices at the highest level that fits (levels ascend); the least ones where none does."""
    low, high = 0, len(levels)
    chosen = [0] * len(question.choices)
    while low < high:
        middle = (low + high) // 2
        tried = [at(choices, levels[middle]) for choices in question.choices]
        if fits(question, tried):
            low, chosen = middle + 1, tried
        else:
            high = middle
    return chosen


def priority(question: Question) -> Chosen:
    """Full power in order of weight while it lasts, the least to the rest.

    The baseline of the article that this project answers; among equals in the order given.
    """
    chosen = [0] * len(question.choices)
    order = sorted(range(len(chosen)), key=lambda job: (-question.curves[job].weight, job))
    for job in order:
        for at in range(len(question.choices[job]) - 1, 0, -1):
            chosen[job] = at
            if fits(question, chosen):
                break
            chosen[job] = 0
    return chosen


def max_min(question: Question) -> Chosen:
    """The highest least relative rate, then the rest by water-filling above it."""

    def at_rate(curve: JobCurve, choices: Sequence[Choice], rate: float) -> int:
        reached = (at for at, one in enumerate(choices) if one.value >= rate * curve.weight - 1e-12)
        return next(reached, len(choices) - 1)

    rates = sorted(
        {
            one.value / curve.weight
            for curve, choices in zip(question.curves, question.choices, strict=True)
            for one in choices
        }
    )
    base, low, high = [0] * len(question.choices), 0, len(rates)
    while low < high:
        middle = (low + high) // 2
        pairs = zip(question.curves, question.choices, strict=True)
        tried = [at_rate(curve, choices, rates[middle]) for curve, choices in pairs]
        if fits(question, tried):
            low, base = middle + 1, tried
        else:
            high = middle
    above = [choices[at:] for choices, at in zip(question.choices, base, strict=True)]
    return [at + more for at, more in zip(base, allocate(above, question.limits), strict=True)]


def nash(question: Question) -> Chosen:
    """The greatest product of relative rates, weights as exponents (Nash welfare).

    Equal to a market in which every job has an equal purse per weight (Eisenberg and Gale, 1959);
    a paused job would make the product zero, so that none is.
    """
    running = [
        [at for at, one in enumerate(choices) if one.value > 0] for choices in question.choices
    ]
    logs = [
        [
            replace(choices[at], value=curve.weight * math.log(choices[at].value / curve.weight))
            for at in able
        ]
        for curve, choices, able in zip(question.curves, question.choices, running, strict=True)
    ]
    chosen = allocate(logs, question.limits)
    return [able[at] for able, at in zip(running, chosen, strict=True)]


RULES: dict[str, Callable[[Question], Chosen]] = {
    "water-filling": water_filling,
    "uniform": uniform,
    "proportional": proportional,
    "priority": priority,
    "max-min": max_min,
    "nash": nash,
}
