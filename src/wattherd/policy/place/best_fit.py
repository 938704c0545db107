"""Best fit: the node left with the least CPU and GPU, half each (baseline of FGD, ATC'23)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.place.contract import Ints, Normalise, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit, best_fit_rows

KERNEL_ID = 3
# The published baselines measure a node against the largest machine of the trace.
LARGEST_CPU_MILLI = 128000.0
LARGEST_GPU_MILLI = 8000.0


def best_fit_score_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; no options."""
    nodes, shapes = world.nodes, world.shapes
    cpu = (nodes.cpu_free[rows] - shapes.cpu_milli[shape]) / LARGEST_CPU_MILLI
    asked = shapes.gpu_milli[shape] * shapes.gpu_count[shape]
    gpu = (nodes.idle[rows] - asked) / LARGEST_GPU_MILLI
    keys = (100.0 * (1.0 - (0.5 * cpu + 0.5 * gpu))).astype(np.int64)
    return keys, best_fit_rows(world, shape, rows)


@kernel
def best_fit_score(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`best_fit_score_rows` for one node."""
    nodes, shapes = world.nodes, world.shapes
    cpu = (nodes.cpu_free[n] - shapes.cpu_milli[shape]) / LARGEST_CPU_MILLI
    asked = shapes.gpu_milli[shape] * shapes.gpu_count[shape]
    gpu = (nodes.idle[n] - asked) / LARGEST_GPU_MILLI
    return np.int64(100.0 * (1.0 - (0.5 * cpu + 0.5 * gpu))), best_fit(world, shape, n)


SCORER = Scorer(
    name="best-fit",
    doc="Least CPU and GPU left over (baseline of FGD)",
    rows=best_fit_score_rows,
    kernel_id=KERNEL_ID,
    normalise=Normalise.SPREAD,
)
