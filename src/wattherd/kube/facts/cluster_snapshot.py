"""A cluster at one moment, as far as decisions look at it: what can be kept, sent and tried out.

Of every object only the fields that scheduling reads are there, and of annotations only those that
it knows: commands, environments, images and what `kubectl apply` remembers are never read at all.
Objects stand in the order of their names, keys in order: the same cluster gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from wattherd.errors import UserError
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import (
    PersistentVolume,
    PersistentVolumeClaim,
    PodGroup,
    PodGroupStatus,
)
from wattherd.kube.api.objects import Node, Object, ObjectMeta, Pod, PodStatus
from wattherd.kube.facts.claim_objects import API as CLAIMS
from wattherd.kube.facts.claim_objects import ResourceClaim, ResourceSlice
from wattherd.kube.facts.job_sets import SETS, JobSet, LeaderWorkerSet, PyTorchJob
from wattherd.kube.facts.kueue_objects import API as KUEUE
from wattherd.kube.facts.kueue_objects import KueueTopology
from wattherd.kube.facts.pod_groups import GROUP_APIS, GroupKind
from wattherd.kube.facts.power_kinds import PowerBudget, PowerDomain, Queue

T = TypeVar("T", bound=Object)
SCHEMA = "wattherd.kube.snapshot/1"
_KEPT = frozenset(
    {
        *(names.VOLCANO_GROUP, names.VOLCANO_GROUP_LEGACY, names.KUEUE_GROUP_COUNT),
        *(names.LWS_SIZE, names.LWS_GROUP),
        *(*names.REQUIRED_TOPOLOGY, *names.PREFERRED_TOPOLOGY),
    }
)
_TOLD = "PodScheduled"


class ClusterSnapshot(Object, frozen=True):
    """All of it; `budgets_w` are limits in watts by domain (the site's name is empty).

    Those are what budgets say at this moment; who says so, and by which address, is left out.
    """

    schema: str = ""
    nodes: list[Node] | None = None
    pods: list[Pod] | None = None
    native_groups: list[PodGroup] | None = None
    older_groups: list[PodGroup] | None = None
    volcano_groups: list[PodGroup] | None = None
    job_sets: list[JobSet] | None = None
    pytorch_jobs: list[PyTorchJob] | None = None
    leader_worker_sets: list[LeaderWorkerSet] | None = None
    topologies: list[KueueTopology] | None = None
    volumes: list[PersistentVolume] | None = None
    claims: list[PersistentVolumeClaim] | None = None
    power_domains: list[PowerDomain] | None = None
    queues: list[Queue] | None = None
    budgets_w: dict[str, float] | None = msgspec.field(default=None, name="budgetsWatts")


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Where a part of a snapshot is listed; `optional` ones may not be served, or not be ours.

    A part may be listed in several versions, of which the first that is served is taken.
    """

    field: str
    path: str
    kind: type[Any]
    optional: bool = False


_POWER = "/apis/wattherd.dev/v1alpha1"
GROUP_FIELDS = {
    GroupKind.NATIVE: "native_groups",
    GroupKind.OLDER: "older_groups",
    GroupKind.VOLCANO: "volcano_groups",
}
SET_FIELDS = {
    GroupKind.JOBSET: "job_sets",
    GroupKind.PYTORCH: "pytorch_jobs",
    GroupKind.LWS: "leader_worker_sets",
}
"""Sets that say how many of their pods start together."""
_GROUPS = (
    SnapshotPart(GROUP_FIELDS[kind], f"/apis/{version}/podgroups", PodGroup, optional=True)
    for kind, versions in GROUP_APIS.items()
    for version in versions
)
_SETS = (
    SnapshotPart(SET_FIELDS[one.group], f"{one.api}/{one.plural}", one.made, optional=True)
    for one in SETS
    if one.group in SET_FIELDS
)
PARTS = (
    SnapshotPart("nodes", "/api/v1/nodes", Node),
    SnapshotPart("pods", "/api/v1/pods", Pod),
    *_GROUPS,
    *_SETS,
    SnapshotPart("topologies", f"{KUEUE}/topologies", KueueTopology, optional=True),
    SnapshotPart("volumes", "/api/v1/persistentvolumes", PersistentVolume, optional=True),
    SnapshotPart("claims", "/api/v1/persistentvolumeclaims", PersistentVolumeClaim, optional=True),
    SnapshotPart("power_domains", f"{_POWER}/powerdomains", PowerDomain, optional=True),
    SnapshotPart("power_budgets", f"{_POWER}/powerbudgets", PowerBudget, optional=True),
    SnapshotPart("queues", f"{_POWER}/queues", Queue, optional=True),
    SnapshotPart("gpu_slices", f"{CLAIMS}/resourceslices", ResourceSlice, optional=True),
    SnapshotPart("gpu_claims", f"{CLAIMS}/resourceclaims", ResourceClaim, optional=True),
)


def snapshot_of(listed: dict[str, list[Any]], budgets_w: dict[str, float]) -> ClusterSnapshot:
    """Of lists by field, in any order; pods that are over are left out.

    A field that is not `listed` is not served: groups of such a kind are no objects.
    """
    found: dict[str, Any] = {
        part.field: _stripped(listed[part.field], _WAYS.get(part.kind, _plain))
        for part in PARTS
        if part.field in ClusterSnapshot.__struct_fields__ and part.field in listed
    }
    found["pods"] = [
        pod for pod in found.get("pods", ()) if pod.status.phase not in ("Succeeded", "Failed")
    ]
    limits = {name: float(watts) for name, watts in sorted(budgets_w.items())}
    return ClusterSnapshot(schema=SCHEMA, budgets_w=limits, **found)


def write(snapshot: ClusterSnapshot) -> bytes:
    """JSON for people to read, too."""
    encoder = msgspec.json.Encoder(order="sorted")
    return msgspec.json.format(encoder.encode(snapshot), indent=1) + b"\n"


def read(text: bytes, where: str) -> ClusterSnapshot:
    """As it was written.

    Raises:
        UserError: it is no snapshot, or one of another make.
    """
    hint = "make one with `wattherd kube snapshot`"
    try:
        found = msgspec.json.decode(text, type=ClusterSnapshot, strict=False)
    except msgspec.MsgspecError as error:
        raise UserError(f"no snapshot of a cluster: {error}", where=where, hint=hint) from None
    if found.schema != SCHEMA:
        problem = f"it is {found.schema or 'nothing known'}, not {SCHEMA}"
        raise UserError(problem, where=where, field="schema", hint=hint)
    return found


# Leaving out ------------------------------------------------------------------------------------


def _stripped(items: Iterable[T], way: Callable[[T], T]) -> list[T]:
    found = [way(item) for item in items]
    found.sort(key=lambda item: (item.metadata.namespace, item.metadata.name))  # type: ignore[attr-defined]
    return found


def _meta(about: ObjectMeta) -> ObjectMeta:
    kept = {
        key: value
        for key, value in sorted((about.annotations or {}).items())
        if key.startswith(names.OURS) or key in _KEPT
    }
    return ObjectMeta(
        name=about.name,
        namespace=about.namespace,
        uid=about.uid,
        labels=about.labels,
        annotations=kept or None,
        owner_references=about.owner_references,
        creation_timestamp=about.creation_timestamp,
        deletion_timestamp=about.deletion_timestamp,
    )


def _plain(item: T) -> T:
    found: T = replace(item, metadata=_meta(item.metadata))  # type: ignore[attr-defined]
    return found


def _node(node: Node) -> Node:
    ready = [one for one in node.status.conditions or () if one.type == "Ready"]
    return replace(_plain(node), status=replace(node.status, conditions=ready))


def _pod(pod: Pod) -> Pod:
    status = pod.status
    told = [one for one in status.conditions or () if one.type == _TOLD]
    kept = PodStatus(
        phase=status.phase,
        conditions=told or None,
        container_statuses=status.container_statuses,
        init_container_statuses=status.init_container_statuses,
    )
    return replace(_plain(pod), status=kept)


def _group(group: PodGroup) -> PodGroup:
    return replace(_plain(group), status=PodGroupStatus(phase=group.status.phase))


_WAYS: dict[type[Any], Callable[[Any], Any]] = {Node: _node, Pod: _pod, PodGroup: _group}
