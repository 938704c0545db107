"""Pack a sequence of requests into a cluster, one decision at a time, and measure every step.

The published experiment (FGD, ATC'23, section 6; PWR, CCGrid'25): pods arrive one by one, each is
placed or lost, nothing departs. Every decision goes through `Placer.place_one`, the same call that
serves the core's cycle; `by_core` submits every pod to a core instead, with the same decisions in
about three times the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.placement.placer import Placer
from wattherd.model.allocation import Allocation
from wattherd.model.command import StartJob
from wattherd.model.event import JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.policy.schedule.per_job_placement import PerJobPlacement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingSteps:
    """What was true after each of n arrivals.

    Arrays of length n: cumulative arrived and used milli-GPU, fragment in milli-GPU, and
    estimated watts.
    """

    arrived_milli: Ints
    used_milli: Ints
    fragment_milli: Floats
    cpu_w: Floats
    gpu_w: Floats

    @property
    def power_w(self) -> Floats:
        """Estimated draw of CPUs and GPUs."""
        return self.cpu_w + self.gpu_w


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRun:
    """The decisions of one run (None where a request found no room) and their measured steps."""

    decisions: list[Allocation | None]
    steps: PackingSteps

    @property
    def placed(self) -> int:
        """How many requests found room."""
        return sum(decision is not None for decision in self.decisions)


Decide = Callable[[int, Request], Allocation | None]
"""What becomes of request number n."""


def pack(placer: Placer, requests: Sequence[Request], decide: Decide | None = None) -> PackingRun:
    """Place `requests` in order, by `decide` where given."""
    state, count = placer.state, len(requests)
    milli = np.zeros((2, count), dtype=np.int64)
    measured = np.zeros((3, count), dtype=np.float64)
    decisions: list[Allocation | None] = []
    arrived = 0
    for step, request in enumerate(requests):
        decisions.append(decide(step, request) if decide else placer.place_one(request))
        arrived += request.total_gpu_milli
        milli[:, step] = arrived, state.used_gpu_milli
        measured[:, step] = state.fragment_gpu_milli, state.cpu_power_w, state.gpu_power_w
    steps = PackingSteps(
        arrived_milli=milli[0],
        used_milli=milli[1],
        fragment_milli=measured[0],
        cpu_w=measured[1],
        gpu_w=measured[2],
    )
    return PackingRun(decisions=decisions, steps=steps)


def by_core(placer: Placer) -> Decide:
    """Submit every request as a job to a core that places by `placer`."""
    core = Core(CoreConfig(cluster=placer.state.cluster, planner=PerJobPlacement(lambda: placer)))
    return partial(_submit, core)


def _submit(core: Core, step: int, request: Request) -> Allocation | None:
    """One pod's arrival, and that it runs if the core starts it."""
    job = _job(step, request)
    for command in core.handle(JobSubmitted(at_s=float(step), job=job)):
        if isinstance(command, StartJob):
            started = JobStarted(at_s=float(step), job_id=job.id, attempt=command.attempt)
            core.handle(started)
            return command.allocations[0]
    return None


def _job(step: int, request: Request) -> JobSpec:
    role = TaskRole(
        cpu_milli=request.cpu_milli,
        memory_mib=request.memory_mib,
        gpu_count=request.gpu_count,
        gpu_milli=request.gpu_milli,
    )
    return JobSpec(id=f"pod-{step}", submit_s=float(step), roles=(role,), gpu_models=request.models)


def ready_placer(placer: Placer, requests: Sequence[Request]) -> Placer:
    """Intern every request beforehand, so that tables are allocated once at their final size."""
    for request in requests:
        placer.state.shapes.intern(request)
    return placer
