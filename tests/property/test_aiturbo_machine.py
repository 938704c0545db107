"""Whatever jobs come, AITurbo breaks no invariant of the core and leaves nobody behind.

`Story` checks every invariant after every event: gangs whole, devices not over-committed, plan and
state consistent.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.estimate.speed import FittedRanges, PsBelief, SpeedModel
from wattherd.model.event import NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.policy.schedule.speed_forecast import LossForesight
from wattherd.policy.schedule.tiresias_gang import TiresiasGang
from wattherd.testing.timed_world import Story, t4_nodes

NODES = (4, 4, 2)


@st.composite
def ps_jobs(draw: st.DrawFn) -> list[JobSpec]:
    """Up to eight jobs that each fit on the cluster in the shape asked for."""
    return [_job(draw, number) for number in range(draw(st.integers(1, 8)))]


def _job(draw: st.DrawFn, number: int) -> JobSpec:
    gpus = draw(st.integers(0, 2))
    worker = TaskRole(
        name="worker", count=draw(st.integers(1, 3)), min_count=1, max_count=4,
        cpu_milli=1000 * draw(st.integers(1, 6)), min_cpu_milli=1000, max_cpu_milli=8000,
        gpu_count=gpus, min_gpu_count=min(gpus, 1), max_gpu_count=2 if gpus else 0,
    )  # fmt: skip
    server = TaskRole(
        name="ps", count=draw(st.integers(1, 3)), min_count=1, max_count=4, cpu_milli=2000,
        min_cpu_milli=1000, max_cpu_milli=4000, gpu_count=0,
    )  # fmt: skip
    return JobSpec(
        id=f"j{number}",
        submit_s=float(draw(st.integers(0, 2000))),
        roles=(worker, server) if draw(st.booleans()) else (worker,),
        duration_s=float(draw(st.integers(1, 5000))),
    )


def planners(jobs: list[JobSpec]) -> list[Planner]:
    """Each with the same, partly wrong, beliefs."""
    speed = SpeedModel(
        theta=(0.5, 0.1, 0.2, 0.1, 0.01, 0.01, 0.01),
        batch=32,
        sampled=FittedRanges(workers=(1, 4), servers=(0, 4)),
    )
    known = {
        job.id: PsBelief(speed=speed, target_loss=0.5, most_steps=500.0, epoch_steps=50.0)
        for job in jobs
    }
    foresight = LossForesight(beliefs=known)
    return [
        AITurbo(foresight=foresight),
        AITurbo(foresight=foresight, sizes_all=False),
        OptimusEstimated(foresight=foresight),
        TiresiasGang(thresholds_gpu_s=(500.0,)),
        FifoGang(),
    ]


@settings(max_examples=times(15))
@given(ps_jobs())
def test_every_job_ends(jobs: list[JobSpec]) -> None:
    for planner in planners(jobs):
        story = Story(planner, t4_nodes(*NODES, cpu_milli=40_000), jobs)
        assert not story.core.jobs, type(planner).__name__


@settings(max_examples=times(10))
@given(ps_jobs(), st.integers(0, 2), st.integers(1, 3000))
def test_every_job_ends_though_a_node_is_lost_for_a_while(
    jobs: list[JobSpec], node: int, at_s: int
) -> None:
    lost = [
        NodeLost(at_s=float(at_s), node=f"n{node}"),
        NodeReturned(at_s=float(at_s + 1000), node=f"n{node}"),
    ]
    for planner in planners(jobs):
        story = Story(planner, t4_nodes(*NODES, cpu_milli=40_000), jobs, events=lost)
        assert not story.core.jobs, type(planner).__name__
