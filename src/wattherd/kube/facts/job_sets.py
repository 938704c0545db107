"""Sets as gangs: how many pods a JobSet, PyTorchJob or LeaderWorkerSet makes that run together.

Their controllers make pods one after the other, and no group object says how many there will be;
the set itself does. A set whose parts start one after another (`startupPolicy`, `dependsOn`) is a
gang only as far as its first parts go, and once a part is done the others are placed as they come.
So with a LeaderWorkerSet whose workers are made when their leader is ready: it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup, PodGroupSpec, PodGroupStatus
from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.objects import Object, ObjectMeta
from wattherd.kube.facts.pod_groups import GroupKind

ENDING = "Ending"
"""Phase of a group of which pods are through."""
_IN_ORDER = "InOrder"
_LEADER_FIRST = "LeaderReady"


class _JobSpec(Object, frozen=True):
    parallelism: int | None = None
    completions: int | None = None

    @property
    def pods(self) -> int:
        """At work together."""
        together = 1 if self.parallelism is None else self.parallelism
        return together if self.completions is None else min(together, self.completions)


class _JobTemplate(Object, frozen=True):
    spec: _JobSpec = _JobSpec()


class _Dependency(Object, frozen=True):
    name: str = ""
    status: str = ""


class _ReplicatedJob(Object, frozen=True):
    name: str = ""
    replicas: int = 1
    template: _JobTemplate = _JobTemplate()
    depends_on: list[_Dependency] | None = None


class _StartupPolicy(Object, frozen=True):
    startup_policy_order: str = ""


class _JobSetSpec(Object, frozen=True):
    replicated_jobs: list[_ReplicatedJob] | None = None
    startup_policy: _StartupPolicy = _StartupPolicy()


class _Done(Object, frozen=True):
    name: str = ""
    succeeded: int = 0


class _JobSetStatus(Object, frozen=True):
    replicated_jobs_status: list[_Done] | None = None


class JobSet(Object, frozen=True):
    """jobset.x-k8s.io/v1alpha2, as far as it says how many pods start together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _JobSetSpec = _JobSetSpec()
    status: _JobSetStatus = _JobSetStatus()

    @property
    def least(self) -> int:
        """Pods that start together."""
        if any(one.succeeded for one in self.status.replicated_jobs_status or ()):
            return 1
        jobs = self.spec.replicated_jobs or []
        first = jobs[:1] if self.spec.startup_policy.startup_policy_order == _IN_ORDER else jobs
        return sum(one.replicas * one.template.spec.pods for one in first if not one.depends_on)


class _Replicas(Object, frozen=True):
    replicas: int | None = None


class _Elastic(Object, frozen=True):
    min_replicas: int | None = None


class _PyTorchSpec(Object, frozen=True):
    pytorch_replica_specs: dict[str, _Replicas] | None = None
    elastic_policy: _Elastic = _Elastic()


class _PyTorchStatus(Object, frozen=True):
    replica_statuses: dict[str, _Done] | None = None


class PyTorchJob(Object, frozen=True):
    """kubeflow.org/v1, as far as it says how many pods start together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _PyTorchSpec = _PyTorchSpec()
    status: _PyTorchStatus = _PyTorchStatus()

    @property
    def least(self) -> int:
        """Pods that start together; of an elastic job those that it cannot do without."""
        if any(one.succeeded for one in (self.status.replica_statuses or {}).values()):
            return 1
        parts = (self.spec.pytorch_replica_specs or {}).values()
        elastic = self.spec.elastic_policy.min_replicas
        return elastic or sum(1 if one.replicas is None else one.replicas for one in parts)


class _LeaderWorkerTemplate(Object, frozen=True):
    size: int = 1


class _LeaderWorkerSpec(Object, frozen=True):
    leader_worker_template: _LeaderWorkerTemplate = _LeaderWorkerTemplate()
    startup_policy: str = ""


class LeaderWorkerSet(Object, frozen=True):
    """leaderworkerset.x-k8s.io/v1, as far as it says how many pods of a group start together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaderWorkerSpec = _LeaderWorkerSpec()

    @property
    def least(self) -> int:
        """Pods of each of its groups that start together."""
        waits = self.spec.startup_policy == _LEADER_FIRST
        return 1 if waits else self.spec.leader_worker_template.size


class _JobStatus(Object, frozen=True):
    succeeded: int = 0


class ElasticJob(Object, frozen=True):
    """batch/v1, as far as it says how many pods start together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()

    @property
    def least(self) -> int:
        """All that there are now."""
        return 1 if self.status.succeeded else self.spec.pods


Set = JobSet | PyTorchJob | LeaderWorkerSet | ElasticJob


@dataclass(frozen=True, slots=True)
class SetKind:
    """A kind of set: where it is, and the kind of group that its pods are."""

    group: GroupKind
    api: str
    plural: str
    made: type[Set]
    labels: str = ""


SETS = (
    SetKind(GroupKind.JOBSET, "/apis/jobset.x-k8s.io/v1alpha2", "jobsets", JobSet),
    SetKind(GroupKind.PYTORCH, "/apis/kubeflow.org/v1", "pytorchjobs", PyTorchJob),
    SetKind(
        GroupKind.LWS, "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", LeaderWorkerSet
    ),
    SetKind(GroupKind.JOB, "/apis/batch/v1", "jobs", ElasticJob, labels=names.ELASTIC),
)


def as_groups(
    hear: Callable[[list[ObjectChange[PodGroup]]], None],
) -> Callable[[list[ObjectChange[Set]]], None]:
    """Hears a batch of sets as groups of their pods."""

    def hear_sets(batch: list[ObjectChange[Set]]) -> None:
        hear(
            [
                ObjectChange(one.key, None if one.item is None else as_group(one.item))
                for one in batch
            ]
        )

    return hear_sets


def as_group(one: Set) -> PodGroup:
    """The group of a set's pods; of a LeaderWorkerSet what holds for each of its groups."""
    ending = isinstance(one, ElasticJob) and one.status.succeeded > 0
    return PodGroup(
        metadata=one.metadata,
        spec=PodGroupSpec(min_member=max(1, one.least)),
        status=PodGroupStatus(phase=ENDING if ending else ""),
    )
