"""Pods that have their places, entered in the account of the cluster.

Pods that others bind may turn up elsewhere than was thought; one that was released to a node that
is not known, or is no more, is counted on another one of its domain until it is seen. So is one
whose node others have filled: they left room elsewhere, and the domain has no more than it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
        self._crowded_out: dict[str, tuple[str, str]] = {}
        """By uid: the node that a pod was released to, and the one that it counts on instead."""

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
        if known is not None and known.ask.claimed != ask.claimed:
            self._moved.add(uid)
        self._fleet.hold(
            Holding(uid=uid, key=key, ask=ask, node=node, gpus=gpus_of(pod), confirmed=True)
        )
        return True

    def call_in(self, pods: Mapping[str, Pod], at_s: float) -> list[str]:
        """Nodes may have come, changed or been filled since: those who are seated anew."""
        strays, self._strays = self._strays, set()
        called = [uid for uid in strays & pods.keys() if self.take(pods[uid], at_s)]
        return called + (self._make_way(pods) if self._way.moves else [])

    def _make_way(self, pods: Mapping[str, Pod]) -> list[str]:
        """Pods that are on no node yet leave those that are too full, as far as there is room."""
        fleet, left = self._fleet, list[str]()
        there = fleet.holdings
        self._crowded_out = {uid: way for uid, way in self._crowded_out.items() if uid in there}
        for name in fleet.overfull():
            for holding in list(fleet.held_on(name)):
                pod = pods.get(holding.uid)
                if pod is None or pod.spec.node_name or name not in fleet.overfull():
                    continue
                other = self._room_beside(holding)
                if other:
                    self._stir(name, other)
                    self._crowded_out[holding.uid] = self._way.seat(pod), other
                    fleet.hold(replace(holding, node=other, gpus=None))
                    left.append(holding.uid)
        return left

    def _room_beside(self, holding: Holding) -> str:
        """Another node of its domain and its model of GPU, which has room for it."""
        fleet, facts = self._fleet, self._fleet.nodes[holding.node]
        like = facts.domain, facts.spec.gpu_model
        same = [one for one, of in fleet.nodes.items() if (of.domain, of.spec.gpu_model) == like]
        if fleet.placer is None:
            return ""
        spot = fleet.choose(holding.ask, fleet.rows_of(same) & fleet.open_for(holding.ask))
        return "" if spot is None else spot.node

    def moved(self) -> set[str]:
        """Pods that may have other seats than when this was last asked."""
        moved, self._moved = self._moved | self._fleet.reseated(), set()
        return moved

    def _node_of(self, pod: Pod) -> str:
        """Its seat; of a node that is no more, another one of its domain stands for it."""
        seat = self._way.seat(pod)
        planned, other = self._crowded_out.get(pod.metadata.uid, ("", ""))
        if not pod.spec.node_name and seat == planned and other in self._fleet.nodes:
            return other
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
