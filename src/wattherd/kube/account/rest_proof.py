"""Whether free GPUs of a node are at their lowest cap, as its agent promises (`gpus_at_rest`).

Where an agent promises so, the GPUs of a pod are free again once the promise names it no more:
until then the pod counts as if it were there. An agent that has not shown it within `WAIT_S` may be
dead; the pod's watts are free then, and the node takes no more pods until it is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.objects import Node
from wattherd.kube.facts.gpus_at_rest import RestPromise, promised
from wattherd.kube.facts.stopping import WAIT_S

NOT_AT_REST = "the node's agent has not shown that its free GPUs are at their lowest cap"


@dataclass(slots=True)
class RestProof:
    """Of the nodes in `fleet`; `counts` says of a node whether its watts are under any budget."""

    fleet: NodeFleet
    counts: Callable[[str], bool]
    _promised: dict[str, RestPromise] = field(default_factory=dict)
    _kept: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By node the pods that count though they are gone, each since when it was first looked at."""
    _unproven: set[str] = field(default_factory=set)
    _to_judge: set[str] = field(default_factory=set)

    def node_seen(self, node: Node) -> list[str]:
        """A node is there, or changed; pods (by uid) whose GPUs are free now."""
        name, told = node.metadata.name, promised(node)
        if told is None:
            return self.node_gone(name)
        if self._promised.get(name) == told:
            return []
        self._promised[name] = told
        self._to_judge.add(name)
        kept = self._kept.get(name, {})
        free = [uid for uid in kept if told.but is not None and uid not in told.but]
        for uid in free:
            del kept[uid]
        return free

    def node_gone(self, name: str) -> list[str]:
        """A node was deleted, or promises nothing; pods whose GPUs are free now."""
        self._promised.pop(name, None)
        self._to_judge.add(name)
        return list(self._kept.pop(name, {}))

    def keeps(self, uid: str, node: str) -> bool:
        """Whether a pod that is gone still counts on its node; to be asked before it is let go."""
        told = self._promised.get(node)
        if told is None or not self.counts(node):
            return False
        if uid not in told.but if told.but is not None else not self._has_gpus(uid):
            return False
        self._kept.setdefault(node, {}).setdefault(uid, None)
        return True

    def left(self, node: str) -> None:
        """A pod is let go there."""
        self._to_judge.add(node)

    def late(self, at_s: float) -> list[str]:
        """Pods that were kept for long enough."""
        late = []
        for kept in self._kept.values():
            for uid, since_s in list(kept.items()):
                if since_s is None:
                    kept[uid] = at_s
                elif at_s - since_s >= WAIT_S:
                    late.append(uid)
                    del kept[uid]
        return late

    def is_late(self, at_s: float) -> bool:
        """Whether `late` and `unproven` are to be asked."""
        return bool(self._to_judge) or any(
            since_s is None or at_s - since_s >= WAIT_S
            for kept in self._kept.values()
            for since_s in kept.values()
        )

    def budgets_changed(self) -> None:
        """Other nodes than before may be under a budget."""
        self._to_judge |= self._promised.keys()

    def unproven(self) -> set[str]:
        """Nodes that are to take no pods."""
        for name in self._to_judge | self._unproven:
            told = self._promised.get(name)
            proven = told is None or not self.counts(name) or self._is_kept(told)
            (self._unproven.discard if proven else self._unproven.add)(name)
        self._to_judge.clear()
        return set(self._unproven)

    def _is_kept(self, told: RestPromise) -> bool:
        """Whether all GPUs that are free are at rest: whoever is named has its GPUs still."""
        return told.but is not None and all(uid in self.fleet.holdings for uid in told.but)

    def _has_gpus(self, uid: str) -> bool:
        return any(seat.gpus for seat in self.fleet.seats(uid))
