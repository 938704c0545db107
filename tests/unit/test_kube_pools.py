"""Pools of nodes as they are decided: phases on nodes, who keeps one, growth of others' pools."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kube_builders import Json, a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.domains import Domains
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.decide.pool_growth import (
    NodePool,
    NodePoolSpec,
    PoolTemplate,
    limits_of,
    provisions,
)
from wattherd.kube.decide.pools import (
    Cordon,
    Empty,
    Order,
    Pools,
    Remove,
    Return,
    SwitchOff,
    SwitchOn,
)
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.policy.rebalance.pool import PoolRules
from wattherd.policy.rebalance.sleep import AfterIdle
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

T4_W = GPUS["T4"].max_w
IDLE_W = GPUS["T4"].idle_w
TOLD = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


class Cluster:
    """Nodes n0, n1... with a switch each, of two T4s."""

    def __init__(self, count: int = 2, budget_w: float | None = None, **rules: float) -> None:
        budgets = {} if budget_w is None else {"": round(1000 * budget_w)}
        made = PoolRules(sleep=AfterIdle(after_s=60.0), hold_s=rules.pop("hold_s", 0.0), **rules)
        names = [f"n{row}" for row in range(count)]
        self.pools = Pools(fleet_of("best-fit"), Domains(budgets), made, names)
        self.nodes = {name: self._node(name) for name in names}
        for name in names:
            self.see(name, 0.0)

    def _node(self, name: str) -> Json:
        made = node_json(a_machine(name, gpus=2, model="T4"))
        made["metadata"]["annotations"] = {}
        made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        made["status"]["nodeInfo"] = {"bootID": "first"}
        return made

    def see(self, name: str, at_s: float, **annotations: str | None) -> None:
        about = self.nodes[name]["metadata"]["annotations"]
        for key, text in annotations.items():
            about[f"wattherd.dev/{key.replace('_', '-')}"] = text
        phase = about.get("wattherd.dev/pool-phase")
        self.nodes[name]["spec"]["unschedulable"] = phase is not None
        self.pools.node_seen(a_node(copy.deepcopy(self.nodes[name])), at_s)

    def boot(self, name: str, at_s: float) -> None:
        self.nodes[name]["status"]["nodeInfo"] = {"bootID": "second"}
        self.see(name, at_s)

    def waits(self, name: str, gpus: int = 1, **more: Any) -> None:
        made = pod_json(name, exclusive(1_000, gpus), **more)
        made["status"]["conditions"] = TOLD
        self.pools.pod_seen(a_pod(made))

    def runs(self, name: str, node: str, owner: str = "", gpus: int = 1) -> None:
        made = bound(pod_json(name, exclusive(1_000, gpus)), node)
        if not gpus:
            made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        if owner:
            made["metadata"]["ownerReferences"] = [{"kind": owner, "controller": True}]
        self.pools.pod_seen(a_pod(made))

    def plan(self, at_s: float) -> list[Order]:
        return self.pools.plan(at_s)


def test_a_node_goes_step_by_step_and_comes_back() -> None:
    site = Cluster(1)
    assert site.plan(0.0) == []
    assert site.plan(60.0) == [Cordon("n0")]
    site.see("n0", 61.0, pool_phase="leaving")
    assert site.plan(62.0) == [SwitchOff("n0", "first")]
    site.see("n0", 70.0, pool_phase="off", switched="off", pool_boot="first")
    assert site.plan(71.0) == []
    site.waits("one")
    assert site.plan(72.0) == [SwitchOn("n0")]
    site.see("n0", 73.0, pool_phase="waking")
    assert site.plan(74.0) == [SwitchOn("n0")]  # until it is up: seeing to it costs a look
    site.boot("n0", 100.0)
    assert site.plan(101.0) == [Return("n0")]


def test_what_is_on_a_node_keeps_it_moves_or_goes_with_it() -> None:
    site = Cluster(4)
    site.runs("job", "n0", "Job", gpus=0)
    site.runs("daemon", "n1", "DaemonSet", gpus=0)
    site.runs("web", "n2", "ReplicaSet", gpus=0)
    site.runs("alone", "n3", gpus=0)
    site.plan(0.0)
    assert site.plan(60.0) == [Cordon("n1"), Cordon("n2")]
    for name in ("n1", "n2"):
        site.see(name, 61.0, pool_phase="leaving")
    assert site.plan(62.0) == [SwitchOff("n1", "first"), Empty("n2", "uid-web", "default/web")]
    site.runs("late", "n1", "Job")
    assert Return("n1") in site.plan(63.0)


def test_a_node_that_leaves_stays_for_who_would_fit_there() -> None:
    site = Cluster(1)
    site.plan(0.0)
    site.see("n0", 61.0, pool_phase="leaving")
    site.waits("one")
    assert site.plan(62.0) == [Return("n0")]


def test_a_node_that_does_not_wake_is_replaced() -> None:
    site = Cluster(2)
    for name in ("n0", "n1"):
        site.see(name, 0.0, pool_phase="off", switched="off", pool_boot="first")
    site.waits("one")
    assert site.plan(1.0) == [SwitchOn("n0")]
    site.see("n0", 2.0, pool_phase="waking")
    assert site.plan(900.0) == [SwitchOn("n0")]
    assert site.plan(903.0) == [SwitchOn("n1"), SwitchOn("n0")]


@pytest.mark.parametrize("short_w", [0.0, 1.0])
def test_nodes_that_are_off_draw_nothing_and_waking_is_counted(short_w: float) -> None:
    """One node with a pod, one that is off: waking it takes its idle watts and the pod's rise."""
    budget_w = 2 * IDLE_W + (T4_W - IDLE_W) * 2 + 2 * IDLE_W + (T4_W - IDLE_W)
    site = Cluster(2, budget_w - short_w)
    site.runs("full", "n0", "Job", gpus=2)
    site.see("n1", 0.0, pool_phase="off", switched="off", pool_boot="first")
    site.waits("one")
    if short_w:
        assert site.plan(1.0) == []
        assert "the site has" in site.pools.waiting["default/one"]
    else:
        assert site.plan(1.0) == [SwitchOn("n1")]


def test_pods_that_were_told_nothing_wake_nobody() -> None:
    site = Cluster(1)
    site.see("n0", 0.0, pool_phase="off", switched="off")
    site.pools.pod_seen(a_pod(pod_json("young", exclusive(1_000, 1))))
    site.waits("gated", schedulingGates=[{"name": "x"}])
    assert site.plan(1.0) == []


def test_nodes_that_others_made_are_taken_away_by_them() -> None:
    site = Cluster(1)
    made = node_json(a_machine("claimed", gpus=2, model="T4"))
    site.pools.node_seen(a_node(made), 0.0)
    site.pools.claimed = {"claimed"}
    site.runs("job", "n0", "Job")
    site.plan(0.0)
    assert site.plan(60.0) == [Remove("claimed")]


# --- growth -------------------------------------------------------------------------------------


def a_pool(name: str, gpus: str | None = None, domain: str = "", **annotations: str) -> NodePool:
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": domain}
    written = {f"wattherd.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return NodePool(
        metadata=ObjectMeta(name=name, annotations=written),
        spec=NodePoolSpec(
            limits={"nvidia.com/gpu": gpus} if gpus else None,
            template=PoolTemplate(ObjectMeta(labels=labels)),
        ),
    )


def gpus_of(pools: list[NodePool], left_w: dict[str, float], **now: int) -> dict[str, int]:
    limits, _ = limits_of(pools, now, left_w, DomainTree())
    return {one.pool: one.gpus for one in limits}


def test_pools_grow_by_what_their_domain_has_left() -> None:
    assert gpus_of([a_pool("a", "100")], {"": 5 * T4_W}, a=3) == {"a": 8}
    assert gpus_of([a_pool("a")], {"": -1.0}, a=3) == {"a": 3}
    assert gpus_of([a_pool("a", "4")], {"": 5 * T4_W}, a=3) == {}
    assert gpus_of([a_pool("a", gpu_power="350W")], {"": 1000.0}) == {"a": 2}
    assert gpus_of([a_pool("a")], {}) == {}


def test_pools_of_one_domain_share_what_is_left_also_above() -> None:
    pools = [a_pool("a", domain="row"), a_pool("b", domain="row"), a_pool("c")]
    left_w = {"row": 6 * T4_W, "": 6 * T4_W}
    assert gpus_of(pools, left_w) == {"a": 2, "b": 2, "c": 2}


def test_what_was_stated_is_not_exceeded_and_not_forgotten() -> None:
    [limit], _ = limits_of([a_pool("a", "6")], {}, {"": 3 * T4_W}, DomainTree())
    assert (limit.gpus, limit.stated) == (3, "6")
    held = a_pool("a", "3", stated_gpus="6")
    [limit], _ = limits_of([held], {}, {"": 90 * T4_W}, DomainTree())
    assert (limit.gpus, limit.stated) == (6, "6")


def test_a_pool_of_unknown_gpus_is_told_of_and_left_alone() -> None:
    strange = NodePool(metadata=ObjectMeta(name="x"))
    limits, problems = limits_of([strange], {}, {"": 1000.0}, DomainTree())
    assert limits == []
    assert "wattherd.dev/gpu-power" in problems["x"]


def test_requests_are_made_once_for_all_of_their_pods_and_spend_watts_until_they_run() -> None:
    key = "autoscaling.x-k8s.io/consume-provisioning-request"
    pods = []
    for name, count in (("a", 2), ("b", 3)):
        for number in range(count):
            made = pod_json(f"{name}{number}", exclusive(1_000, 1))
            made["metadata"]["annotations"][key] = name
            pods.append(a_pod(made))
    found, waiting = provisions(pods, [], {"": 2500.0}, 500.0)
    assert [(one.name, one.count) for one in found] == [("a", 2), ("b", 3)]
    found, waiting = provisions(pods, [("default", "b")], {"": 2400.0}, 500.0)
    assert found == []
    assert waiting == {"default/a": "2 GPUs need 1000 W, the site has 900 W left"}
