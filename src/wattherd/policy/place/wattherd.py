"""wattherd: keep what is free useful to the end, and sleep what can sleep until it is needed.

The key is lexicographic (docs/concepts/placement-policy.md derives and measures it):

1. *Waste* (sharing requests): how much worth the GPU's rest loses beyond what the request takes,
   in steps of `waste`, at the prices of the target workload (`estimate.expected_packing`).
2. In steps of `quantum` GPUs, the sum of
   * `end` x the fall of what the node's free resources will be used for in the end,
   * `now` x the fall of what the next pod can use (FGD's fragmentation, over all specifications),
     both growing to full weight at a load of `EARLY`: on an empty cluster nothing is scarce,
   * until a load of `room`: `gpu` x the GPU watts and `cpu` x the CPU watts that wake, in mean GPU
     draws; the latter fades to 0, as packages left asleep now will be woken anyway,
   * `reserve` x the pressure of pods that must have the node's GPU model x the GPU asked for.
3. Fewest CPU packages woken, then least GPU left over on the node.

Load is the allocated share of the cluster's GPU. No number depends on a trace: all prices and
tables come from the target workload and the catalogue, the weights are the same everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.expected_packing import UNITS, PackingOutlook
from wattherd.estimate.node_power import cpu_mw, cpu_power_mw
from wattherd.jit import kernel
from wattherd.policy.place.contract import INFEASIBLE, NO_GPU, Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import after_exclusive, first_best_rows

KERNEL_ID = 8
EARLY = 0.2
"""Load from which on packing counts in full."""
# Places of the three parts in the key: 2^22 values each for the sum and for the tie-break.
_WASTE, _SUM = 1 << 44, 1 << 22
# In the tie-break one woken package outweighs 65 whole GPUs left over.
_PACKAGE, _MOST_PACKAGES = 1 << 16, 31
_MICRO = 1_000_000
_HALF = _MICRO // 2

Floats = NDArray[np.float64]


def wattherd_rows(world: ScoredWorld, shape: int, rows: Ints, options: Floats) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; options are those of `SCORER`, in its order."""
    nodes, shapes = world.nodes, world.shapes
    need = int(shapes.gpu_milli[shape])
    before = nodes.gpu_free[rows]
    if not shapes.sharing[shape]:
        after = after_exclusive(world, shape, rows)
        woken = shapes.gpu_count[shape] * np.ones(len(rows), dtype=np.int64)
        return _sums(world, shape, rows, after, woken, options), np.full(len(rows), NO_GPU)
    feasible = before >= need
    at, gpu = np.nonzero(feasible)
    after = before[at]
    after[np.arange(len(at)), gpu] -= need
    old = before[at, gpu]
    keys = np.full(feasible.shape, INFEASIBLE)
    keys[at, gpu] = _sums(world, shape, rows[at], after, old == 1000, options)
    keys[at, gpu] += _WASTE * _waste(world.outlook.value, old, need, options[0])
    return first_best_rows(keys, feasible)


def _waste(value: Ints, old: Ints, need: int, step: float) -> Ints:
    if step <= 0:
        return np.zeros(len(old), dtype=np.int64)
    exact: Ints = (value[old - need] - value[old]) // np.int64(np.rint(step * _MICRO))
    return exact


def _sums(
    world: ScoredWorld, shape: int, rows: Ints, after: Ints, woken: Ints, options: Floats
) -> Ints:
    """Second and third part of the key for GPUs left as in `after` with `woken` GPUs woken."""
    nodes, power, outlook = world.nodes, world.power, world.outlook
    _, quantum, end, now, gpu, cpu, reserve, room = options
    model, cpu_free = nodes.model[rows], nodes.cpu_free[rows]
    cpu_after = cpu_free - world.shapes.cpu_milli[shape]
    now_0, end_0 = _prospects(outlook, model, cpu_free, nodes.gpu_free[rows])
    now_1, end_1 = _prospects(outlook, model, cpu_after, after)
    load = outlook.level[0]
    packing, waking, cores = _weights(load, room)
    rise = cpu_power_mw(power, rows, cpu_after) - cpu_power_mw(power, rows, cpu_free)
    step = power.gpu_max_mw[rows] - power.gpu_idle_mw[rows]
    asked = world.shapes.gpu_milli[shape] * world.shapes.gpu_count[shape]
    total = packing * (end * ((end_1 - end_0) / 1e6) + now * ((now_1 - now_0) / 1e9))
    total = total - cores * cpu * (rise / outlook.watt[0])
    total = total - waking * gpu * (step * woken / outlook.watt[0])
    total = total - reserve * (outlook.level[1:][model] * asked / 1000.0)
    packages = rise // np.maximum(power.cpu_max_mw[rows] - power.cpu_idle_mw[rows], 1)
    left = np.minimum(packages, _MOST_PACKAGES) * _PACKAGE
    left += np.minimum(nodes.idle[rows] - asked, _PACKAGE - 1)
    keys: Ints = np.rint(total / quantum).astype(np.int64) * _SUM - left
    return keys


def _prospects(outlook: PackingOutlook, model: Ints, cpu: Ints, free: Ints) -> tuple[Ints, Ints]:
    """What the next pod can use (1e-9 GPU) and what will be used in the end (1e-6 GPU)."""
    step = cpu // outlook.cpu_step[0]
    whole = (free == 1000).sum(axis=1)
    rests = np.where(free < 1000, outlook.value[free], 0).sum(axis=1)
    now = (free * outlook.part[model[:, None], outlook.rank[free], step[:, None]]).sum(axis=1)
    now += 1000 * whole * outlook.whole[model, whole, step]
    units = np.minimum((rests * UNITS + _HALF) // _MICRO, outlook.fill.shape[2] - 1)
    return now, outlook.fill[model, whole, units, step].astype(np.int64)


@kernel
def weights(load, room):  # type: ignore[no-untyped-def]
    """How much packing, waking GPUs and waking CPU packages count at `load`."""
    packing = min(load / EARLY, 1.0)
    if load >= room:
        return packing, 0.0, 0.0
    return packing, 1.0, 1.0 - load / room


@kernel
def ended(outlook, model, whole, rests, step):  # type: ignore[no-untyped-def]
    """GPU (1e-6) that `whole` idle GPUs and rests of that worth will serve in the end."""
    units = min((rests * UNITS + _HALF) // _MICRO, outlook.fill.shape[2] - 1)
    return np.int64(outlook.fill[model, whole, units, step])


@kernel
def wattherd(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`wattherd_rows` for one node: one pass over its GPUs, then O(1) for each that may serve."""
    nodes, shapes, power, outlook = world.nodes, world.shapes, world.power, world.outlook
    need, count, model = shapes.gpu_milli[shape], shapes.gpu_count[shape], nodes.model[n]
    sharing, asked = shapes.sharing[shape], need * count
    free, part, value, rank = nodes.gpu_free[n], outlook.part[model], outlook.value, outlook.rank
    cpu_free = nodes.cpu_free[n]
    cpu_after = cpu_free - shapes.cpu_milli[shape]
    step_0, step_1 = cpu_free // outlook.cpu_step[0], cpu_after // outlook.cpu_step[0]
    now_0, now_1, rests, whole = 0, 0, 0, 0
    for i in range(nodes.gpu_count[n]):
        milli = free[i]
        now_0 += milli * part[rank[milli], step_0]
        now_1 += milli * part[rank[milli], step_1]
        if milli == 1000:
            whole += 1
        else:
            rests += value[milli]
    now_0 += 1000 * whole * outlook.whole[model, whole, step_0]
    end_0 = ended(outlook, model, whole, rests, step_0)
    packing, waking, cores = weights(outlook.level[0], options[7])
    rise = cpu_mw(power, n, cpu_after) - cpu_mw(power, n, cpu_free)
    draw = power.gpu_max_mw[n] - power.gpu_idle_mw[n]
    left = min(rise // max(power.cpu_max_mw[n] - power.cpu_idle_mw[n], 1), _MOST_PACKAGES)
    left = left * _PACKAGE + min(nodes.idle[n] - asked, _PACKAGE - 1)
    best, chosen = INFEASIBLE, NO_GPU
    for i in range(nodes.gpu_count[n] if sharing else 1):
        taken, now, after, waste = count, now_1, rests, 0
        if sharing:
            milli = free[i]
            if milli < need or (i > 0 and milli == free[i - 1]):
                continue
            rest = milli - need
            taken = 1 if milli == 1000 else 0
            now += rest * part[rank[rest], step_1] - milli * part[rank[milli], step_1]
            after += value[rest] - (0 if taken else value[milli])
            if options[0] > 0:
                waste = (value[rest] - value[milli]) // np.int64(np.rint(options[0] * _MICRO))
        else:
            now -= count * 1000 * part[rank[1000], step_1]
        now += 1000 * (whole - taken) * outlook.whole[model, whole - taken, step_1]
        end = ended(outlook, model, whole - taken, after, step_1)
        total = packing * (options[2] * ((end - end_0) / 1e6) + options[3] * ((now - now_0) / 1e9))
        total = total - cores * options[5] * (rise / outlook.watt[0])
        total = total - waking * options[4] * (draw * taken / outlook.watt[0])
        total = total - options[6] * (outlook.level[1 + model] * asked / 1000.0)
        key = waste * _WASTE + np.int64(np.rint(total / options[1])) * _SUM - left
        if key > best:
            best, chosen = key, (i if sharing else NO_GPU)
    return best, chosen


_weights = getattr(weights, "py_func", weights)

SCORER = Scorer(
    name="wattherd",
    doc="Most use of what stays free, least watts woken (ours)",
    rows=wattherd_rows,
    kernel_id=KERNEL_ID,
    looks_ahead=True,
    options={
        "waste": 0.02,
        "quantum": 0.0125,
        "end": 1.0,
        "now": 0.5,
        "gpu": 0.4,
        "cpu": 0.08,
        "reserve": 0.06,
        "room": 0.8,
    },
    tokens={
        "no-remainder": {"waste": 0.0},
        "no-end": {"end": 0.0},
        "no-now": {"now": 0.0},
        "no-power": {"gpu": 0.0, "cpu": 0.0},
        "no-reserve": {"reserve": 0.0},
        "reserved": {"reserve": 0.3},
    },
)
