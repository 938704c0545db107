"""Watts of a job under any cap from one measurement of it: what holds on every GPU type.

A job draws what it demands where that is well below the cap, and the cap where that is well below
its demand. Between them lies a soft corner, as in `estimate.saturation`. A measurement under one
cap gives the demand, the demand gives the draw under any other cap. The softness of the corner is
the only parameter; it is much the same on all GPU types.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_DEMAND = 0.0
"""Log of the greatest demand believed of a job that drew its cap: the TDP."""


@dataclass(frozen=True, slots=True)
class MeasuredOnce:
    """One measurement carried to other caps; a greater `corner` (6 or so) is a sharper one."""

    corner: float

    def log_share(self, measured: Floats, measured_cap: Floats, cap: Floats) -> Floats:
        """Logs of watts per TDP (N,) under `cap`, from `measured` under `measured_cap`, all (N,).

        All are logs of shares of the TDP. Under the very cap of the measurement it is what was
        measured. A job that drew all of its cap may demand anything up to the TDP.
        """
        rest = np.exp(-self.corner * measured) - np.exp(-self.corner * measured_cap)
        most = np.maximum(measured, MOST_DEMAND)
        with np.errstate(divide="ignore", invalid="ignore"):
            demand = np.where(rest > 0.0, -np.log(rest) / self.corner, np.inf)
        demand = np.minimum(demand, most)
        # A demand cut at the TDP no longer explains the measurement: what is left is kept.
        off = measured - self._drawn(demand, measured_cap)
        return np.asarray(self._drawn(demand, cap) + off)

    def _drawn(self, demand: Floats, cap: Floats) -> Floats:
        return np.asarray(-np.logaddexp(-self.corner * demand, -self.corner * cap) / self.corner)
