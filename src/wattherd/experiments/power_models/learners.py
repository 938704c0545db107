"""Linear, boosted and neural regressors fitted by scikit-learn, handed back as plain numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.power_model import (
    Floats,
    Layers,
    PowerRow,
    Regressor,
    Scaling,
    Tree,
    Trees,
    scaling,
)
from wattherd.experiments.power_models.saturation import SATURATION, able, fit_saturation

BOOSTING_ROUNDS = 100
_BEYOND = 0.25


def target(rows: Sequence[PowerRow]) -> Floats:
    """What is learned: logarithms of watts per TDP (N,)."""
    shares = np.array([row.power_w / row.tdp_w for row in rows])
    return np.asarray(np.log(shares), dtype=np.float64)


def fit(
    learner: str, rows: Sequence[PowerRow], names: Sequence[str], seed: int = 0
) -> tuple[Scaling, Regressor]:
    """The regressor of `names` fitted to `rows`; `saturation` has its own features.

    Rows that do not know what the learner cannot do without are left out.

    Raises:
        UserError: no such learner, or scikit-learn is not installed.
    """
    rows = [row for row in rows if able(learner, row)]
    values = [row.values for row in rows]
    scale = scaling(values, names)
    try:
        if learner == SATURATION:
            return fit_saturation(rows, target(rows))
        features = scale.matrix(values)
        if not features.shape[1]:
            return scale, _constant(target(rows))
        regressor = LEARNERS[learner](features, target(rows), seed)
    except ImportError:
        hint = "pip install 'wattherd[learn]'"
        raise UserError("fitting needs scikit-learn", hint=hint) from None
    return scale, regressor


def _constant(values: Floats) -> Regressor:
    """The mean, where no feature differs between the rows that there are to learn from."""
    return Layers((np.zeros((0, 1)),), (np.array([values.mean()]),), *_range(values))


def _linear(features: Floats, values: Floats, _seed: int) -> Regressor:
    from sklearn.linear_model import Ridge

    done = Ridge(alpha=1.0).fit(features, values)
    return Layers((done.coef_.reshape(-1, 1),), (np.array([done.intercept_]),), *_range(values))


def _range(values: Floats) -> tuple[float, float]:
    """What was seen, and a quarter more watts or less."""
    return float(values.min()) - _BEYOND, float(values.max()) + _BEYOND


def _boosting(features: Floats, values: Floats, seed: int) -> Regressor:
    from sklearn.ensemble import GradientBoostingRegressor

    made = GradientBoostingRegressor(
        n_estimators=BOOSTING_ROUNDS, max_depth=4, learning_rate=0.1, min_samples_leaf=5,
        random_state=seed,
    )  # fmt: skip
    done = made.fit(features, values)
    trees = tuple(_tree(one[0].tree_) for one in done.estimators_)
    return Trees(float(done.init_.constant_.ravel()[0]), 0.1, trees)


def _tree(made: Any) -> Tree:
    return Tree(
        tuple(made.children_left.tolist()),
        tuple(made.children_right.tolist()),
        tuple(np.maximum(made.feature, 0).tolist()),
        tuple(made.threshold.tolist()),
        tuple(made.value[:, 0, 0].tolist()),
    )


def _network(features: Floats, values: Floats, seed: int) -> Regressor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    made = MLPRegressor(
        hidden_layer_sizes=(12,), solver="lbfgs", alpha=0.3, max_iter=300, random_state=seed
    )
    with warnings.catch_warnings():
        # Stopping early is one more way not to fit noise.
        warnings.simplefilter("ignore", ConvergenceWarning)
        done = made.fit(features, values)
    return Layers(tuple(done.coefs_), tuple(done.intercepts_), *_range(values))


LEARNERS: Mapping[str, Callable[[Floats, Floats, int], Regressor]] = {
    "linear": _linear,
    "boosting": _boosting,
    "network": _network,
}
