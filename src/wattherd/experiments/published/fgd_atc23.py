"""FGD (Weng et al., ATC'23): six policies, ten seeds, 131 bins of allocation and fragmentation.

With the authors' arrival and tie orders every bin of the deterministic policies must agree.
Without them, on `gpuspec` traces (whose published runs used GPU names that the public files no
longer have) and for the random policy, means over the seeds at 130 % must agree within 0.3 points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.experiments.placement.pack import MeasuredPack, run_all
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.published.source import OpenbFiles
from wattherd.workload.published_curves import read_binned

Floats = NDArray[np.float64]
Published = dict[tuple[str, str, int], Floats]

POLICIES = {
    "random": "01-Random",
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
ALLOCATION_TOLERANCE_PCT = 0.01
RATIO_TOLERANCE = 2e-4
MEAN_TOLERANCE_PCT = 0.3


def compare(
    files: OpenbFiles, traces: Sequence[str], seeds: Sequence[int], *, processes: int
) -> Iterator[FigureCheck]:
    """Every check of the paper on `traces`; traces without published results are skipped."""
    allocation = read_binned(files.result("analysis_allo_discrete.csv"))
    ratio = read_binned(files.result("analysis_frag_ratio_discrete.csv"))
    for trace in traces:
        if not any(key[0] == trace for key in allocation):
            continue
        experiment = files.experiment(trace)
        runs = [run for _, run in run_all(experiment, list(POLICIES), seeds, processes=processes)]
        exact = experiment.order_file is not None and not trace.startswith("gpuspec")
        for policy in POLICIES:
            mine = sorted((r for r in runs if r.policy == policy), key=lambda run: run.seed)
            yield from _checks(trace, policy, mine, allocation, ratio, exact and policy != "random")


def _checks(
    trace: str,
    policy: str,
    runs: Sequence[MeasuredPack],
    allocation: Published,
    ratio: Published,
    exact: bool,  # noqa: FBT001
) -> Iterator[FigureCheck]:
    keys = [(trace, POLICIES[policy], run.seed) for run in runs]
    theirs = np.array([allocation[key] for key in keys])
    ours = np.array([run.curve.allocated_pct for run in runs])
    end = -1
    yield FigureCheck(
        trace=trace,
        policy=policy,
        quantity=f"GPUs allocated at 130 %, mean of {len(runs)} seeds (%)",
        published=float(theirs[:, end].mean()),
        ours=float(ours[:, end].mean()),
        tolerance=MEAN_TOLERANCE_PCT,
    )
    bins = ours.size
    yield _worst(trace, policy, f"allocation, worst of {bins} bins (%)", theirs, ours,
                 ALLOCATION_TOLERANCE_PCT if exact else None)  # fmt: skip
    theirs = np.array([ratio[key] for key in keys])
    ours = np.array([run.curve.frag_ratio_pct for run in runs]) / theirs
    yield _worst(trace, policy, f"frag ratio over published, worst of {bins} bins",
                 np.ones_like(theirs), ours, RATIO_TOLERANCE if exact else None)  # fmt: skip


def _worst(
    trace: str, policy: str, quantity: str, theirs: Floats, ours: Floats, tolerance: float | None
) -> FigureCheck:
    difference = ours - theirs
    worst = np.unravel_index(np.nanargmax(np.abs(difference)), ours.shape)
    seed = np.argmax(np.nan_to_num(np.abs(difference)), axis=0)
    return FigureCheck(
        trace=trace,
        policy=policy,
        quantity=quantity,
        published=float(theirs[worst]),
        ours=float(ours[worst]),
        tolerance=tolerance,
        by_bin=tuple(difference[seed, np.arange(len(seed))].tolist()),
    )
