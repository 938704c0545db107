"""How much idle GPU on a node the target workload cannot use (FGD, ATC'23, section 4).

For one target task t, every idle milli-GPU of a node is either usable by t or a fragment, in one
of seven classes (lack of GPU, of CPU, of both, ...); F_n is the expectation over t. Sums are
taken class by class in a fixed order, so that integer scores made from them are reproducible to
the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.target_workload import TargetWorkload
from wattherd.jit import kernel


def fragment_rows(
    target: TargetWorkload,
    cpu_free: NDArray[np.int64],
    gpu_free: NDArray[np.int64],
    model: NDArray[np.int64],
) -> NDArray[np.float64]:
    """F_n in milli-GPU for R node states at once (the definition; kernels must agree with it).

    `cpu_free` (R,) milli-vCPU, `gpu_free` (R, G) milli-GPU with 0 for absent devices, `model`
    (R,) index into the columns of `target.allowed`, -1 for nodes without GPUs.
    """
    idle = gpu_free.sum(axis=1).astype(np.float64)
    lack_both, lack_gpu, lack_cpu, cpu_ok, cpu_short, no_access = np.zeros((6, len(cpu_free)))
    for t, share in enumerate(target.weight):
        enough_cpu = cpu_free >= target.cpu_milli[t]
        all_idle = share * idle
        if target.gpu_milli[t] == 0:
            cpu_ok += np.where(enough_cpu, all_idle, 0.0)
            cpu_short += np.where(enough_cpu, 0.0, all_idle)
            continue
        access = target.allowed[t][model]
        roomy = gpu_free >= target.gpu_milli[t]
        enough_gpu = roomy.sum(axis=1) >= target.gpu_count[t]
        too_small = share * np.where(roomy, 0, gpu_free).sum(axis=1)
        no_access += np.where(access, 0.0, all_idle)
        lack_gpu += np.where(access & enough_gpu & enough_cpu, too_small, 0.0)
        lack_cpu += np.where(access & enough_gpu & ~enough_cpu, all_idle, 0.0)
        lack_gpu += np.where(access & ~enough_gpu & enough_cpu, all_idle, 0.0)
        lack_both += np.where(access & ~enough_gpu & ~enough_cpu, all_idle, 0.0)
    total: NDArray[np.float64] = lack_both + lack_gpu + lack_cpu + cpu_ok + cpu_short + no_access
    return total


@kernel
def count_roomy(target, gpu_free, roomy, small):  # type: ignore[no-untyped-def]
    """Fill for one node, per target task: GPUs with room, and idle milli on GPUs without room."""
    for t in range(target.weight.shape[0]):
        need = target.gpu_milli[t]
        fitting, rest = 0, 0
        for free in gpu_free:
            if free >= need:
                fitting += 1
            else:
                rest += free
        roomy[t] = fitting
        small[t] = rest


@kernel
def fragment_after(target, model, cpu_free, idle, roomy, small, old, new, devices):  # type: ignore[no-untyped-def]
    """F_n of one node if `devices` of its GPUs went from `old` to `new` free milli.

    `cpu_free` and `idle` (sum of free milli) are those *after* the change, `roomy` and `small`
    those of `count_roomy` before it, so that one hypothesis costs O(T) and not O(T x GPUs).
    """
    lack_both = lack_gpu = lack_cpu = cpu_ok = cpu_short = no_access = 0.0
    for t in range(target.weight.shape[0]):
        share = target.weight[t]
        need = target.gpu_milli[t]
        enough_cpu = cpu_free >= target.cpu_milli[t]
        if need == 0:
            if enough_cpu:
                cpu_ok += share * idle
            else:
                cpu_short += share * idle
            continue
        if not target.allowed[t, model]:
            no_access += share * idle
            continue
        fitting, rest = roomy[t], small[t]
        if old >= need:
            fitting -= devices
        else:
            rest -= devices * old
        if new >= need:
            fitting += devices
        else:
            rest += devices * new
        if fitting >= target.gpu_count[t]:
            if enough_cpu:
                lack_gpu += share * rest
            else:
                lack_cpu += share * idle
        elif enough_cpu:
            lack_gpu += share * idle
        else:
            lack_both += share * idle
    return lack_both + lack_gpu + lack_cpu + cpu_ok + cpu_short + no_access
