"""Whether a job could run at all, were the cluster empty: said at submission, with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from wattherd.engine.core.draft import share_request
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.jobs.waits import Waits, parents
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Share


class ShapeFeasibility:
    """Knows a cluster's machines by kind, and what it has said of each shape of job."""

    def __init__(self, cluster: ClusterSpec) -> None:
        """Count the nodes of each kind."""
        kinds = Counter(replace(node, name="", cpu_model="") for node in cluster.nodes)
        self._kinds = tuple(kinds.items())
        self._known: dict[tuple[object, ...], Reason | None] = {}

    def never_fits(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why no state of the cluster could run the job at its least width, or None.

        Each role is looked at alone: whatever fits together fits alone, so a reason given here is
        always true; a job that fails only in combination waits and is told so by the planner.
        """
        shape = (spec.roles, spec.min_width, spec.gpu_models)
        if shape not in self._known:
            self._known[shape] = self._reason(spec)
        reason = self._known[shape]
        return None if reason is None else replace(reason, since_s=now_s)

    def _reason(self, spec: JobSpec) -> Reason | None:
        for number, role in enumerate(spec.roles):
            count = spec.counts(number).start
            room = sum(nodes * tasks_on(kind, role, spec.gpu_models) for kind, nodes in self._kinds)
            if room < count:
                largest = max(kind.gpu_count for kind, _ in self._kinds)
                return _too_large(role, count, room, largest)
        return None


def never_fits(spec: JobSpec, cluster: ClusterSpec, now_s: float) -> Reason | None:
    """What `ShapeFeasibility` says of a single job."""
    return ShapeFeasibility(cluster).never_fits(spec, now_s)


def tasks_on(node: NodeSpec, role: TaskRole, models: tuple[str, ...]) -> int:
    """How many tasks of `role` an empty `node` holds."""
    least = Share(0, 1, cpu_milli=role.cpus.start, gpu_count=role.gpu_counts.start)
    one = share_request(role, least, models)
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


def _too_large(role: TaskRole, asked: int, available: int, largest: int) -> Reason:
    hint = (
        f"the largest node has {largest} GPUs"
        if role.gpu_counts.start > largest
        else "ask for less"
    )
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=0.0,
        asked=asked,
        available=available,
        unit=f"{role.name} tasks",
        unblocks=hint,
    )


def circle(
    spec: JobSpec, jobs: Mapping[str, JobRecord], waits: Waits, now_s: float
) -> Reason | None:
    """Why `spec` would wait for itself by way of other live `jobs`, or None."""
    own = {spec.id, spec.array} if spec.array else {spec.id}
    if not any(map(waits.waited_for, own)):
        return None
    known, ahead = {spec.id}, [*parents(spec), *waits.would_follow(spec)]
    while ahead:
        name = ahead.pop()
        if name in known:
            continue
        known.add(name)
        parent = jobs.get(name)
        if parent is None:
            ahead.extend(waits.tasks(name))
            continue
        if not own.isdisjoint(parent.waits_for):
            why = f"job {parent.id} waits for it in turn"
            return Reason(code=ReasonCode.INVALID_SPEC, since_s=now_s, unblocks=why)
        ahead.extend([*sorted(parent.waits_for), *waits.ahead(parent)])
    return None
