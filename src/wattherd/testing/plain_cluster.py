"""A cluster as a person would note it down, and what the papers say of its fragments and watts.

Feasibility, target workload and fragmentation from FGD (ATC'23), watts from PWR (CCGrid'25), over
lists and fractions; no code is shared with `estimate` and `engine`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from wattherd.catalog.cpus import CPUS, REFERENCE_CPU
from wattherd.catalog.gpus import GPUS
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request

MAX_PODS = 1001
"""Pods a node may host."""


@dataclass(frozen=True, slots=True)
class Task:
    """A target specification and its share of the workload."""

    share: float
    cpu: int
    gpu_milli: int
    gpus: int
    models: frozenset[str]

    def allows(self, model: str) -> bool:
        """Whether GPUs of `model` will do."""
        return not self.models or model in self.models


@dataclass(slots=True)
class PlainNode:
    """A node as a person would note it down: what is free, and who is on it."""

    spec: NodeSpec
    cpu: int
    memory: int
    gpus: list[int]
    pods: list[tuple[Request, tuple[int, ...]]] = field(default_factory=list)

    @property
    def idle(self) -> int:
        """Free GPU milli."""
        return sum(self.gpus)

    def copy(self) -> PlainNode:
        """The same node, to try things on."""
        return PlainNode(self.spec, self.cpu, self.memory, list(self.gpus), list(self.pods))

    def fits(self, request: Request) -> bool:
        """Room in CPU, memory and pods, and enough GPUs of an allowed model with room each."""
        if self.cpu < request.cpu_milli or self.memory < request.memory_mib:
            return False
        if len(self.pods) >= MAX_PODS:
            return False
        if not request.gpu_count:
            return True
        if request.models and self.spec.gpu_model not in request.models:
            return False
        return sum(free >= request.gpu_milli for free in self.gpus) >= request.gpu_count

    def place(self, request: Request, gpus: tuple[int, ...]) -> None:
        """Book it."""
        self._take(request, gpus, 1)
        self.pods.append((request, gpus))

    def release(self, request: Request, gpus: tuple[int, ...]) -> None:
        """Take it off again."""
        self.pods.remove((request, gpus))
        self._take(request, gpus, -1)

    def _take(self, request: Request, gpus: tuple[int, ...], sign: int) -> None:
        self.cpu -= sign * request.cpu_milli
        self.memory -= sign * request.memory_mib
        for gpu in gpus:
            self.gpus[gpu] -= sign * request.gpu_milli

    def after(self, request: Request, gpus: tuple[int, ...]) -> PlainNode:
        """What it would be with the request on it."""
        other = self.copy()
        other.place(request, gpus)
        return other


def plain_nodes(cluster: ClusterSpec) -> list[PlainNode]:
    """An empty cluster."""
    return [
        PlainNode(node, node.cpu_milli, node.memory_mib, [1000] * node.gpu_count)
        for node in cluster.nodes
    ]


# --- target workload and fragmentation ------------------------------------------------------


def tasks(history: Iterable[Request], coverage_pct: int = 95) -> list[Task]:
    """The most popular specifications, and the one that crosses the coverage."""
    counts = Counter(
        (one.cpu_milli, one.gpu_milli, one.gpu_count, "|".join(one.models)) for one in history
    )
    total = sum(counts.values())
    ranked = sorted(((count, spec) for spec, count in counts.items()), reverse=True)
    kept: list[tuple[int, tuple[int, int, int, str]]] = []
    while ranked and 100 * sum(count for count, _ in kept) < coverage_pct * total:
        kept.append(ranked.pop(0))
    covered = sum(count for count, _ in kept)
    return [
        Task(count / covered, cpu, milli, gpus, frozenset(models.split("|")) - {""})
        for count, (cpu, milli, gpus, models) in kept
    ]


def class_of(node: PlainNode, task: Task) -> str:
    """Seven kinds of (node, task): XL, XR, NA, Q1, Q2, Q3, Q4."""
    enough_cpu = node.cpu >= task.cpu
    if task.gpu_milli == 0:
        return "XL" if enough_cpu else "XR"
    if not node.spec.gpu_count or not task.allows(node.spec.gpu_model):
        return "NA"
    enough_gpu = sum(free >= task.gpu_milli for free in node.gpus) >= task.gpus
    if enough_gpu:
        return "Q3" if enough_cpu else "Q4"
    return "Q2" if enough_cpu else "Q1"


def unusable(node: PlainNode, task: Task) -> int:
    """Idle milli of `node` that `task` cannot use."""
    if class_of(node, task) == "Q3":
        return sum(free for free in node.gpus if free < task.gpu_milli)
    return node.idle


def fragment(node: PlainNode, workload: Sequence[Task]) -> float:
    """F_n: per class in target order, then over the classes; Q3's waste is booked under Q2."""
    buckets = dict.fromkeys(("Q1", "Q2", "Q4", "XL", "XR", "NA"), 0.0)
    for task in workload:
        name = class_of(node, task)
        buckets["Q2" if name == "Q3" else name] += task.share * unusable(node, task)
    total = 0.0
    for amount in buckets.values():
        total += amount
    return total


def exact_fragment(node: PlainNode, workload: Sequence[Task]) -> Fraction:
    """F_n without rounding, for judging sums."""
    return sum(
        (Fraction(task.share) * unusable(node, task) for task in workload), start=Fraction(0)
    )


# --- power ----------------------------------------------------------------------------------


def cpu_watts(node: PlainNode) -> Fraction:
    """Packages with a working core draw their maximum, the others their idle power."""
    cpu = CPUS[node.spec.cpu_model or REFERENCE_CPU]
    real = math.ceil(Fraction(node.spec.cpu_milli, 2000))
    work = real - math.floor(Fraction(node.cpu, 2000))
    packages = math.ceil(Fraction(real, cpu.cores))
    active = math.ceil(Fraction(work, cpu.cores))
    return active * _watts(cpu.max_w) + (packages - active) * _watts(cpu.idle_w)


def gpu_watts(node: PlainNode) -> Fraction:
    """GPUs with any allocation draw their maximum, free ones their idle power."""
    if not node.gpus:
        return Fraction(0)
    card = GPUS[node.spec.gpu_model]
    busy = sum(free < 1000 for free in node.gpus)
    return busy * _watts(card.max_w) + (len(node.gpus) - busy) * _watts(card.idle_w)


def watts(node: PlainNode) -> Fraction:
    """The whole node."""
    return cpu_watts(node) + gpu_watts(node)


def _watts(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1000)
