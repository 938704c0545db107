"""PWR (Lettich et al., CCGrid'25): GRAR and power saved against FGD at equal arrived load.

Curves are interpolated linearly over the arrived fraction on a 0.005 grid per seed, then averaged;
savings compare the averaged powers. PWREXP, which has no published numbers, is reported beside
PWR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.experiments.placement.pack import MeasuredPack, run_all
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.published.source import OpenbFiles
from wattherd.workload.published_curves import ReferenceCurve, read_pwr_reference

Floats = NDArray[np.float64]

POLICIES = {
    "fgd": "FGD",
    "best-fit": "BestFit",
    "dot-product": "DotProd",
    "gpu-packing": "GpuPacking",
    "gpu-clustering": "GpuClustering",
    "pwr": "PWR",
    "pwr+fgd:0.5": "PWR_500_FGD_500",
    "pwr+fgd:0.3": "PWR_300_FGD_700",
    "pwr+fgd:0.2": "PWR_200_FGD_800",
    "pwr+fgd:0.1": "PWR_100_FGD_900",
    "pwr+fgd:0.05": "PWR_50_FGD_950",
    "pwr+fgd:0.025": "PWR_25_FGD_975",
}
EXPECTED = "pwrexp"
TOLERANCE_POINTS = 0.1
LOOSE_TOLERANCE_POINTS = 0.5
"""For ten seeds of our own orders, where power at equal load scatters by a few tenths."""
SHOWN_LOADS = (0.2, 0.5, 0.8, 1.0)


def compare(
    files: OpenbFiles, traces: Sequence[str], seeds: Sequence[int], *, processes: int
) -> Iterator[FigureCheck]:
    """Every check on `traces`; those without reference curves are skipped."""
    reference = read_pwr_reference(files.result("pwr_reference.csv"))
    for trace in traces:
        theirs = {ours: reference.get((trace, name)) for ours, name in POLICIES.items()}
        known = {policy: curve for policy, curve in theirs.items() if curve is not None}
        if not known:
            continue
        used = list(seeds)[: known["fgd"].seeds]
        experiment = files.experiment(trace)
        policies = [*known, EXPECTED]
        runs = [run for _, run in run_all(experiment, policies, used, processes=processes)]
        tolerance = TOLERANCE_POINTS if experiment.order_file else LOOSE_TOLERANCE_POINTS
        yield from _trace_checks(trace, runs, known, tolerance)


def _trace_checks(
    trace: str, runs: Sequence[MeasuredPack], known: Mapping[str, ReferenceCurve], tolerance: float
) -> Iterator[FigureCheck]:
    baseline = _mean(runs, "fgd", "power_w")
    for policy, curve in known.items():
        savings = 100 * (1 - _mean(runs, policy, "power_w") / baseline)
        grar = 100 * _mean(runs, policy, "grar")
        yield _worst(trace, policy, "GRAR, worst of grid (points)", runs, grar,
                     curve.x, 100 * curve.grar, tolerance)  # fmt: skip
        if policy != "fgd":
            yield _worst(trace, policy, "power saved, worst of grid (points)", runs, savings,
                         curve.x, curve.savings_pct, tolerance)  # fmt: skip
    yield from _expected(trace, runs, baseline)


def _expected(trace: str, runs: Sequence[MeasuredPack], baseline: Floats) -> Iterator[FigureCheck]:
    """PWREXP beside PWR: `published` is our PWR."""
    x = runs[0].grid.x
    for quantity, factor in (("grar", 100.0), ("power_w", 1.0)):
        plain, expected = (_mean(runs, policy, quantity) for policy in ("pwr", EXPECTED))
        for load in SHOWN_LOADS if quantity == "power_w" else (1.0,):
            at = int(np.argmin(np.abs(x - load)))
            pair = [float(values[at]) * factor for values in (plain, expected)]
            name = "GRAR (%)"
            if quantity == "power_w":
                pair = [100 * (1 - one / float(baseline[at])) for one in pair]
                name = "power saved (%)"
            yield FigureCheck(
                trace=trace,
                policy=f"{EXPECTED} beside pwr",
                quantity=f"{name} at {load:.0%} arrived",
                published=pair[0],
                ours=pair[1],
                tolerance=None,
            )


def _mean(runs: Sequence[MeasuredPack], policy: str, quantity: str) -> Floats:
    curves = [getattr(run.grid, quantity) for run in runs if run.policy == policy]
    shortest = min(len(curve) for curve in curves)
    mean: Floats = np.mean([curve[:shortest] for curve in curves], axis=0)
    return mean


def _worst(
    trace: str,
    policy: str,
    quantity: str,
    runs: Sequence[MeasuredPack],
    ours: Floats,
    x: Floats,
    theirs: Floats,
    tolerance: float,
) -> FigureCheck:
    shared = x <= runs[0].grid.x[len(ours) - 1] + 1e-9
    mine = np.interp(x[shared], runs[0].grid.x[: len(ours)], ours)
    worst = int(np.argmax(np.abs(mine - theirs[shared])))
    return FigureCheck(
        trace=trace,
        policy=policy,
        quantity=quantity,
        published=float(theirs[shared][worst]),
        ours=float(mine[worst]),
        tolerance=tolerance,
    )
