"""What is to become of a node's free resources when the expected pods arrive.

Three tables from the target workload, of *all* its GPU specifications, that one look-up each turns
into the prospects of a node (units: millionths of a GPU or of a probability, so sums are exact):

* `value`: the worth of a rest of a GPU (`estimate.expected_packing`).
* `part`, `whole`: the chance that the very next pod can use a GPU with so much free, given the free
  CPU. They give FGD's fragmentation without its cut at 95 % of the pods.
* `fill`: how much GPU will have been used in the end if pods keep coming at random until none fits:
  fragmentation looked at to the end instead of one pod ahead. A node is `free` whole GPUs, the
  pooled worth of its rests and its free CPU, which is a small dynamic programme.

`level` is the only part that changes during a run; the engine sets it (`follow`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.node_power import PowerColumns
from wattherd.estimate.target_workload import TargetWorkload
from wattherd.jit import HAVE_JIT, kernel
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec

# --- What the rest of a partly used GPU is worth to the pods that are expected.
#
# 810 of 1000 milli taken leave 190, into which almost nothing fits: that rest is lost, and a rest
# of 530 may not be. The exact price follows from cutting stock: pack the expected single-GPU pods
# into as few GPUs as possible; the dual price of a size says what share of a GPU one such pod takes
# up, and a rest is worth the dearest set of pods that it holds. Gilmore and Gomory's column
# generation with a small dense simplex, so that no solver is needed; knows nothing of nodes or
# CPUs.

MICRO = 1_000_000
"""Values are integers in millionths of a GPU, so that sums are exact in any order."""
_MOST_SIZES = 16
_COARSE_MILLI = 10
_MOST_ROUNDS = 1000
_TOLERANCE = 1e-9

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def remainder_values(sizes: Ints, demand: Floats) -> Ints:
    """Worth, in millionths of a GPU, of 0 to 1000 free milli on one GPU.

    `sizes` are the milli that single-GPU pods ask for (1000 for a whole GPU), `demand` how often
    each is expected, in any unit. Without any expectation only a whole GPU is worth anything.
    """
    wanted = demand > 0
    sizes, demand = _merged(np.append(sizes[wanted], WHOLE_GPU_MILLI), np.append(demand[wanted], 0))
    unit = int(np.gcd.reduce(sizes))
    best = _prices(sizes // unit, demand, WHOLE_GPU_MILLI // unit)
    values = best[np.arange(WHOLE_GPU_MILLI + 1) // unit]
    exact: Ints = np.rint(np.clip(values, 0.0, 1.0) * MICRO).astype(np.int64)
    return exact


def _merged(sizes: Ints, demand: Floats) -> tuple[Ints, Floats]:
    """Distinct sizes and their demand; where there are many, in steps of `_COARSE_MILLI`."""
    if len(np.unique(sizes)) > _MOST_SIZES:
        # Exact prices of many odd sizes would take seconds; a wrong step costs little here.
        sizes = np.maximum(sizes // _COARSE_MILLI, 1) * _COARSE_MILLI
    distinct, where = np.unique(sizes, return_inverse=True)
    return distinct, np.bincount(where, weights=demand).astype(np.float64)


def _prices(lengths: Ints, demand: Floats, capacity: int) -> Floats:
    """Worth of every length up to `capacity` under the dual prices of the cutting-stock problem."""
    patterns = np.diag(capacity // lengths).astype(np.float64)
    used = demand / patterns.diagonal()
    for _ in range(_MOST_ROUNDS):
        price = np.maximum(np.linalg.solve(patterns.T, np.ones(len(lengths))), 0.0)
        best, last = _knapsack(lengths, price, capacity)
        if best[capacity] <= 1.0 + _TOLERANCE:
            break
        entering = _pattern(last, lengths, capacity)
        along = np.linalg.solve(patterns, entering)
        rising = along > _TOLERANCE
        ratio = np.where(rising, used / np.where(rising, along, 1.0), np.inf)
        leaving = int(ratio.argmin())
        used -= ratio[leaving] * along
        used[leaving] = ratio[leaving]
        patterns[:, leaving] = entering
    return best


def _knapsack(lengths: Ints, price: Floats, capacity: int) -> tuple[Floats, Ints]:
    """Dearest multiset within each length, and the piece that was added last (-1: none)."""
    best = np.zeros(capacity + 1)
    last = np.full(capacity + 1, -1, dtype=np.int64)
    for room in range(1, capacity + 1):
        fitting = int(np.searchsorted(lengths, room, side="right"))
        best[room] = best[room - 1]
        if not fitting:
            continue
        worth = best[room - lengths[:fitting]] + price[:fitting]
        piece = int(worth.argmax())
        if worth[piece] > best[room] + 1e-12:
            best[room], last[room] = worth[piece], piece
    return best, last


def _pattern(last: Ints, lengths: Ints, capacity: int) -> Floats:
    """How often each piece is in the dearest set that `capacity` holds."""
    counts = np.zeros(len(lengths))
    while capacity > 0:
        piece = last[capacity]
        counts[piece] += piece >= 0
        capacity -= lengths[piece] if piece >= 0 else 1
    return counts


UNITS = 24
"""Steps of a GPU in `fill`: most prices are halves, thirds, quarters, sixths and eighths."""
CPU_STEPS = 128
BANDS = 10
"""Steps of the load."""
PRESSURES = (1.0, 2.0, 4.0, 8.0)
"""Steps of the pressure on a model; below the first there is none."""
_LEAST_CPU_STEP = 1000


class PackingOutlook(NamedTuple):
    """Tables for M models (a last row stands for "no GPU"), F GPUs, C steps of CPU.

    `rank` (1001,) maps free milli to a row of `part` (M + 1, sizes + 1, C); `whole` (M + 1, F + 1,
    C); `fill` (M + 1, F + 1, F x UNITS + 1, C). `cpu_step` (1,) is the milli-vCPU of a step and
    `watt` (1,) the mean active-minus-idle draw of a GPU of the cluster, in mW. `bound` (D, M) lists
    the sets of models that pods may be bound to and `share` (D,) their part of the GPU demand.
    `level` holds the allocated share of the cluster's GPU and, per model, the `pressure` on it.
    """

    value: Ints
    rank: Ints
    part: Ints
    whole: Ints
    fill: NDArray[np.int32]
    cpu_step: Ints
    watt: Floats
    bound: NDArray[np.bool_]
    share: Floats
    level: Floats


def outlook_of(target: TargetWorkload, cluster: ClusterSpec, power: PowerColumns) -> PackingOutlook:
    """The tables for `cluster` if pods come as in `target` (build that with coverage 1)."""
    gpus = target.gpu_count > 0
    specs = TargetWorkload(
        weight=target.weight[gpus] / max(float(target.weight[gpus].sum()), 1e-300),
        cpu_milli=target.cpu_milli[gpus],
        gpu_milli=target.gpu_milli[gpus],
        gpu_count=target.gpu_count[gpus],
        allowed=target.allowed[gpus],
    )
    step = _cpu_step(cluster)
    single = specs.gpu_count == 1
    value = remainder_values(specs.gpu_milli[single], specs.weight[single])
    most = max([1, *(node.gpu_count for node in cluster.nodes)])
    rank, part, whole = _chances(specs, step, most)
    bound, share = _demand(specs)
    return PackingOutlook(
        value=value,
        rank=rank,
        part=part,
        whole=whole,
        fill=_fill_table(specs, value, step, most),
        cpu_step=np.array([step]),
        watt=np.array([_mean_step_mw(cluster, power)]),
        bound=bound,
        share=share,
        level=np.zeros(1 + specs.allowed.shape[1]),
    )


def no_outlook() -> PackingOutlook:
    """Tables of no size, for policies that do not look ahead."""
    none = np.zeros(0, dtype=np.int64)
    return PackingOutlook(
        value=none,
        rank=none,
        part=np.zeros((0, 0, 0), dtype=np.int64),
        whole=np.zeros((0, 0, 0), dtype=np.int64),
        fill=np.zeros((0, 0, 0, 0), dtype=np.int32),
        cpu_step=none,
        watt=np.zeros(0),
        bound=np.zeros((0, 0), dtype=np.bool_),
        share=np.zeros(0),
        level=np.zeros(0),
    )


@kernel
def follow(outlook, used, idle, known):  # type: ignore[no-untyped-def]
    """Set `outlook.level` for a cluster with so much GPU used and so much `idle` of each model.

    Milli-GPU. The level follows from the state alone, in coarse steps so that keys stay valid for
    long. `known` is the level that the caller's keys were made at: True if it is another now, and
    `known` is brought up to date. The demand of a set of models is spread over them as their idle
    milli is; pressure is demand, were the rest of the cluster filled, over supply: 1 means that
    every idle GPU of the model will be wanted by a pod that has no other choice.
    """
    level, total = outlook.level, 0
    for m in range(idle.shape[0]):
        total += idle[m]
        level[1 + m] = 0.0
    level[0] = (used * BANDS // max(used + total, 1) + 0.5) / BANDS
    for d in range(outlook.bound.shape[0]):
        supply = 0
        for m in range(idle.shape[0]):
            if outlook.bound[d, m]:
                supply += idle[m]
        if supply == 0 or supply == total:
            continue
        for m in range(idle.shape[0]):
            if outlook.bound[d, m] and idle[m] > 0:
                level[1 + m] += outlook.share[d] * total / supply
    moved = level[0] != known[0]
    for m in range(idle.shape[0]):
        step = 0.0
        for pressure in PRESSURES:
            if level[1 + m] >= pressure:
                step = pressure
        level[1 + m] = step
        moved = moved or step != known[1 + m]
    known[:] = level
    return moved


def _cpu_step(cluster: ClusterSpec) -> int:
    largest = max(node.cpu_milli for node in cluster.nodes)
    return max(_LEAST_CPU_STEP, -(-largest // CPU_STEPS))


def _mean_step_mw(cluster: ClusterSpec, power: PowerColumns) -> float:
    count = np.array([node.gpu_count for node in cluster.nodes])
    total = float((count * (power.gpu_max_mw - power.gpu_idle_mw)).sum())
    return total / max(int(count.sum()), 1) or 1.0


def _chances(specs: TargetWorkload, step: int, most: int) -> tuple[Ints, Ints, Ints]:
    """`rank`, `part` and `whole`: each specification counts from its size and its CPU on."""
    sizes = np.unique(specs.gpu_milli[specs.gpu_count == 1])
    rank = np.searchsorted(sizes, np.arange(WHOLE_GPU_MILLI + 1), side="right")
    rows = specs.allowed.shape[1]
    part = np.zeros((rows, len(sizes) + 1, CPU_STEPS + 1))
    whole = np.zeros((rows, most + 1, CPU_STEPS + 1))
    for t, share in enumerate(specs.weight):
        cpu = -(-specs.cpu_milli[t] // step)
        for m in np.flatnonzero(specs.allowed[t]):
            if specs.gpu_count[t] == 1:
                part[m, rank[specs.gpu_milli[t]] :, cpu:] += share
            else:
                whole[m, specs.gpu_count[t] :, cpu:] += share
    return rank.astype(np.int64), _micro(part), _micro(whole)


def _micro(table: Floats) -> Ints:
    exact: Ints = np.rint(table * MICRO).astype(np.int64)
    return exact


def _demand(specs: TargetWorkload) -> tuple[NDArray[np.bool_], Floats]:
    """Distinct sets of allowed models, and the part of the GPU demand bound to each."""
    milli = specs.weight * specs.gpu_milli * specs.gpu_count
    part: defaultdict[tuple[bool, ...], float] = defaultdict(float)
    for allowed, demand in zip(specs.allowed[:, :-1].tolist(), milli.tolist(), strict=True):
        part[tuple(allowed)] += demand / max(float(milli.sum()), 1e-300)
    sets = np.array(list(part), dtype=np.bool_).reshape(len(part), specs.allowed.shape[1] - 1)
    return sets, np.array(list(part.values()), dtype=np.float64)


def _fill_table(specs: TargetWorkload, value: Ints, step: int, most: int) -> NDArray[np.int32]:
    rows = specs.allowed.shape[1]
    table = np.zeros((rows, most + 1, most * UNITS + 1, CPU_STEPS + 1), dtype=np.int32)
    known: dict[bytes, int] = {}
    for m in range(rows - 1):
        access = specs.allowed[:, m]
        same = known.setdefault(access.tobytes(), m)
        if same == m:
            used = _fill(*_kinds(specs, access, value, step), most)
            table[m] = np.rint(used * MICRO)
        else:
            table[m] = table[same]
    return table


def _kinds(
    specs: TargetWorkload, access: NDArray[np.bool_], value: Ints, step: int
) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    """Specifications as the programme sees them: merged where they look the same to it.

    Columns: whole GPUs taken (0 for a part), units of worth taken, units left on a fresh GPU, steps
    of CPU, probability. Parts worth less than half a unit fill gaps that cost nothing: left out.
    """
    merged: defaultdict[tuple[int, int, int, int], float] = defaultdict(float)
    for t in np.flatnonzero(access):
        take, milli = int(specs.gpu_count[t]), int(specs.gpu_milli[t])
        units = rest = 0
        if milli < WHOLE_GPU_MILLI:
            take, units = 0, _units(int(value[milli]))
            rest = _units(int(value[WHOLE_GPU_MILLI - milli]))
        if take or units:
            merged[take, units, rest, -(-int(specs.cpu_milli[t]) // step)] += specs.weight[t]
    kinds = np.array(sorted(merged), dtype=np.int64).reshape(-1, 4)
    chance = np.array([merged[key] for key in sorted(merged)], dtype=np.float64)
    return kinds[:, 0], kinds[:, 1], kinds[:, 2], kinds[:, 3], chance


def _units(micro: int) -> int:
    return (micro * UNITS + MICRO // 2) // MICRO


@kernel
def fill_kernel(take, units, rest, cpu, chance, most):  # type: ignore[no-untyped-def]
    """GPUs used in the end from (whole GPUs free, units of rests, CPU): value iteration.

    E[used] = sum over the kinds that fit of chance x (what it takes + E[used] afterwards), divided
    by the chance that any fits. Each kind takes something, so one pass in order of size is exact.
    A part goes to the rests if their pooled worth holds it, else to a fresh GPU.
    """
    width = CPU_STEPS + 1
    used = np.zeros((most + 1, most * UNITS + 1, width))
    for free in range(most + 1):
        for part in range((most - free) * UNITS + 1):
            gain, total = np.zeros(width), np.zeros(width)
            for t in range(take.shape[0]):
                if take[t] > free or (take[t] == 0 and part < units[t] and free == 0):
                    continue
                taken, after_free, after_part = float(take[t]), free - take[t], part
                if take[t] == 0:
                    taken = units[t] / UNITS
                    if part >= units[t]:
                        after_part = part - units[t]
                    else:
                        after_free, after_part = free - 1, part + rest[t]
                for c in range(cpu[t], width):
                    gain[c] += chance[t] * (taken + used[after_free, after_part, c - cpu[t]])
                    total[c] += chance[t]
            for c in range(width):
                if total[c] > 0.0:
                    used[free, part, c] = gain[c] / total[c]
    return used


def fill_rows(take: Ints, units: Ints, rest: Ints, cpu: Ints, chance: Floats, most: int) -> Floats:
    """`fill_kernel` in NumPy, to the last bit: all kinds and steps of CPU of a state at once."""
    width = CPU_STEPS + 1
    # The left half stays zero: what would be read at negative CPU counts for nothing.
    used = np.zeros((most + 1, most * UNITS + 1, 2 * width))
    steps = np.arange(width)
    enough = steps >= cpu[:, None]
    weight = np.where(enough, chance[:, None], 0.0)
    column = np.where(enough, width + steps - cpu[:, None], 0)
    taken = np.where(take > 0, take.astype(np.float64), units / UNITS)
    for free in range(most + 1):
        for part in range((most - free) * UNITS + 1):
            pooled = (take == 0) & (part >= units)
            fits = (take <= free) & (pooled | (free > 0))
            if not fits.any():
                continue
            fresh = (take == 0) & ~pooled
            at = (free - np.where(fresh, 1, take))[fits]
            left = (part - np.where(pooled, units, 0) + np.where(fresh, rest, 0))[fits]
            later = used[at[:, None], left[:, None], column[fits]]
            gain = (weight[fits] * (taken[fits, None] + later)).sum(axis=0)
            total = weight[fits].sum(axis=0)
            used[free, part, width:] = np.where(total > 0, gain / np.where(total > 0, total, 1), 0)
    return used[:, :, width:]


_fill = fill_kernel if HAVE_JIT else fill_rows
