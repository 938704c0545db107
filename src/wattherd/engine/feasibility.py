"""Whether a job could run at all, were the cluster empty: said at submission, with numbers."""

from __future__ import annotations

from wattherd.engine.draft import role_request
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode


def never_fits(spec: JobSpec, cluster: ClusterSpec, now_s: float) -> Reason | None:
    """Why no state of the cluster could run the job at its least width, or None.

    Each role is looked at alone: whatever fits together fits alone, so a reason given here is
    always true; a job that fails only in combination waits and is told so by the planner.
    """
    for role, count in zip(spec.roles, _least_counts(spec), strict=True):
        room = [_tasks_on(node, role, spec.gpu_models) for node in cluster.nodes]
        if sum(room) < count:
            return _reason(role, count, sum(room), cluster, now_s)
    return None


def _least_counts(spec: JobSpec) -> list[int]:
    return [spec.least_width, *(role.count for role in spec.roles[1:])]


def _tasks_on(node: NodeSpec, role: TaskRole, models: tuple[str, ...]) -> int:
    """How many tasks of `role` an empty `node` holds."""
    one = role_request(role, 1, models)
    if not one.fits(node):
        return 0
    per_gpu = 1000 // one.gpu_milli if one.gpu_count == 1 else 1
    limits = [
        have // want
        for have, want in (
            (node.cpu_milli, one.cpu_milli),
            (node.memory_mib, one.memory_mib),
            (node.gpu_count * per_gpu, one.gpu_count),
        )
        if want
    ]
    return min(limits) if limits else 1_000_000


def _reason(
    role: TaskRole, asked: int, available: int, cluster: ClusterSpec, now_s: float
) -> Reason:
    largest = max(node.gpu_count for node in cluster.nodes)
    hint = f"the largest node has {largest} GPUs" if role.gpu_count > largest else "ask for less"
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=now_s,
        asked=asked,
        available=available,
        unit=f"{role.name} tasks",
        unblocks=hint,
    )
