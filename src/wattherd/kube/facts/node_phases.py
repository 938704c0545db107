"""Where a node of a pool stands, as it is written on the node: all a restart has to go by.

A node that is on bears nothing. One that leaves is cordoned and marked so; one that is off or
waking stays cordoned, so that nobody binds to it before its kubelet has come back. That it has is
known by another boot, since a node that was just switched off looks Ready for most of a minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from wattherd.kube.api import names
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.policy.rebalance.pool import Phase

_OF_SILENCE = frozenset(
    {
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/network-unavailable",
    }
)
_MIRROR = "kubernetes.io/config.mirror"
_OVER = frozenset({"Succeeded", "Failed"})


class Tie(Enum):
    """What a pod means to a node that is to be switched off."""

    NONE = auto()  # it is over, or belongs to the node
    MOVES = auto()  # it is evicted, and made anew elsewhere
    STAYS = auto()  # the node is in use


def phase_of(node: Node) -> Phase:
    """As it is written."""
    written = node.metadata.annotation(names.POOL)
    return Phase(written) if written in (Phase.LEAVING, Phase.OFF, Phase.WAKING) else Phase.ON


def is_up(node: Node) -> bool:
    """Whether a node that was woken works: Ready, and by another boot than the last one we saw."""
    conditions = node.status.conditions or ()
    ready = any(one.type == "Ready" and one.status == "True" for one in conditions)
    before = node.metadata.annotation(names.BOOT)
    return ready and (not before or boot_of(node) != before)


def boot_of(node: Node) -> str:
    """The boot that its kubelet tells of; empty where it tells none."""
    return node.status.node_info.boot_id if node.status.node_info else ""


def as_if_up(facts: NodeFacts) -> NodeFacts:
    """A node that we took out of use, as it will be again."""
    taints = tuple(one for one in facts.taints if one.key not in _OF_SILENCE)
    return replace(facts, unschedulable=False, taints=taints)


def tie_of(pod: Pod) -> Tie:
    """Pods of a DaemonSet and of the node itself go with it; those of a ReplicaSet come anew.

    A pod with GPUs, one of a Job or one that nobody would make anew is work, and is let be.
    """
    if pod.status.phase in _OVER or pod.metadata.annotation(_MIRROR) is not None:
        return Tie.NONE
    owner = next((one.kind for one in pod.metadata.owner_references or () if one.controller), "")
    if owner == "DaemonSet":
        return Tie.NONE
    return Tie.MOVES if owner == "ReplicaSet" and not _asks_for_gpus(pod) else Tie.STAYS


def strongest(pods: Iterable[Pod]) -> Tie:
    """Of all the pods on a node."""
    return max((tie_of(pod) for pod in pods), key=lambda tie: tie.value, default=Tie.NONE)


def _asks_for_gpus(pod: Pod) -> bool:
    if pod.metadata.annotation(names.GPU_MILLI) is not None:
        return True
    asked = (one.resources.limits or {} for one in pod.spec.containers or () if one.resources)
    gpus = (*names.GPU_RESOURCES, names.NVIDIA_SHARED)
    return any(name in limits for limits in asked for name in gpus)
