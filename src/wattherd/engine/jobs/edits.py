"""What an edit makes of a job's request, and what it says of that in the job's story."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wattherd.errors import UserError
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.command import AmendJob
from wattherd.model.event import JobEdited
from wattherd.model.job import JobSpec


# What a run was started with cannot be edited under it: width, queue and priority of a job that
# holds devices are what its plan was made by. Only its time limit may be lowered, because that
# takes nothing from anybody else.
def amendment(spec: JobSpec, event: JobEdited, *, active: bool) -> AmendJob:
    """What an edit leads to; of a job that holds devices only the time limit is lowered."""
    limit_s = spec.time_limit_s
    if event.time_limit_s is not None:
        lower = limit_s is None or event.time_limit_s <= limit_s
        limit_s = event.time_limit_s if lower or not active else limit_s
    waits, begin_s = not active, spec.begin_s
    if waits and event.begin_at_s is not None:
        # A request counts from its submission; a time before that is "at once".
        begin_s = max(0.0, event.begin_at_s - spec.submit_s)
    return AmendJob(
        job_id=spec.id,
        priority=event.priority if waits and event.priority is not None else spec.priority,
        queue=event.queue if waits and event.queue is not None else spec.queue,
        time_limit_s=limit_s,
        begin_s=begin_s,
        gpus=event.gpus if waits else None,
    )


def edited(spec: JobSpec, event: JobEdited, *, active: bool) -> tuple[AmendJob, JobSpec]:
    """The order that an edit leads to, and the request as it is from then on.

    Raises:
        UserError: no job could ask for that, or not this one.
    """
    order = amendment(spec, event, active=active)
    return order, amended(spec, order)


def amended(spec: JobSpec, order: AmendJob) -> JobSpec:
    """The request as it is from now on.

    Raises:
        UserError: no job could ask for that, or not this one.
    """
    spec = replace(
        spec,
        priority=order.priority,
        queue=order.queue,
        time_limit_s=order.time_limit_s,
        begin_s=order.begin_s,
    )
    return spec if order.gpus is None else _of_width(spec, *order.gpus)


def _of_width(spec: JobSpec, least: int, most: int) -> JobSpec:
    role = spec.roles[0]
    # A number of GPUs is a number of tasks only where each task has one.
    if len(spec.roles) > 1 or role.gpu_count > 1:
        hint = "cancel it and submit it again"
        raise UserError("its tasks have roles of their own", field="gpus", hint=hint)
    if role.gpu_count:
        role = replace(role, count=max(1, most), gpu_count=min(1, most))
    else:  # it had none: from now on its tasks have whole ones
        role = replace(role, count=max(1, most), gpu_count=min(1, most), gpu_milli=WHOLE_GPU_MILLI)
    if least == most:
        return replace(spec, roles=(role,), min_width=None, max_width=None)
    return replace(spec, roles=(role,), min_width=least, max_width=most)


def differences(old: JobSpec, new: JobSpec) -> Iterator[str]:
    """What was changed, for people: `priority 0 -> 10`."""
    for name, before, after in (
        ("priority", old.priority, new.priority),
        ("queue", old.queue, new.queue),
        ("time limit", _seconds(old.time_limit_s), _seconds(new.time_limit_s)),
        ("devices", _width(old), _width(new)),
        ("begin", _seconds(old.begin_s), _seconds(new.begin_s)),
    ):
        if before != after:
            yield f"{name} {before} -> {after}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:g} s"


def _width(spec: JobSpec) -> str:
    return f"{spec.gpus}" if spec.least_gpus == spec.gpus else f"{spec.least_gpus}..{spec.gpus}"
