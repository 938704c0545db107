"""Schedulers of parameter-server jobs, as a preset offers them: each with what it may know.

Sample runs give every job a fitted speed model. The judge of loss curves is taught by a generated
workload of another seed, never by the jobs that are scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

from wattherd.engine.core.executor import Plant
from wattherd.errors import UserError
from wattherd.estimate.curve_judge import CurveJudge
from wattherd.experiments.schedule.ps_mix import PLANNERS, taught_judge
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, Given, SchedulerOf
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec
from wattherd.sim.ps_plant import Overheads, PsPlant
from wattherd.sim.speed import SpeedAt
from wattherd.workload.ps_jobs import Mix, PsWorkload
from wattherd.workload.ps_profile import beliefs


def _scheduler(name: str, given: Given) -> BuiltScheduler:
    known = beliefs(_workload(given.jobs), given.seed)
    return BuiltScheduler(planner=PLANNERS[name](known, _judge()))


PS_SCHEDULERS: Mapping[str, SchedulerOf] = {name: partial(_scheduler, name) for name in PLANNERS}
"""By policy name."""


def ps_plant(jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float) -> Plant:
    """The jobs' side of the simulated world; a cap slows all of a step.

    Raises:
        UserError: the workload is of another format.
    """
    del cluster
    overheads = Overheads(restart_s=restart_s)
    return PsPlant(_workload(jobs).truths, overheads=overheads, speed_at=speed_at)


def _workload(jobs: ReadJobs) -> PsWorkload:
    if jobs.ps is None:
        raise UserError(
            "needs parameter-server jobs", field="--preset", hint="use it with --format aiturbo"
        )
    return jobs.ps


@cache
def _judge() -> CurveJudge:
    return taught_judge(Mix())
