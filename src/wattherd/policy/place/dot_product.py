"""Dot product: the node whose free vector is least aligned with the request.

The packing rule of Tetris (SIGCOMM'14) as the FGD artifact ships it: the *smaller* the product of
free and asked resources, the higher the score. Variants differ in what a node's vector is
(`dim`) and in the unit of each entry (`norm`):

- `merge` (published): (CPU, sum of free GPU).
- `share`: one vector (CPU, free) per GPU in use that has room, and one for all idle GPUs.
- `divide`: as share, with CPU split in proportion to free GPU.
- `extend`: (CPU, each GPU in use, idle GPUs together); the request occupies one of the entries.
  CPU-only requests fit every vector, full GPUs included for `divide`; where no GPU milli is left,
  these two give them 0.
- `norm-max` (published): entries relative to the largest machine; `norm-node`: to the node's own
  capacity; `norm-pod`: to the request, through tanh(x / 10).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.place.best_fit import LARGEST_CPU_MILLI, LARGEST_GPU_MILLI
from wattherd.policy.place.contract import NO_GPU, Ints, ScoredWorld, Scorer
from wattherd.policy.place.within_node import best_fit, best_fit_rows

KERNEL_ID = 4
MERGE, SHARE, DIVIDE, EXTEND = 0, 1, 2, 3
NORM_MAX, NORM_NODE, NORM_POD = 0, 1, 2


def dot_product_rows(
    world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """Keys and GPUs of `rows`; options are (dim, norm)."""
    if options[0] == MERGE and options[1] == NORM_MAX:
        return _published_rows(world, shape, rows)
    pairs = [_python_twin(world, shape, int(row), options) for row in rows]
    table = np.array(pairs, dtype=np.int64).reshape(len(rows), 2)
    return table[:, 0], table[:, 1]


def _published_rows(world: ScoredWorld, shape: int, rows: Ints) -> tuple[Ints, Ints]:
    nodes, shapes = world.nodes, world.shapes
    asked = shapes.gpu_milli[shape] * shapes.gpu_count[shape] / LARGEST_GPU_MILLI
    cpu = nodes.cpu_free[rows] / LARGEST_CPU_MILLI
    cpu = cpu * (shapes.cpu_milli[shape] / LARGEST_CPU_MILLI)
    product = cpu + nodes.idle[rows] / LARGEST_GPU_MILLI * asked
    keys = (100.0 * (1.0 - product / 2)).astype(np.int64)
    return keys, best_fit_rows(world, shape, rows)


@kernel
def _closeness(cpu_free, cpu_asked, gpu_free, gpu_asked, width, cpu_unit, gpu_unit, norm):  # type: ignore[no-untyped-def]
    """1 - normalised product of one pairing of `width` entries."""
    if norm == NORM_POD:
        cpu = cpu_free / cpu_asked if cpu_asked > 0 else 0.0
        gpu = gpu_free / gpu_asked if gpu_asked > 0 else 0.0
        return 1.0 - math.tanh((cpu + gpu) / width / 10.0)
    cpu = (cpu_free / cpu_unit) * (cpu_asked / cpu_unit)
    gpu = (gpu_free / gpu_unit) * (gpu_asked / gpu_unit)
    return 1.0 - (cpu + gpu) / width


@kernel
def _idle_pool(nodes, n):  # type: ignore[no-untyped-def]
    """Milli of the idle GPUs together, the first of them, and how many others have room left."""
    pool, first_idle, in_use = 0, NO_GPU, 0
    for i in range(nodes.gpu_count[n]):
        free = nodes.gpu_free[n, i]
        if free == 1000:
            pool += 1000
            if first_idle == NO_GPU:
                first_idle = i
        elif free > 0:
            in_use += 1
    return pool, first_idle, in_use


@kernel
def dot_product(world, shape, n, options):  # type: ignore[no-untyped-def]
    """`dot_product_rows` for one node."""
    nodes, shapes = world.nodes, world.shapes
    dim, norm = options[0], options[1]
    cpu, total = float(nodes.cpu_free[n]), nodes.idle[n]
    asked_cpu = float(shapes.cpu_milli[shape])
    asked = float(shapes.gpu_milli[shape] * shapes.gpu_count[shape])
    cpu_unit, gpu_unit = LARGEST_CPU_MILLI, LARGEST_GPU_MILLI
    if norm == NORM_NODE:
        cpu_unit = max(1.0, float(nodes.cpu_capacity[n]))
        gpu_unit = max(1.0, 1000.0 * nodes.gpu_count[n])
    if dim == MERGE or (dim == SHARE and asked == 0):
        score = _closeness(cpu, asked_cpu, float(total), asked, 2, cpu_unit, gpu_unit, norm)
        return np.int64(100.0 * score), best_fit(world, shape, n)
    if total == 0:
        return 0, NO_GPU
    pool, first_idle, in_use = _idle_pool(nodes, n)
    width = 1 + in_use + (pool > 0) if dim == EXTEND else 2
    best, chosen = -1.0, NO_GPU
    # One extra round stands for the pool of idle GPUs, after the GPUs in use as published.
    for i in range(nodes.gpu_count[n] + 1):
        last = i == nodes.gpu_count[n]
        free = pool if last else nodes.gpu_free[n, i]
        if free < asked or (not last and free == 1000):
            continue
        if free == 0 and (asked > 0 or dim == EXTEND):
            continue
        part = cpu * free / total if dim == DIVIDE else cpu
        score = _closeness(part, asked_cpu, float(free), asked, width, cpu_unit, gpu_unit, norm)
        if score > best:
            best, chosen = score, first_idle if last else i
    if not shapes.sharing[shape]:
        chosen = NO_GPU
    return np.int64(100.0 * max(best, 0.0)), chosen


# The rarely used variants have no vectorised definition: the kernel's source, uncompiled, is it.
_python_twin = getattr(dot_product, "py_func", dot_product)

SCORER = Scorer(
    name="dot-product",
    doc="Smallest product of free and asked resources (Tetris, as in FGD's artifact)",
    rows=dot_product_rows,
    kernel_id=KERNEL_ID,
    options={"dim": MERGE, "norm": NORM_MAX},
    tokens={
        "merge": {"dim": MERGE},
        "share": {"dim": SHARE},
        "divide": {"dim": DIVIDE},
        "extend": {"dim": EXTEND},
        "norm-max": {"norm": NORM_MAX},
        "norm-node": {"norm": NORM_NODE},
        "norm-pod": {"norm": NORM_POD},
    },
)
