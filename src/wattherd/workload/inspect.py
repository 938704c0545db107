"""Statistics of a node list or pod list: the ones that papers print about such traces.

Shares are ratios (0 to 1), sizes in GPUs, vCPU and MiB, times in seconds. Nothing here reads a
file or knows how a table is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np

from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod

_MOST_FREQUENT = 5
_POPULAR = 0.95
Row = tuple[str, str]
Key = TypeVar("Key", bound=tuple[object, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """How many nodes of one size there are."""

    gpus: int
    vcpu: float
    memory_mib: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """All nodes with one GPU model (`model` is empty for those without GPUs)."""

    model: str
    nodes: int
    gpus: int
    shapes: tuple[NodeShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """A cluster by GPU model, most GPUs first."""

    nodes: int
    gpus: int
    vcpu: float
    memory_mib: int
    models: tuple[ModelSummary, ...]

    def rows(self) -> list[Row]:
        """Label and value of everything, for a table."""
        rows = [
            ("nodes", f"{self.nodes:,}"),
            ("GPUs", f"{self.gpus:,}"),
            ("vCPU", f"{self.vcpu:,.0f}"),
            ("memory", f"{self.memory_mib:,} MiB"),
        ]
        for model in self.models:
            label = model.model or "without GPU"
            rows.append((label, f"{model.nodes:,} nodes, {model.gpus:,} GPUs"))
            rows += [("", _node_text(shape)) for shape in model.shapes]
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """One population of pods: its share of the pods and of the GPUs requested."""

    name: str
    pods: int
    pod_share: float
    gpus: float
    gpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCount:
    """One distinct request, memory aside, and how many pods make it."""

    vcpu: float
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantitySpread:
    """Minimum, quantiles, maximum and mean of one quantity."""

    least: float
    median: float
    mean: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSummary:
    """A workload by population.

    `shapes_for_95` of the `shapes` distinct requests make up 95 % of the pods; `constrained` is
    the share of GPU pods that accept only some models; `run_s` and `span_s` are None where the
    trace has no times.
    """

    pods: int
    gpus: float
    vcpu: float
    memory_mib: int
    classes: tuple[ClassSummary, ...]
    shapes: int
    shapes_for_95: int
    most_frequent: tuple[ShapeCount, ...]
    constrained: float
    cpu_vcpu: QuantitySpread
    run_s: QuantitySpread | None
    span_s: float | None

    def rows(self) -> list[Row]:
        """Label and value of everything, for a table."""
        rows = [
            ("pods", f"{self.pods:,}"),
            ("GPUs requested", f"{self.gpus:,.1f}"),
            ("vCPU requested", f"{self.vcpu:,.0f}"),
            ("memory requested", f"{self.memory_mib:,} MiB"),
        ]
        rows += [(one.name, _class_text(one)) for one in self.classes]
        rows += [
            ("bound to GPU models", f"{self.constrained:.1%} of the GPU pods"),
            ("distinct requests", f"{self.shapes:,}; {self.shapes_for_95:,} make 95 % of the pods"),
        ]
        rows += [("", f"{shape.pods:,} x {_shape_text(shape)}") for shape in self.most_frequent]
        rows.append(("vCPU per pod", _spread_text(self.cpu_vcpu)))
        if self.run_s is not None:
            rows.append(("run time (s)", _spread_text(self.run_s)))
        if self.span_s is not None:
            rows.append(("submitted within", f"{self.span_s:,.0f} s"))
        return rows


@overload
def summarise(what: ClusterSpec) -> ClusterSummary: ...


@overload
def summarise(what: Sequence[TracePod]) -> PodSummary: ...


def summarise(what: ClusterSpec | Sequence[TracePod]) -> ClusterSummary | PodSummary:
    """The statistics of a cluster or of a workload."""
    return _cluster(what.nodes) if isinstance(what, ClusterSpec) else _pods(what)


def _cluster(nodes: Sequence[NodeSpec]) -> ClusterSummary:
    by_model: dict[str, list[NodeSpec]] = {}
    for node in nodes:
        by_model.setdefault(node.gpu_model if node.gpu_count else "", []).append(node)
    models = [_model(model, members) for model, members in by_model.items()]
    return ClusterSummary(
        nodes=len(nodes),
        gpus=sum(node.gpu_count for node in nodes),
        vcpu=sum(node.cpu_milli for node in nodes) / 1000,
        memory_mib=sum(node.memory_mib for node in nodes),
        models=tuple(sorted(models, key=lambda model: (-model.gpus, model.model))),
    )


def _model(model: str, nodes: Sequence[NodeSpec]) -> ModelSummary:
    sizes = Counter((node.gpu_count, node.cpu_milli, node.memory_mib) for node in nodes)
    shapes = tuple(
        NodeShape(gpus=gpus, vcpu=cpu_milli / 1000, memory_mib=memory_mib, nodes=count)
        for (gpus, cpu_milli, memory_mib), count in _by_count(sizes)
    )
    gpus = sum(node.gpu_count for node in nodes)
    return ModelSummary(model=model, nodes=len(nodes), gpus=gpus, shapes=shapes)


def _pods(pods: Sequence[TracePod]) -> PodSummary:
    requests = [pod.request for pod in pods]
    shapes = _by_count(Counter(map(_shape_of, requests)))
    with_gpu = [request for request in requests if request.gpu_count]
    bound = sum(1 for request in with_gpu if request.models)
    submitted = [pod.submit_s for pod in pods if pod.submit_s is not None]
    run = [pod.duration_s for pod in pods if pod.duration_s is not None]
    return PodSummary(
        pods=len(pods),
        gpus=sum(request.total_gpu_milli for request in requests) / WHOLE_GPU_MILLI,
        vcpu=sum(request.cpu_milli for request in requests) / 1000,
        memory_mib=sum(request.memory_mib for request in requests),
        classes=_classes(requests),
        shapes=len(shapes),
        shapes_for_95=_covering(_POPULAR, [count for _, count in shapes]),
        most_frequent=tuple(
            ShapeCount(vcpu=cpu_milli / 1000, gpus=gpus, gpu_milli=milli, models=models, pods=count)
            for (cpu_milli, gpus, milli, models), count in shapes[:_MOST_FREQUENT]
        ),
        constrained=bound / len(with_gpu) if with_gpu else 0.0,
        cpu_vcpu=_spread([request.cpu_milli / 1000 for request in requests]),
        run_s=_spread(run) if run else None,
        span_s=max(submitted) - min(submitted) if submitted else None,
    )


def class_of(request: Request) -> str:
    """The population a request belongs to: `cpu-only`, `sharing` or `N-gpu`."""
    if not request.gpu_count:
        return "cpu-only"
    return "sharing" if request.is_sharing else f"{request.gpu_count}-gpu"


def _classes(requests: Sequence[Request]) -> tuple[ClassSummary, ...]:
    members: dict[str, list[int]] = {"cpu-only": [], "sharing": []}
    for request in sorted(requests, key=lambda request: request.gpu_count):
        members.setdefault(class_of(request), []).append(request.total_gpu_milli)
    all_milli = sum(map(sum, members.values()))
    return tuple(
        ClassSummary(
            name=name,
            pods=len(milli),
            pod_share=len(milli) / len(requests) if requests else 0.0,
            gpus=sum(milli) / WHOLE_GPU_MILLI,
            gpu_share=sum(milli) / all_milli if all_milli else 0.0,
        )
        for name, milli in members.items()
    )


def _shape_of(request: Request) -> tuple[int, int, int, tuple[str, ...]]:
    return request.cpu_milli, request.gpu_count, request.gpu_milli, request.models


def _by_count(counted: Counter[Key]) -> list[tuple[Key, int]]:
    """Most frequent first; equally frequent ones by their own order, never by hash."""
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def _covering(share: float, counts: Sequence[int]) -> int:
    """How many of the most frequent are needed for at least `share` of all."""
    if not counts:
        return 0
    return int(np.searchsorted(np.cumsum(counts), share * sum(counts))) + 1


def _spread(values: Iterable[float]) -> QuantitySpread:
    column = np.array(list(values) or [0.0])
    least, median, p90, p99, most = np.quantile(column, (0, 0.5, 0.9, 0.99, 1)).tolist()
    mean = float(column.mean())
    return QuantitySpread(least=least, median=median, mean=mean, p90=p90, p99=p99, most=most)


def _spread_text(spread: QuantitySpread) -> str:
    parts = (
        f"{_number(spread.least)} to {_number(spread.most)}",
        f"median {_number(spread.median)}",
        f"mean {_number(spread.mean)}",
        f"p90 {_number(spread.p90)}",
        f"p99 {_number(spread.p99)}",
    )
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _node_text(shape: NodeShape) -> str:
    size = f"{shape.gpus} GPU, {shape.vcpu:g} vCPU, {shape.memory_mib:,} MiB"
    return f"{shape.nodes:,} x {size}"


def _class_text(one: ClassSummary) -> str:
    pods = f"{one.pods:,} pods ({one.pod_share:.1%})"
    return f"{pods}, {one.gpus:,.1f} GPUs ({one.gpu_share:.1%})"


def _shape_text(shape: ShapeCount) -> str:
    gpu = f"{shape.gpus} GPU at {shape.gpu_milli} milli" if shape.gpus else "no GPU"
    models = f" on {'|'.join(shape.models)}" if shape.models else ""
    return f"{shape.vcpu:g} vCPU, {gpu}{models}"
