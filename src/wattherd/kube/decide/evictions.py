"""Pods that are to go: why, and which of them somebody was told to evict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.budget_enforcer import BUDGET_CUT
from wattherd.kube.facts.orders import EvictPod
from wattherd.kube.facts.workload import grace_s


class Evictions:
    """Who is to go, by uid; `pods` are all that are known, `fleet` says who holds something."""

    def __init__(self, fleet: NodeFleet, pods: Mapping[str, Pod]) -> None:
        """Everybody may stay."""
        self._fleet = fleet
        self._pods = pods
        self._why: dict[str, str] = {}
        self._told: set[str] = set()

    @property
    def uids(self) -> AbstractSet[str]:
        """All that are to go."""
        return self._why.keys()

    def add(self, uids: Iterable[str], why: str) -> None:
        """These must go; who must go already does so for the first reason."""
        for uid in uids:
            self._why.setdefault(uid, why)

    def gone(self, uid: str) -> bool:
        """A pod is no more; whether it was to go."""
        self._told.discard(uid)
        return self._why.pop(uid, None) is not None

    def reconsider(self, uid: str) -> bool:
        """One that was to go for want of watts alone may stay, unless it is being deleted already.

        False where it is not to go, or for another reason.
        """
        if not self._why.get(uid, "").startswith(BUDGET_CUT):
            return False
        self._told.discard(uid)
        del self._why[uid]
        return True

    def refused(self, uid: str) -> None:
        """Its eviction was refused, by a disruption budget for instance: it is asked for again."""
        self._told.discard(uid)

    def orders(self) -> list[EvictPod]:
        """Of those that are to go, the ones that are there; each is told once."""
        orders: list[EvictPod] = []
        for uid, why in self._why.items():
            holding, pod = self._fleet.holdings.get(uid), self._pods.get(uid)
            if pod is None or holding is None or not holding.confirmed or uid in self._told:
                continue
            self._told.add(uid)
            if pod.metadata.deletion_timestamp is None:
                orders.append(EvictPod(uid, holding.key, why, grace_s(pod)))
        return orders
