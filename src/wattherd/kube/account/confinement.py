"""Pods that must share a place: kin go to nodes that are equal to who wrote down where they may go.

Kueue narrows the nodes of a whole pod set by labels, so that all of its pods go to one power domain
and one model of GPU. The first of kin chooses by policy; where a later one finds no room, the place
is barred and all of them try another one, so that every place is tried once at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.workload import WorkloadPod


@dataclass(frozen=True, slots=True)
class ConfinedPods:
    """`kin` names a member's relatives (empty: it has none), `place` what is one place to them.

    Nodes whose place is empty are no place for kin.
    """

    kin: Callable[[WorkloadPod], str] = lambda _: ""
    place: Callable[[NodeFacts], str] = lambda _: ""

    def trial(self, fleet: NodeFleet) -> ConfinementTrial:
        """A fresh attempt to seat a work on `fleet`."""
        return ConfinementTrial(self, fleet)


@dataclass(slots=True)
class ConfinementTrial:
    """Which kin have chosen which place, and what did not do."""

    confined: ConfinedPods
    fleet: NodeFleet
    _chosen: dict[str, str] = field(default_factory=dict)
    _barred: set[tuple[str, str]] = field(default_factory=set)
    _places: list[str] | None = None

    def narrowed(self, member: WorkloadPod, among: Mask) -> Mask:
        """Of the nodes (N,) `among` those that its kin leave it."""
        kin = self.confined.kin(member)
        if not kin:
            return among
        if self._places is None:
            self._places = [self.confined.place(facts) for facts in self.fleet.order]
        fits = [self._suits(kin, place) for place in self._places]
        left: Mask = among & np.array(fits, dtype=np.bool_)
        return left

    def _suits(self, kin: str, place: str) -> bool:
        chosen = self._chosen.get(kin)
        return bool(place) and (kin, place) not in self._barred and chosen in (None, place)

    def took(self, member: WorkloadPod, node: str) -> None:
        """A member got a seat there."""
        kin = self.confined.kin(member)
        if kin:
            self._chosen.setdefault(kin, self.confined.place(self.fleet.nodes[node]))

    def elsewhere(self, failed: WorkloadPod) -> bool:
        """Whether there may be another place for the kin of who found none in theirs."""
        kin = self.confined.kin(failed)
        place = self._chosen.get(kin)
        self._chosen.clear()
        if place is None:
            return False
        self._barred.add((kin, place))
        return True
