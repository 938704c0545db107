"""Admission by a gate: releases to power domains, whoever binds the pods, and to whichever node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kube_builders import a_node, a_pod, fleet_of, node_json, pod_json
from kube_desk import Desk

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.gates import ByGate, narrowed
from wattherd.kube.api.objects import NodeSelector, NodeSelectorTerm, Requirement
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import Order, ReleasePod
from wattherd.model.job import Request
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive, sharing

IDLE_MW = round(1000 * GPUS["T4"].idle_w)
RISE_MW = round(1000 * GPUS["T4"].max_w) - IDLE_MW
ONE = exclusive(1_000, 1)
GATES = [{"name": "wattherd.dev/power"}]


class World(Desk):
    """An API server's truth; gated pods are released as ordered, and bound when a test says so."""

    def __init__(self, budgets_mw: dict[str, int] | None = None) -> None:
        super().__init__()
        self.budgets_mw = budgets_mw or {}
        self.scheduler = self._a_scheduler()

    def _a_scheduler(self) -> KubeScheduler:
        return KubeScheduler(fleet_of("first-fit"), self.budgets_mw, holder="test", way=ByGate())

    def restart(self, *, pods_first: bool = False) -> None:
        self.scheduler = self._a_scheduler()
        if pods_first:
            self._tell_pods()
        for made in self.nodes.values():
            self.scheduler.node_seen(a_node(made))
        if not pods_first:
            self._tell_pods()
        self.settle()

    def _tell_pods(self) -> None:
        for made in self.pods.values():
            self.scheduler.pod_seen(a_pod(made), self.now_s)

    def add_node(self, domain: str, *, gpus: int = 2) -> None:
        name = f"n{len(self.nodes)}"
        made = node_json(a_machine(name, gpus=gpus, model="T4"))
        made["metadata"]["labels"] |= {"wattherd.dev/power-domain": domain} if domain else {}
        del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
        self.nodes[name] = made
        self.scheduler.node_seen(a_node(made))

    def create(self, name: str, request: Request = ONE, **spec: Any) -> None:
        self.put(pod_json(name, request, schedulingGates=GATES, **spec))

    def gang(self, name: str, count: int) -> None:
        for member in range(count):
            made = pod_json(f"{name}-{member}", ONE, schedulingGates=GATES)
            made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": name}
            total = {"kueue.x-k8s.io/pod-group-total-count": str(count)}
            made["metadata"]["annotations"].update(total)
            self.put(made)

    def bind(self, name: str, node: str) -> None:
        made = self.pods[f"uid-{name}"]
        self.put(made | {"spec": made["spec"] | {"nodeName": node}})

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, ReleasePod):
            made = self.pods[order.uid]
            meta = made["metadata"]
            meta = meta | {"annotations": meta["annotations"] | order.annotations}
            self.put(made | {"metadata": meta, "spec": made["spec"] | {"schedulingGates": []}})

    @property
    def released(self) -> dict[str, str]:
        """Domains by pod, of those that are not gated."""
        return {
            made["metadata"]["name"]: made["metadata"]["annotations"].get(
                "wattherd.dev/power-domain", ""
            )
            for made in self.pods.values()
            if not made["spec"]["schedulingGates"]
        }

    def unbound(self) -> list[str]:
        return [
            name for name in self.released if "nodeName" not in self.pods[f"uid-{name}"]["spec"]
        ]

    def room(self, node: str) -> int:
        taken = [made for made in self.pods.values() if made["spec"].get("nodeName") == node]
        return int(self.nodes[node]["status"]["allocatable"]["nvidia.com/gpu"]) - len(taken)


def watts_of(nodes: int, gpus: int, used: int) -> int:
    return nodes * gpus * IDLE_MW + used * RISE_MW


def test_as_many_are_released_as_every_budget_above_them_bears() -> None:
    world = World({"a": watts_of(2, 2, 3), "b": watts_of(2, 2, 3), "": watts_of(4, 2, 5)})
    for domain in "aabb":
        world.add_node(domain)
    for number in range(8):
        world.create(f"p{number}")
    world.settle()
    domains = list(world.released.values())
    assert len(domains) == 5
    assert max(domains.count("a"), domains.count("b")) <= 3
    world.delete(next(iter(world.released)))
    world.settle()
    assert len(world.released) == 5


def test_a_release_says_where_the_watts_are() -> None:
    world = World()
    world.add_node("a")
    world.create("p")
    [release] = world.scheduler.plan(1.0)
    assert isinstance(release, ReleasePod)
    assert [(need.key, need.operator, need.values) for need in release.needs] == [
        ("wattherd.dev/power-domain", "In", ["a"]),
        ("nvidia.com/gpu.product", "In", ["T4"]),
    ]
    assert release.annotations == {
        "wattherd.dev/watts": f"{RISE_MW / 1000:g}",
        "wattherd.dev/power-domain": "a",
        "wattherd.dev/planned-node": "n0",
    }
    assert world.scheduler.plan(2.0) == []


def test_watts_of_no_domain_are_not_taken_to_one() -> None:
    world = World()
    world.add_node("")
    world.create("p")
    [release] = world.scheduler.plan(1.0)
    assert isinstance(release, ReleasePod)
    assert (release.needs[0].key, release.needs[0].operator) == (
        "wattherd.dev/power-domain",
        "DoesNotExist",
    )


def test_a_gang_is_released_whole_or_not_at_all() -> None:
    world = World({"a": watts_of(2, 2, 3)})
    world.add_node("a")
    world.add_node("a")
    world.gang("two", 2)
    world.settle()
    world.gang("other", 2)
    world.settle()
    assert set(world.released) == {"two-0", "two-1"}
    world.delete("two-0")
    world.settle()
    assert set(world.released) == {"two-1", "other-0", "other-1"}


def test_in_which_rack_a_gang_must_be_is_for_the_scheduler_that_binds_it() -> None:
    world = World()
    world.add_node("a")
    world.gang("g", 2)
    for name in ("g-0", "g-1"):
        made = world.pods[f"uid-{name}"]
        made["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = "rack"
        world.put(made)
    world.settle()
    assert set(world.released) == {"g-0", "g-1"}


def test_who_has_another_gate_waits_for_that_one_first() -> None:
    world = World()
    world.add_node("a")
    world.put(pod_json("p", ONE, schedulingGates=[*GATES, {"name": "example.com/other"}]))
    world.settle()
    assert world.released == {}


def test_shares_of_a_gpu_are_refused_loudly() -> None:
    world = World()
    world.add_node("a")
    world.create("p", sharing(1_000, 500))
    world.settle()
    assert world.released == {}
    assert "shares of a GPU" in world.told["uid-p"].text


def test_pods_bound_crosswise_count_once_each() -> None:
    world = World({"a": watts_of(2, 1, 2)})
    world.add_node("a", gpus=1)
    world.add_node("a", gpus=1)
    world.create("p")
    world.create("q")
    world.create("r")
    world.settle()
    planned = {
        name: world.pods[f"uid-{name}"]["metadata"]["annotations"]["wattherd.dev/planned-node"]
        for name in world.released
    }
    first, second = world.released
    world.bind(first, planned[second])
    world.settle()
    assert len(world.released) == 2
    world.bind(second, planned[first])
    world.settle()
    assert len(world.released) == 2
    world.delete(first)
    world.settle()
    assert len(world.released) == 2
    assert not world.evicted


@pytest.mark.parametrize("pods_first", [False, True])
def test_a_restart_between_release_and_binding_changes_nothing(pods_first: bool) -> None:
    world = World({"a": watts_of(2, 2, 2)})
    world.add_node("a")
    world.add_node("a")
    for number in range(4):
        world.create(f"p{number}")
    world.settle()
    before = world.released
    world.restart(pods_first=pods_first)
    assert world.released == before
    assert len(before) == 2


@pytest.mark.parametrize("pods_first", [False, True])
def test_released_pods_count_though_the_node_meant_for_them_is_gone(pods_first: bool) -> None:
    world = World({"a": watts_of(1, 2, 1)})
    world.add_node("a")
    world.create("p")
    world.create("q")
    world.settle()
    assert len(world.released) == 1
    world.add_node("a")
    del world.nodes["n0"]
    world.restart(pods_first=pods_first)
    assert len(world.released) == 1


def test_a_cut_evicts_the_least_important_that_were_released() -> None:
    world = World({"a": watts_of(2, 2, 3)})
    world.add_node("a")
    world.add_node("a")
    for number, priority in enumerate((5, 1, 3)):
        world.create(f"p{number}", priority=priority)
    world.settle()
    world.bind("p0", "n1")
    world.settle()
    orders = world.scheduler.budget("a", watts_of(2, 2, 1), world.now_s)
    for order in orders:
        world._obey(order)
    world.settle()
    assert set(world.evicted) == {"uid-p1", "uid-p2"}
    assert set(world.released) == {"p0"}


@pytest.mark.parametrize("seed", range(6))
def test_however_others_bind_no_budget_is_exceeded_and_nobody_is_forgotten(seed: int) -> None:
    draws = np.random.default_rng(seed)
    most = {"a": 5, "b": 4}
    budgets = {name: watts_of(3, 2, count) for name, count in most.items()}
    world = World(budgets | {"": watts_of(6, 2, 8)})
    for domain in "ababab":
        world.add_node(domain)
    born = 0
    for _ in range(120):
        match draws.integers(4):
            case 0:
                world.create(f"p{born}", priority=int(draws.integers(3)))
                born += 1
            case 1 if world.unbound():
                _bind_somewhere(world, draws)
            case 2 if world.pods:
                world.delete(str(draws.choice(sorted(world.pods))).removeprefix("uid-"))
            case 3 if draws.random() < 0.2:
                world.restart()
            case _:
                pass
        world.settle()
        domains = list(world.released.values())
        assert all(domains.count(name) <= count for name, count in most.items())
        assert len(domains) <= 8
    while world.unbound():
        _bind_somewhere(world, draws)
        world.settle()
    gated = len(world.pods) - len(world.released)
    assert not gated or len(world.released) == 8


def _bind_somewhere(world: World, draws: np.random.Generator) -> None:
    """As a scheduler would that knows of domains and room only."""
    name = str(draws.choice(sorted(world.unbound())))
    domain = world.released[name]
    free = [
        node
        for node, made in sorted(world.nodes.items())
        if made["metadata"]["labels"]["wattherd.dev/power-domain"] == domain and world.room(node)
    ]
    world.bind(name, str(draws.choice(free)))


def test_every_term_is_narrowed_and_one_that_selects_nothing_stays_so() -> None:
    zone = Requirement(key="zone", operator="In", values=["x"])
    domain = Requirement(key="domain", operator="In", values=["a"])
    given = NodeSelector(
        node_selector_terms=[
            NodeSelectorTerm(match_expressions=[zone]),
            NodeSelectorTerm(),
            NodeSelectorTerm(match_fields=[zone]),
        ]
    )
    first, second, third = narrowed(given, (domain,)).node_selector_terms or ()
    assert first.match_expressions == [zone, domain]
    assert second == NodeSelectorTerm()
    assert (third.match_expressions, third.match_fields) == ([domain], [zone])
    assert narrowed(narrowed(given, (domain,)), (domain,)) == narrowed(given, (domain,))
