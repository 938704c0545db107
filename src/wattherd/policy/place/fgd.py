"""FGD: place where fragmentation grows least (Weng et al., ATC'23, section 5).

score = floor(S / (1 + exp(-(F_before - F_after) / 1000))) with S = 100 in the published plugin.
The integer step is part of the result: with it and fixed-order ties FGD packs in node order at
low load (95.4 % allocated on the default trace), with the exact value or random ties it does not.
`fgd@exact` scores the real difference, rounded to `quantum` milli-GPU.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.fragmentation import fragment_after, fragment_rows
from wattherd.jit import kernel
from wattherd.policy.place.contract import INFEASIBLE, NO_GPU, Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import after_exclusive, first_best_rows

KERNEL_ID = 1


def fgd_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; options are (scale, quantum)."""
    nodes, shapes = world.nodes, world.shapes
    cpu = nodes.cpu_free[rows] - shapes.cpu_milli[shape]
    if not shapes.sharing[shape]:
        after = after_exclusive(world, shape, rows)
        loss = fragment_rows(world.target, cpu, after, nodes.model[rows])
        return _keys(nodes.fragment[rows] - loss, options), np.full(len(rows), NO_GPU)
    need = shapes.gpu_milli[shape]
    feasible = nodes.gpu_free[rows] >= need
    at, gpu = np.nonzero(feasible)
    after = nodes.gpu_free[rows[at]]
    after[np.arange(len(at)), gpu] -= need
    loss = fragment_rows(world.target, cpu[at], after, nodes.model[rows[at]])
    keys = np.full(feasible.shape, INFEASIBLE)
    keys[at, gpu] = _keys(nodes.fragment[rows[at]] - loss, options)
    return first_best_rows(keys, feasible)


def _keys(gain: NDArray[np.float64], options: NDArray[np.float64]) -> Ints:
    scale, quantum = options
    if quantum > 0:
        exact: Ints = np.rint(gain / quantum).astype(np.int64)
        return exact
    # math.exp, not np.exp: the vectorised one may differ from libm in the last bit.
    sigmoid = [scale / (1.0 + math.exp(-value / 1000.0)) for value in gain]
    return np.array(sigmoid).astype(np.int64)


@kernel
def fgd_key(gain, scale, quantum):  # type: ignore[no-untyped-def]
    """Integer key of a fragmentation gain in milli-GPU."""
    if quantum > 0:
        return np.int64(np.rint(gain / quantum))
    return np.int64(scale / (1.0 + math.exp(-gain / 1000.0)))


@kernel
def fgd(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`fgd_rows` for one node."""
    nodes, shapes = world.nodes, world.shapes
    cpu = nodes.cpu_free[n] - shapes.cpu_milli[shape]
    need, count = shapes.gpu_milli[shape], shapes.gpu_count[shape]
    roomy, small, model = nodes.roomy[n], nodes.small[n], nodes.model[n]
    before, idle = nodes.fragment[n], nodes.idle[n] - need * count
    if not shapes.sharing[shape]:
        loss = fragment_after(world.target, model, cpu, idle, roomy, small, 1000, 0, count)
        return fgd_key(before - loss, options[0], options[1]), NO_GPU
    best, chosen = INFEASIBLE, NO_GPU
    for i in range(nodes.gpu_count[n]):
        free = nodes.gpu_free[n, i]
        if free < need or (i > 0 and free == nodes.gpu_free[n, i - 1]):
            continue
        loss = fragment_after(world.target, model, cpu, idle, roomy, small, free, free - need, 1)
        key = fgd_key(before - loss, options[0], options[1])
        if key > best:
            best, chosen = key, i
    return best, chosen


SCORER = Scorer(
    name="fgd",
    doc="Least growth of fragmentation (FGD, ATC'23)",
    rows=fgd_rows,
    kernel_id=KERNEL_ID,
    options={"scale": 100.0, "quantum": 0.0},
    tokens={"exact": {"quantum": 1e-6}, "raw": {"quantum": 1e-12}},
)
