"""Will the remaining work of a training job be predictable? A binary classifier, judged honestly.

AITurbo (Zhao et al., HPDC'21) asks this of every job before it trusts a prediction about it. The
features are what is known of the model, its hyper-parameters, what it was given, and how it runs;
they are chosen by correlation and by impurity importance, and five kinds of classifier compared.
The positive class is *unpredictable*, one job in seven, so that raw accuracy says little.

Accuracy, loss, running time and throughput of a *finished* job nearly give its label away; scores
with them are scores in hindsight.

While a job runs, current values are all there is. The public data hold each job's
values after it ended. To ask what a classifier could have known at an earlier moment, a job is
*replayed* to an elapsed fraction f of its run (`replayed`):

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

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

# --- Judged in hindsight ----------------------------------------------------------------------
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FOLDS = 5


class FeatureFamily(StrEnum):
    """What a feature tells about (AITurbo talk: model, hyper-parameters, running status)."""

    MODEL = "model"
    HYPER_PARAMETER = "hyper-parameter"
    RESOURCE = "resource"
    STATUS = "status"


FEATURES: dict[str, FeatureFamily] = {
    "Job type": FeatureFamily.MODEL,
    "Running time": FeatureFamily.STATUS,
    "Ps": FeatureFamily.RESOURCE,
    "Worker": FeatureFamily.RESOURCE,
    "Epoch": FeatureFamily.HYPER_PARAMETER,
    "Accuracy": FeatureFamily.STATUS,
    "Loss": FeatureFamily.STATUS,
    "GPU": FeatureFamily.RESOURCE,
    "Memory": FeatureFamily.RESOURCE,
    "CPU": FeatureFamily.RESOURCE,
    "Batch Size": FeatureFamily.HYPER_PARAMETER,
    "Learning rate": FeatureFamily.HYPER_PARAMETER,
    "Step": FeatureFamily.HYPER_PARAMETER,
    "Throughput": FeatureFamily.STATUS,
    "Resubmit": FeatureFamily.MODEL,
}
"""Columns of the public data set of 8,692 jobs, in its order, with their families."""
ALL = tuple(FEATURES)
AT_SUBMISSION = tuple(
    name for name, family in FEATURES.items() if family is not FeatureFamily.STATUS
)
TOP_FIVE = ("Accuracy", "Loss", "Resubmit", "Running time", "Memory")
"""The five that correlate most with the label; the first two and the fourth are hindsight."""


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """Jobs that have ended: `values` (jobs, features) in order of `FEATURES`, and the label."""

    values: Floats
    unpredictable: Bools

    def columns(self, names: Sequence[str]) -> Floats:
        """The named features, (jobs, names)."""
        order = list(FEATURES)
        picked: Floats = self.values[:, [order.index(name) for name in names]]
        return picked


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over folds. `balanced` is the mean of both classes' recalls: 0.5 for a constant."""

    accuracy: float
    f1: float
    auc: float
    balanced: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How one feature goes with the label."""

    feature: str
    pearson: float
    kendall: float
    spearman: float
    impurity: float


class Classifier(Protocol):
    """What we use of a scikit-learn classifier."""

    def fit(self, values: Floats, label: Bools) -> Any:
        """Learn."""
        ...

    def predict(self, values: Floats) -> Bools:
        """Labels."""
        ...


def _learn() -> Any:
    """scikit-learn, if it is there."""
    try:
        import sklearn
    except ImportError:
        raise UserError(
            "classifiers need scikit-learn", hint="pip install 'wattherd[learn]'"
        ) from None
    return sklearn


def _scaled(estimator: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator)


def _majority(_: int) -> Any:
    from sklearn.dummy import DummyClassifier

    return DummyClassifier(strategy="most_frequent")


def _knn(_: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return _scaled(KNeighborsClassifier(5))


def _logistic(_: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _scaled(LogisticRegression(max_iter=1000))


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(200, random_state=seed)


def _svm(seed: int) -> Any:
    from sklearn.svm import SVC

    return _scaled(SVC(kernel="rbf", random_state=seed))


def _mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return _scaled(MLPClassifier((64, 32), max_iter=300, random_state=seed))


KINDS: dict[str, Callable[[int], Any]] = {
    "majority": _majority,
    "knn": _knn,
    "logistic": _logistic,
    "forest": _forest,
    "svm": _svm,
    "mlp": _mlp,
}
"""Settings are the library's own (1.9) but for those written here; all but forests are fed
standardised features."""


def classifier(kind: str, seed: int = 0) -> Classifier:
    """A fresh classifier: 5 neighbours; logistic; forest of 200; RBF machine; layers of 64 and 32.

    Raises:
        UserError: no such kind, or scikit-learn is not installed.
    """
    _learn()
    if kind not in KINDS:
        raise UserError(f"unknown classifier {kind!r}", hint=f"one of {', '.join(KINDS)}")
    made: Classifier = KINDS[kind](seed)
    return made


def fitted(kind: str, values: Floats, label: Bools, seed: int = 0) -> Classifier:
    """A classifier that has learned; a network that stops at its iteration limit is used as is."""
    made = classifier(kind, seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Stochastic Optimizer: Maximum iterations")
        made.fit(values, label)
    return made


def folds(label: Bools, seed: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Five stratified (training, test) splits of shuffled rows."""
    _learn()
    from sklearn.model_selection import StratifiedKFold

    split = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    yield from split.split(np.zeros(len(label)), label)


def cross_validated(
    history: EndedJobs, features: Sequence[str], kind: str, *, seed: int = 0
) -> Scores:
    """Mean scores over the five folds."""
    values, label = history.columns(features), history.unpredictable
    return mean_scores(
        [
            scored(fitted(kind, values[train], label[train], seed), values[test], label[test])
            for train, test in folds(label, seed)
        ]
    )


def scored(made: Classifier, values: Floats, label: Bools) -> Scores:
    """How well a fitted classifier does on jobs it has not seen."""
    from sklearn.metrics import (
        accuracy_score,
        balanced_accuracy_score,
        f1_score,
        roc_auc_score,
    )

    guess = made.predict(values)
    return Scores(
        accuracy=float(accuracy_score(label, guess)),
        f1=float(f1_score(label, guess, zero_division=0.0)),
        auc=float(roc_auc_score(label, unpredictability(made, values))),
        balanced=float(balanced_accuracy_score(label, guess)),
    )


def unpredictability(made: Any, values: Floats) -> Floats:
    """What a job's rank among unpredictable ones follows from: a probability, or a margin."""
    if hasattr(made, "predict_proba"):
        probability: Floats = made.predict_proba(values)[:, 1]
        return probability
    margin: Floats = made.decision_function(values)
    return margin


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """Field by field."""
    return Scores(
        accuracy=float(np.mean([one.accuracy for one in scores])),
        f1=float(np.mean([one.f1 for one in scores])),
        auc=float(np.mean([one.auc for one in scores])),
        balanced=float(np.mean([one.balanced for one in scores])),
    )


def importances(history: EndedJobs, *, seed: int = 0) -> list[Importance]:
    """Every feature's correlation with the label and its importance in a forest of all features.

    Most important first, by impurity.
    """
    _learn()
    from scipy.stats import kendalltau, pearsonr, spearmanr

    label = history.unpredictable.astype(float)
    forest: Any = fitted("forest", history.values, history.unpredictable, seed)
    found = [
        Importance(
            feature=name,
            pearson=float(pearsonr(column, label)[0]),
            kendall=float(kendalltau(column, label)[0]),
            spearman=float(spearmanr(column, label)[0]),
            impurity=float(impurity),
        )
        for name, column, impurity in zip(
            FEATURES, history.values.T, forest.feature_importances_, strict=True
        )
    ]
    return sorted(found, key=lambda one: (-one.impurity, one.feature))


def selected(found: Sequence[Importance], count: int = 5) -> tuple[str, ...]:
    """The features with the lowest sum of their four ranks; earlier in the list among equals."""
    ranks = dict.fromkeys((one.feature for one in found), 0)
    for measure in ("pearson", "kendall", "spearman", "impurity"):
        strongest = sorted(found, key=lambda one: -abs(getattr(one, measure)))
        for rank, one in enumerate(strongest):
            ranks[one.feature] += rank
    return tuple(sorted(ranks, key=ranks.__getitem__)[:count])


# --- Judged while jobs run --------------------------------------------------------------------
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
