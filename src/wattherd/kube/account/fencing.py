"""Pods that are gone from the API, but maybe not from their machine.

A node whose kubelet is silent may run on: pods that are deleted by force, or collected with their
node's silence, draw as before. Their watts are free only once the machine is known not to draw
them (fencing): its kubelet is back and removes what it should not run; somebody who has made sure
says so by the taint `node.kubernetes.io/out-of-service` (Kubernetes docs, "Non-graceful node
shutdown") or by deleting the node; or its controller board was seen to have switched it off, which
is written on the node as `wattherd.dev/switched: off`.

Who is on a silent node is written on the node itself as soon as it falls silent, so that whoever
decides later, after a restart or in another copy, counts those who were deleted meanwhile, also
while nobody was there to see it. What is written goes with the node, and when it speaks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.objects import Container, Node, Object, ObjectMeta, Pod, PodSpec

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_KEPT = (names.GPUS, names.GPU_MILLI, names.WATTS, names.DOMAIN, names.DECISION)


def is_silent(node: Node) -> bool:
    """Whether nobody knows what a node does: its kubelet is silent, and it is not fenced."""
    taints = {taint.key for taint in node.spec.taints or ()}
    off = node.metadata.annotation(names.SWITCHED) == names.OFF
    if off or OUT_OF_SERVICE in taints:
        return False
    conditions = node.status.conditions or ()
    unknown = any(one.type == "Ready" and one.status == "Unknown" for one in conditions)
    return unknown or UNREACHABLE in taints


class _Memory(Object, frozen=True):
    """What is written on a silent node: its pods, as far as they count."""

    pods: list[Pod] = msgspec.field(default_factory=list)


_MEMORY = decoder(_Memory)


def remembered(node: Node) -> dict[str, Pod]:
    """By uid, the pods that are written on a node; none if that cannot be read."""
    try:
        memory = _MEMORY.decode(node.metadata.annotation(names.UNFENCED) or "{}")
    except msgspec.MsgspecError:
        return {}
    return {pod.metadata.uid: pod for pod in memory.pods}


def _shortened(pod: Pod) -> Pod:
    """Who it is, where, and what it takes there; it names no scheduler and is nobody's to stop."""
    about, spec = pod.metadata, pod.spec
    kept = {name: text for name in _KEPT if (text := about.annotation(name)) is not None}
    return Pod(
        metadata=ObjectMeta(
            name=about.name, namespace=about.namespace, uid=about.uid, annotations=kept
        ),
        spec=PodSpec(
            node_name=spec.node_name,
            containers=_amounts(spec.containers),
            init_containers=_amounts(spec.init_containers),
            resources=spec.resources,
            overhead=spec.overhead,
        ),
        held=pod.held,
    )


def _amounts(containers: list[Container] | None) -> list[Container] | None:
    if containers is None:
        return None
    return [Container(resources=one.resources, restart_policy=one.restart_policy)
            for one in containers]  # fmt: skip


@dataclass(slots=True)
class Unfenced:
    """Who is held on silent nodes though they are gone, and what is written about that.

    `fleet` is the account, `pods` those that are in it, by uid.
    """

    fleet: NodeFleet
    pods: Mapping[str, Pod]
    _silent: set[str] = field(default_factory=set)
    _gone: dict[str, set[str]] = field(default_factory=dict)
    _ghosts: dict[str, dict[str, Pod]] = field(default_factory=dict)
    """By node, those of which nothing is known but what is written there."""
    _written: dict[str, dict[str, Pod]] = field(default_factory=dict)
    """By node that is silent, or that has something written on it."""

    def node_seen(self, node: Node) -> set[str]:
        """A node is there, or changed; pods (by uid) whose watts are free now."""
        name, written = node.metadata.name, names.UNFENCED in (node.metadata.annotations or {})
        if not is_silent(node):
            free = self.node_gone(name)
            if written:
                self._written[name] = {}
            return free
        self._silent.add(name)
        self._written[name] = remembered(node)
        return set()

    def ghosts(self, node: Node) -> list[Pod]:
        """Pods that are written on a silent node and that nobody has shown us: they count, too."""
        name = node.metadata.name
        if name not in self._silent:
            return []
        found = {uid: pod for uid, pod in self._written[name].items() if uid not in self.pods}
        self._ghosts.setdefault(name, {}).update(found)
        return list(found.values())

    def node_gone(self, name: str) -> set[str]:
        """A node was deleted, by somebody who answers for that; pods whose watts are free now."""
        self._silent.discard(name)
        self._written.pop(name, None)
        ghosts = self._ghosts.pop(name, {})
        # A ghost that the API has shown since is a pod like any other.
        still = {uid for uid, pod in ghosts.items() if self.pods.get(uid) is pod}
        return still | self._gone.pop(name, set())

    def is_silent(self, node: str) -> bool:
        """Whether nobody knows what this node does."""
        return node in self._silent

    def keeps(self, uid: str, node: str) -> bool:
        """Whether the watts of a pod that is gone are still counted on its node."""
        if node in self._silent:
            self._gone.setdefault(node, set()).add(uid)
        return node in self._silent

    def to_write(self) -> Mapping[str, str | None]:
        """By node, what is to be written on it; None takes it off.

        Only ever more is written while a node is silent: others may have written, too.
        """
        wanted: dict[str, str | None] = {}
        for name, written in self._written.items():
            if name not in self._silent:
                wanted[name] = None
                continue
            held = [one.uid for one in self.fleet.held_on(name) if one.confirmed]
            there = {uid: _shortened(self.pods[uid]) for uid in held if uid in self.pods}
            if there.keys() - written.keys():
                pods = sorted((there | written).items())
                wanted[name] = encode(_Memory(pods=[pod for _, pod in pods])).decode()
        return wanted
