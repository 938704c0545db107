"""Page's two-sided cumulative sum over many jobs: several surprises of one sign are a change.

Page, Continuous Inspection Schemes, Biometrika 1954.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SURPRISE_AT = 3.0
"""Standard deviations from which a sample is wild."""
ALLOWED = 0.5
"""Standard deviations per sample that are no reason to worry."""
ALARM = 9.0


@dataclass(frozen=True, slots=True)
class Alarms:
    """Sums of surprises upwards and downwards, of each of two series of N jobs (N, 2, 2).

    `restarts` (N,) counts the changes found.
    """

    sums: Floats
    restarts: NDArray[np.int64]

    @classmethod
    def quiet(cls, jobs: int) -> Alarms:
        """No surprise so far."""
        return cls(np.zeros((jobs, 2, 2)), np.zeros(jobs, dtype=np.int64))

    def told(self, jobs: NDArray[np.int64], surprise: Floats) -> tuple[Alarms, NDArray[np.int64]]:
        """After standardised errors (n, 2) of `jobs` (n,); also the jobs that have changed."""
        step = np.clip(surprise, -SURPRISE_AT, SURPRISE_AT)
        both = np.stack([step, -step], axis=2) - ALLOWED
        sums, restarts = self.sums.copy(), self.restarts.copy()
        sums[jobs] = np.maximum(sums[jobs] + both, 0.0)
        changed = jobs[sums[jobs].max(axis=(1, 2)) >= ALARM]
        sums[changed] = 0.0
        restarts[changed] += 1
        return replace(self, sums=sums, restarts=restarts), changed
