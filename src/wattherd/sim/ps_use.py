"""How well a cluster of parameter-server jobs was used, from what the plant noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.model.cluster import ClusterSpec
from wattherd.sim.ps_plant import UsePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Time averages in percent.

    `gpu_pct` and `cpu_pct` are devices that work, of all there are; `held_pct` GPUs that jobs hold;
    `gap_points` is |GPU - CPU| of those held: how unevenly jobs use what they were given.
    """

    gpu_pct: float
    cpu_pct: float
    held_pct: float
    gap_points: float


def utilisation(points: Sequence[UsePoint], cluster: ClusterSpec, until_s: float) -> Utilisation:
    """Averages from 0 to `until_s`; the gap over the time in which anything is held."""
    gpus = sum(node.gpu_count for node in cluster.nodes)
    cores = sum(node.cpu_milli for node in cluster.nodes) / 1000
    gpu_s = cpu_s = held_s = gap_s = used_s = 0.0
    ends = [point.at_s for point in points[1:]] + [until_s]
    for point, end_s in zip(points, ends, strict=True):
        seconds = min(end_s, until_s) - point.at_s
        if seconds <= 0:
            continue
        gpu_s += seconds * point.gpus
        cpu_s += seconds * point.cores
        held_s += seconds * point.held_gpus
        if point.held_gpus and point.held_cores:
            used_s += seconds
            gap_s += seconds * abs(point.gpus / point.held_gpus - point.cores / point.held_cores)
    return Utilisation(
        gpu_pct=100 * gpu_s / (until_s * gpus),
        cpu_pct=100 * cpu_s / (until_s * cores),
        held_pct=100 * held_s / (until_s * gpus),
        gap_points=100 * gap_s / used_s if used_s else 0.0,
    )
