"""Fewer tasks of an elastic job, on devices that it has: what it is given before it is stopped."""

from __future__ import annotations

from collections.abc import Iterator

from wattherd.engine.jobs.record import JobRecord
from wattherd.model.allocation import Allocation
from wattherd.policy.contract import Share


# Devices that stay are named one by one: a narrower job must keep its own, so that nothing has to
# move to make it smaller. Widest first, since the guard is asked for each until one fits.
def narrower(job: JobRecord) -> Iterator[list[Share]]:
    """Shares of the plan's devices at every smaller width that the job can use, widest first.

    Only the first role is elastic; its last tasks go first, the other roles keep what they have.
    Jobs that share devices, or whose sizes a scheduler chose, have none.
    """
    first = [one for one in job.wanted if one.role == 0]
    others = [one for one in job.wanted if one.role != 0]
    gpus_each, width = job.spec.roles[0].gpu_count, sum(one.tasks for one in first)
    if not gpus_each or any(len(one.gpus) != one.tasks * gpus_each for one in first):
        return
    if any(one.request.gpu_milli != job.spec.roles[0].gpu_milli for one in first):
        return
    for tasks in range(width - 1, job.spec.least_width - 1, -1):
        yield [*_cut(first, tasks, gpus_each), *map(_whole, others)]


# From the front: tasks keep their ranks as far as there are any left.
def _cut(allocations: list[Allocation], tasks: int, gpus_each: int) -> Iterator[Share]:
    for one in allocations:
        kept = min(tasks, one.tasks)
        tasks -= kept
        if kept:
            yield Share(node=one.node, tasks=kept, gpus=one.gpus[: kept * gpus_each])


def _whole(one: Allocation) -> Share:
    return Share(node=one.node, tasks=one.tasks, role=one.role, gpus=one.gpus)
