"""How many steps jobs still have to do, learned from what they report while they run.

Two things tell. A loss that is to be reached (`target_loss`, stated by the user) and a curve on its
way there: a judge says whether the forecast can be relied on (AITurbo, HPDC'21), and without its
word the curve tells nothing. And the total that the program itself reports, which is its own word:
it is believed until it proves to be wrong. A job that goes on after its total, that moves its total
away again and again, whose count goes back and forth, or that makes no progress any more tells
nothing from then on. So no job gains more by its word than one place for a while.

Losses that are no positive numbers are passed over. Times are the core's, never the job's, and all
follows from events, so that the same journal teaches the same.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from wattherd.estimate.curve_judge import (
    GENERAL_JUDGE,
    MOST_POINTS,
    CurveJudge,
    CurveLook,
    Point,
    look,
)

SURE = 0.5
"""A job is predictable from this probability on (AITurbo)."""
RENEW = 2
"""Reports after which a curve is fitted anew; a twelfth more where there were many."""
OVERDUE = 0.1
"""A job that has outlived its forecast is taken to need this share of its steps again."""
STALLED_S, STALLED_GAPS = 120.0, 10.0
"""A run without progress for so long, and for so many of its usual gaps, tells nothing."""
AT_ITS_END_S = 60.0
"""What a run may go on after its total: evaluation, the last checkpoint."""
MOST_MOVES = 2
"""So often a total may be moved away by more than `_SAME`, or a count go back within a run."""
SPARE_JOBS = 100
"""Jobs that are over and still remembered, beyond as many as are live."""
_SAME = 1.01


class StepsSource(StrEnum):
    """What tells how many steps are left."""

    CURVE = "its loss curve"
    TOTAL = "the total that it reports"


class StepsLeft(NamedTuple):
    """Steps to go, in the unit of a job's progress."""

    steps: float
    source: StepsSource


class LossHistory:
    """Losses by step, at most `MOST_POINTS` means over equal spans, wherever reports came from.

    Spans double where there are too many: reports in bursts and reports at every step leave curves
    as even as a report a minute does.
    """

    __slots__ = ("_spans", "span")

    def __init__(self) -> None:
        """No point; a span is one step."""
        self.span = 1.0
        self._spans: dict[int, tuple[float, float, int]] = {}
        """Sum of steps, sum of losses, count, by number of the span; ascending."""

    def add(self, step: float, loss: float) -> None:
        """A loss at a step; whatever was known from that span's successors on is out of date."""
        number = math.floor(step / self.span)
        if self._spans and number < next(reversed(self._spans)):
            self._spans = {at: one for at, one in self._spans.items() if at < number}
        steps, losses, count = self._spans.get(number, (0.0, 0.0, 0))
        self._spans[number] = (steps + step, losses + loss, count + 1)
        while len(self._spans) > MOST_POINTS:
            self._widen()

    def _widen(self) -> None:
        self.span *= 2
        wider: dict[int, tuple[float, float, int]] = {}
        for number, (steps, losses, count) in self._spans.items():
            before = wider.get(number // 2, (0.0, 0.0, 0))
            wider[number // 2] = (before[0] + steps, before[1] + losses, before[2] + count)
        self._spans = wider

    def points(self) -> list[Point]:
        """(step, loss), ascending."""
        return [(steps / count, losses / count) for steps, losses, count in self._spans.values()]


@dataclass(slots=True)
class _Told:
    """What one job has told."""

    attempt: int
    since_s: float
    """Since when this run has reported."""
    moved_s: float
    """When its count was another last."""
    progress: float
    moves: int = 0
    """Reports of this run with another count."""
    history: LossHistory = field(default_factory=LossHistory)
    looked: CurveLook | None = None
    losses: int = 0
    looked_at: int = 0
    predictable: bool = False
    total: float | None = None
    reached_s: float | None = None
    broken: int = 0
    """How often its word proved to be wrong."""

    @property
    def gap_s(self) -> float:
        return (self.moved_s - self.since_s) / self.moves if self.moves else 0.0


class LearnedSteps:
    """What was learned of all jobs; changed by `heard` alone."""

    def __init__(self, judge: CurveJudge = GENERAL_JUDGE) -> None:
        """Nothing is known; `judge` says which curves are believed."""
        self._judge = judge
        self._jobs: dict[str, _Told] = {}

    def heard(
        self, job_id: str, attempt: int, progress: float, now_s: float, *,
        loss: float | None = None, total: float | None = None, target_loss: float | None = None,
    ) -> None:  # fmt: skip
        """A run has come to `progress`, with what it says of its loss and of where it ends."""
        if not math.isfinite(progress) or progress < 0:
            return
        told = self._jobs.get(job_id)
        if told is None:
            told = self._jobs[job_id] = _Told(attempt, now_s, now_s, progress)
        elif attempt != told.attempt:
            told.attempt, told.since_s, told.moved_s = attempt, now_s, now_s
            told.progress, told.moves = progress, 0
        elif progress != told.progress:
            told.broken += progress < told.progress
            told.progress, told.moved_s = progress, now_s
            told.moves += 1
        self._total(told, total, now_s)
        if loss is not None and target_loss is not None:
            self._loss(told, loss, target_loss)

    def _total(self, told: _Told, total: float | None, now_s: float) -> None:
        if total is None or not math.isfinite(total) or total <= 0:
            return
        told.broken += told.total is not None and total > _SAME * told.total
        told.total = total
        if told.progress < total:
            told.reached_s = None
        elif told.reached_s is None:
            told.reached_s = now_s
        elif now_s - told.reached_s > AT_ITS_END_S:
            told.broken = MOST_MOVES + 1

    def _loss(self, told: _Told, loss: float, target_loss: float) -> None:
        if not (math.isfinite(loss) and loss > 0):
            return
        told.history.add(told.progress, loss)
        told.losses += 1
        if told.losses - told.looked_at < max(RENEW, told.losses // 12):
            return
        told.looked_at = told.losses
        told.looked = look(told.history.points(), target_loss)
        sure = 0.0 if told.looked is None else self._judge.predictability(told.looked)
        told.predictable = sure >= SURE

    def forget(self, live: Container[str], count: int) -> None:
        """Jobs that are over, where there are many."""
        if len(self._jobs) > 2 * count + SPARE_JOBS:
            for gone in [job_id for job_id in self._jobs if job_id not in live]:
                del self._jobs[gone]

    def left(self, job_id: str, now_s: float, held_since_s: float | None) -> StepsLeft | None:
        """Steps to go; None while that cannot be told, or can be told no more.

        `held_since_s` is since when the job runs, None if it does not: who waits is not stalled.
        """
        told = self._jobs.get(job_id)
        if told is None:
            return None
        if held_since_s is not None:
            quiet_s = now_s - max(told.moved_s, held_since_s)
            if quiet_s > max(STALLED_S, STALLED_GAPS * told.gap_s):
                return None
        own = self._by_total(told, now_s)
        curve = self._by_curve(told)
        if curve is None or (own is not None and own <= curve):
            return None if own is None else StepsLeft(own, StepsSource.TOTAL)
        return StepsLeft(curve, StepsSource.CURVE)

    def _by_total(self, told: _Told, now_s: float) -> float | None:
        if told.total is None or told.broken > MOST_MOVES:
            return None
        if told.progress < told.total:
            return told.total - told.progress
        late = told.reached_s is not None and now_s - told.reached_s > AT_ITS_END_S
        return None if late else min(1.0, told.total)

    def _by_curve(self, told: _Told) -> float | None:
        if not told.predictable or told.looked is None or not math.isfinite(told.looked.ends_at):
            return None
        return max(told.looked.ends_at - told.progress, OVERDUE * told.progress, 1.0)
