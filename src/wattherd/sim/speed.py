"""How a cap slows a simulated job: the truth of the simulated world, shared by all plants."""

from __future__ import annotations

from collections.abc import Callable

from wattherd.estimate.power_curve import CurveOf
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec

SpeedAt = Callable[[JobSpec, int, float | None], float]
"""Speed of a job on a node (index) at a cap in watts per device, relative to uncapped."""


def uncapped(spec: JobSpec, node: int, cap_w: float | None) -> float:
    """A world in which caps change nothing."""
    del spec, node, cap_w
    return 1.0


def by_curve(cluster: ClusterSpec, curve_of: CurveOf) -> SpeedAt:
    """Speed by the job's power curve on the node's GPU model."""
    models = [node.gpu_model for node in cluster.nodes]

    def speed_at(spec: JobSpec, node: int, cap_w: float | None) -> float:
        if cap_w is None:
            return 1.0
        curve = curve_of(spec, models[node])
        return curve.rate(cap_w) / curve.rates[-1]

    return speed_at
