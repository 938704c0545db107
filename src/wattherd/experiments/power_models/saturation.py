"""Fits `estimate.saturation` by robust least squares (SciPy), every network counting the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from wattherd.estimate.power_model import Floats, PowerRow, Regressor, Scaling
from wattherd.estimate.saturation import WORK, Saturation, names_of, prior

ROBUST_AT = 0.2
"""Errors in logs from which they count linearly (soft L1)."""
SATURATION = "saturation"
_COMMON = len(names_of(()))


def able(learner: str, row: PowerRow) -> bool:
    """Whether a row knows all that a learner cannot do without: `saturation` the work of a step."""
    return learner != SATURATION or WORK in row.values


def fit_saturation(rows: Sequence[PowerRow], values: Floats) -> tuple[Scaling, Regressor]:
    """The model of `rows` whose logs of watts per TDP are `values` (N,); features stay unscaled.

    All of them know the work of a step.
    """
    from scipy.optimize import least_squares

    names = names_of(sorted({row.gpu for row in rows}))
    scale = Scaling(names, np.zeros(len(names)), np.ones(len(names)))
    features = scale.matrix([row.values for row in rows])
    start, doubt, least, most = prior(len(names) - _COMMON)
    weight = _weights(rows)

    def errors(parameters: Floats) -> Floats:
        off = weight * (Saturation.of(parameters).predict(features) - values)
        return np.concatenate([off, (parameters - start) / doubt])

    done = least_squares(errors, start, bounds=(least, most), loss="soft_l1", f_scale=ROBUST_AT)
    return scale, Saturation.of(np.asarray(done.x, dtype=np.float64))


def _weights(rows: Sequence[PowerRow]) -> Floats:
    """Roots of weights (N,) by which every network counts as much as any other."""
    counts = Counter(row.model for row in rows)
    return np.sqrt([len(rows) / len(counts) / counts[row.model] for row in rows])
