"""What a task without a device counts for on one machine, although nobody asked for it.

A task that asks for no device and no CPU would take nothing, and any number of them would run at
once, each run with a supervisor of the service's own. So a part of a processor is counted for it,
which is no limit, and which is taken off again where a job file is made of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # supervisors, which know the mark, stay small
    from wattherd.model.job import JobSpec

LEAST_CPU_MILLI = 50
COUNTED = "counted_cpu"
"""Names in a paper the roles whose CPU is only counted: nobody has asked for it, nor limits it."""


def counted(spec: JobSpec, paper: dict[str, Any]) -> JobSpec:
    """The same job, each task of it taking some part of the machine; noted in its paper."""
    free = [n for n, role in enumerate(spec.roles) if not (role.gpu_count or role.cpu_milli)]
    if not free:
        return spec
    paper[COUNTED] = free
    return _with_cpu(spec, free, LEAST_CPU_MILLI)


def uncounted(spec: JobSpec, paper: Mapping[str, Any]) -> JobSpec:
    """The job as its user asked for it."""
    free = paper.get(COUNTED, ())
    return _with_cpu(spec, free, 0) if free else spec


def _with_cpu(spec: JobSpec, free: list[int], cpu_milli: int) -> JobSpec:
    roles = [
        replace(role, cpu_milli=cpu_milli) if number in free else role
        for number, role in enumerate(spec.roles)
    ]
    return replace(spec, roles=tuple(roles))
