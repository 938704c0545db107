"""Isotonic regression: the nearest sequence that never falls, by pool adjacent violators.

Barlow, Bartholomew, Bremner, Brunk: Statistical Inference under Order Restrictions (1972), 1.2.
Measured rates fall with more watts only by noise; what is allocated must not be misled by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def non_falling(values: Sequence[float], weights: Sequence[float]) -> NDArray[np.float64]:
    """The sequence (N,) of least weighted squared distance to `values` (N,) that never falls.

    `weights` (N,) are above zero, for example one over each value's variance.
    """
    means: list[float] = []
    masses: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, length = float(value), float(weight), 1
        while means and means[-1] >= mean:
            before, heavy = means.pop(), masses.pop()
            mean = (before * heavy + mean * mass) / (heavy + mass)
            mass, length = mass + heavy, length + lengths.pop()
        means.append(mean)
        masses.append(mass)
        lengths.append(length)
    return np.repeat(np.array(means, dtype=np.float64), lengths)
