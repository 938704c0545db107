"""Tries out on a snapshot what the second scheduler would do: the same decisions, no cluster.

Pods are told to a `KubeScheduler` in the order of their coming; what it orders comes true at once,
until it orders nothing more. Pods that are evicted are gone: their controllers would make others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.cluster_snapshot import GROUP_FIELDS, SET_FIELDS, ClusterSnapshot
from wattherd.kube.facts.job_sets import as_group
from wattherd.kube.facts.orders import BindPod, EvictPod, Order, TellPod
from wattherd.kube.facts.pod_groups import GroupId, GroupKind

_MOST_TURNS = 1000


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod (namespace/name) and what was written with its binding."""

    pod: str
    node: str
    annotations: dict[str, str]


@dataclass(slots=True)
class WhatIfOutcome:
    """What would happen: who starts where, who is evicted and why, who goes on waiting and why."""

    starts: list[Placement] = field(default_factory=list)
    evictions: dict[str, str] = field(default_factory=dict)
    waits: dict[str, tuple[str, str]] = field(default_factory=dict)


class Attempt:
    """A scheduler that believes it is on the cluster of a snapshot."""

    def __init__(self, scheduler: KubeScheduler) -> None:
        """A scheduler that knows nothing yet but its budgets."""
        self.scheduler = scheduler
        self.outcome = WhatIfOutcome()
        self.pods: dict[str, Pod] = {}
        self._now_s = 0.0

    def show(
        self, snapshot: ClusterSnapshot, alter: Callable[[Pod], Pod] = lambda pod: pod
    ) -> None:
        """Show all objects; `alter` may change pods beforehand."""
        scheduler = self.scheduler
        for claim in snapshot.claims or ():
            key = (claim.metadata.namespace, claim.metadata.name)
            scheduler.volumes.claims[key] = claim
        for volume in snapshot.volumes or ():
            scheduler.volumes.volumes[volume.metadata.name] = volume
        self._show_groups(snapshot)
        for topology in snapshot.topologies or ():
            scheduler.topology_seen(topology.metadata.name, topology.ladder)
        for node in snapshot.nodes or ():
            scheduler.node_seen(node)
        self.add(alter(pod) for pod in by_coming(snapshot.pods or ()))

    def _show_groups(self, snapshot: ClusterSnapshot) -> None:
        """Groups that are objects, and sets whose pods are groups."""
        seen: list[tuple[GroupKind, PodGroup]] = []
        for kind, name in GROUP_FIELDS.items():
            groups = getattr(snapshot, name)
            if groups is not None:
                self.scheduler.groups_are_objects(kind)
            seen += [(kind, group) for group in groups or ()]
        for kind, name in SET_FIELDS.items():
            seen += [(kind, as_group(one)) for one in getattr(snapshot, name) or ()]
        for kind, group in seen:
            about = group.metadata
            self.scheduler.group_seen(GroupId(kind, about.namespace, about.name), group)

    def add(self, pods: Iterable[Pod]) -> None:
        """Further pods come."""
        for pod in pods:
            self.pods[pod.metadata.uid] = pod
            self.scheduler.pod_seen(pod, self._now_s)

    def settle(self) -> WhatIfOutcome:
        """Until there is nothing more to do."""
        for _ in range(_MOST_TURNS):
            self._now_s += 1.0
            orders = self.scheduler.plan(self._now_s)
            for order in orders:
                self._obey(order)
            if not orders:
                break
        return self.outcome

    def _obey(self, order: Order) -> None:
        match order:
            case BindPod():
                self._bind(order)
            case EvictPod():
                self.outcome.evictions[order.key] = order.why
                self.pods.pop(order.uid, None)
                self.scheduler.pod_gone(order.uid)
            case TellPod():
                self.outcome.waits[order.key] = (order.reason, order.text)
            case _:
                pass

    def _bind(self, order: BindPod) -> None:
        pod = self.pods[order.uid]
        about = pod.metadata
        written = {**(about.annotations or {}), **order.annotations}
        bound = replace(
            pod,
            metadata=replace(about, annotations=written),
            spec=replace(pod.spec, node_name=order.node),
        )
        self.pods[order.uid] = bound
        self.outcome.waits.pop(order.key, None)
        self.outcome.starts.append(Placement(order.key, order.node, dict(order.annotations)))
        self.scheduler.pod_seen(bound, self._now_s)


def by_coming(pods: Iterable[Pod]) -> list[Pod]:
    """The oldest first; equally old ones by name."""

    def age(pod: Pod) -> tuple[str, str, str]:
        about = pod.metadata
        return about.creation_timestamp or "", about.namespace, about.name

    return sorted(pods, key=age)
