"""From runs to comparisons: means over seeds, seed bands, savings at equal load, Pareto front.

Pure: no file, no picture. Savings compare a policy with the baseline on the same seed, hence on
the same arrivals, at the same arrived load; see `saving_curves`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.report.runs import PackRun, RunSet, TraceRuns

Floats = NDArray[np.float64]

BASELINE = "fgd"
SAVING_POINTS = (20, 50, 80)
SAVING_SPAN = (20.0, 80.0)
"""Savings are averaged over this range of arrived load: below it one node more or less decides,
above it policies hold different pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSpread:
    """A figure over seeds; `sd` is the sample standard deviation, None for a single seed."""

    mean: float
    sd: float | None
    low: float
    high: float
    seeds: int


def spread(values: Iterable[float | None]) -> SeedSpread | None:
    """Mean and spread of the known values, None when there are none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    return SeedSpread(
        mean=statistics.fmean(known),
        sd=statistics.stdev(known) if len(known) > 1 else None,
        low=min(known),
        high=max(known),
        seeds=len(known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One policy on one trace, over its seeds.

    `savings_pct` maps 20, 50 and 80 % arrived to the power saved against `baseline`;
    `mean_saving_pct` averages over 20..80 %. Both are None for the baseline itself and where
    the load was not reached. `watts_per_gpu` is power at the end per allocated GPU.
    """

    trace: str
    policy: str
    baseline: str
    seeds: int
    allocated_pct: SeedSpread
    allocated_gpus: SeedSpread
    grar: SeedSpread | None
    frag_ratio_pct: SeedSpread | None
    power_w: SeedSpread | None
    watts_per_gpu: SeedSpread | None
    savings_pct: dict[int, SeedSpread | None]
    mean_saving_pct: SeedSpread | None
    cpu_s: SeedSpread | None


def comparison_table(runs: RunSet) -> list[CompareRow]:
    """One row per trace and policy, in the order in which they were run."""
    return [row for trace in runs.traces for row in trace_rows(trace)]


def trace_rows(trace: TraceRuns) -> list[CompareRow]:
    """One row per policy of one trace."""
    baseline = baseline_policy(trace.policies)
    return [_row(trace, policy, baseline) for policy in trace.policies]


def baseline_policy(policies: Sequence[str]) -> str:
    """`fgd` where it was run, else the first policy."""
    return BASELINE if BASELINE in policies else policies[0]


def _row(trace: TraceRuns, policy: str, baseline: str) -> CompareRow:
    runs = trace.of(policy)
    gpus = trace.cluster.gpus
    saved = None if policy == baseline else saving_curves(trace, policy, baseline)
    allocated = [run.allocated_pct for run in runs]
    seconds = spread(run.cpu_s for run in runs)
    power = spread(run.power_w for run in runs)
    per_gpu = spread(_watts_per_gpu(run, gpus) for run in runs)
    everything = _known_spread(allocated)
    return CompareRow(
        trace=trace.label,
        policy=policy,
        baseline=baseline,
        seeds=len(runs),
        allocated_pct=everything,
        allocated_gpus=_known_spread([share * gpus / 100 for share in allocated]),
        grar=spread(run.grar for run in runs),
        frag_ratio_pct=spread(run.frag_ratio_pct for run in runs),
        power_w=power,
        watts_per_gpu=per_gpu,
        savings_pct={at: saved.at(at) if saved else None for at in SAVING_POINTS},
        mean_saving_pct=saved.over(*SAVING_SPAN) if saved else None,
        cpu_s=seconds,
    )


def _known_spread(values: Sequence[float]) -> SeedSpread:
    found = spread(values)
    if found is None:
        raise ValueError("a policy without runs has no spread")
    return found


def _watts_per_gpu(run: PackRun, gpus: int) -> float | None:
    held = run.allocated_pct * gpus / 100
    return run.power_w / held if run.power_w is not None and held > 0 else None


@dataclass(frozen=True, slots=True)
class Curves:
    """One quantity of one policy by arrived load (`x`, in percent): a row of `y` per seed.

    NaN marks loads that a seed did not reach.
    """

    x: Floats
    y: Floats

    @property
    def mean(self) -> Floats:
        """Mean over seeds; NaN unless every seed has a value, lest the line jump."""
        return np.asarray(self.y.mean(axis=0), dtype=np.float64)

    @property
    def low(self) -> Floats:
        """Lowest seed."""
        return np.asarray(self.y.min(axis=0), dtype=np.float64)

    @property
    def high(self) -> Floats:
        """Highest seed."""
        return np.asarray(self.y.max(axis=0), dtype=np.float64)

    def at(self, arrived_pct: float) -> SeedSpread | None:
        """The quantity where `arrived_pct` of capacity has arrived, interpolated linearly."""
        return spread(_at(arrived_pct, self.x, row) for row in self.y)

    def over(self, low: float, high: float) -> SeedSpread | None:
        """Each seed's mean over the bins in `low..high`, then the spread over seeds."""
        inside = (self.x >= low) & (self.x <= high)
        rows = (row[inside & np.isfinite(row)] for row in self.y)
        return spread(float(row.mean()) for row in rows if row.size)


def _at(arrived_pct: float, x: Floats, y: Floats) -> float | None:
    known = np.isfinite(y)
    if not known.any():
        return None
    return float(np.interp(arrived_pct, x[known], y[known], np.nan, np.nan))


def curves(trace: TraceRuns, policy: str, quantity: str) -> Curves:
    """The curve `quantity` (a field of `Curve`) of every seed, on the trace's common bins.

    Empty bins between known ones are bridged by a straight line.
    """
    x = common_bins(trace)
    rows = [on_bins(run, quantity, x) for run in trace.of(policy)]
    return Curves(x, np.array(rows, dtype=np.float64).reshape(len(rows), x.size))


def common_bins(trace: TraceRuns) -> Floats:
    """Every arrived load that occurs in a curve of the trace, ascending."""
    return np.array(sorted({x for run in trace.runs for x in run.curve.arrived_pct}), dtype=float)


def on_bins(run: PackRun, quantity: str, x: Floats) -> Floats:
    """One run's curve at the loads `x`; NaN before its first and after its last known bin."""
    values: Sequence[float | None] = getattr(run.curve, quantity)
    known = [
        (load, value)
        for load, value in zip(run.curve.arrived_pct, values, strict=True)
        if value is not None
    ]
    if not known:
        return np.full(x.shape, np.nan)
    loads, heights = np.array(known, dtype=float).T
    return np.asarray(np.interp(x, loads, heights, np.nan, np.nan), dtype=np.float64)


def saving_curves(trace: TraceRuns, policy: str, baseline: str) -> Curves:
    """Power saved against `baseline` in percent of its power, by arrived load and seed.

    A seed that the baseline was not run with is compared with the baseline's mean.
    """
    x = common_bins(trace)
    reference = {run.seed: on_bins(run, "power_w", x) for run in trace.of(baseline)}
    mean: Floats = np.array(list(reference.values())).mean(axis=0)
    rows = []
    for run in trace.of(policy):
        base = reference.get(run.seed, mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            saved = 100 * (base - on_bins(run, "power_w", x)) / base
        rows.append(np.where(base > 0, saved, np.nan))
    return Curves(x, np.array(rows, dtype=np.float64).reshape(len(rows), x.size))


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names whose point no other point beats in one coordinate without losing in the other.

    Both coordinates are better when larger; sorted by the first, ascending.
    """
    front = [
        name
        for name, point in points.items()
        if not any(_beats(other, point) for other in points.values())
    ]
    return sorted(front, key=lambda name: (points[name], name))


def _beats(one: tuple[float, float], two: tuple[float, float]) -> bool:
    return one != two and one[0] >= two[0] and one[1] >= two[1]


def power_and_gpus(rows: Sequence[CompareRow]) -> dict[str, tuple[float, float]]:
    """Policy to (mean power saved in percent, GPUs allocated at the end); the baseline saves 0."""
    points = {}
    for row in rows:
        saved = 0.0 if row.policy == row.baseline else _mean(row.mean_saving_pct)
        if saved is not None:
            points[row.policy] = (saved, row.allocated_gpus.mean)
    return points


def _mean(value: SeedSpread | None) -> float | None:
    return value.mean if value else None
