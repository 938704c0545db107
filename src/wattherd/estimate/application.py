"""How a training application behaves: step time by placement, statistical efficiency by batch.

Built from measurements in the form of the Pollux artifact (OSDI'21): step times measured on given
placements, step times by (nodes, replicas, local batch) for larger ones, and, per validated global
batch size, progress, metric and gradient statistics after every epoch. Times in seconds; progress
in iterations at the initial batch size.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

Floats = NDArray[np.float64]
Placement = tuple[int, ...]
"""GPUs per node, in rank order."""

MOST_NODES = 16
"""The scalability measurements end at 16 nodes; beyond them a job is timed as if on 16."""
_ROUNDING = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One validated global batch size: columns by epoch (E,)."""

    batch_size: int
    progress: Floats
    iteration: Floats
    grad_sqr: Floats
    grad_var: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Samples per replica and pass, and how many passes are accumulated before a step."""

    local: int
    accumulation: int

    def total(self, replicas: int) -> int:
        """The global batch size."""
        return replicas * self.local * (self.accumulation + 1)


@dataclass(frozen=True, kw_only=True)
class Application:
    """Measurements of one application.

    `placed` maps a placement to (local batch (B,), (step, sync) seconds (B, 2)); `scaled` is
    (nodes, replicas, local batch, step, sync) rows in the order in which they are triangulated.
    `pinned_batch` is the batch size of an application that never adapts it.
    """

    name: str
    validations: tuple[Validation, ...]
    placed: dict[Placement, tuple[Floats, Floats]]
    scaled: Floats
    epochs: int
    least_local: int
    most_local: int
    pinned_batch: int | None = None
    _times: dict[tuple[Placement, int], tuple[float, float]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _grads: dict[tuple[int, int], tuple[float, float]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def initial_batch(self) -> int:
        """The batch size in which progress is counted."""
        return self.validations[0].batch_size

    @property
    def largest_batch(self) -> int:
        """The largest validated batch size."""
        return self.validations[-1].batch_size

    @property
    def most_replicas(self) -> int:
        """Over how many replicas the largest batch can be split."""
        return self.largest_batch // self.least_local

    @cached_property
    def _batches(self) -> list[int]:
        return [validation.batch_size for validation in self.validations]

    def batch_plan(self, batch_size: int, replicas: int) -> BatchPlan:
        """Split a global batch over `replicas`, accumulating where memory does not suffice."""
        local = math.ceil(batch_size / replicas - _ROUNDING)
        accumulation = math.ceil(local / self.most_local - _ROUNDING) - 1
        if replicas == 1 and batch_size > self.initial_batch:
            accumulation = max(1, accumulation)
        return self._atomic(local, accumulation, replicas)

    def _atomic(self, local: int, accumulation: int, replicas: int) -> BatchPlan:
        atomic = math.ceil(local / (accumulation + 1) - _ROUNDING)
        most = int(self.largest_batch / (replicas * (accumulation + 1)))
        return BatchPlan(local=min(atomic, most), accumulation=accumulation)

    def step_times(self, placement: Placement, local: int) -> tuple[float, float]:
        """(step, synchronisation) seconds of one pass with `local` samples per replica.

        Placements are equal up to rotation. Where the placement was measured, linear in the local
        batch; else linear on the Delaunay triangulation of (nodes, replicas, local batch).

        Raises:
            UserError: outside of what was measured.
        """
        least = min(placement[i:] + placement[:i] for i in range(len(placement)))
        if (least, local) not in self._times:
            self._times[least, local] = self._interpolated(least, local)
        return self._times[least, local]

    def _interpolated(self, placement: Placement, local: int) -> tuple[float, float]:
        if placement in self.placed:
            locals_, times = self.placed[placement]
            step, sync = _linear(locals_, times, float(local))
        else:
            point = [min(len(placement), MOST_NODES), sum(placement), local]
            step, sync = self._triangulated(point)[0].tolist()
        if math.isnan(step) or math.isnan(sync):
            raise UserError(
                f"no step time for placement {placement} at {local} samples per replica",
                where=f"application {self.name}",
                hint="it lies outside of the measured range",
            )
        return step, sync

    @cached_property
    def _triangulated(self) -> Any:
        try:
            from scipy.interpolate import LinearNDInterpolator
        except ImportError:
            raise UserError(
                "step times of unmeasured placements need SciPy",
                hint="pip install 'wattherd[science]'",
            ) from None
        return LinearNDInterpolator(self.scaled[:, :3], self.scaled[:, 3:])

    def prepare(self) -> None:
        """Triangulate beforehand; without SciPy the first step time that needs it says so."""
        if find_spec("scipy") is not None:
            _ = self._triangulated

    def gradient(self, batch_size: int, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient during `epoch`, between validated batches."""
        known = self._grads.get((batch_size, epoch))
        if known is None:
            known = (
                self._blend(batch_size, "grad_sqr", epoch),
                self._blend(batch_size, "grad_var", epoch),
            )
            self._grads[batch_size, epoch] = known
        return known

    def goodput(self, placement: Placement, plan: BatchPlan, epoch: int) -> float:
        """Progress per second: statistical gain over the time of a step (Pollux, OSDI'21)."""
        size = plan.total(sum(placement))
        step_s, sync_s = self.step_times(placement, plan.local)
        sqr, var = self.gradient(size, epoch)
        gain = (var + sqr) / (var / (size / self.initial_batch) + sqr)
        return gain / (step_s + (step_s - sync_s) * plan.accumulation)

    def iterations(self, batch_size: int, epoch: int) -> float:
        """Iterations after completing `epoch` at this batch size."""
        return self._blend(batch_size, "iteration", epoch)

    def _blend(self, batch_size: int, column: str, epoch: int) -> float:
        low = bisect_right(self._batches, batch_size) - 1
        high = bisect_left(self._batches, batch_size)
        if low < 0 or high == len(self._batches):
            raise UserError(
                f"batch size {batch_size} is outside {self.initial_batch} to {self.largest_batch}",
                where=f"application {self.name}",
            )
        lower, upper = self.validations[low], self.validations[high]
        below, above = float(getattr(lower, column)[epoch]), float(getattr(upper, column)[epoch])
        if low == high:
            return below
        span = upper.batch_size - lower.batch_size
        return (
            (batch_size - lower.batch_size) * above + (upper.batch_size - batch_size) * below
        ) / span

    @cached_property
    def boundaries(self) -> list[float]:
        """Progress at which each epoch begins: the earliest over all batch sizes."""
        rows = [validation.progress[: self.epochs] for validation in self.validations]
        return [0.0, *np.min(rows, axis=0).tolist()]

    @property
    def last_epoch(self) -> int:
        """The epoch whose completion completes the job."""
        return self.epochs - 1


def _linear(at: Floats, values: Floats, x: float) -> tuple[float, float]:
    if not at[0] <= x <= at[-1]:
        return math.nan, math.nan
    high = min(max(int(np.searchsorted(at, x)), 1), len(at) - 1)
    low = high - 1
    slope = (values[high] - values[low]) / (at[high] - at[low])
    step, sync = (slope * (x - at[low]) + values[low]).tolist()
    return step, sync
