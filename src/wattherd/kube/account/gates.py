"""Admission by a scheduling gate: pods are held, then released to a power domain that bears them.

A pod is decided on like one that is to be bound: priorities, gangs, budgets and room are those of
`scheduler.py`, on the nodes there are. What is kept of the decision is the power domain and the
model of GPU, because these two say how many watts the pod may add: required node affinity is
added while the pod is gated (the API server allows it then and never again), the gate goes in the
same write, and any scheduler binds it, to whichever node of the domain it likes.

Until then the pod counts on the node that was chosen, which is written on it, so that a restart
finds it. Where it then is bound elsewhere, it is counted there; while the seat of a third pod is in
the way, the GPUs that find no place in the account are counted beside it (`Fleet.missing`).
"""

from __future__ import annotations

from wattherd.kube.account.binding_mode import ChosenPod, reserved
from wattherd.kube.account.confinement import ConfinedPods
from wattherd.kube.api import names
from wattherd.kube.api.objects import (
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    Requirement,
)
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.orders import Order, ReleasePod
from wattherd.kube.facts.refusal import NodeRefusal, RefusalToken

_GATE_WORD = "gate"
"""The label's value by which pods ask to be gated."""


class ByGate:
    """Pods that have our gate, and no other, are released."""

    moves = True
    suspends = True
    queued = True
    confined = ConfinedPods()
    together = False
    unplaced = "SchedulingGated"

    def waits(self, pod: Pod) -> bool:
        """Who has other gates may still have its affinity narrowed by others."""
        gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
        return gates == [names.GATE] and pod.metadata.deletion_timestamp is None

    def is_ours(self, pod: Pod) -> bool:
        """By its gate, by what we wrote when it was released, or by its wish to be gated."""
        released = pod.metadata.annotation(names.PLANNED_NODE) is not None
        return self.waits(pod) or released or self.is_undeclared(pod)

    def is_undeclared(self, pod: Pod) -> bool:
        """It says that it is to be gated, and was never released."""
        meant = pod.metadata.label(names.ADMISSION) == _GATE_WORD and bool(pod.spec.node_name)
        return meant and pod.metadata.annotation(names.PLANNED_NODE) is None

    def seat(self, pod: Pod) -> str:
        """The node it is bound to, else the one it was released for."""
        planned = "" if self.waits(pod) else pod.metadata.annotation(names.PLANNED_NODE)
        return pod.spec.node_name or planned or ""

    def refusal(self, pod: Pod, volumes: Volumes) -> NodeRefusal | None:
        """All else is for the scheduler that binds it; but it tells nobody which GPU is shared."""
        del volumes
        shares = pod.metadata.annotation(names.GPU_MILLI) is not None
        if shares or any(
            names.NVIDIA_SHARED in (one.resources.requests or {})
            for one in pod.spec.containers or ()
            if one.resources is not None
        ):
            text = "shares of a GPU are not admitted by watts; use wattherd as the scheduler"
            return NodeRefusal(RefusalToken.UNSUPPORTED, text)
        return None

    def order(self, chosen: ChosenPod) -> Order:
        """Release it to the domain, and the GPU model, of the node that was chosen."""
        member = chosen.member
        written = reserved(chosen.holding, chosen.facts)
        written.pop(names.GPUS, None)
        written[names.PLANNED_NODE] = chosen.holding.node
        # One that uses no GPU adds no watts, wherever it goes.
        needs = (*chosen.needs, *model_of(chosen.facts)) if member.ask.uses_gpus else ()
        return ReleasePod(member.uid, member.key, chosen.decision, written, needs)


def model_of(facts: NodeFacts) -> tuple[Requirement, ...]:
    """What makes GPUs as hungry as those of a node."""
    return tuple(
        Requirement(key=key, operator="In", values=[facts.labels[key]])
        for key in names.PRODUCT_LABELS
        if key in facts.labels
    )


def narrowed(selector: NodeSelector | None, needs: tuple[Requirement, ...]) -> NodeSelector:
    """`selector` and all of `needs`: added to every term, since one of the terms must hold.

    A term without requirements selects no node, and stays so.
    """
    if selector is None or not selector.node_selector_terms:
        return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=list(needs))])
    return NodeSelector(
        node_selector_terms=[_with(term, needs) for term in selector.node_selector_terms]
    )


def _with(term: NodeSelectorTerm, needs: tuple[Requirement, ...]) -> NodeSelectorTerm:
    has = list(term.match_expressions or ())
    if not (has or term.match_fields):
        return term
    more = [need for need in needs if need not in has]
    return NodeSelectorTerm(match_expressions=has + more, match_fields=term.match_fields)
