"""How fast a simulated job is on its devices: the truth of the simulated world, for all plants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattherd.estimate.job_rate import JobRates
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec

SpeedAt = Callable[[JobSpec, Sequence[int], int, float | None], float]
"""Speed of a job on nodes (indices) with so many GPUs in all, at a cap in watts per device.

Relative to the pace that the job states. A plant that knows itself what a width is worth asks for
the job's own, `spec.gpus`.
"""


def uncapped(spec: JobSpec, nodes: Sequence[int], gpus: int, cap_w: float | None) -> float:
    """A world in which neither caps nor devices change anything."""
    del spec, nodes, gpus, cap_w
    return 1.0


def by_rates(cluster: ClusterSpec, rates: JobRates) -> SpeedAt:
    """Speed by the speed function; the slowest of a synchronous job's nodes sets the pace."""
    models = [node.gpu_model if node.gpu_count else "" for node in cluster.nodes]
    plain = not rates.differs and not rates.tabled

    def speed_at(spec: JobSpec, nodes: Sequence[int], gpus: int, cap_w: float | None) -> float:
        if not spec.gpus or (plain and cap_w is None and gpus == spec.gpus):
            return 1.0
        kinds = sorted({models[node] for node in nodes} - {""})
        spread = len(set(nodes))
        return min(
            (
                rates.rate(spec, model, gpus=gpus, nodes=spread, cap_w=cap_w).per_s
                for model in kinds
            ),
            default=1.0,
        )

    return speed_at
