"""An API server's truth at a scheduler's desk: what it orders is done at once, and told back."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kube_builders import Json, a_pod

from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import EvictPod, Order, TellPod


class Desk(ABC):
    """Pods and nodes by uid and name; `scheduler` is given by whoever sits there."""

    scheduler: KubeScheduler

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.told: dict[str, TellPod] = {}
        self.evicted: list[str] = []

    def put(self, made: Json) -> None:
        """A pod is created, or changed."""
        self.pods[made["metadata"]["uid"]] = made
        self.scheduler.pod_seen(a_pod(made), self.now_s)

    def delete(self, name: str) -> None:
        del self.pods[f"uid-{name}"]
        self.scheduler.pod_gone(f"uid-{name}")

    def settle(self) -> None:
        """Until there is nothing more to do."""
        for _ in range(100):
            self.now_s += 1.0
            orders = self.scheduler.plan(self.now_s)
            for order in orders:
                self._obey(order)
            if not orders:
                return
        raise AssertionError("it never comes to rest")

    def _obey(self, order: Order) -> None:
        if isinstance(order, TellPod):
            self.told[order.uid] = order
        elif isinstance(order, EvictPod):
            self.evicted.append(order.uid)
            self.delete(order.key.partition("/")[2])
        else:
            self._carry_out(order)

    @abstractmethod
    def _carry_out(self, order: Order) -> None:
        """Other orders, as this kind of scheduler gives them."""
