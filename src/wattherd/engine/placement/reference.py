"""Decisions by the policies' NumPy definitions, without any compiled kernel.

Slower by an order of magnitude and exactly equal to `engine.placement.score_table`: this is what
runs where Numba is not installed, what third-party scorers run on, and what the kernels are tested
against.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.placement.kernels import MAX_PODS_PER_NODE
from wattherd.engine.placement.score_table import NEVER, NO_NODE, ScoreTable
from wattherd.engine.placement.state import ClusterState
from wattherd.policy.place.contract import INFEASIBLE, Ints, Normalise, ScoredWorld
from wattherd.policy.place.registry import PlacePolicy, ScorerPart


# Kept line by line as close to its definition as NumPy lets it be, and never made faster at the
# price of that: what it says is what the kernels are tested against.
def decide_reference(
    state: ClusterState,
    world: ScoredWorld,
    table: ScoreTable,
    policy: PlacePolicy,
    shape: int,
    memory: int,
    pick: float,
    pick_gpu: float,
) -> tuple[int, int]:
    """(node or `NO_NODE`, GPU bits), as `score_table.decide`; `world` is the state's, or less."""
    _refresh(world, table, policy, state.log, state.changes, shape)
    keys = table.keys[:, shape]
    usable = (keys[0] > INFEASIBLE) & (world.nodes.memory_free >= memory)
    if not usable.any():
        return NO_NODE, 0
    candidates = np.flatnonzero(usable)
    sums = _weighted(policy, keys[:, candidates])
    # Ascending, so that the first of equals is taken as by the kernels.
    best = candidates[sums == sums.max()]
    n = int(best[0] if pick < 0 else best[int(pick * len(best))])
    return n, _gpu_mask(world, table, shape, n, pick_gpu)


def _refresh(
    world: ScoredWorld, table: ScoreTable, policy: PlacePolicy, log: Ints, now: int, shape: int
) -> None:
    seen = int(table.cursor[shape])
    table.cursor[shape] = now
    if seen == NEVER or now - seen > len(log):
        dirty = np.arange(table.keys.shape[2])
    else:
        # In another order than the kernel, which is no matter: a node's score depends on no other
        # node's.
        dirty = np.unique(log[np.arange(seen, now) % len(log)])
    possible = feasible_rows(world, shape, dirty)
    table.keys[:, shape, dirty] = INFEASIBLE
    for k, part in enumerate(policy.parts if len(possible) else ()):
        keys, gpus = part.scorer.rows(world, shape, possible, part.options)
        table.keys[k, shape, possible] = keys
        table.gpus[shape, possible] = gpus


def feasible_rows(world: ScoredWorld, shape: int, rows: Ints) -> Ints:
    """Those of `rows` that have room for the shape, memory aside."""
    nodes, shapes = world.nodes, world.shapes
    room = (nodes.cpu_free[rows] >= shapes.cpu_milli[shape]) & (
        nodes.pods[rows] < MAX_PODS_PER_NODE
    )
    if shapes.gpu_count[shape]:
        fitting = (nodes.gpu_free[rows] >= shapes.gpu_milli[shape]).sum(axis=1)
        room &= shapes.allowed[shape][nodes.model[rows]] & (fitting >= shapes.gpu_count[shape])
    found: Ints = rows[room]
    return found


def _weighted(policy: PlacePolicy, keys: Ints) -> Ints:
    scores = [_normalised(part, row) for part, row in zip(policy.parts, keys, strict=True)]
    if len(scores) == 1:
        return scores[0]
    total: Ints = sum(part.weight * score for part, score in zip(policy.parts, scores, strict=True))  # type: ignore[assignment]
    return total


def _normalised(part: ScorerPart, keys: Ints) -> Ints:
    mode = part.scorer.normalise
    if mode is Normalise.NONE:
        return keys
    low, high = keys.min(), keys.max()
    if low == high:
        return np.full(len(keys), 100 if mode is Normalise.SPREAD_OR_FULL else 0)
    spread: Ints = (keys - low) * 100 // (high - low)
    return spread


def _gpu_mask(world: ScoredWorld, table: ScoreTable, shape: int, n: int, pick: float) -> int:
    count, need = int(world.shapes.gpu_count[shape]), world.shapes.gpu_milli[shape]
    if count == 0:
        return 0
    roomy = np.flatnonzero(world.nodes.gpu_free[n] >= need)
    if not world.shapes.sharing[shape]:
        return sum(1 << int(gpu) for gpu in roomy[:count])
    chosen = table.gpus[shape, n] if pick < 0 else roomy[int(pick * len(roomy))]
    return 1 << int(chosen)
