"""Where a pod goes: to nodes that are in use already, so that whole nodes stay free for gangs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.policy.place.contract import Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit_rows


def rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Integer keys of the nodes that have room, higher is better, and a shared request's GPU."""
    (cores,) = options
    nodes = world.nodes
    untouched = nodes.gpu_count[rows] - nodes.active[rows]
    # `cores` free vCPUs count as one GPU that nobody uses.
    free = nodes.cpu_free[rows] / (1000.0 * cores)
    return -np.rint(1000.0 * (untouched + free)).astype(np.int64), best_fit_rows(world, shape, rows)


SCORER = Scorer(
    name="busy-nodes-first",
    doc="Nodes with the fewest GPUs and cores that nobody uses",
    rows=rows,
    options={"cores": 16.0},
)
