"""The Gittins index: how promising it is to serve a job that has received so much already.

G(a) = sup over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a] for historic services S
(Gittins, 1979; Tiresias, NSDI'19, section 3.3): the best chance of finishing per unit of service.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES = 1024
"""More samples than these are replaced by as many quantiles of them."""


@dataclass(frozen=True, slots=True)
class GittinsIndex:
    """`indices[k]` holds from `services[k - 1]` (0 at first) until `services[k]` is received."""

    services: tuple[float, ...]
    indices: tuple[float, ...]

    def of(self, served: float) -> float:
        """The index of a job that has received `served`; 0 beyond all experience."""
        at = bisect_right(self.services, served)
        return self.indices[at] if at < len(self.indices) else 0.0


def gittins_index(samples: Sequence[float]) -> GittinsIndex:
    """The table for historic `samples` of service, all of them above zero."""
    services = np.sort(np.asarray(samples, dtype=np.float64))
    if len(services) > MOST_SAMPLES:
        middles = (np.arange(MOST_SAMPLES) + 0.5) / MOST_SAMPLES
        services = services[(middles * len(services)).astype(np.int64)]
    sums = np.concatenate(([0.0], np.cumsum(services)))
    served = np.concatenate(([0.0], services[:-1]))
    indices = [_best(services, sums, float(one)) for one in served]
    return GittinsIndex(tuple(services.tolist()), tuple(indices))


def _best(services: NDArray[np.float64], sums: NDArray[np.float64], served: float) -> float:
    """The largest ratio over quanta that end where some historic job ended."""
    total = len(services)
    begun = int(np.searchsorted(services, served, side="right"))
    done = np.arange(begun + 1, total + 1)
    spent = sums[done] - sums[begun] - served * (done - begun)
    spent += (services[begun:] - served) * (total - done)
    return float(((done - begun) / spent).max(initial=0.0))
