"""Which trials of a search go on, which pause, which end: by the losses they report.

Successive halving: at rung k, after `first` x eta^k of progress, the best of every eta go on and
the others end. Synchronous (Jamieson & Talwalkar, AISTATS'16) it decides when all have come to the
rung; asynchronous (ASHA: Li et al., MLSys'20) whoever is among the best 1/eta so far goes on at
once. Median stopping (Golovin et al., KDD'17, section 3.2.1) ends a trial whose best loss is worse
than the median of the others' running averages at the same progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median
from typing import Protocol


class TrialVerdict(Enum):
    """What becomes of a trial."""

    GO = "go"
    PAUSE = "pause"
    END = "end"


@dataclass(slots=True)
class SearchTrial:
    """One trial of a group and the (progress, loss) points that were seen of it, in order.

    `over` when it reached its end, failed, or was ended: it reports nothing any more. `passed`
    counts the rungs it has passed for good.
    """

    job_id: str
    number: int
    points: list[tuple[float, float]] = field(default_factory=list)
    over: bool = False
    passed: int = 0

    def see(self, progress: float, loss: float) -> None:
        """Note a report; one that shows no progress over the last is no news."""
        if not self.points or progress > self.points[-1][0]:
            self.points.append((progress, loss))

    def loss_at(self, progress: float) -> float | None:
        """The first loss seen at or after some progress."""
        return next((loss for at, loss in self.points if at >= progress), None)


class Rule(Protocol):
    """Judges the trials of one group."""

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """A verdict for each trial that is not over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessiveHalving:
    """Rungs at `first`, `first` x `eta`, ... progress, `rungs` of them."""

    first: float
    eta: int = 3
    rungs: int = 4
    asynchronous: bool = False

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """Look at the rungs from the lowest up; whoever passes one is looked at on the next."""
        verdicts: dict[str, TrialVerdict] = {}
        climbing = list(trials)
        for rung in range(self.rungs):
            climbing = self._pass(climbing, rung, verdicts)
        return verdicts

    def _pass(
        self, climbing: list[SearchTrial], rung: int, verdicts: dict[str, TrialVerdict]
    ) -> list[SearchTrial]:
        """Those who go beyond a rung; the verdicts on the others, and on those not there yet."""
        height = self.first * self.eta**rung
        losses = {one.job_id: one.loss_at(height) for one in climbing}
        there = [one for one in climbing if losses[one.job_id] is not None]
        there.sort(key=lambda one: (losses[one.job_id] or 0.0, one.number))
        coming = [one for one in climbing if losses[one.job_id] is None and not one.over]
        best = self._best(len(there), len(coming))
        for one in there[:best]:
            one.passed = max(one.passed, rung + 1)
        for one in there:
            if not one.over:
                verdicts[one.job_id] = _judged(one.passed > rung, waits=bool(coming))
        for one in coming:
            verdicts[one.job_id] = TrialVerdict.GO
        return [one for one in there if one.passed > rung]

    def _best(self, there: int, coming: int) -> int:
        """How many of those on a rung go on, while others are still coming."""
        if not coming:
            return max(math.ceil(there / self.eta), min(there, 1))
        return there // self.eta if self.asynchronous else 0


def _judged(goes_on: bool, *, waits: bool) -> TrialVerdict:  # noqa: FBT001
    if goes_on:
        return TrialVerdict.GO
    return TrialVerdict.PAUSE if waits else TrialVerdict.END


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianStopping:
    """Judges from `grace` of progress on, where at least `least_trials` others came as far."""

    grace: float
    least_trials: int = 3

    def judge(self, trials: Sequence[SearchTrial]) -> dict[str, TrialVerdict]:
        """Nobody pauses here."""
        return {one.job_id: self._verdict(one, trials) for one in trials if not one.over}

    def _verdict(self, trial: SearchTrial, trials: Sequence[SearchTrial]) -> TrialVerdict:
        progress = trial.points[-1][0] if trial.points else 0.0
        if not trial.points or progress < self.grace:
            return TrialVerdict.GO
        averages = [
            fmean(loss for at, loss in other.points if at <= progress)
            for other in trials
            if other is not trial
            and other.points
            and other.points[0][0] <= progress <= other.points[-1][0]
        ]
        if len(averages) < self.least_trials:
            return TrialVerdict.GO
        best = min(loss for _, loss in trial.points)
        return TrialVerdict.END if best > median(averages) else TrialVerdict.GO
