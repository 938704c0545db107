"""How often nodes and pods are looked at: once for what is alike, not for what was weighed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from kube_builders import a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.kube.account import eligibility as eligible
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.api_objects import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)
from wattherd.kube.api.objects import NodeSelector, NodeSelectorTerm, Pod, Requirement
from wattherd.kube.decide.budget_enforcer import BudgetEnforcer
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.orders import BindPod, EvictPod, Order
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

NODES = ("n0", "n1")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pods for which nodes are looked at."""
    seen: list[str] = []
    check = eligible.node_check

    def counted(pod: Pod, volumes: Volumes) -> Any:
        seen.append(pod.metadata.name)
        return check(pod, volumes)

    monkeypatch.setattr(eligible, "node_check", counted)
    return seen


def labelled(name: str) -> Any:
    return a_node(node_json(a_machine(name, gpus=8, model="T4"), kubernetes_io=name))


def a_fleet() -> NodeFleet:
    fleet = fleet_of("first-fit")
    scheduler = KubeScheduler(fleet)
    for name in NODES:
        scheduler.node_seen(labelled(name))
    assert fleet.placer is not None
    return fleet


def with_volumes(name: str, *volumes: dict[str, Any]) -> Pod:
    token = {"name": f"kube-api-access-{name}", "projected": {"sources": []}}
    return a_pod(pod_json(name, exclusive(1000, 1), volumes=[token, *volumes]))


def claimed(claim: str) -> dict[str, Any]:
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}


def reached_from(node: str) -> PersistentVolume:
    need = Requirement(key="kubernetes_io", operator="In", values=[node])
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[need])])
    return PersistentVolume(
        spec=PersistentVolumeSpec(node_affinity=VolumeNodeAffinity(required=terms))
    )


def test_every_pod_has_a_token_of_its_own_and_wishes_for_no_other_nodes(looks: list[str]) -> None:
    nodes = Eligible(a_fleet(), Volumes(), {})
    for name in ("first", "second", "third"):
        assert nodes.mask(with_volumes(name)).all()
    assert looks == ["first"]


def test_pods_with_claims_wish_for_the_nodes_that_reach_them(looks: list[str]) -> None:
    claims = {
        ("default", f"of-{node}"): PersistentVolumeClaim(
            spec=PersistentVolumeClaimSpec(volume_name=f"v-{node}")
        )
        for node in NODES
    }
    volumes = Volumes(claims, {f"v-{node}": reached_from(node) for node in NODES})
    nodes = Eligible(a_fleet(), volumes, {})
    first = nodes.mask(with_volumes("first", claimed("of-n0")))
    second = nodes.mask(with_volumes("second", claimed("of-n1")))
    same = nodes.mask(with_volumes("third", claimed("of-n0")))
    assert (first.tolist(), second.tolist()) == ([True, False], [False, True])
    assert same.tolist() == first.tolist()
    assert looks == ["first", "second"]


@pytest.mark.parametrize("budget", ["none", "kept", "broken"])
def test_who_runs_is_looked_at_for_what_may_be_too_much_only(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is bound as reserved takes the watts that were weighed for it."""
    looks: list[float] = []
    orders = BudgetEnforcer.orders

    def counted(self: BudgetEnforcer, at_s: float) -> Any:
        looks.append(at_s)
        return orders(self, at_s)

    monkeypatch.setattr(BudgetEnforcer, "orders", counted)
    scheduler = KubeScheduler(fleet_of("first-fit"), {} if budget == "none" else {"": 10**9})
    for name in NODES:
        scheduler.node_seen(labelled(name))
    scheduler.plan(0.0)
    looks.clear()
    for at_s, name in enumerate(("p", "q", "r"), start=1):
        came(scheduler, name, float(at_s))
    assert not looks
    if budget == "broken":
        # Nodes draw 160 W idle; what runs is above that.
        scheduler.power_seen(DomainTree(), {"": 161_000})
        gone = [one for one in scheduler.plan(10.0) if isinstance(one, EvictPod)]
        assert looks
        assert len(gone) == 3


def came(scheduler: KubeScheduler, name: str, at_s: float) -> None:
    """A pod is made, bound and seen to be bound."""
    made = pod_json(name, exclusive(1000, 1), schedulerName="wattherd")
    scheduler.pod_seen(a_pod(made), at_s)
    for order in binds(scheduler.plan(at_s)):
        there = bound(made, order.node, **order.annotations)
        scheduler.pod_seen(a_pod(there), at_s)
    scheduler.plan(at_s)


def binds(orders: Iterable[Order]) -> list[BindPod]:
    return [one for one in orders if isinstance(one, BindPod)]


def preferring(**weights: int) -> Any:
    """The node affinity that would rather have these nodes."""
    terms = [
        {
            "weight": weight,
            "preference": {
                "matchExpressions": [{"key": "kubernetes_io", "operator": "In", "values": [name]}]
            },
        }
        for name, weight in weights.items()
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def test_pods_go_where_they_would_rather_as_long_as_there_is_room() -> None:
    """Eight GPUs on each; by the policy all would go to n0, the first."""
    scheduler = KubeScheduler(fleet_of("first-fit"))
    for name in ("n0", "n1", "n2"):
        scheduler.node_seen(labelled(name))
    for number in range(5):
        made = pod_json(f"p{number}", exclusive(1000, 4), schedulerName="wattherd")
        made["spec"]["affinity"] = preferring(n1=10, n2=90)
        scheduler.pod_seen(a_pod(made), 1.0)
    bindings = [one for one in scheduler.plan(1.0) if isinstance(one, BindPod)]
    assert [one.node for one in bindings] == ["n2", "n2", "n1", "n1", "n0"]


def test_who_would_rather_go_elsewhere_stays_within_what_it_must() -> None:
    fleet = a_fleet()
    pod = pod_json("p", exclusive(1000, 1))
    pod["spec"]["affinity"] = preferring(n1=1)
    pod["spec"]["nodeSelector"] = {"kubernetes_io": "n0"}
    scheduler = KubeScheduler(fleet)
    pod["spec"]["schedulerName"] = "wattherd"
    scheduler.pod_seen(a_pod(pod), 1.0)
    [binding] = [one for one in scheduler.plan(1.0) if isinstance(one, BindPod)]
    assert binding.node == "n0"
