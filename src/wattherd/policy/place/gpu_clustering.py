"""GPU clustering: keep pods of one kind together (baseline of FGD, ATC'23).

Kinds are sharing, and exclusive by GPU count. A node that hosts only the pod's kind is best, then
one that hosts it among others, then one without GPU pods; within a class the fuller node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.place.contract import Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit, best_fit_rows

KERNEL_ID = 6


def gpu_clustering_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; no options."""
    nodes, shapes = world.nodes, world.shapes
    gpus = best_fit_rows(world, shape, rows)
    if shapes.gpu_count[shape] == 0:
        return np.zeros(len(rows), dtype=np.int64), gpus
    kinds = nodes.kinds[rows]
    kind = 0 if shapes.sharing[shape] else int(shapes.gpu_count[shape])
    mine, others = kinds[:, kind] > 0, kinds.sum(axis=1) > kinds[:, kind]
    tier = np.select([mine & ~others, mine & others, ~mine & ~others], [75, 50, 25], 0)
    fuller = (25.0 * ((8000 - nodes.idle[rows]) / 8000.0)).astype(np.int64)
    return tier + fuller, gpus


@kernel
def gpu_clustering(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`gpu_clustering_rows` for one node."""
    nodes, shapes = world.nodes, world.shapes
    chosen = best_fit(world, shape, n)
    if shapes.gpu_count[shape] == 0:
        return 0, chosen
    kind = 0 if shapes.sharing[shape] else shapes.gpu_count[shape]
    mine, others = False, False
    for other in range(nodes.kinds.shape[1]):
        if nodes.kinds[n, other] > 0:
            if other == kind:
                mine = True
            else:
                others = True
    fuller = np.int64(25.0 * ((8000 - nodes.idle[n]) / 8000.0))
    if mine:
        return (50 if others else 75) + fuller, chosen
    return (0 if others else 25) + fuller, chosen


SCORER = Scorer(
    name="gpu-clustering",
    doc="Pods of one kind together (baseline of FGD)",
    rows=gpu_clustering_rows,
    kernel_id=KERNEL_ID,
)
