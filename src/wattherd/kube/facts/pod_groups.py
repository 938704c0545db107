"""Which gang a pod belongs to, by whatever its users already write.

Accepted, in this order: the native group (`spec.schedulingGroup`), the label of the older pod
groups, Volcano's annotation, Kueue's label, and the set it was made for (JobSet, LeaderWorkerSet,
PyTorchJob, an elastic Job). How many members a gang has at least is said by its group object, by
the set (`job_sets`), or by the pod where none is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import ObjectMeta, Pod


class GroupKind(StrEnum):
    """Whose group it is."""

    NATIVE = "scheduling.k8s.io"
    OLDER = "scheduling.x-k8s.io"
    VOLCANO = "scheduling.volcano.sh"
    KUEUE = "kueue.x-k8s.io"
    JOBSET = "jobset.x-k8s.io"
    LWS = "leaderworkerset.x-k8s.io"
    PYTORCH = "kubeflow.org"
    JOB = "batch"


GROUP_APIS: Mapping[GroupKind, tuple[str, ...]] = MappingProxyType(
    {
        GroupKind.NATIVE: (
            "scheduling.k8s.io/v1beta1",
            "scheduling.k8s.io/v1alpha3",
            "scheduling.k8s.io/v1alpha2",
        ),
        GroupKind.OLDER: ("scheduling.x-k8s.io/v1alpha1",),
        GroupKind.VOLCANO: ("scheduling.volcano.sh/v1beta1",),
    }
)
"""Versions that we can read, those that are used first where several are served first."""


@dataclass(frozen=True, slots=True)
class GroupId:
    """A group in one namespace; equal names of different kinds are different groups."""

    kind: GroupKind
    namespace: str
    name: str


def group_of(pod: Pod) -> GroupId | None:
    """The gang `pod` belongs to, or None."""
    for kind, find in _FINDERS:
        name = find(pod)
        if name:
            return GroupId(kind, pod.metadata.namespace, name)
    return None


def stated_size(pod: Pod) -> int | None:
    """How many members the pod itself says its group has (Kueue, LeaderWorkerSet), or None."""
    meta = pod.metadata
    for text in (meta.annotation(names.KUEUE_GROUP_COUNT), meta.annotation(names.LWS_SIZE)):
        if text is not None and text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
    return None


def set_of(pod: Pod) -> GroupId | None:
    """The set that says how large the pod's group is, where that is one of several of the set."""
    name = pod.metadata.label(names.LWS_NAME)
    return GroupId(GroupKind.LWS, pod.metadata.namespace, name) if name else None


def least_members(group: PodGroup) -> int:
    """How many members must run together; 1 where the group is no gang."""
    policy = group.spec.scheduling_policy
    if policy is not None:
        return max(1, policy.gang.min_count) if policy.gang is not None else 1
    return max(1, group.spec.min_member or 1)


def priority_of(pods: Sequence[Pod], groups: Mapping[GroupId, PodGroup]) -> int:
    """Of pods that start and stop together: what their native group says, else their highest.

    Where the API server knows of priorities of groups, it gives each group one
    (`WorkloadAwarePreemption`).
    """
    group_id = group_of(pods[0])
    group = None if group_id is None else groups.get(group_id)
    stated = None if group is None else group.spec.priority
    return max(pod.spec.priority or 0 for pod in pods) if stated is None else stated


def _native(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group
    return None if group is None else group.pod_group_name


def _older(pod: Pod) -> str | None:
    meta = pod.metadata
    return meta.label(names.OLDER_POD_GROUP) or meta.label(names.OLDEST_POD_GROUP)


def _volcano(pod: Pod) -> str | None:
    meta = pod.metadata
    return meta.annotation(names.VOLCANO_GROUP) or meta.annotation(names.VOLCANO_GROUP_LEGACY)


def _kueue(pod: Pod) -> str | None:
    return pod.metadata.label(names.KUEUE_GROUP)


def _jobset(pod: Pod) -> str | None:
    return pod.metadata.label(names.JOBSET_NAME) or _owner(pod.metadata, "JobSet")


def _lws(pod: Pod) -> str | None:
    """One group of the set is the gang; replicas of the set are independent."""
    meta = pod.metadata
    name, index = meta.label(names.LWS_NAME), meta.label(names.LWS_INDEX)
    return meta.label(names.LWS_GROUP) or (f"{name}/{index}" if name and index else None)


def _pytorch(pod: Pod) -> str | None:
    return _owner(pod.metadata, "PyTorchJob")


def _elastic_job(pod: Pod) -> str | None:
    """Pods of other Jobs are no gang: each is placed as it comes."""
    return _owner(pod.metadata, "Job") if pod.metadata.label(names.ELASTIC) else None


def _owner(meta: ObjectMeta, kind: str) -> str | None:
    owners = meta.owner_references or ()
    return next((one.name for one in owners if one.kind == kind and one.controller), None)


_FINDERS: tuple[tuple[GroupKind, Callable[[Pod], str | None]], ...] = (
    (GroupKind.NATIVE, _native),
    (GroupKind.OLDER, _older),
    (GroupKind.VOLCANO, _volcano),
    (GroupKind.KUEUE, _kueue),
    (GroupKind.JOBSET, _jobset),
    (GroupKind.LWS, _lws),
    (GroupKind.PYTORCH, _pytorch),
    (GroupKind.JOB, _elastic_job),
)
