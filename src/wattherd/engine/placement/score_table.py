"""Score tables: one key per (scorer, request shape, node), recomputed only where a node changed.

Nodes are grouped in blocks that remember their best node, so that finding the best of all costs
O(N / BLOCK) and a changed node costs O(BLOCK) at worst. Two implementations that must agree
exactly: kernels here, and the NumPy definitions of the policies in `engine.placement.reference`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.placement.kernels import CHANGES, MAX_PODS_PER_NODE
from wattherd.jit import kernel
from wattherd.policy.place.contract import INFEASIBLE, NO_GPU, Ints
from wattherd.policy.place.dispatch import score_node
from wattherd.policy.place.registry import PlacePolicy

# A power of two near the square root of ten thousand nodes: to find the best of all and to mend one
# block then cost about the same.
BLOCK = 128
NEVER = -1
NO_NODE = -1


# Keys are integers, also where a paper's score is real: with floats the last bit decides ties, and
# the NumPy definition and the kernel would part ways (docs/concepts/exactness.md).
class ScoreTable(NamedTuple):
    """K scorers x S shapes x N nodes.

    `cursor` (S,) is how much of the change log each shape has seen, `stamp` (N,) and `query` (1,)
    keep one refresh from scoring a node twice, `block_node` (S, N / BLOCK) is each block's best.
    """

    keys: Ints
    gpus: NDArray[np.int16]
    cursor: Ints
    stamp: Ints
    query: Ints
    block_node: Ints


class ScoringPlan(NamedTuple):
    """A policy as numbers: kernels, their options, weights and normalisations (K each)."""

    kernels: Ints
    options: NDArray[np.float64]
    weights: Ints
    modes: Ints


def empty_table(scorers: int, shapes: int, nodes: int) -> ScoreTable:
    """A table in which every shape has yet to be scored."""
    return ScoreTable(
        keys=np.full((scorers, shapes, nodes), INFEASIBLE, dtype=np.int64),
        gpus=np.full((shapes, nodes), NO_GPU, dtype=np.int16),
        cursor=np.full(shapes, NEVER, dtype=np.int64),
        stamp=np.zeros(nodes, dtype=np.int64),
        query=np.zeros(1, dtype=np.int64),
        block_node=np.zeros((shapes, -(-nodes // BLOCK)), dtype=np.int64),
    )


def plan_of(policy: PlacePolicy) -> ScoringPlan:
    """`policy` for the kernels."""
    width = max([1, *(len(part.options) for part in policy.parts)])
    options = np.zeros((len(policy.parts), width), dtype=np.float64)
    for row, part in enumerate(policy.parts):
        options[row, : len(part.options)] = part.options
    ids = [part.scorer.kernel_id for part in policy.parts]
    return ScoringPlan(
        # A scorer of somebody else's may have no kernel. Its policy is then decided by NumPy
        # definitions (`PlacePolicy.compiled`), and no kernel ever reads this number.
        kernels=np.array([NEVER if one is None else one for one in ids], dtype=np.int64),
        options=options,
        weights=np.array([part.weight for part in policy.parts], dtype=np.int64),
        modes=np.array([int(part.scorer.normalise) for part in policy.parts], dtype=np.int64),
    )


@kernel
def feasible(world, shape, n):  # type: ignore[no-untyped-def]
    """Whether node `n` has room for `shape`, memory aside."""
    nodes, shapes = world.nodes, world.shapes
    if nodes.cpu_free[n] < shapes.cpu_milli[shape] or nodes.pods[n] >= MAX_PODS_PER_NODE:
        return False
    count, need = shapes.gpu_count[shape], shapes.gpu_milli[shape]
    if count == 0:
        return True
    if not shapes.allowed[shape, nodes.model[n]]:
        return False
    for i in range(nodes.gpu_count[n]):
        if nodes.gpu_free[n, i] >= need:
            count -= 1
            if count == 0:
                return True
    return False


@kernel
def _rescore(world, table, plan, shape, n):  # type: ignore[no-untyped-def]
    """Score node `n` anew by every scorer; the last one names the GPU."""
    possible = feasible(world, shape, n)
    for k in range(plan.kernels.shape[0]):
        # Written also where there is no room any more: the old key would go on praising a full
        # node.
        key, gpu = INFEASIBLE, NO_GPU
        if possible:
            key, gpu = score_node(plan.kernels[k], world, shape, n, plan.options[k])
        table.keys[k, shape, n] = key
        table.gpus[shape, n] = gpu


@kernel
def _rebuild_block(table, shape, block):  # type: ignore[no-untyped-def]
    """Find the first best node of a block by the first scorer's key."""
    start = block * BLOCK
    best = start
    for n in range(start + 1, min(start + BLOCK, table.keys.shape[2])):
        if table.keys[0, shape, n] > table.keys[0, shape, best]:
            best = n
    table.block_node[shape, block] = best


@kernel
def _requeue(table, shape, n, before):  # type: ignore[no-untyped-def]
    """Restore the block's best after node `n` moved from key `before` to its present one."""
    block = n // BLOCK
    best = table.block_node[shape, block]
    if n == best:
        # It got no worse: as the best it was ahead of all others, or the first of its equals, and
        # still is.
        if table.keys[0, shape, n] < before:
            _rebuild_block(table, shape, block)
        return
    key, top = table.keys[0, shape, n], table.keys[0, shape, best]
    # The first of equals, as NumPy's argmax has it.
    if key > top or (key == top and n < best):
        table.block_node[shape, block] = n


@kernel
def refresh(world, table, plan, log, totals, shape):  # type: ignore[no-untyped-def]
    """Bring the rows of `shape` up to date with every change since it was last asked for."""
    seen, now = table.cursor[shape], totals[CHANGES]
    table.cursor[shape] = now
    # The ring was overrun: what changed first is no longer in it.
    if seen == NEVER or now - seen > log.shape[0]:
        for n in range(table.keys.shape[2]):
            _rescore(world, table, plan, shape, n)
        for block in range(table.block_node.shape[1]):
            _rebuild_block(table, shape, block)
        return
    table.query[0] += 1
    for position in range(seen, now):
        n = log[position % log.shape[0]]
        # A node that changed five times is scored once. `stamp` is never cleared: the number of the
        # query tells.
        if table.stamp[n] == table.query[0]:
            continue
        table.stamp[n] = table.query[0]
        before = table.keys[0, shape, n]
        _rescore(world, table, plan, shape, n)
        _requeue(table, shape, n, before)


@kernel
def best_by_key(world, table, shape, memory):  # type: ignore[no-untyped-def]
    """First node with the highest key that also has the memory; `NO_NODE` if none."""
    keys, free = table.keys[0, shape], world.nodes.memory_free
    best, top = NO_NODE, INFEASIBLE
    for block in range(table.block_node.shape[1]):
        n = table.block_node[shape, block]
        # Equal is not enough: of equals the first node is taken, and that one was in an earlier
        # block.
        if keys[n] <= top:
            continue
        # Memory is no part of a shape (requests differ in it far more than in GPUs), so that a
        # block's best may lack it; only then is the block walked.
        if free[n] >= memory:
            best, top = n, keys[n]
            continue
        for n in range(block * BLOCK, min(block * BLOCK + BLOCK, keys.shape[0])):
            if keys[n] > top and free[n] >= memory:
                best, top = n, keys[n]
    return best


@kernel
def _normalised(key, low, high, mode):  # type: ignore[no-untyped-def]
    if mode == 0:
        return key
    if high == low:
        return 100 if mode == 2 else 0
    return (key - low) * 100 // (high - low)


@kernel
def _spread_of(keys, free, memory):  # type: ignore[no-untyped-def]
    """Lowest and highest key among the nodes with room."""
    # Over the nodes that could be chosen, as Kubernetes' scheduling framework normalises scores
    # over the nodes that passed its filters: who has no room must not squeeze the others together.
    low, high = np.int64(2**62), np.int64(-(2**62))
    for n in range(keys.shape[0]):
        if keys[n] > INFEASIBLE and free[n] >= memory:
            low, high = min(low, keys[n]), max(high, keys[n])
    return low, high


@kernel
def _weighted_sums(world, table, plan, shape, memory):  # type: ignore[no-untyped-def]
    """Each node's weighted sum of normalised keys; `INFEASIBLE` where it has no room."""
    free, scorers = world.nodes.memory_free, table.keys.shape[0]
    sums = np.zeros(table.keys.shape[2], dtype=np.int64)
    for k in range(scorers):
        keys, mode = table.keys[k, shape], plan.modes[k]
        # Alone a scorer's weight could only change the order by being 0 or negative; the NumPy
        # definition leaves it out as well.
        weight = 1 if scorers == 1 else plan.weights[k]
        low, high = (0, 0) if mode == 0 else _spread_of(keys, free, memory)
        for n in range(keys.shape[0]):
            if keys[n] == INFEASIBLE or free[n] < memory:
                sums[n] = INFEASIBLE
            else:
                sums[n] += weight * _normalised(keys[n], low, high, mode)
    return sums


@kernel
def best_by_weight(world, table, plan, shape, memory, pick):  # type: ignore[no-untyped-def]
    """First node with the highest weighted sum; with `pick` in [0, 1) a random one of the best."""
    sums = _weighted_sums(world, table, plan, shape, memory)
    best, top, ties = NO_NODE, INFEASIBLE, 0
    for n in range(sums.shape[0]):
        if sums[n] > top:
            best, top, ties = n, sums[n], 1
        elif sums[n] == top:
            ties += 1
    if pick < 0 or best == NO_NODE:
        return best
    # One draw decides among any number of ties, so that every request takes one number from the
    # stream.
    left = np.int64(pick * ties)
    for n in range(best, sums.shape[0]):
        if sums[n] == top:
            if left == 0:
                return n
            left -= 1
    return best


@kernel
def gpu_mask(world, table, shape, n, pick):  # type: ignore[no-untyped-def]
    """GPUs of node `n` for `shape` as bits; `pick` in [0, 1) draws a sharing request's GPU."""
    nodes, need = world.nodes, world.shapes.gpu_milli[shape]
    count = world.shapes.gpu_count[shape]
    if count == 0:
        return 0
    # Of a GPU that is shared it matters which one it is, and the last scorer said so. Whole GPUs of
    # a node are all alike: the first ones will do.
    if world.shapes.sharing[shape]:
        if pick < 0:
            return np.int64(1) << np.int64(table.gpus[shape, n])
        roomy = 0
        for i in range(nodes.gpu_count[n]):
            roomy += nodes.gpu_free[n, i] >= need
        left = np.int64(pick * roomy)
        for i in range(nodes.gpu_count[n]):
            if nodes.gpu_free[n, i] >= need:
                if left == 0:
                    return 1 << i
                left -= 1
    mask = 0
    for i in range(nodes.gpu_count[n]):
        if count > 0 and nodes.gpu_free[n, i] >= need:
            mask |= 1 << i
            count -= 1
    return mask


@kernel
def decide(world, table, plan, log, totals, shape, memory, direct, pick, pick_gpu):  # type: ignore[no-untyped-def]
    """The whole decision: (node or `NO_NODE`, GPU bits)."""
    refresh(world, table, plan, log, totals, shape)
    # Blocks know the best node by the first scorer's raw key and nothing of ties. A sum, a
    # normalisation (which needs the range over all nodes that fit) or a drawn tie has to see them
    # all.
    if direct and pick < 0:
        n = best_by_key(world, table, shape, memory)
    else:
        n = best_by_weight(world, table, plan, shape, memory, pick)
    if n == NO_NODE:
        return n, 0
    return n, gpu_mask(world, table, shape, n, pick_gpu)
