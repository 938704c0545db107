"""Why a pod goes to none of the nodes that were asked about: of each the first thing in the way.

Most nodes of a cluster are alike: what is the same for all of a kind is found out once, so that a
refusal by thousands of nodes costs little more than one by a few.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.placement.placer import Placer
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domains import full
from wattherd.kube.account.fleet import Mask
from wattherd.kube.facts.node_facts import GpuOffer, NodeFacts
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.refusal import NodeRefusal, RefusalToken


class _Kind(NamedTuple):
    """What nodes have in common that get the same answer, room aside."""

    offer: GpuOffer
    model: str
    unknown_gpu: str
    domain: str
    rise_mw: int


class Refusals:
    """Of a cluster as `chooser` knows it."""

    def __init__(self, chooser: Chooser) -> None:
        """Kinds of nodes are looked up anew when nodes change."""
        self._chooser = chooser
        self._fleet = chooser.fleet
        self._kinds: list[_Kind] = []
        self._kind: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._of: tuple[Placer | None, int] = (None, -1)

    def find(
        self, ask: PodRequest, node_names: Collection[str], candidates: Mask
    ) -> dict[str, NodeRefusal]:
        """By name, for `node_names`; `candidates` (N,) are those of them that are known."""
        found = {name: UNKNOWN for name in node_names if name not in self._fleet.nodes}
        placer = self._fleet.placer
        if placer is None:
            return found
        self._look(placer)
        order, usable = self._fleet.order, self._fleet.open_for(ask)
        open_to = candidates & usable
        case = 2 * self._kind + self._roomy(ask, placer)
        reasons = {
            number: self._reason(self._kinds[number // 2], ask, roomy=bool(number % 2))
            for number in np.unique(case[open_to]).tolist()
        }
        cases = case.tolist()
        for row in np.flatnonzero(open_to).tolist():
            found[order[row].spec.name] = reasons[cases[row]]
        for row in np.flatnonzero(candidates & ~usable).tolist():
            found[order[row].spec.name] = self._closed(order[row], ask)
        return found

    def _look(self, placer: Placer) -> None:
        if self._of == (now := (placer, self._fleet.version)):
            return
        rises = self._chooser.columns().rise_mw.tolist()
        number: dict[_Kind, int] = {}
        kinds = [
            number.setdefault(_kind(facts, rise_mw), len(number))
            for facts, rise_mw in zip(self._fleet.order, rises, strict=True)
        ]
        self._kinds, self._kind, self._of = list(number), np.array(kinds, dtype=np.int64), now

    def _closed(self, facts: NodeFacts, ask: PodRequest) -> NodeRefusal:
        if facts.problem:
            return NodeRefusal(RefusalToken.UNSCHEDULABLE, facts.problem)
        short = self._fleet.short_of(facts, ask)
        if short:
            return NodeRefusal(RefusalToken.RESOURCE, f"too little {short}")
        if len(self._fleet.held_on(facts.name)) >= facts.most_pods:
            return NodeRefusal(RefusalToken.TOO_MANY_PODS, "the node takes no more pods")
        return NodeRefusal(
            RefusalToken.ROOM, "the node holds more than it has, or is being removed"
        )

    def _roomy(self, ask: PodRequest, placer: Placer) -> Mask:
        """(N,) nodes with room for the pod, watts aside."""
        roomy = np.zeros(len(self._fleet.order), dtype=np.bool_)
        nodes = placer.state.world.nodes
        for request, giving in self._fleet.requests(ask):
            fits = (nodes.cpu_free >= request.cpu_milli) & (nodes.memory_free >= request.memory_mib)
            whole = (nodes.gpu_free >= max(1, request.gpu_milli)).sum(axis=1)
            roomy |= giving & fits & (whole >= request.gpu_count)
        return roomy

    def _reason(self, kind: _Kind, ask: PodRequest, *, roomy: bool) -> NodeRefusal:
        """Room and watts: the node's models and shares first, as nothing will change these."""
        if ask.uses_gpus and kind.unknown_gpu:
            return NodeRefusal(
                RefusalToken.GPU_UNKNOWN, f"GPU {kind.unknown_gpu} is not in the catalog"
            )
        request = ask.on(kind.offer)
        if request is None:
            return NodeRefusal(
                RefusalToken.GPU_SHARES, f"gives GPUs as {kind.offer.giving}, not as asked"
            )
        if ask.uses_gpus and not request.allows(kind.model):
            return NodeRefusal(RefusalToken.GPU_MODEL, f"has {kind.model or 'no GPU'}")
        wanted = NodeRefusal(RefusalToken.ROOM, _wanted(ask))
        return (self._no_watts(kind, request.gpu_count) if roomy else None) or wanted

    def _no_watts(self, kind: _Kind, devices: int) -> NodeRefusal | None:
        placer, domains = self._fleet.placer, self._chooser.domains
        if placer is None:
            return UNKNOWN
        needs = devices * kind.rise_mw
        carried = domains.carried_mw(self._chooser.columns(), placer.state)
        for domain in domains.tree.path(kind.domain):
            budget = domains.budgets_mw.get(domain)
            if budget is None:
                continue
            draw = carried[domain]
            if draw + needs > budget:
                return NodeRefusal(RefusalToken.POWER, full(domain, draw, budget, needs))
        return None


UNKNOWN = NodeRefusal(RefusalToken.UNKNOWN_NODE, "the node is not known yet")


def _kind(facts: NodeFacts, rise_mw: int) -> _Kind:
    return _Kind(facts.offer, facts.spec.gpu_model, facts.unknown_gpu, facts.domain, rise_mw)


def _wanted(ask: PodRequest) -> str:
    devices = ask.whole + ask.slots
    parts = [
        text
        for text, wanted in (
            (f"{ask.cpu_milli} milli-CPU", ask.cpu_milli),
            (f"{ask.memory_mib} MiB", ask.memory_mib),
            (f"{ask.share_milli}/1000 of a GPU", ask.share_milli),
            (f"{devices} GPU{'s' if devices > 1 else ''}", devices and ask.share_milli is None),
        )
        if wanted
    ]
    return f"has no room for {' and '.join(parts)} together"
