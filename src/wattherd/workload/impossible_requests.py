"""Requests that no node could hold even when empty: found before a run, reported, never fatal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wattherd.errors import Bug
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpossibleRequest:
    """`count` pods ask for `request`, which fits no node for `reason`; `example` is one of them."""

    request: Request
    count: int
    example: str
    reason: str


def never_fits(pods: Iterable[TracePod], cluster: ClusterSpec) -> tuple[ImpossibleRequest, ...]:
    """What of `pods` fits no empty node of `cluster`: distinct requests, most frequent first."""
    counts: Counter[Request] = Counter()
    examples: dict[Request, str] = {}
    for pod in pods:
        counts[pod.request] += 1
        examples.setdefault(pod.request, pod.name)
    shapes = _shapes(cluster)
    return tuple(
        ImpossibleRequest(request=request, count=count, example=examples[request], reason=reason)
        for request, count in counts.most_common()
        if (reason := _reason(request, shapes))
    )


def _shapes(cluster: ClusterSpec) -> list[NodeSpec]:
    """One node of each shape: clusters have thousands of nodes and a handful of shapes."""
    by_shape = {
        (node.cpu_milli, node.memory_mib, node.gpu_count, node.gpu_model): node
        for node in cluster.nodes
    }
    return list(by_shape.values())


def _reason(request: Request, shapes: list[NodeSpec]) -> str:
    """Why it fits none of `shapes`, with numbers; empty where it fits one.

    Nodes are sorted out by model, GPUs, CPU and memory in turn, so the reason names the first
    want that the nodes left over cannot meet.
    """
    if any(request.fits(node) for node in shapes):
        return ""
    left, who = shapes, "a node"
    if request.gpu_count and request.models:
        wanted = " or ".join(dict.fromkeys(request.models))
        left, who = [node for node in left if request.allows(node.gpu_model)], f"a {wanted} node"
        if not left:
            return f"needs {wanted}, which no node has"
    for want, unit, has in _wants(request):
        most = max(has(node) for node in left)
        if want > most:
            return f"needs {want} {unit}, {who} has at most {most}"
        enough = [node for node in left if has(node) >= want]
        if len(enough) < len(left):
            who += f" with {want} {unit}" if who.endswith("node") else f" and {want} {unit}"
        left = enough
    raise Bug(f"{request} fits no node shape, yet meets every want")


def _wants(request: Request) -> list[tuple[int, str, Callable[[NodeSpec], int]]]:
    """The amounts asked for, their unit, and what a node has of them."""
    wants: list[tuple[int, str, Callable[[NodeSpec], int]]] = [
        (request.gpu_count, "GPUs", lambda node: node.gpu_count),
        (request.cpu_milli, "milli-vCPU", lambda node: node.cpu_milli),
        (request.memory_mib, "MiB", lambda node: node.memory_mib),
    ]
    return [entry for entry in wants if entry[0]]
