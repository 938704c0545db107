"""Pods that are gone from the API, but maybe not from their machine.

A node whose kubelet is silent may run on: pods that are deleted by force, or collected with their
node's silence, draw as before. Their watts are free only once the machine is known not to draw
them (fencing): its kubelet is back and removes what it should not run; somebody who has made sure
says so by the taint `node.kubernetes.io/out-of-service` (Kubernetes docs, "Non-graceful node
shutdown") or by deleting the node; or its controller board was seen to have switched it off, which
is written on the node as `wattherd.dev/switched: off`. What is remembered here is lost with this
process: its successor counts what the API still shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wattherd.runtime.kube.api import names
from wattherd.runtime.kube.api.objects import Node

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def is_silent(node: Node) -> bool:
    """Whether nobody knows what a node does: its kubelet is silent, and it is not fenced."""
    taints = {taint.key for taint in node.spec.taints or ()}
    off = node.metadata.annotation(names.SWITCHED) == names.OFF
    if off or OUT_OF_SERVICE in taints:
        return False
    conditions = node.status.conditions or ()
    unknown = any(one.type == "Ready" and one.status == "Unknown" for one in conditions)
    return unknown or UNREACHABLE in taints


@dataclass(slots=True)
class Unfenced:
    """Who is held on silent nodes though they are gone."""

    _silent: set[str] = field(default_factory=set)
    _gone: dict[str, set[str]] = field(default_factory=dict)

    def node_seen(self, node: Node) -> set[str]:
        """A node is there, or changed; pods (by uid) whose watts are free now."""
        if is_silent(node):
            self._silent.add(node.metadata.name)
            return set()
        return self.node_gone(node.metadata.name)

    def node_gone(self, name: str) -> set[str]:
        """A node was deleted, by somebody who answers for that; pods whose watts are free now."""
        self._silent.discard(name)
        return self._gone.pop(name, set())

    def keeps(self, uid: str, node: str) -> bool:
        """Whether the watts of a pod that is gone are still counted on its node."""
        if node in self._silent:
            self._gone.setdefault(node, set()).add(uid)
        return node in self._silent
