"""What must always hold of the core: checked after every event in tests and on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattherd.engine.ledger import JobRecord
from wattherd.engine.lifecycle import FINAL, State
from wattherd.engine.state import ClusterState
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation

if TYPE_CHECKING:
    from wattherd.engine.core import Core


def validate(core: Core) -> None:
    """Check every invariant across the core's collections.

    Raises:
        Bug: one is broken; names it, with the story of the job concerned.
    """
    _check_state(core.held, [a for job in core.jobs.values() for a in job.allocations], "held")
    _check_state(core.planned, [a for job in core.jobs.values() for a in job.wanted], "planned")
    for job in core.jobs.values():
        _check_job(core, job)
    both = core.jobs.keys() & core.finished.keys()
    if both:
        raise Bug(f"jobs both live and finished: {sorted(both)}")


def _check_state(state: ClusterState, allocations: list[Allocation], name: str) -> None:
    """The arrays must be what the allocations add up to, within capacity."""
    nodes = state.world.nodes
    cpu, memory = nodes.cpu_capacity.copy(), nodes.memory_capacity.copy()
    present = np.arange(nodes.gpu_free.shape[1]) < nodes.gpu_count[:, None]
    gpus = np.where(present, 1000, 0)
    for allocation in allocations:
        cpu[allocation.node] -= allocation.request.cpu_milli
        memory[allocation.node] -= allocation.request.memory_mib
        for gpu in allocation.gpus:
            gpus[allocation.node, gpu] -= allocation.request.gpu_milli
    for what, want, have in (
        ("CPU", cpu, nodes.cpu_free),
        ("memory", memory, nodes.memory_free),
        ("GPU", gpus, nodes.gpu_free),
    ):
        if (want != have).any():
            raise Bug(f"{name} {what} does not add up")
        if (have < 0).any():
            raise Bug(f"{name} {what} is over-committed")


def _check_job(core: Core, job: JobRecord) -> None:
    broken = ""
    if job.state in FINAL:
        broken = "is final and still live"
    elif job.active != bool(job.allocations):
        broken = f"is {job.state} and holds {len(job.allocations)} allocations"
    elif job.state is State.BLOCKED and not job.waits_for:
        broken = "is blocked by nothing"
    elif job.wanted and job.state in (State.BLOCKED, State.HELD, State.BACKING_OFF):
        broken = f"is {job.state} and has a plan"
    elif job.wanted and any(a.node in core.lost for a in job.wanted):
        broken = "is planned on a lost node"
    elif job.wanted and _width(job) not in range(job.spec.least_width, job.spec.most_width + 1):
        broken = "is a partial gang"
    if broken:
        raise Bug(f"job {job.id} {broken}\n{job.told()}")


def _width(job: JobRecord) -> int:
    """Tasks of the elastic role in the plan, told by GPUs; roles without GPUs cannot be told."""
    role = job.spec.roles[0]
    if not role.gpu_count or len(job.spec.roles) > 1:
        return job.spec.least_width
    return sum(len(allocation.gpus) for allocation in job.wanted) // role.gpu_count
