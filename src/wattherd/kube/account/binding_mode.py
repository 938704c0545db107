"""How a scheduler's decisions take effect: which pods it places, and what it orders for them.

The decisions themselves are the same (`scheduler.py`): `ByBinding` has pods bound to the nodes
that were chosen, `ByGate` (`gate.py`) releases them to their power domains for another scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wattherd.kube.account.confinement import ConfinedPods
from wattherd.kube.account.fleet import Holding
from wattherd.kube.api import names
from wattherd.kube.api.objects import Pod, Requirement
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.node_filter import Volumes, unsupported
from wattherd.kube.facts.orders import BindPod, Order
from wattherd.kube.facts.refusal import NodeRefusal
from wattherd.kube.facts.workload import WorkloadPod


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPod:
    """A pod and its place: what it is to hold, on the node of `facts`, in whose domain all `needs`.

    `decision` is unique to it.
    """

    member: WorkloadPod
    holding: Holding
    facts: NodeFacts
    needs: tuple[Requirement, ...]
    decision: str


class BindingMode(Protocol):
    """What a scheduler places, and how."""

    moves: bool
    """Whether a pod may end up on another node than the one that was chosen for it."""
    suspends: bool
    """Whether a cut of watts suspends jobs itself; else that is for others, who are told."""
    queued: bool
    """Whether our own queues say whose turn it is."""
    confined: ConfinedPods
    """Which pods must share a place."""
    together: bool
    """Whether it gives gangs the places of the network that they ask for; else others do."""
    unplaced: str
    """The reason in the condition of pods that wait, by which others know what to make of them.

    Empty where conditions are for others to write.
    """

    def waits(self, pod: Pod) -> bool:
        """Whether `pod` is to be placed."""

    def is_ours(self, pod: Pod) -> bool:
        """Whether a pod that has its place is ours to stop."""

    def is_undeclared(self, pod: Pod) -> bool:
        """Whether a pod of ours has its place without a decision of ours."""

    def seat(self, pod: Pod) -> str:
        """The node that a pod is on or counts on, empty while there is none."""

    def refusal(self, pod: Pod, volumes: Volumes) -> NodeRefusal | None:
        """What about a pod keeps it from being placed anywhere, or None."""

    def order(self, chosen: ChosenPod) -> Order:
        """What makes the place come true that a pod was given."""


class ByBinding:
    """Pods that call their scheduler by `name` are bound."""

    moves = False
    suspends = True
    queued = True
    confined = ConfinedPods()
    together = True
    unplaced = "Unschedulable"

    def __init__(self, name: str) -> None:
        """Keep the name."""
        self._name = name

    def waits(self, pod: Pod) -> bool:
        """Ours, free, and not gated by anybody."""
        spec, meta = pod.spec, pod.metadata
        free = not spec.node_name and not spec.scheduling_gates
        return self.is_ours(pod) and free and meta.deletion_timestamp is None

    def is_ours(self, pod: Pod) -> bool:
        """By the name of its scheduler."""
        return pod.spec.scheduler_name == self._name

    def is_undeclared(self, pod: Pod) -> bool:
        """Our bindings carry a decision."""
        return bool(pod.spec.node_name) and pod.metadata.annotation(names.DECISION) is None

    def seat(self, pod: Pod) -> str:
        """Where it is bound to."""
        return pod.spec.node_name

    def refusal(self, pod: Pod, volumes: Volumes) -> NodeRefusal | None:
        """Nobody else looks at its wishes: what we do not honour, we refuse."""
        return unsupported(pod, volumes)

    def order(self, chosen: ChosenPod) -> Order:
        """Bind it, with all that is to be remembered."""
        member, holding = chosen.member, chosen.holding
        written = reserved(holding, chosen.facts)
        return BindPod(member.uid, member.key, holding.node, chosen.decision, written)


def reserved(holding: Holding, facts: NodeFacts) -> dict[str, str]:
    """Annotations from which the account can be made again."""
    written = {names.WATTS: f"{holding.watts_mw / 1000:g}"}
    if holding.gpus:
        written[names.GPUS] = ",".join(map(str, holding.gpus))
    if facts.domain:
        written[names.DOMAIN] = facts.domain
    return written
