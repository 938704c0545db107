"""What the core learns of the speed of its jobs, and what it tells planners of it.

No watts follow from a speed, and nothing that is safe or not: a report moves what planners believe
of jobs of its own kind, and that alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_rates import LearnedRates, WayRun
from wattherd.model.cluster import ClusterSpec


class JobSpeeds:
    """Hears what runs report; `learned` is all that follows from it."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.learned = LearnedRates()

    def heard(
        self, job: JobRecord, live: Mapping[str, JobRecord], config: CoreConfig, now_s: float,
        relative: Callable[[JobRecord], float],
    ) -> None:  # fmt: skip
        """A job has reported; `relative` says how fast its power curves say it is at its cap."""
        if not config.learns or job.state is not State.RUNNING:
            return
        way = way_of(job, config.cluster)
        if way is None:
            return
        self.learned.forget(live, len(live))
        kind = job_kind(job.spec)
        self.learned.heard(
            job.id, kind, job.attempt, way, job.progress, now_s, relative=relative(job)
        )

    def rates(self, config: CoreConfig) -> JobRates:
        """How fast jobs are on which devices: as configured, and as learned."""
        return self.learned.rates(config.job_rates) if config.learns else config.job_rates


def way_of(job: JobRecord, cluster: ClusterSpec) -> WayRun | None:
    """How a run runs; None where what it does is no speed of whole GPUs of one model."""
    places = [one for one in job.allocations if one.gpus]
    models = {cluster.nodes[one.node].gpu_model for one in places}
    if len(models) != 1 or any(role.gpu_memory_mib is not None for role in job.spec.roles):
        return None
    gpus, batch, accumulation = job.gpus, job.spec.batch_size, None
    if batch is not None and job.micro_batch:
        accumulation = max(1, math.ceil(batch / gpus / job.micro_batch))
    return WayRun(
        gpu_model=models.pop(), gpus=gpus, nodes=len({one.node for one in places}), batch=batch,
        accumulation=accumulation, cap_w=job.cap_w,
    )  # fmt: skip
