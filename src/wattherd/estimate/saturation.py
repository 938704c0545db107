"""Watts of a job by how well one step fills the GPU, and by its cap: what carries to new networks.

The work of one step, batch x multiply-adds of a sample / peak rate of the GPU, is a time: so long
would an ideal GPU be busy. Where it is far below the cost of launching a step, the GPU idles
between kernels and draws its floor; far above, it draws its most. In between, logistic in the log.
A cap below that demand is what is drawn, with a soft corner. Where the logistic lies, how steep it
and how soft the corner is belong to all GPU types. Floor and most belong to each type, pulled
towards those of all; the floor of types with GDDR memory is higher by a factor that is learned,
since memory chips on the board draw watts whether or not they are used.

*From one measurement* of a job follow its watts under any cap (`MeasuredOnce`). A job draws what it
demands where that is well below the cap, and the cap where that is well below its demand. Between
them lies a soft corner, as above. A measurement under one cap gives the demand, the demand gives
the draw under any other cap. The softness of the corner is the only parameter; it is much the same
on all GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GpuMemory, rates

# --- Learned from many measurements -----------------------------------------------------------
Floats = NDArray[np.float64]

SHARED = 6
"""Parameters of all GPU types: log floor, log most, steepness, log seconds at half, corner, and
what GDDR memory adds to the log floor."""
START = (math.log(0.18), math.log(0.8), 1.5, -8.0, 8.0, 0.5)
"""The lightest CUDA kernels of HKBU draw 0.24 to 0.32 of the TDP with GDDR memory (three types)
and 0.11 with HBM (one): 0.9 apart in logs, of which about half is believed beforehand."""
DOUBT = (0.5, 0.3, 1.0, 2.0, 4.0, 0.3)
LEAST = (-4.0, -2.0, 0.2, -14.0, 2.0, -1.0)
MOST = (-0.5, 0.5, 5.0, -2.0, 30.0, 2.0)
OWN_DOUBT, OWN_MOST = 0.3, 2.0
"""How far a GPU type's floor and most are off those of all types, in logs, and at most."""
WORK, GDDR = "work_s", "gddr"
_LARGEST_EXPONENT = 60.0


def names_of(gpus: Sequence[str]) -> tuple[str, ...]:
    """Features in the order in which `Saturation` takes them."""
    return ("cap_share", WORK, GDDR, *(f"gpu:{name}" for name in gpus))


def derived(gpu: str, values: Mapping[str, float]) -> dict[str, float]:
    """`values` with the GPU type, its kind of memory, and the work of a step if that is known.

    `gddr` is 1 for memory chips on the board, 0 for stacks, and where a step's work is known but
    the memory is not, 0.5: between the two.
    """
    made = {**values, f"gpu:{gpu}": 1.0}
    if (entry := rates(gpu)) is not None:
        made.setdefault(GDDR, float(entry.memory is GpuMemory.ON_BOARD))
    known = [values.get(name) for name in ("batch_size", "flops", "gpu_flops")]
    batch, flops, peak = (value if value and value > 0 else math.nan for value in known)
    if not math.isnan(work := batch * flops / peak):
        made[WORK] = work
        made.setdefault(GDDR, 0.5)
    return made


@dataclass(frozen=True, slots=True)
class Saturation:
    """Fitted parameters: shared (6,), and logs of floor and most of every GPU type (G,) each.

    Models of version 1 have five shared parameters and no feature `gddr`.
    """

    shared: tuple[float, ...]
    floors: tuple[float, ...]
    mosts: tuple[float, ...]

    @classmethod
    def of(cls, parameters: Floats) -> Saturation:
        """From a flat vector (6 + 2 G,)."""
        flat = parameters.tolist()
        count = (len(flat) - SHARED) // 2
        own = flat[SHARED:]
        return cls(tuple(flat[:SHARED]), tuple(own[:count]), tuple(own[count:]))

    def predict(self, features: Floats) -> Floats:
        """Logs of watts per TDP (N,) at (N, 3 + G) logs of cap share and work, and what it is."""
        corner = self.shared[4]
        demand = self.demand(features)
        return np.asarray(-np.logaddexp(-corner * demand, -corner * features[:, 0]) / corner)

    def demand(self, features: Floats) -> Floats:
        """Logs of watts per TDP (N,) that would be drawn without a cap."""
        log_floor, log_most, steep, middle = self.shared[:4]
        by_memory = self.shared[5:]
        kinds = features[:, 2 + len(by_memory) :]
        floor = np.exp(log_floor + kinds @ np.array(self.floors))
        if by_memory:
            floor = floor * np.exp(by_memory[0] * features[:, 2])
        most = np.maximum(np.exp(log_most + kinds @ np.array(self.mosts)), floor)
        reach = np.clip(steep * (features[:, 1] - middle), -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        return np.asarray(np.log(floor + (most - floor) / (1.0 + np.exp(-reach))))

    def plain(self) -> dict[str, Any]:
        """Everything it needs, as JSON."""
        return {
            "kind": "saturation",
            "shared": list(self.shared),
            "floors": list(self.floors),
            "mosts": list(self.mosts),
        }


def prior(gpus: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Start, doubt, least and most of a flat vector of parameters (6 + 2 G,)."""
    own = np.ones(2 * gpus)
    return (
        np.concatenate([START, 0.0 * own]),
        np.concatenate([DOUBT, OWN_DOUBT * own]),
        np.concatenate([LEAST, -OWN_MOST * own]),
        np.concatenate([MOST, OWN_MOST * own]),
    )


# --- Reckoned from one measurement ------------------------------------------------------------

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
