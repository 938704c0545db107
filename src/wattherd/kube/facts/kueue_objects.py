"""Objects of Kueue (kueue.x-k8s.io/v1beta2), as far as an admission check reads and writes them.

Its Topology is for gangs that a scheduler of our own places.

Of the same make as `kube.api.objects`.
"""

from __future__ import annotations

from wattherd.kube.api.objects import Object, ObjectMeta, PodSpec, StatusCondition

API = "/apis/kueue.x-k8s.io/v1beta2"
VERSION = "kueue.x-k8s.io/v1beta2"


class CheckSpec(Object, frozen=True):
    """Whose check it is."""

    controller_name: str = ""


class CheckStatus(Object, frozen=True):
    """Whether somebody answers for it: condition `Active`."""

    conditions: list[StatusCondition] | None = None


class AdmissionCheck(Object, frozen=True):
    """A check that workloads of some queues must pass."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: CheckSpec = CheckSpec()
    status: CheckStatus = CheckStatus()


class Template(Object, frozen=True):
    """What the pods of a set are made of."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class PodSet(Object, frozen=True):
    """Pods that are alike."""

    name: str = ""
    count: int = 0
    template: Template = Template()


class WorkloadSpec(Object, frozen=True):
    """All pods of a job."""

    pod_sets: list[PodSet] | None = None
    queue_name: str = ""
    priority: int | None = None


class Assignment(Object, frozen=True):
    """How many pods of a set were given quota."""

    name: str = ""
    count: int | None = None


class Admission(Object, frozen=True):
    """The quota that a workload was given."""

    cluster_queue: str = ""
    pod_set_assignments: list[Assignment] | None = None


class PodSetUpdate(Object, frozen=True):
    """What a check adds to the pods of a set."""

    name: str = ""
    annotations: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None


class CheckState(Object, frozen=True):
    """Where one check of a workload stands: Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    last_transition_time: str
    message: str
    requeue_after_seconds: int | None = None
    pod_set_updates: list[PodSetUpdate] | None = None


class WorkloadStatus(Object, frozen=True):
    """Where a workload stands."""

    conditions: list[StatusCondition] | None = None
    admission: Admission | None = None
    admission_checks: list[CheckState] | None = None


class KueueWorkload(Object, frozen=True):
    """A job as Kueue queues it."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def holds(self, condition: str) -> bool:
        """Whether a condition is true of it."""
        found = self.status.conditions or ()
        return any(one.type == condition and one.status == "True" for one in found)


class TopologyLevel(Object, frozen=True):
    """Nodes that are equal in the label are together on this level."""

    node_label: str = ""


class TopologySpec(Object, frozen=True):
    """From the widest level to the narrowest."""

    levels: list[TopologyLevel] | None = None


class KueueTopology(Object, frozen=True):
    """How the nodes of a cluster hang together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TopologySpec = TopologySpec()

    @property
    def ladder(self) -> tuple[str, ...]:
        """Labels of its levels, the widest first."""
        return tuple(one.node_label for one in self.spec.levels or ())
