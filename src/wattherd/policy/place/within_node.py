"""Which GPU inside a node: the rules that several policies share.

Sharing requests name one GPU by one of these rules; exclusive requests always take the
lowest-numbered GPUs with room (as the published simulator does).
"""

from __future__ import annotations

import numpy as np

from wattherd.jit import kernel
from wattherd.policy.place.contract import INFEASIBLE, NO_GPU, Ints, ScoredWorld

_BIG = 1 << 40


def best_fit_rows(world: ScoredWorld, shape: int, rows: Ints) -> Ints:
    """The GPU with the least sufficient room, lowest number first; `NO_GPU` if not sharing."""
    if not world.shapes.sharing[shape]:
        return np.full(len(rows), NO_GPU)
    free = world.nodes.gpu_free[rows]
    best: Ints = np.argmin(np.where(free >= world.shapes.gpu_milli[shape], free, _BIG), axis=1)
    return best


@kernel
def best_fit(world, shape, n):  # type: ignore[no-untyped-def]
    """`best_fit_rows` for one node."""
    if not world.shapes.sharing[shape]:
        return NO_GPU
    need, best, chosen = world.shapes.gpu_milli[shape], _BIG, NO_GPU
    for i in range(world.nodes.gpu_free.shape[1]):
        free = world.nodes.gpu_free[n, i]
        if need <= free < best:
            best, chosen = free, i
    return chosen


def first_best_rows(keys: Ints, feasible: np.ndarray) -> tuple[Ints, Ints]:
    """Of candidate keys (R, G): each row's best feasible key and the first GPU that has it."""
    masked = np.where(feasible, keys, INFEASIBLE)
    chosen = np.argmax(masked, axis=1)
    return masked[np.arange(len(masked)), chosen], chosen


def after_exclusive(world: ScoredWorld, shape: int, rows: Ints) -> Ints:
    """GPU free milli (R, G) after the lowest-numbered GPUs with room served the request."""
    free = world.nodes.gpu_free[rows]
    need, count = world.shapes.gpu_milli[shape], world.shapes.gpu_count[shape]
    roomy = free >= need
    taken = roomy & (np.cumsum(roomy, axis=1) <= count)
    return np.where(taken, free - need, free)
