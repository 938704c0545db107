"""PWREXP: place where the power expected after one more pod grows least.

From the journal extension of PWR: raw = E over the target workload of P(after this pod, then a
target pod) - P(before), where a target pod that no longer fits adds nothing; lower is better,
spread to 0..100. It keeps room on nodes that already draw power for what is likely to come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.node_power import cpu_mw
from wattherd.jit import kernel
from wattherd.policy.place.contract import INFEASIBLE, NO_GPU, Ints, Normalise, ScoredWorld, Scorer

KERNEL_ID = 7


def pwr_expected_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; no options."""
    pairs = [_python_twin(world, shape, int(row), options) for row in rows]
    table = np.array(pairs, dtype=np.int64).reshape(len(rows), 2)
    return table[:, 0], table[:, 1]


@kernel
def _expected_rise_mw(world, n, cpu_after, free):  # type: ignore[no-untyped-def]
    """Mean further draw (mW) of one target pod on node `n` in the state (cpu_after, free)."""
    target, power, model = world.target, world.power, world.nodes.model[n]
    step = power.gpu_max_mw[n] - power.gpu_idle_mw[n]
    base = cpu_mw(power, n, cpu_after)
    mean = 0.0
    for t in range(target.weight.shape[0]):
        need, count = target.gpu_milli[t], target.gpu_count[t]
        if cpu_after < target.cpu_milli[t] or (count > 0 and not target.allowed[t, model]):
            continue
        room, warm = 0, False
        for milli in free:
            if milli >= need:
                room += 1
                warm = warm or milli < 1000
        if room < count:
            continue
        woken = count
        if count == 1 and need < 1000 and warm:
            woken = 0
        rise = cpu_mw(power, n, cpu_after - target.cpu_milli[t]) - base + woken * step
        mean += target.weight[t] * rise
    return mean


@kernel
def pwr_expected(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`pwr_expected_rows` for one node."""
    nodes, shapes, power = world.nodes, world.shapes, world.power
    cpu, need, count = nodes.cpu_free[n], shapes.gpu_milli[shape], shapes.gpu_count[shape]
    after = cpu - shapes.cpu_milli[shape]
    step = power.gpu_max_mw[n] - power.gpu_idle_mw[n]
    rise = float(cpu_mw(power, n, after) - cpu_mw(power, n, cpu))
    present = nodes.gpu_count[n]
    free = nodes.gpu_free[n, :present].copy()
    if not shapes.sharing[shape]:
        for i in range(present):
            if count > 0 and free[i] >= need:
                count -= 1
                rise += step * (free[i] == 1000)
                free[i] -= need
        return -int((rise + _expected_rise_mw(world, n, after, free)) / 1000.0), NO_GPU
    best, chosen = INFEASIBLE, NO_GPU
    for i in range(present):
        if free[i] < need:
            continue
        total = rise + step * (free[i] == 1000)
        free[i] -= need
        key = -int((total + _expected_rise_mw(world, n, after, free)) / 1000.0)
        free[i] += need
        if key > best:
            best, chosen = key, i
    return best, chosen


_python_twin = getattr(pwr_expected, "py_func", pwr_expected)

SCORER = Scorer(
    name="pwrexp",
    doc="Least expected power after one more pod (PWR, journal extension)",
    rows=pwr_expected_rows,
    kernel_id=KERNEL_ID,
    normalise=Normalise.SPREAD_OR_FULL,
)
