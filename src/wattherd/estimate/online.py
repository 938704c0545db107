"""Predictability while a job runs, from current values only.

The public data hold each job's values after it ended. To ask what a classifier could have known
at an earlier moment, a job is *replayed* to an elapsed fraction f of its run (`replayed`):

- known at submission, unchanged: model, hyper-parameters, resources, first or repeated submission;
- running time so far: f times the whole one (the fraction itself is never shown);
- throughput so far: the job's own;
- loss and accuracy so far: from where a run of its type starts to where this one ended, along
  g(f) = (1 + c) f / (1 + c f), the shape of the loss curve 1 / (b0 k + b1) + b2 that Optimus
  (EuroSys'18) and AITurbo fit. c is drawn per job (log-normal, median 10: half of the way after a
  twelfth of the run), and a relative noise of 5 % fades towards the end, where the values are those
  recorded. Starts are the 95th percentile of loss and the 5th of accuracy among jobs of the same
  type. Nothing in the replay looks at the label.

The true curves of these jobs are not public: what follows is what a classifier could do *if* curves
looked so. Curves that hide their end longer are what a smaller `bend` is for (0: a straight line).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.estimate.predictability import (
    ALL,
    AT_SUBMISSION,
    FEATURES,
    Classifier,
    EndedJobs,
    Floats,
    Scores,
    fitted,
    folds,
    mean_scores,
    scored,
    unpredictability,
)

FRACTIONS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
LOOKS_PER_JOB = 3
"""Moments, uniform over its run, at which each past job is shown to the learner."""
_AT = {name: column for column, name in enumerate(FEATURES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveReplay:
    """Shape of the curves: median and log spread of c, and the relative noise at the start."""

    bend: float = 10.0
    spread: float = 0.7
    noise: float = 0.05


@dataclass(frozen=True, slots=True)
class _Starts:
    """Loss and accuracy at the start of each job's run (jobs,)."""

    loss: Floats
    accuracy: Floats


def replayed(
    history: EndedJobs,
    fraction: Floats | float,
    chance: np.random.Generator,
    replay: CurveReplay = CurveReplay(),
) -> Floats:
    """Values (jobs, features) as they stood after `fraction` (jobs,) of each job's run."""
    count = len(history.values)
    passed = np.broadcast_to(np.asarray(fraction, dtype=float), (count,))
    starts = _starts(history)
    bend = replay.bend * np.exp(replay.spread * chance.standard_normal(count))
    way = (1 + bend) * passed / (1 + bend * passed)
    noise = replay.noise * (1 - passed)
    now = history.values.copy()
    now[:, _AT["Running time"]] *= passed
    for name, start in (("Loss", starts.loss), ("Accuracy", starts.accuracy)):
        end = history.values[:, _AT[name]]
        wobble = np.exp(noise * chance.standard_normal(count))
        now[:, _AT[name]] = (start + (end - start) * way) * wobble
    return now


def _starts(history: EndedJobs) -> _Starts:
    loss, accuracy = (history.values[:, _AT[name]].copy() for name in ("Loss", "Accuracy"))
    kinds = history.values[:, _AT["Job type"]]
    for kind in np.unique(kinds):
        same = kinds == kind
        loss[same] = np.maximum(loss[same], np.percentile(loss[same], 95))
        accuracy[same] = np.minimum(accuracy[same], np.percentile(accuracy[same], 5))
    return _Starts(loss, accuracy)


@dataclass(frozen=True, slots=True)
class OnlineJudge:
    """Two learners: one for jobs that have not reported yet, one for those that have."""

    before: Classifier
    running: Classifier

    def at_submission(self, values: Floats) -> Floats:
        """Probability of being unpredictable; `values` (jobs, AT_SUBMISSION)."""
        return unpredictability(self.before, values)

    def while_running(self, values: Floats) -> Floats:
        """Probability of being unpredictable; `values` (jobs, ALL), the current ones."""
        return unpredictability(self.running, values)


def learned(
    past: EndedJobs,
    chance: np.random.Generator,
    *,
    replay: CurveReplay = CurveReplay(),
    kind: str = "forest",
    seed: int = 0,
) -> OnlineJudge:
    """A judge taught by past jobs, each shown at a few moments of its run."""
    count = len(past.values)
    looks = [replayed(past, chance.random(count), chance, replay) for _ in range(LOOKS_PER_JOB)]
    labels = np.tile(past.unpredictable, LOOKS_PER_JOB)
    return OnlineJudge(
        before=fitted(kind, past.columns(AT_SUBMISSION), past.unpredictable, seed),
        running=fitted(kind, np.vstack(looks), labels, seed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Scores after a fraction of the run: taught by current values, and taught by final ones."""

    fraction: float
    current: Scores
    hindsight: Scores


def score_curve(
    history: EndedJobs,
    chance: np.random.Generator,
    *,
    replay: CurveReplay = CurveReplay(),
    fractions: Sequence[float] = FRACTIONS,
    kind: str = "forest",
    seed: int = 0,
) -> list[CurvePoint]:
    """Cross-validated scores against the elapsed fraction.

    `hindsight` is the published set-up taken at its word: a classifier that learned from final
    values, asked about current ones.
    """
    current: dict[float, list[Scores]] = {fraction: [] for fraction in fractions}
    hindsight: dict[float, list[Scores]] = {fraction: [] for fraction in fractions}
    for train, test in folds(history.unpredictable, seed):
        past = EndedJobs(history.values[train], history.unpredictable[train])
        judge = learned(past, chance, replay=replay, kind=kind, seed=seed)
        final = fitted(kind, past.values, past.unpredictable, seed)
        label = history.unpredictable[test]
        for fraction in fractions:
            now = replayed(history, fraction, chance, replay)[test]
            hindsight[fraction].append(scored(final, now, label))
            known = EndedJobs(now, label).columns(AT_SUBMISSION if fraction == 0 else ALL)
            made = judge.before if fraction == 0 else judge.running
            current[fraction].append(scored(made, known, label))
    return [
        CurvePoint(
            fraction=fraction,
            current=mean_scores(current[fraction]),
            hindsight=mean_scores(hindsight[fraction]),
        )
        for fraction in fractions
    ]
