"""What we read and write of Kubernetes objects: the fields that scheduling needs, no others.

Decoding is tolerant where the API is: fields we do not name are skipped, every field may be absent
or null (bookmarks carry nearly empty objects: no name, `containers: null`), closed sets of today
are plain text, since a newer server may know more. Field names are those of the API in Python's
spelling; what they mean stands in the Kubernetes API reference. Times are the API's own text.
"""

from __future__ import annotations

import msgspec

Resources = dict[str, str | int]
"""Quantities by resource name: `cpu`, `memory`, `nvidia.com/gpu`..."""


class Object(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """Parent of all: absent fields have defaults, and defaults are not written."""


# Metadata ---------------------------------------------------------------------------------------


class OwnerReference(Object, frozen=True):
    """Who made an object; one owner at most is its controller."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Object, frozen=True):
    """Name, version and labels of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    def label(self, key: str) -> str | None:
        """A label's value, None without it."""
        return (self.labels or {}).get(key)

    def annotation(self, key: str) -> str | None:
        """An annotation's value, None without it."""
        return (self.annotations or {}).get(key)


class ListMeta(Object, frozen=True):
    """Of a list: the version it shows, and where its next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class StatusCondition(Object, frozen=True):
    """One condition in a status, of whatever kind of object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


# Selectors --------------------------------------------------------------------------------------


class Requirement(Object, frozen=True):
    """`key operator values`; node selectors know `Gt` and `Lt` beside the operators of labels."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Object, frozen=True):
    """Which labels; all requirements hold. Empty selects everything, absent nothing."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class NodeSelectorTerm(Object, frozen=True):
    """Which nodes: all requirements hold; a term without any selects none."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Object, frozen=True):
    """Which nodes: one of the terms holds."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredNodes(Object, frozen=True):
    """A soft node affinity; only a score knows it."""

    weight: int = 0
    preference: NodeSelectorTerm | None = None


class NodeAffinity(Object, frozen=True):
    """Nodes that a pod needs, and those it would like."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredNodes] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(Object, frozen=True):
    """Other pods, by label, that share (or do not share) a topology with this one."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinity(Object, frozen=True):
    """Of `podAffinity` and `podAntiAffinity`: what is needed. Soft terms only score."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Object, frozen=True):
    """All affinities of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Object, frozen=True):
    """A taint that a pod bears."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class TopologySpreadConstraint(Object, frozen=True):
    """How evenly a pod's likes are to be spread."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


# Pods -------------------------------------------------------------------------------------------


class ResourceClaimName(Object, frozen=True):
    """A claim that a container uses."""

    name: str = ""


class ResourceRequirements(Object, frozen=True):
    """What a container, or a whole pod, asks for and is limited to."""

    requests: Resources | None = None
    limits: Resources | None = None
    claims: list[ResourceClaimName] | None = None


class ContainerPort(Object, frozen=True):
    """A port; only one on the host constrains where a pod may run."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Container(Object, frozen=True):
    """One container; an init container with `restart_policy` Always is a sidecar."""

    name: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class ClaimSource(Object, frozen=True):
    """The persistent volume claim behind a volume."""

    claim_name: str = ""


class Anything(Object, frozen=True):
    """Present or not; what it says does not matter to us."""


class Volume(Object, frozen=True):
    """A volume; those named here constrain where a pod may run, all others do not."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Anything | None = None
    gce_persistent_disk: Anything | None = None
    aws_elastic_block_store: Anything | None = None
    azure_disk: Anything | None = None
    iscsi: Anything | None = None
    rbd: Anything | None = None


class SchedulingGate(Object, frozen=True):
    """Why a pod is not to be scheduled yet."""

    name: str = ""


class SchedulingGroup(Object, frozen=True):
    """The native group a pod belongs to (1.36)."""

    pod_group_name: str | None = None


class PodResourceClaim(Object, frozen=True):
    """A claim of dynamic resource allocation."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Object, frozen=True):
    """What a pod wants."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    overhead: Resources | None = None
    volumes: list[Volume] | None = None
    host_network: bool | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: SchedulingGroup | None = None
    resource_claims: list[PodResourceClaim] | None = None
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Object, frozen=True):
    """What a container was given, which differs from its spec while it is resized in place."""

    name: str = ""
    allocated_resources: Resources | None = None
    resources: ResourceRequirements | None = None


class ByName(Object, frozen=True):
    """There if claims that kube-scheduler made give what a pod asks for by extended resources."""

    resource_claim_name: str = ""


class PodStatus(Object, frozen=True):
    """Where a pod stands."""

    phase: str = ""
    conditions: list[StatusCondition] | None = None
    nominated_node_name: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    extended_resource_claim_status: ByName | None = None


class GpusHeld(Object, frozen=True):
    """What a pod has of its node by resource claims, `by_name` if it asks by extended resources."""

    gpus: int = 0
    by_name: bool = False


class Pod(Object, frozen=True):
    """A pod; `held` is not the API's, but what is known of its claims (`GpuClaims`)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    held: GpusHeld | None = None


# Nodes ------------------------------------------------------------------------------------------


class Taint(Object, frozen=True):
    """What keeps pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpecification(Object, frozen=True):
    """How a node is set up."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeInfo(Object, frozen=True):
    """What a kubelet tells of its machine; a boot has an id of its own."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Object, frozen=True):
    """What a node has and how it is."""

    allocatable: Resources | None = None
    capacity: Resources | None = None
    conditions: list[StatusCondition] | None = None
    node_info: NodeInfo | None = None


class GpusPublished(Object, frozen=True):
    """GPUs of a node that resource claims may hold, and of which products they are."""

    gpus: int = 0
    products: list[str] | None = None


class Node(Object, frozen=True):
    """A node; `published` is not the API's, but what is known of its slices (`GpuClaims`)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpecification = NodeSpecification()
    status: NodeStatus = NodeStatus()
    published: GpusPublished | None = None
