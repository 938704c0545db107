"""A learned policy in `power allocate`: it proposes watts per job, the guard disposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wattherd.estimate.measured_curve import JobCurve
from wattherd.estimate.power_curve import PowerCurve
from wattherd.experiments.power_rl.train import load
from wattherd.policy.power.bidder import (
    IDLE_PART,
    Bidder,
    BidderInputs,
    features,
    guarded,
    sigmoid_parts,
)
from wattherd.policy.power.choices import Floats, PowerChoices
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.in_tree import levelled_by
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.market import running
from wattherd.policy.power.rules import ChoiceProblem, Chosen, must_run

UNKNOWN_S = 1800.0
"""Assumed of jobs whose remaining work is not given: half an hour, the median in training."""
_LEVELS = 40.0


class LearnedRule:
    """Choices by a policy file; nobody is paused."""

    def __init__(self, path: Path) -> None:
        """Read the policy.

        Raises:
            UserError: unreadable, or no policy.
        """
        self._policy: Bidder = load(path)

    def __call__(self, question: ChoiceProblem) -> Chosen:
        """Measured points within what the policy proposes.

        Raises:
            UserError: the least caps of all jobs do not fit.
        """
        menu, rows = running(question.menu, question.weight)
        limits = question.limits
        must_run(limits, menu, "a learned policy")
        room_w = limits.left_w(menu.watts[menu.least])
        known = _known(question, menu)
        outermost_w = float((room_w / np.maximum(limits.factor, 1.0)).max(initial=0.0))
        seen = features(known, np.ones(menu.jobs, dtype=np.bool_), np.asarray(outermost_w))
        proposed_w = _levelled(menu, limits, self._policy.bids(seen))
        return question.chosen(rows[guarded(menu, limits, proposed_w)])


def _levelled(menu: PowerChoices, limits: DomainRoom, bids: Floats) -> Floats:
    """Watts (J,) at one common level of all bids, as far as each branch goes."""
    low_w, high_w = menu.watts[menu.least], menu.watts[menu.most]
    parts = sigmoid_parts(bids)

    def wanted(part: float) -> Floats:
        level = np.asarray((2.0 * part - 1.0) * _LEVELS)
        return np.asarray(low_w + parts(level) * (high_w - low_w))

    asks = [
        PowerAsk(job_id=str(job), devices=1, curve=_line(low, high))
        for job, (low, high) in enumerate(zip(low_w.tolist(), high_w.tolist(), strict=True))
    ]
    return np.array(levelled_by(asks, limits, wanted))


def _line(low_w: float, high_w: float) -> PowerCurve:
    """A range of watts; rates do not matter here."""
    return (
        PowerCurve((low_w, high_w), (0.0, 1.0)) if high_w > low_w else PowerCurve((low_w,), (1.0,))
    )


def _known(question: ChoiceProblem, menu: PowerChoices) -> BidderInputs:
    """What the policy was trained to see, from measured points; `menu` holds relative rates."""
    curves = question.curves
    seconds = np.array([_remaining_s(curve) for curve in curves])
    return BidderInputs(
        exponent=_exponents(menu),
        doubt=np.zeros(menu.jobs),
        remaining_s=seconds,
        length_s=seconds,
        floor_w=menu.watts[menu.least],
        max_w=menu.watts[menu.most],
        weight=question.weight,
    )


def _remaining_s(curve: JobCurve) -> float:
    return UNKNOWN_S if curve.work is None else curve.work / curve.best_rate


def _exponents(menu: PowerChoices) -> Floats:
    """Of the power law nearest to each job's points (J,), through its highest one."""
    top = menu.most[menu.job]
    idle_w = IDLE_PART * menu.watts[top]
    x = np.log(np.maximum(menu.watts - idle_w, 1e-3 * idle_w) / (menu.watts[top] - idle_w))
    y = np.log(menu.value / menu.value[top])
    squares = np.bincount(menu.job, x * x, menu.jobs)
    fitted = np.bincount(menu.job, x * y, menu.jobs) / np.maximum(squares, 1e-12)
    return np.asarray(np.where(squares > 0, np.clip(fitted, 0.05, 0.95), 0.5))
