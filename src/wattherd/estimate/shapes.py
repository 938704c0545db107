"""From submissions and allocations to the shape in which a job runs."""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.estimate.speed import JobShape
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec


def asked_shape(spec: JobSpec) -> JobShape:
    """The shape a job was submitted with; its first role are workers, its second servers."""
    worker, *others = spec.roles
    return JobShape(
        workers=worker.count,
        servers=others[0].count if others else 0,
        worker_cores=worker.cpu_milli / 1000,
        server_cores=others[0].cpu_milli / 1000 if others else 0.0,
        gpus=worker.count * worker.gpu_count,
    )


def shape_of(spec: JobSpec, allocations: Sequence[Allocation]) -> JobShape:
    """The shape in which a job is started; tasks of one role are all of one size."""
    tasks, cpu = [0] * len(spec.roles), [0] * len(spec.roles)
    for one in allocations:
        tasks[one.role] += one.tasks
        cpu[one.role] += one.request.cpu_milli
    has_servers = len(tasks) > 1 and tasks[1] > 0
    return JobShape(
        workers=tasks[0],
        servers=tasks[1] if has_servers else 0,
        worker_cores=cpu[0] / tasks[0] / 1000,
        server_cores=cpu[1] / tasks[1] / 1000 if has_servers else 0.0,
        gpus=sum(len(one.gpus) for one in allocations),
    )
