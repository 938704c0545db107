"""The rest of the objects: groups, volumes, leases, and what is written to the API.

Of the same make as `kube.api.objects`, and read with the same tolerance.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from wattherd.kube.api.objects import (
    ListMeta,
    NodeSelector,
    Object,
    ObjectMeta,
    Resources,
    StatusCondition,
)

T = TypeVar("T")

# Groups -----------------------------------------------------------------------------------------


class GangPolicy(Object, frozen=True):
    """All or nothing, from `min_count` pods on."""

    min_count: int = 0


class SchedulingPolicy(Object, frozen=True):
    """How the pods of a native group are scheduled; without `gang`, one by one."""

    gang: GangPolicy | None = None


class TopologyConstraint(Object, frozen=True):
    """All pods of a group go to nodes with one value of the label `key`."""

    key: str = ""


class SchedulingConstraints(Object, frozen=True):
    """What must hold of the nodes of a native group."""

    topology: list[TopologyConstraint] | None = None


class PodGroupSpec(Object, frozen=True):
    """A group of pods: native (`scheduling_policy`), else of `min_member` (older, Volcano's)."""

    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None
    priority: int | None = None
    priority_class_name: str = ""
    min_member: int | None = None
    min_resources: Resources | None = None
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Object, frozen=True):
    """What schedulers say of a group."""

    phase: str = ""
    conditions: list[StatusCondition] | None = None


class PodGroup(Object, frozen=True):
    """A group of pods."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


# Volumes ----------------------------------------------------------------------------------------


class VolumeNodeAffinity(Object, frozen=True):
    """From which nodes a volume can be reached."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Object, frozen=True):
    """Where a volume is."""

    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(Object, frozen=True):
    """A volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class PersistentVolumeClaimSpec(Object, frozen=True):
    """Which volume a claim got; empty while it has none."""

    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] | None = None


class PhaseOnly(Object, frozen=True):
    """A status of which the phase is all we need."""

    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    """A claim to a volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PhaseOnly = PhaseOnly()


# Leases -----------------------------------------------------------------------------------------


class LeaseSpec(Object, frozen=True):
    """Who leads, since when, and for how long without being heard of."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True):
    """A lease: one holder at a time."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


# What is written --------------------------------------------------------------------------------


class ObjectReference(Object, frozen=True):
    """Points at an object."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Binding(Object, frozen=True):
    """`pods/NAME/binding`: its annotations and labels are copied onto the pod (measured, 1.36)."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    target: ObjectReference = ObjectReference()


class Preconditions(Object, frozen=True):
    """Only if the object is still this one."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Object, frozen=True):
    """How to delete."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None


class Eviction(Object, frozen=True):
    """`pods/NAME/eviction`: deletes unless a disruption budget forbids it."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    delete_options: DeleteOptions | None = None


# Answers ----------------------------------------------------------------------------------------


class StatusCause(Object, frozen=True):
    """One cause of a refusal."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Object, frozen=True):
    """More of a refusal; `retry_after_seconds` asks for patience."""

    name: str = ""
    kind: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class Status(Object, frozen=True):
    """The server's answer where it is no object: success or why not."""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    status: str = ""
    reason: str = ""
    message: str = ""
    code: int = 0
    details: StatusDetails | None = None


class WatchEvent(Object, frozen=True):
    """One line of a watch.

    `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR (then `object` is a `Status`, which comes
    with HTTP 200). The object is left as it came until its type is known.
    """

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class ObjectList(Object, Generic[T], frozen=True):
    """A list, or one page of it."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Versioned(Object, frozen=True):
    """Any object as far as a bookmark fills it in."""

    metadata: ObjectMeta = ObjectMeta()


_WATCH = msgspec.json.Decoder(WatchEvent)
_ENCODE = msgspec.json.Encoder()


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Reads JSON as `kind`; keep it, since making one takes longer than using it."""
    return msgspec.json.Decoder(kind, strict=False)


def list_decoder(kind: type[T]) -> msgspec.json.Decoder[ObjectList[T]]:
    """Reads one page of a list of `kind`."""
    return msgspec.json.Decoder(ObjectList[kind], strict=False)  # type: ignore[valid-type]


def read_watch(line: bytes) -> WatchEvent:
    """One line of a watch.

    Raises:
        msgspec.DecodeError: it is no such line, cut off for instance.
    """
    return _WATCH.decode(line)


def encode(item: Object) -> bytes:
    """As the API takes it; fields that were not given are left out."""
    return _ENCODE.encode(item)
