"""PWR: place where estimated power grows least (Lettich et al., CCGrid'25).

raw = trunc(P_before - P_after) in whole watts, spread to 0..100 over the feasible nodes. A
sharing request prefers a GPU that already works, lowest number first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.node_power import cpu_mw, cpu_power_mw
from wattherd.jit import kernel
from wattherd.policy.place.contract import NO_GPU, Ints, Normalise, ScoredWorld, Scorer
from wattherd.policy.place.within_node import first_best_rows

KERNEL_ID = 2


def pwr_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; no options."""
    nodes, shapes, power = world.nodes, world.shapes, world.power
    cpu = nodes.cpu_free[rows]
    rise = cpu_power_mw(power, rows, cpu - shapes.cpu_milli[shape])
    rise -= cpu_power_mw(power, rows, cpu)
    step = power.gpu_max_mw[rows] - power.gpu_idle_mw[rows]
    if not shapes.sharing[shape]:
        woken = _woken(world, shape, rows)
        return -((rise + woken * step) // 1000), np.full(len(rows), NO_GPU)
    free = nodes.gpu_free[rows]
    keys = -((rise[:, None] + (free == 1000) * step[:, None]) // 1000)
    return first_best_rows(keys, free >= shapes.gpu_milli[shape])


def _woken(world: ScoredWorld, shape: int, rows: Ints) -> Ints:
    """How many idle GPUs an exclusive request would start to use on each row."""
    free = world.nodes.gpu_free[rows]
    roomy = free >= world.shapes.gpu_milli[shape]
    taken = roomy & (np.cumsum(roomy, axis=1) <= world.shapes.gpu_count[shape])
    woken: Ints = (taken & (free == 1000)).sum(axis=1)
    return woken


@kernel
def pwr(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`pwr_rows` for one node."""
    nodes, shapes, power = world.nodes, world.shapes, world.power
    cpu, need = nodes.cpu_free[n], shapes.gpu_milli[shape]
    rise = cpu_mw(power, n, cpu - shapes.cpu_milli[shape]) - cpu_mw(power, n, cpu)
    step = power.gpu_max_mw[n] - power.gpu_idle_mw[n]
    count = shapes.gpu_count[shape]
    woken, chosen = 0, NO_GPU
    if not shapes.sharing[shape]:
        for i in range(nodes.gpu_count[n]):
            if count > 0 and nodes.gpu_free[n, i] >= need:
                count -= 1
                if nodes.gpu_free[n, i] == 1000:
                    woken += 1
        return -((rise + woken * step) // 1000), NO_GPU
    for i in range(nodes.gpu_count[n]):
        free = nodes.gpu_free[n, i]
        if need <= free < 1000:
            return -(rise // 1000), i
        if free == 1000 and chosen == NO_GPU:
            chosen = i
    return -((rise + step) // 1000), chosen


SCORER = Scorer(
    name="pwr",
    doc="Least growth of estimated power (PWR, CCGrid'25)",
    rows=pwr_rows,
    kernel_id=KERNEL_ID,
    normalise=Normalise.SPREAD_OR_FULL,
)
