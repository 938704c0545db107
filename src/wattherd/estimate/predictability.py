"""Will the remaining work of a training job be predictable? A binary classifier, judged honestly.

AITurbo (Zhao et al., HPDC'21) asks this of every job before it trusts a prediction about it. The
features are what is known of the model, its hyper-parameters, what it was given, and how it runs;
they are chosen by correlation and by impurity importance, and five kinds of classifier compared.
The positive class is *unpredictable*, one job in seven, so that raw accuracy says little.

Accuracy, loss, running time and throughput of a *finished* job nearly give its label away; scores
with them are scores in hindsight. `estimate.online` judges from current values only.
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
