"""The second scheduler under late, repeated, lost news, refused and unanswered bindings, restarts.

The truth is an API server's: pods and nodes as written. The scheduler hears of it in any order, and
what it orders is carried out on the truth. Whatever happens, no GPU is given twice, no budget is
exceeded, and once all is told, no gang is left in part.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import times

pytest.importorskip("msgspec", reason="the extra `kube` is not installed")

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import BindPod, EvictPod
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import Request, TracePod

GPUS_OF_NODE = 2
NODES = 3
IDLE_W, MAX_W = GPUS["T4"].idle_w, GPUS["T4"].max_w
BUDGET_W = NODES * GPUS_OF_NODE * IDLE_W + 4 * (MAX_W - IDLE_W)
"""Of six devices four may be in use."""
HISTORY = (TracePod(name="h", request=Request(cpu_milli=1, gpu_count=1, gpu_milli=1000)),)


def a_fleet() -> NodeFleet:
    def make(cluster: ClusterSpec, asked: list[Request]) -> Placer:
        del asked
        policy = place_policy("fgd")
        return build_placer(cluster, HISTORY, policy, draws=np.random.default_rng(0))

    return NodeFleet(make)


def as_pod(made: dict[str, Any]) -> Pod:
    return decoder(Pod).decode(json.dumps(made).encode())


class Races(RuleBasedStateMachine):
    """`news` are objects of which the scheduler has not heard the newest, `unheard` of the gone."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, Node] = {}
        self.sizes: dict[str, int] = {}
        self.marred: set[str] = set()
        self.serial = 0
        self.news: dict[str, None] = {}
        self.orders: list[BindPod] = []
        self.scheduler = self.fresh()
        for row in range(NODES):
            self.add_node(f"n{row}")

    def fresh(self) -> KubeScheduler:
        return KubeScheduler(a_fleet(), {"": round(1000 * BUDGET_W)}, holder="test")

    def add_node(self, name: str) -> None:
        labels = {
            "nvidia.com/gpu.product": "T4",
            "wattherd.dev/gpu-shares": "annotation",
        }
        node = {
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {
                "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "2"}
            },
        }
        self.nodes[name] = decoder(Node).decode(json.dumps(node).encode())
        self.scheduler.node_seen(self.nodes[name])

    # --- what users and the world do ---------------------------------------------------------

    def write(self, name: str, gang: str = "", size: int = 0, *, milli: int, priority: int) -> None:
        annotations, requests = {}, {"cpu": "100m"}
        if milli < 1000:
            annotations["wattherd.dev/gpu-milli"] = str(milli)
        else:
            requests["nvidia.com/gpu"] = "1"
        labels = {"kueue.x-k8s.io/pod-group-name": gang} if gang else {}
        if gang:
            annotations["kueue.x-k8s.io/pod-group-total-count"] = str(size)
        uid = f"u-{name}"
        self.pods[uid] = {
            "metadata": {
                "name": name, "namespace": "d", "uid": uid, "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "schedulerName": "wattherd",
                "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            },
            "status": {"phase": "Pending"},
        }  # fmt: skip
        self.news[uid] = None

    @rule(milli=st.sampled_from([300, 500, 1000]), priority=st.integers(0, 2))
    def create(self, milli: int, priority: int) -> None:
        self.serial += 1
        self.write(f"p{self.serial}", milli=milli, priority=priority)

    @rule(size=st.integers(2, 4), priority=st.integers(0, 2))
    def create_gang(self, size: int, priority: int) -> None:
        self.serial += 1
        gang = f"g{self.serial}"
        self.sizes[gang] = size
        for member in range(size):
            self.write(f"{gang}-{member}", gang, size, milli=1000, priority=priority)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.pods:
            self.remove(data.draw(st.sampled_from(sorted(self.pods))), by_user=True)

    def remove(self, uid: str, *, by_user: bool) -> None:
        made = self.pods.pop(uid)
        self.news[uid] = None
        gang = made["metadata"]["labels"].get("kueue.x-k8s.io/pod-group-name")
        if by_user and gang:
            self.marred.add(gang)

    @rule(data=st.data())
    def cordon_or_not(self, data: st.DataObject) -> None:
        """A node's labels change: news that make the scheduler look again."""
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.scheduler.node_seen(self.nodes[name])

    # --- what the scheduler hears ------------------------------------------------------------

    def tell(self, uid: str) -> None:
        self.news.pop(uid, None)
        if uid in self.pods:
            self.scheduler.pod_seen(as_pod(self.pods[uid]), self.now_s)
        else:
            self.scheduler.pod_gone(uid)

    @rule(data=st.data())
    def hear_one(self, data: st.DataObject) -> None:
        if self.news:
            self.tell(data.draw(st.sampled_from(sorted(self.news))))

    @rule(data=st.data())
    def hear_again(self, data: st.DataObject) -> None:
        """What was told before is told again."""
        told = sorted(self.pods.keys() - self.news.keys())
        if told:
            self.tell(data.draw(st.sampled_from(told)))

    @rule()
    def restart(self) -> None:
        """Whatever was not written is forgotten; bindings on their way arrive before the list."""
        while self.orders:
            self.bind(self.orders.pop(0), answered=False)
        self.scheduler = self.fresh()
        for node in self.nodes.values():
            self.scheduler.node_seen(node)
        self.news = dict.fromkeys(self.pods)
        for uid in list(self.news):
            self.tell(uid)

    # --- what it orders ----------------------------------------------------------------------

    @rule()
    def plan_once(self) -> None:
        self.plan()

    def plan(self) -> bool:
        self.now_s += 1.0
        orders = self.scheduler.plan(self.now_s)
        for order in orders:
            if isinstance(order, BindPod):
                self.orders.append(order)
            elif isinstance(order, EvictPod) and order.uid in self.pods:
                self.remove(order.uid, by_user=False)
        return bool(orders)

    @rule(data=st.data(), fate=st.sampled_from(["bound", "bound", "unanswered", "refused"]))
    def bind_one(self, data: st.DataObject, fate: str) -> None:
        if not self.orders:
            return
        order = self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1)))
        if fate == "refused":
            self.scheduler.not_bound(order.uid)
        else:
            self.bind(order, answered=fate == "bound")

    def bind(self, order: BindPod, *, answered: bool) -> None:
        made = self.pods.get(order.uid)
        if made is None:
            self.scheduler.not_bound(order.uid)
            return
        assert "nodeName" not in made["spec"], "bound twice"
        made["spec"]["nodeName"] = order.node
        made["metadata"]["annotations"].update(order.annotations)
        self.news[order.uid] = None
        if answered:
            self.tell(order.uid)

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def no_gpu_is_given_twice_and_no_budget_exceeded(self) -> None:
        used: dict[tuple[str, str], int] = {}
        for made in getattr(self, "pods", {}).values():
            node = made["spec"].get("nodeName")
            if node:
                annotations = made["metadata"]["annotations"]
                milli = int(annotations.get("wattherd.dev/gpu-milli", "1000"))
                place = (node, annotations["wattherd.dev/gpus"])
                used[place] = used.get(place, 0) + milli
        assert all(milli <= 1000 for milli in used.values())
        draw_w = NODES * GPUS_OF_NODE * IDLE_W + len(used) * (MAX_W - IDLE_W)
        assert draw_w <= BUDGET_W

    @rule()
    def come_to_rest(self) -> None:
        """Everything is told and done: gangs are whole or not there, and nothing is forgotten."""
        for _ in range(60):
            for uid in list(self.news):
                self.tell(uid)
            while self.orders:
                self.bind(self.orders.pop(0), answered=True)
            if not self.plan() and not self.news and not self.orders:
                break
        else:
            raise AssertionError("it never comes to rest")
        self.gangs_are_whole()
        held = set(self.scheduler.fleet.holdings)
        assert held == {uid for uid, made in self.pods.items() if "nodeName" in made["spec"]}

    def gangs_are_whole(self) -> None:
        for gang, size in self.sizes.items():
            members = [
                made
                for made in self.pods.values()
                if made["metadata"]["labels"].get("kueue.x-k8s.io/pod-group-name") == gang
            ]
            bound = sum("nodeName" in made["spec"] for made in members)
            if gang not in self.marred:
                assert bound in (0, size), f"{gang}: {bound} of {size}"


TestRaces = Races.TestCase
TestRaces.settings = settings(max_examples=times(40), stateful_step_count=30, deadline=None)
