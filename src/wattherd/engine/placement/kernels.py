"""Kernels that change a node: compiled where Numba is installed, plain Python otherwise."""

from __future__ import annotations

import numpy as np

from wattherd.estimate.fragmentation import count_roomy, fragment_after
from wattherd.estimate.node_power import cpu_mw, gpu_mw
from wattherd.jit import kernel

MAX_PODS_PER_NODE = 1001
"""Pods per node in the published simulator (FGD artifact)."""

# Columns of the running totals. Fragmentation is counted in 1e-9 milli-GPU, power in mW: as
# integers, so that sums neither drift nor depend on the order of events.
USED_MILLI, CPU_MW, GPU_MW, FRAGMENT, CHANGES, IDLE_MILLI = 0, 1, 2, 3, 4, 5
TOTALS = 6
# After them: idle milli on nodes without a GPU model (0), then of each model.
FRAGMENT_UNIT = 1e-9


@kernel
def derive(world, n):  # type: ignore[no-untyped-def]
    """Recompute what follows from the free resources of node `n`."""
    nodes = world.nodes
    idle, active = 0, 0
    for i in range(nodes.gpu_count[n]):
        idle += nodes.gpu_free[n, i]
        active += nodes.gpu_free[n, i] < 1000
    nodes.idle[n] = idle
    nodes.active[n] = active
    count_roomy(world.target, nodes.gpu_free[n], nodes.roomy[n], nodes.small[n])
    # No hypothesis (the last three are 0): what the node is now, by the code that asks what it
    # would be. A second formula could differ in the last digit.
    nodes.fragment[n] = fragment_after(
        world.target,
        nodes.model[n],
        nodes.cpu_free[n],
        idle,
        nodes.roomy[n],
        nodes.small[n],
        0,
        0,
        0,
    )


@kernel
def add_to_totals(world, totals, n, sign):  # type: ignore[no-untyped-def]
    """Add (or with sign -1 remove) what node `n` contributes to the running totals."""
    nodes = world.nodes
    totals[CPU_MW] += sign * cpu_mw(world.power, n, nodes.cpu_free[n])
    totals[GPU_MW] += sign * gpu_mw(world.power, n, nodes.active[n], nodes.gpu_count[n])
    totals[FRAGMENT] += sign * np.int64(np.rint(nodes.fragment[n] / FRAGMENT_UNIT))
    totals[IDLE_MILLI] += sign * nodes.idle[n]
    totals[TOTALS + 1 + nodes.model[n]] += sign * nodes.idle[n]


# All of it is checked before anything is written: half a change would stay in the totals for ever.
@kernel
def change(world, totals, log, shape, memory, n, mask, sign):  # type: ignore[no-untyped-def]
    """Place (sign 1) or release (sign -1) one pod on node `n`, on the GPUs in `mask`.

    Returns False, and changes nothing, if that would use more than there is or free more than
    was used.
    """
    nodes, shapes = world.nodes, world.shapes
    cpu = nodes.cpu_free[n] - sign * shapes.cpu_milli[shape]
    free_memory = nodes.memory_free[n] - sign * memory
    pods = nodes.pods[n] + sign
    if cpu < 0 or cpu > nodes.cpu_capacity[n] or pods < 0 or pods > MAX_PODS_PER_NODE:
        return False
    if free_memory < 0 or free_memory > nodes.memory_capacity[n]:
        return False
    milli, count = shapes.gpu_milli[shape], 0
    for i in range(nodes.gpu_count[n]):
        if mask >> i & 1:
            count += 1
            after = nodes.gpu_free[n, i] - sign * milli
            if after < 0 or after > 1000:
                return False
    # A bit beyond the node's GPUs is one that the loop above did not see.
    if count != shapes.gpu_count[shape] or mask >> nodes.gpu_count[n]:
        return False
    kind = 0 if shapes.sharing[shape] else count
    # Resources alone would let a pod be released that never came, if others have as much: the
    # counts of pods by their number of GPUs tell these apart.
    if count and nodes.kinds[n, kind] + sign < 0:
        return False
    # Out with what the node contributed, change, in with what it contributes now: the same code
    # does both, so that they cannot disagree.
    add_to_totals(world, totals, n, -1)
    nodes.cpu_free[n], nodes.memory_free[n], nodes.pods[n] = cpu, free_memory, pods
    for i in range(nodes.gpu_count[n]):
        if mask >> i & 1:
            nodes.gpu_free[n, i] -= sign * milli
    if count:
        nodes.kinds[n, kind] += sign
    derive(world, n)
    add_to_totals(world, totals, n, 1)
    totals[USED_MILLI] += sign * milli * count
    log[totals[CHANGES] % log.shape[0]] = n
    totals[CHANGES] += 1
    return True
