"""Jobs that report for themselves, under a scheduler of the service, on few GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from wattherd.experiments.schedule.live import live_scheduler
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import Event
from wattherd.model.job import JobSpec, TaskRole
from wattherd.testing.reporting_world import ReportingWorld, Told, Training


def site(*counts: int, models: tuple[str, ...] = ()) -> ClusterSpec:
    """Nodes n0, n1, ... with so many GPUs each, T4s unless `models` says otherwise."""
    names = models or ("T4",) * len(counts)
    return ClusterSpec(
        tuple(
            NodeSpec(name=f"n{n}", cpu_milli=64_000, memory_mib=65_536, gpu_count=count,
                     gpu_model=name)
            for n, (count, name) in enumerate(zip(counts, names, strict=True))
        )
    )  # fmt: skip


def job(
    name: str, steps: float, *, at_s: float = 0.0, least: int = 1, most: int = 4,
    speed: Callable[[int], float] = float, kind: str = "train",
    tells: Callable[[float], Told | None] | None = None,
    by_width: Callable[[int], Told] | None = None, on: Mapping[str, float] | None = None,
    **fields: Any,
) -> Training:  # fmt: skip
    """An elastic job, of one role unless `roles` has more."""
    roles = fields.pop("roles", (TaskRole(count=most, command=(kind,)),))
    widths = {} if len(roles) > 1 else {"min_width": least, "max_width": most}
    spec = replace(JobSpec(id=name, submit_s=at_s, roles=roles, **widths), **fields)
    return Training(
        spec=spec, steps=steps, per_s=speed, tells=tells, by_width=by_width, on=on or {}
    )


def world(
    *jobs: Training, name: str, cluster: ClusterSpec | None = None,
    events: tuple[Event, ...] = (), answers: bool = True,
) -> ReportingWorld:  # fmt: skip
    """Four T4s unless told otherwise; without `answers` nobody computes what the planner asks."""
    cluster = site(4) if cluster is None else cluster
    built = live_scheduler(name, SchedulerContext(jobs=ReadJobs(specs=()), cluster=cluster))
    computers: Mapping[str, Any] = built.computers if answers else {}
    return ReportingWorld(built.planner, cluster, jobs, events, computers)
