"""Clusters and pods that look like the openb trace, made from published statistics alone.

Taken over (see `workload.published` for sources): node shapes and their shares; pods per class,
hence the share of pods and of GPU demand; the five most frequent requests; 91 distinct requests
of which 35 make up 95.26 % of the pods, split over the classes as published; the range of CPU
and memory; total CPU and memory (met within 1 %); median, mean, p90, p99 and maximum of the
lifetime; the six weeks within which pods arrive; the emphasis of every family.

Assumed by us, because nothing was published: every request below the top five (CPU sizes and
shares were chosen by hand so that the totals come out), memory per vCPU of a class, lifetimes
between and below the published quantiles, independence of lifetime and request, Poisson
arrivals, and which GPU models a constrained pod accepts (only one-GPU pods are constrained; the
weights are round numbers in the order of frequency that the public gpuspec lists show). The run
time of a pod follows the published lifetimes, which include a wait of 2 s in the median.

Shares are met by count (largest remainder), not by drawing: the seed decides order, lifetimes
and arrival times. This module knows nothing of files except `write_openb`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload import published
from wattherd.workload.random_streams import stream
from wattherd.workload.table import MAX_ROWS

# Pods per 8152 with a request of (CPU milli, GPUs, milli per GPU). The first rows of the sharing
# and one-GPU tables are the published top five; the rest is assumed.
_CPU_ONLY = ((12_000, 360), (32_000, 270), (16_000, 226), (8_000, 140), (4_000, 60))
_CPU_ONLY_RARE = (2_000, 6_000, 10_000, 14_000, 20_000, 24_000)
_SHARING = (
    ((3_152, 810), 1047),
    ((11_908, 470), 388),
    ((8_000, 500), 324),
    ((4_000, 250), 210),
    ((12_000, 600), 200),
    ((4_000, 400), 130),
    ((6_000, 300), 115),
    ((2_000, 200), 100),
    ((8_000, 320), 90),
    ((3_152, 600), 80),
    ((6_000, 500), 70),
    ((4_000, 160), 60),
    ((2_000, 120), 48),
    ((12_000, 800), 36),
)
_SHARING_RARE = tuple(product((1_000, 3_000, 5_000, 7_000, 10_000), (300, 450, 600, 700, 850)))
_ONE_GPU = (
    (11_300, 874),
    (11_400, 599),
    (3_152, 470),
    (16_000, 330),
    (12_000, 270),
    (20_000, 240),
    (10_000, 210),
    (8_000, 180),
    (14_000, 150),
    (24_000, 120),
    (4_000, 110),
    (6_000, 85),
    (18_000, 70),
    (22_000, 46),
    (2_000, 34),
    (1_000, 24),
)
_ONE_GPU_RARE = tuple(range(5_700, 18_700, 1_000))
_TWO_GPU = ((8_000, 4), (12_000, 4), (16_000, 4), (30_000, 4))
_FOUR_GPU = ((32_000, 5), (40_000, 5), (60_000, 5))
_EIGHT_GPU = ((64_000, 18), (96_000, 12), (80_000, 10), (48_000, 3), (120_200, 1))

_MIB_PER_VCPU = {"cpu-only": 2_560, "sharing": 3_072}
_MIB_PER_VCPU_WHOLE = 4_096

_ACCEPTED = (
    (("T4",), 45),
    (("G2",), 20),
    (("P100",), 15),
    (("V100M16", "V100M32"), 12),
    (("P100", "V100M16", "V100M32"), 8),
)

_SHORTEST_S = 20.0
# Where the lifetime at p99.9 must lie for the mean to be the published one, the quantile function
# being log-linear between the knots.
_P999_S = 5_948_242.0

_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights` by largest remainder, the first winning ties."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def generate_cluster(*, nodes: int, seed: int) -> ClusterSpec:
    """`nodes` nodes with GPUs in the published mix, in an order that `seed` decides.

    1213 nodes give the published counts exactly (6,212 GPUs).

    Raises:
        UserError: `nodes` is not between 1 and what a list may hold.
    """
    _check_count("nodes", nodes)
    shapes, weights = zip(*published.NODE_SHAPES, strict=True)
    index = np.repeat(np.arange(len(shapes)), apportion(nodes, weights))
    shuffled = stream(seed, "generate/nodes").permutation(index).tolist()
    names = _names("node", nodes)
    return ClusterSpec(
        tuple(replace(shapes[at], name=name) for at, name in zip(shuffled, names, strict=True))
    )


def generate_pods(
    *,
    family: str,
    seed: int,
    pods: int | None = None,
    gpu_capacity_milli: int | None = None,
    load: float = 1.0,
    span_s: float = published.SPAN_S,
) -> tuple[TracePod, ...]:
    """Pods of a published family, in order of submission.

    Args:
        family: a name in `published.FAMILIES`.
        seed: decides the order of requests, the lifetimes and the times of arrival.
        pods: how many; or else
        gpu_capacity_milli: as many as together request `load` times this (milli-GPU).
        load: see `gpu_capacity_milli`.
        span_s: the time within which they arrive, seconds.

    Raises:
        UserError: unknown family, or a number that makes no sense.
    """
    mix = published.family_of(family)
    if pods is None:
        pods = _pods_for(mix, gpu_capacity_milli, load)
    _check_count("pods", pods)
    if not (np.isfinite(span_s) and span_s > 0):
        raise UserError(
            f"a span of {span_s} s is not above zero", hint="give a positive number of seconds"
        )
    requests = _requests(mix, pods, seed)
    submitted = np.sort(stream(seed, "generate/arrivals").uniform(0, span_s, pods)).round()
    lifetimes = _lifetimes(pods, seed)
    columns = zip(
        _names("pod", pods), requests, submitted.tolist(), lifetimes.tolist(), strict=True
    )
    return tuple(
        TracePod(name=name, request=request, submit_s=submit_s, duration_s=duration_s)
        for name, request, submit_s, duration_s in columns
    )


def write_openb(
    cluster: ClusterSpec, pods: Sequence[TracePod], directory: Path
) -> tuple[Path, Path]:
    """Write `nodes.csv` and `pods.csv` in the public columns; returns the two paths.

    `qos` and `pod_phase` stay empty; `scheduled_time` is the time of creation, since waiting is
    what a simulation finds out. Times are whole seconds, as in the public files; a column
    `cpu_model` is added where some node names its CPU.

    Raises:
        UserError: the files cannot be written.
    """
    nodes_csv = directory / "nodes.csv"
    pods_csv = directory / "pods.csv"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with_cpus = any(node.cpu_model for node in cluster.nodes)
        columns = (*_NODE_COLUMNS, "cpu_model") if with_cpus else _NODE_COLUMNS
        _write(nodes_csv, columns, (_node_row(node)[: len(columns)] for node in cluster.nodes))
        _write(pods_csv, _POD_COLUMNS, map(_pod_row, pods))
    except OSError as problem:
        where = str(problem.filename or directory)
        raise UserError(
            f"cannot write: {problem.strerror}", where=where, hint="choose another directory"
        ) from problem
    return nodes_csv, pods_csv


def _pods_for(mix: published.PodFamily, capacity_milli: int | None, load: float) -> int:
    """As many pods of the mix as request `load` times the capacity."""
    if capacity_milli is None:
        raise UserError("neither a number of pods nor a GPU capacity was given")
    if not (np.isfinite(load) and load > 0):
        raise UserError(
            f"a load of {load} is not above zero",
            hint="1 means as many GPUs requested as there are",
        )
    return max(1, round(load * capacity_milli * mix.pods / mix.gpu_milli))


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= MAX_ROWS:
        raise UserError(f"{count} is not between 1 and {MAX_ROWS:,}", field=field)


def _names(kind: str, count: int) -> Iterable[str]:
    width = max(4, len(str(count - 1)))
    return (f"{kind}-{number:0{width}d}" for number in range(count))


def _shape(kind: str, cpu_milli: int, gpus: int = 0, gpu_milli: int = 0) -> Request:
    """A request with the memory we assume; its two extremes are the published range."""
    per_vcpu = _MIB_PER_VCPU.get(kind, _MIB_PER_VCPU_WHOLE)
    memory_mib = cpu_milli * per_vcpu // 1000
    least, most = published.MEMORY_MIB_RANGE
    if cpu_milli == published.CPU_MILLI_RANGE[0] and kind == "1-gpu":
        memory_mib = least
    if cpu_milli == published.CPU_MILLI_RANGE[1]:
        memory_mib = most
    return Request(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_count=gpus, gpu_milli=gpu_milli)


def _rare(kind: str, shapes: Sequence[object], head: int) -> list[int]:
    """Share what the frequent shapes (`head` pods) leave of a class evenly over the rare ones."""
    pods = published.CLASS_PODS[published.CLASSES.index(kind)]
    return apportion(pods - head, [1] * len(shapes))


def _whole(kind: str, gpus: int, rows: Iterable[tuple[int, int]]) -> list[tuple[Request, int]]:
    return [(_shape(kind, cpu, gpus, WHOLE_GPU_MILLI), pods) for cpu, pods in rows]


def _tables() -> tuple[list[tuple[Request, int]], ...]:
    """Requests and their pods per 8152, for each of `published.CLASSES`."""
    cpu_rare = _rare("cpu-only", _CPU_ONLY_RARE, sum(pods for _, pods in _CPU_ONLY))
    share_rare = _rare("sharing", _SHARING_RARE, sum(pods for _, pods in _SHARING))
    one_rare = _rare("1-gpu", _ONE_GPU_RARE, sum(pods for _, pods in _ONE_GPU))
    cpu_only = (*_CPU_ONLY, *zip(_CPU_ONLY_RARE, cpu_rare, strict=True))
    sharing = (*_SHARING, *zip(_SHARING_RARE, share_rare, strict=True))
    one_gpu = (*_ONE_GPU, *zip(_ONE_GPU_RARE, one_rare, strict=True))
    return (
        [(_shape("cpu-only", cpu), pods) for cpu, pods in cpu_only],
        [(_shape("sharing", cpu, 1, milli), pods) for (cpu, milli), pods in sharing],
        _whole("1-gpu", 1, one_gpu),
        _whole("2-gpu", 2, _TWO_GPU),
        _whole("4-gpu", 4, _FOUR_GPU),
        _whole("8-gpu", 8, _EIGHT_GPU),
    )


def _requests(mix: published.PodFamily, pods: int, seed: int) -> list[Request]:
    """One request per pod, shuffled; equal requests are one object."""
    shapes: list[Request] = []
    counts: list[int] = []
    for table, of_class in zip(_tables(), apportion(pods, mix.class_pods), strict=True):
        shapes += [request for request, _ in table]
        counts += apportion(of_class, [weight for _, weight in table])
    index = np.repeat(np.arange(len(shapes)), counts)
    drawn = stream(seed, "generate/requests").permutation(index)
    requests = [shapes[at] for at in drawn.tolist()]
    _constrain(requests, mix.constrained, seed)
    return requests


def _constrain(requests: list[Request], share: float, seed: int) -> None:
    """Make `share` of the GPU pods accept only some models, in place; one-GPU pods only."""
    if not share:
        return
    with_gpu = sum(1 for request in requests if request.gpu_count)
    candidates = np.flatnonzero([request.gpu_count == 1 for request in requests])
    count = min(round(share * with_gpu), len(candidates))
    chosen = stream(seed, "generate/models").choice(candidates, count, replace=False)
    lists = [models for models, _ in _ACCEPTED]
    parts = apportion(count, [weight for _, weight in _ACCEPTED])
    known: dict[tuple[Request, int], Request] = {}
    kinds = np.repeat(np.arange(len(lists)), parts).tolist()
    for at, kind in zip(chosen.tolist(), kinds, strict=True):
        free = requests[at]
        requests[at] = known.setdefault((free, kind), replace(free, models=lists[kind]))


def _lifetimes(pods: int, seed: int) -> NDArray[np.float64]:
    """Seconds (whole): log-linear between the published quantiles, one draw from each 1/n-th.

    Drawing once from every stratum keeps the mean of a few thousand pods near the published
    one, which a handful of very long lifetimes decides.
    """
    random = stream(seed, "generate/lifetimes")
    quantiles = random.permutation((np.arange(pods) + random.random(pods)) / pods)
    *inner, longest = published.LIFETIME_QUANTILES
    at, seconds = np.array([(0.0, _SHORTEST_S), *inner, (0.999, _P999_S), longest]).T
    lifetimes: NDArray[np.float64] = np.exp(np.interp(quantiles, at, np.log(seconds)))
    return lifetimes.round()


def _write(path: Path, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _node_row(node: NodeSpec) -> tuple[object, ...]:
    size = (node.cpu_milli, node.memory_mib, node.gpu_count)
    return node.name, *size, node.gpu_model, node.cpu_model


def _pod_row(pod: TracePod) -> tuple[object, ...]:
    ask = pod.request
    size = (ask.cpu_milli, ask.memory_mib, ask.gpu_count, ask.gpu_milli, "|".join(ask.models))
    if pod.submit_s is None:
        return pod.name, *size, "", "", "", "", ""
    created = round(pod.submit_s)
    deleted = "" if pod.duration_s is None else round(pod.submit_s + pod.duration_s)
    return pod.name, *size, "", "", created, deleted, created
