"""Pods that have their places, entered in the account of the cluster.

Pods that others bind may turn up elsewhere than was thought; one that was released to a node that
is not known, or is no more, is counted on another one of its domain until it is seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattherd.kube.account.binding_mode import BindingMode
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.pod_request import ask_of_foreign, gpus_of


class Assignments:
    """Keeps `fleet` true to where pods are, or count on being as `way` reads it."""

    def __init__(self, fleet: NodeFleet, way: BindingMode) -> None:
        """Nobody is seated yet."""
        self._fleet = fleet
        self._way = way
        self._moved: set[str] = set()
        self._strays: set[str] = set()
        """Pods that were released to a node that is not known."""

    def take(self, pod: Pod, at_s: float) -> bool:
        """A pod has its place; whether that is new."""
        uid, node, ask = pod.metadata.uid, self._node_of(pod), ask_of_foreign(pod)
        known = self._fleet.holdings.get(uid)
        if known is not None and (known.node, known.ask) == (node, ask):
            if not known.confirmed:
                self._fleet.confirm(uid, at_s)
            return not known.confirmed
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if known is not None and self._way.moves:
            self._stir(known.node, node)
        self._fleet.hold(
            Holding(uid=uid, key=key, ask=ask, node=node, gpus=gpus_of(pod), confirmed=True)
        )
        return True

    def call_in(self, pods: Mapping[str, Pod], at_s: float) -> list[str]:
        """Nodes may have come, or changed, since strays were heard of: those seated anew."""
        strays, self._strays = self._strays, set()
        return [uid for uid in strays & pods.keys() if self.take(pods[uid], at_s)]

    def moved(self) -> set[str]:
        """Pods that may have other seats than when this was last asked."""
        moved, self._moved = self._moved | self._fleet.reseated(), set()
        return moved

    def _node_of(self, pod: Pod) -> str:
        """Its seat; of a node that is no more, another one of its domain stands for it."""
        seat = self._way.seat(pod)
        if pod.spec.node_name or seat in self._fleet.nodes:
            return seat
        self._strays.add(pod.metadata.uid)
        domain = pod.metadata.annotation(names.DOMAIN) or ""
        same = [name for name, facts in self._fleet.nodes.items() if facts.domain == domain]
        known, ask = self._fleet.holdings.get(pod.metadata.uid), ask_of_foreign(pod)
        if known is not None and known.node in same:
            return known.node
        if self._fleet.placer is not None:
            spot = self._fleet.choose(ask, self._fleet.rows_of(same) & self._fleet.open_for(ask))
            if spot is not None:
                return spot.node
        return min(same, default=seat)

    def _stir(self, *nodes: str) -> None:
        """A pod moves between these: who is there may find other seats, which the core is told."""
        for node in nodes:
            self._moved.update(one.uid for one in self._fleet.held_on(node))
