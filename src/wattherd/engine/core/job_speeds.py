"""What the core learns of the jobs that run, and what it tells planners of it.

Five things: how fast jobs are in which way of running, what a step is worth there, how many steps
they still have to do, what a restart costs them, and how much service they had received when they
ended. No watts follow from
them, and nothing that is safe or not: a report moves what planners believe of jobs of its own kind,
and that alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_noise import LearnedNoise, StepWorth
from wattherd.estimate.learned_rates import LearnedRates, WayRun
from wattherd.estimate.learned_restarts import PRIOR, LearnedRestarts, RestartTime
from wattherd.estimate.learned_services import LearnedServices, PastServices
from wattherd.estimate.learned_steps import LearnedSteps, StepsLeft
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import JobProgressed


# A part of the core and not a projection beside it: a replay of the journal teaches it the same,
# and a core that takes over has it. Speeds are steps by the core's own clock; the rate that a job
# tells of itself (`rate_per_s`) is any program's word, and is not learned from.
class JobSpeeds:
    """Hears what runs report and that they end; its parts are all that follows from it."""

    def __init__(self, live: Mapping[str, JobRecord]) -> None:
        """Nothing is known; `live` are the jobs that are not over, by id."""
        self._live = live
        self.learned = LearnedRates()
        self.steps = LearnedSteps()
        self.restarts = LearnedRestarts()
        self.services = LearnedServices()
        self.noise = LearnedNoise()

    def heard(
        self, job: JobRecord, config: CoreConfig, now_s: float,
        relative: Callable[[JobRecord], float], told: JobProgressed,
    ) -> None:  # fmt: skip
        """A job has reported; `relative` says how fast its power curves say it is at its cap.

        Of `told` count where its count ends, the noise of its gradient and its batch.
        """
        if not config.learns or job.state is not State.RUNNING:
            return
        # Each `forget` sweeps only where far more jobs are remembered than live, so that a report
        # does not cost by jobs.
        self.steps.forget(self._live, len(self._live))
        self.steps.heard(
            job.id, job.attempt, job.progress, now_s,
            loss=job.loss, total=told.total, target_loss=job.spec.target_loss,
        )  # fmt: skip
        # The first progress of an attempt ends its restart: until then devices were held and
        # nothing came of it.
        if job.progress > 0:
            self.restarts.forget(self._live, len(self._live))
            self.restarts.heard(job.id, job_kind(job.spec), job.attempt, now_s - job.held_since_s)
        self.noise.forget(self._live, len(self._live))
        self.noise.heard(job.id, job.gpus, told.noise_scale, told.batch)
        way = way_of(job, config.cluster)
        if way is None:
            return
        self.learned.forget(self._live, len(self._live))
        kind = job_kind(job.spec)
        self.learned.heard(
            job.id, kind, job.attempt, way, job.progress, now_s, relative=relative(job)
        )

    def succeeded(self, job: JobRecord, config: CoreConfig) -> None:
        """A job has come to its end; what it held is given back and booked."""
        if config.learns:
            self.services.ended(job.spec.tenant, job.attained_gpu_s)

    def of_jobs(self, live: Mapping[str, JobRecord]) -> JobSpeeds:
        """The same for a core that takes over: `live` are its jobs."""
        taken = JobSpeeds(live)
        taken.learned, taken.steps, taken.restarts = self.learned, self.steps, self.restarts
        taken.services, taken.noise = self.services, self.noise
        return taken

    def told(self, config: CoreConfig, now_s: float) -> ToldOfJobs:
        """What planners are told now."""
        return ToldOfJobs(self, config, self._live, now_s)

    def rates(self, config: CoreConfig) -> JobRates:
        """How fast jobs are on which devices: as configured, and as learned."""
        return self.learned.rates(config.job_rates) if config.learns else config.job_rates


@dataclass(frozen=True, slots=True)
class ToldOfJobs:
    """What was learned, as planners ask for it; each number has its source."""

    speeds: JobSpeeds
    config: CoreConfig
    live: Mapping[str, JobRecord]
    now_s: float

    @property
    def rates(self) -> JobRates:
        """How fast jobs are: as configured, and as learned."""
        return self.speeds.rates(self.config)

    def steps_left(self, job_id: str) -> StepsLeft | None:
        """How many steps a job still has to do, None while that cannot be told."""
        job = self.live.get(job_id)
        if job is None:
            return None
        held_since_s = job.held_since_s if job.active else None
        return self.speeds.steps.left(job_id, self.now_s, held_since_s)

    def step_worth(self, job_id: str, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs."""
        return self.speeds.noise.worth(job_id, gpus)

    def past_services(self) -> PastServices:
        """How much service jobs had received when they ended."""
        return self.speeds.services.known()

    def restart_time(self, job_id: str) -> RestartTime:
        """What a restart costs a job; a prior where nothing was learned."""
        job = self.live.get(job_id)
        return PRIOR if job is None else self.speeds.restarts.of(job_id, job_kind(job.spec))


def way_of(job: JobRecord, cluster: ClusterSpec) -> WayRun | None:
    """How a run runs; None where what it does is no speed of whole GPUs of one model."""
    places = [one for one in job.allocations if one.gpus]
    models = {cluster.nodes[one.node].gpu_model for one in places}
    # In a mix of models the slowest sets the pace, and on a device that may be shared its
    # neighbours do: neither tells how fast such a GPU is.
    if len(models) != 1 or any(role.gpu_memory_mib is not None for role in job.spec.roles):
        return None
    gpus, batch, accumulation = job.gpus, job.spec.batch_size, None
    if batch is not None and job.micro_batch:
        # The batch is of all devices together; what one of them cannot take at once it takes in
        # turns.
        accumulation = max(1, math.ceil(batch / gpus / job.micro_batch))
    return WayRun(
        gpu_model=models.pop(), gpus=gpus, nodes=len({one.node for one in places}), batch=batch,
        accumulation=accumulation, cap_w=job.cap_w,
    )  # fmt: skip
