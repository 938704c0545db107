"""GPU packing: fill GPUs in use first, then nodes in use, then free nodes (baseline of FGD)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.place.contract import Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit, best_fit_rows

KERNEL_ID = 5


def gpu_packing_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; no options."""
    gpus = best_fit_rows(world, shape, rows)
    if world.shapes.gpu_count[shape] == 0:
        return np.zeros(len(rows), dtype=np.int64), gpus
    keys = [_packing_key(world, shape, int(row)) for row in rows]
    return np.array(keys, dtype=np.int64), gpus


def _packing_key(world: ScoredWorld, shape: int, n: int) -> int:
    present = int(world.nodes.gpu_count[n])
    free = [int(milli) for milli in world.nodes.gpu_free[n, :present]]
    if all(milli == 1000 for milli in free):
        return max(33 - present, present)
    roomy = sorted(milli for milli in free if milli >= world.shapes.gpu_milli[shape])
    taken = roomy[: int(world.shapes.gpu_count[shape])]
    untouched = sum(milli == 1000 for milli in taken)
    if untouched:
        return max(50 - untouched, 33)
    return max(100 - sum(milli * 100 // 1000 for milli in taken) // 10, 50)


@kernel
def gpu_packing(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`gpu_packing_rows` for one node."""
    nodes, need = world.nodes, world.shapes.gpu_milli[shape]
    wanted, present = world.shapes.gpu_count[shape], nodes.gpu_count[n]
    chosen = best_fit(world, shape, n)
    if wanted == 0:
        return 0, chosen
    if nodes.active[n] == 0:
        return max(33 - present, present), chosen
    if chosen >= 0 and nodes.gpu_free[n, chosen] < 1000:
        return max(100 - nodes.gpu_free[n, chosen] * 100 // 1000 // 10, 50), chosen
    # Whole GPUs only: every GPU taken is untouched, unless shares below one GPU are asked of many.
    untouched, shared = 0, 0
    for free in np.sort(nodes.gpu_free[n, :present]):
        if free >= need and wanted > 0:
            wanted -= 1
            untouched += free == 1000
            shared += free * 100 // 1000
    if untouched:
        return max(50 - untouched, 33), chosen
    return max(100 - shared // 10, 50), chosen


SCORER = Scorer(
    name="gpu-packing",
    doc="GPUs in use first, then nodes in use (baseline of FGD)",
    rows=gpu_packing_rows,
    kernel_id=KERNEL_ID,
)
