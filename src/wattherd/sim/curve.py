"""From per-step measurements to curves over the load that has arrived.

Load is arrived GPU demand over GPU capacity. Two readings of the same steps: *bins* of one
percent, as the FGD authors publish them, and a *grid* interpolated on the arrived fraction, as
the PWR authors compare power at equal load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.sim.pack import PackingSteps

Floats = NDArray[np.float64]

GRID_STEP = 0.005
"""Spacing of the arrived fraction in the PWR comparison (CCGrid'25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """Percent bins 0..B-1 of arrived load; NaN where neither the bin nor a neighbour has data."""

    arrived_pct: NDArray[np.int64]
    allocated_pct: Floats
    frag_ratio_pct: Floats
    frag_amount_pct: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGrid:
    """At arrived fractions `x`: allocated over arrived GPU demand, and watts."""

    x: Floats
    grar: Floats
    power_w: Floats
    cpu_w: Floats
    gpu_w: Floats


def binned(steps: PackingSteps, capacity_milli: int, *, load: float) -> LoadCurve:
    """Means per percent of arrived load, rounded as the published result files are.

    Every step's percentages are rounded to two decimals first, the step belongs to the bin that
    its arrived percent rounds to (half to even), and a bin's value is the mean of its steps; an
    empty bin takes its neighbours' mean (FGD artifact, analysis scripts).
    """
    idle = np.maximum(capacity_milli - steps.used_milli, 1)
    percent = 100.0 / capacity_milli
    # Multiplied first: an arrived half percent must stay an exact half for rounding to even.
    bins = np.rint(100 * steps.arrived_milli / capacity_milli).astype(np.int64)
    count = round(load * 100) + 1

    def column(values: Floats) -> Floats:
        return _bin_means(values, bins, count)

    return LoadCurve(
        arrived_pct=np.arange(count),
        allocated_pct=column(np.round(100 * steps.used_milli / capacity_milli, 2)),
        frag_ratio_pct=column(np.round(100 * steps.fragment_milli / idle, 2)),
        frag_amount_pct=column(np.round(steps.fragment_milli * percent, 2)),
        power_w=column(steps.power_w),
    )


def _bin_means(values: Floats, bins: NDArray[np.int64], count: int) -> Floats:
    inside = bins < count
    size = np.bincount(bins[inside], minlength=count)
    total = np.bincount(bins[inside], weights=values[inside], minlength=count)
    means = np.full(count, np.nan)
    means[size > 0] = total[size > 0] / size[size > 0]
    for empty in np.flatnonzero(size == 0):
        around = means[[i for i in (empty - 1, empty + 1) if 0 <= i < count and size[i]]]
        means[empty] = around.mean() if len(around) else np.nan
    return means


def gridded(steps: PackingSteps, capacity_milli: int, *, until: float = 1.0) -> LoadGrid:
    """Linear interpolation over the arrived fraction, from the first step to `until`.

    Steps that bring no GPU demand share an arrived fraction; the first of them counts, which
    reproduces the reference curves to their last digit.
    """
    x = np.arange(0.0, until + GRID_STEP / 2, GRID_STEP)
    first = np.insert(np.diff(steps.arrived_milli) > 0, 0, True)
    arrived = steps.arrived_milli[first]
    grar = np.where(arrived > 0, steps.used_milli[first] / np.maximum(arrived, 1), 1.0)

    def column(values: Floats) -> Floats:
        return np.asarray(np.interp(x, arrived / capacity_milli, values), dtype=np.float64)

    return LoadGrid(
        x=x,
        grar=column(grar),
        power_w=column(steps.power_w[first]),
        cpu_w=column(steps.cpu_w[first]),
        gpu_w=column(steps.gpu_w[first]),
    )
