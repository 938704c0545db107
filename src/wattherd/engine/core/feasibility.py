"""Whether a job could run at all, were the cluster empty: said at submission, with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

from wattherd.engine.core.draft import share_request
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.jobs.waits import Waits, parents
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Share
from wattherd.policy.eligibility import Eligibility, NodeMask
from wattherd.units import counted


# Said at submission and not while waiting, since a job that can never run would head the line of a
# strict order for ever. It must therefore never be wrong in one direction: a job that is refused
# here could really not run, on an empty cluster with every node up. The other way is harmless: a
# job that passes and still never fits waits, and the planner says why.
class ShapeFeasibility:
    """Knows a cluster's machines by kind, and what it has said of each shape of job."""

    def __init__(self, cluster: ClusterSpec, eligible: Eligibility | None = None) -> None:
        """Count the nodes of each kind; jobs may use those that are `eligible`, None: all."""
        self._eligible = eligible
        # Machines are compared by what they hold; names and CPU models do not matter for fitting.
        # Large clusters have few kinds of nodes, and a sum over kinds costs by kinds.
        self._nodes = tuple(replace(node, name="", cpu_model="") for node in cluster.nodes)
        self._kinds = tuple(Counter(self._nodes).items())
        self._known: dict[tuple[object, ...], Reason | None] = {}

    def never_fits(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why no state of the cluster could run the job at its least width, or None.

        Each role is looked at alone: whatever fits together fits alone, so a reason given here is
        always true; a job that fails only in combination waits and is told so by the planner.
        """
        masks = [self._mask(spec, number) for number in range(len(spec.roles))]
        # Remembered by shape: traces and sweeps submit thousands of equal jobs. Masks are part of
        # the shape, since two jobs that ask for the same may be let onto different nodes.
        shape = (spec.roles, spec.min_width, spec.gpu_models, *map(_key, masks))
        if shape not in self._known:
            self._known[shape] = self._reason(spec, masks)
        reason = self._known[shape]
        # What is remembered has no time; the answer has that of the question.
        return None if reason is None else replace(reason, since_s=now_s)

    def _mask(self, spec: JobSpec, role: int) -> NodeMask | None:
        return None if self._eligible is None else self._eligible.nodes(spec, role)

    def _reason(self, spec: JobSpec, masks: Sequence[NodeMask | None]) -> Reason | None:
        for number, (role, mask) in enumerate(zip(spec.roles, masks, strict=True)):
            count = spec.counts(number).start
            kinds = self._kinds
            if mask is not None:
                # Nodes outside of a mask do not exist for the job: a hint that names the largest
                # node of the cluster would send its user the wrong way.
                kinds = tuple(Counter(compress(self._nodes, mask)).items())
            room = sum(nodes * tasks_on(kind, role, spec.gpu_models) for kind, nodes in kinds)
            if room < count:
                largest = max((kind.gpu_count for kind, _ in kinds), default=0)
                refusal = _too_large(role, count, room, largest)
                return refusal if mask is None else _limited(refusal, mask)
        return None


def _key(mask: NodeMask | None) -> bytes | None:
    return None if mask is None else mask.tobytes()


def _limited(refusal: Reason, mask: NodeMask) -> Reason:
    """Told of a role that may use some nodes only."""
    nodes = f"{int(mask.sum())} of {counted(len(mask), 'node')}"
    return replace(refusal, unblocks=f"{refusal.unblocks}; it may use {nodes}")


def never_fits(spec: JobSpec, cluster: ClusterSpec, now_s: float) -> Reason | None:
    """What `ShapeFeasibility` says of a single job."""
    return ShapeFeasibility(cluster).never_fits(spec, now_s)


def tasks_on(node: NodeSpec, role: TaskRole, models: tuple[str, ...]) -> int:
    """How many tasks of `role` an empty `node` holds."""
    # The least that a task can run with: an elastic size passes if its smallest value fits.
    least = Share(0, 1, cpu_milli=role.cpus.start, gpu_count=role.gpu_counts.start)
    one = share_request(role, least, models)
    if not one.fits(node):
        return 0
    # Parts are packed by whole quotients: two tasks of 600 milli do not share a device, whatever is
    # left over on both.
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
    # A task that needs nothing fits without end; any number above the most tasks of a job would do.
    return min(limits) if limits else 1_000_000


def _too_large(role: TaskRole, asked: int, available: int, largest: int) -> Reason:
    hint = (
        f"the largest node has {counted(largest, 'GPU')}"
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


# Only jobs that live can close a circle; what is over waits for nobody. Arrays are walked by their
# tasks, lines by who stands before.
def circle(
    spec: JobSpec, jobs: Mapping[str, JobRecord], waits: Waits, now_s: float
) -> Reason | None:
    """Why `spec` would wait for itself by way of other live `jobs`, or None."""
    # A task of an array waits for itself if it waits for its own array: the array is over when its
    # last task is.
    own = {spec.id, spec.array} if spec.array else {spec.id}
    # A new job closes a circle only if somebody waits for it already. Hardly any job is waited for
    # before it exists, so that the search below is hardly ever made.
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
