"""Required affinity, anti-affinity and spread of a pod itself, as kube-scheduler has them."""

from __future__ import annotations

from typing import Any

import pytest
from kube_builders import Json, a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.core_config import CoreChoice
from wattherd.kube.facts.orders import BindPod, TellPod
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

ZONES = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "c0": "c", "none": ""}
WEB = {"matchLabels": {"app": "web"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Room:
    """Six nodes in three zones and one in none; pods that are there, and one that asks."""

    def __init__(self, choice: CoreChoice | None = None) -> None:
        self.scheduler = KubeScheduler(fleet_of("first-fit"), choice=choice)
        for name, zone in ZONES.items():
            made = node_json(a_machine(name, gpus=8, model="T4"))
            made["metadata"]["labels"] |= {"zone": zone} if zone else {}
            made["metadata"]["labels"]["host"] = name
            self.scheduler.node_seen(a_node(made))

    def pod(self, name: str, spec: Any = None, app: str = "web", namespace: str = "d") -> Json:
        made = pod_json(name, Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
        made["metadata"] |= {"labels": {"app": app} if app else {}, "namespace": namespace}
        made["spec"] |= {"schedulerName": "wattherd", **(spec or {})}
        return made

    def there(self, name: str, node: str, **more: Any) -> None:
        self.scheduler.pod_seen(a_pod(bound(self.pod(name, **more), node)), 0.0)

    def may(self, spec: Any, app: str = "web", namespace: str = "d") -> set[str]:
        asks = a_pod(self.pod("asks", spec, app, namespace))
        mask = self.scheduler._eligible.mask(asks)
        order = self.scheduler.fleet.order
        return {facts.name for facts, may in zip(order, mask, strict=True) if may}


def near(*terms: Json) -> Json:
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def far(*terms: Json) -> Json:
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def term(key: str = "zone", selector: Any = WEB, **more: Any) -> Json:
    return {"topologyKey": key, "labelSelector": selector, **more}


def spread(skew: int = 1, key: str = "zone", selector: Any = WEB, **more: Any) -> Json:
    one = {"maxSkew": skew, "topologyKey": key, "labelSelector": selector}
    return {"topologySpreadConstraints": [{**one, "whenUnsatisfiable": "DoNotSchedule", **more}]}


ALL = set(ZONES)
ZONED = ALL - {"none"}


@pytest.fixture
def room() -> Room:
    found = Room()
    found.scheduler.plan(0.0)
    return found


def test_who_wants_to_be_near_goes_where_they_are(room: Room) -> None:
    room.there("w", "b0")
    assert room.may(near(term())) == {"b0", "b1"}
    assert room.may(near(term("host"))) == {"b0"}


def test_the_first_of_those_that_want_to_be_together_goes_anywhere_with_a_place(room: Room) -> None:
    assert room.may(near(term())) == ZONED
    assert room.may(near(term()), app="other") == set(), "it is none of those that it wants"
    assert room.may(near(term(selector={"matchLabels": {"app": "db"}}))) == set()


def test_of_several_terms_one_pod_meets_all(room: Room) -> None:
    gold = {"matchLabels": {"app": "web", "tier": "gold"}}
    room.there("w", "a0")
    assert room.may(near(term(), term(selector=gold))) == set()


def test_namespaces_count(room: Room) -> None:
    room.there("w", "b0", namespace="other")
    assert room.may(far(term())) == ALL
    assert room.may(far(term(namespaces=["other"]))) == ALL - {"b0", "b1"}
    assert room.may(far(term(namespaceSelector={}))) == ALL - {"b0", "b1"}
    assert room.may(near(term(namespaces=["other"]))) == {"b0", "b1"}


def test_who_wants_to_be_far_may_go_where_there_is_no_place(room: Room) -> None:
    room.there("w", "a0")
    assert room.may(far(term())) == {"b0", "b1", "c0", "none"}
    assert room.may(far(term("host"))) == ALL - {"a0"}
    room.scheduler.pod_gone("uid-w")
    assert room.may(far(term())) == ALL


def test_a_spread_keeps_places_even_and_wants_one(room: Room) -> None:
    assert room.may(spread()) == ZONED
    room.there("w", "a0")
    assert room.may(spread()) == {"b0", "b1", "c0"}
    assert room.may(spread(2)) == ZONED
    room.there("x", "b0")
    room.there("y", "c0")
    assert room.may(spread()) == ZONED
    assert room.may(spread(), app="other") == ZONED, "it is not counted itself"
    assert room.may(spread(minDomains=4)) == set()


def test_a_spread_compares_the_places_that_a_pod_may_choose(room: Room) -> None:
    room.there("w", "a0")
    only_a = {"nodeSelector": {"zone": "a"}}
    assert room.may(only_a | spread()) == {"a0", "a1"}
    assert room.may(only_a | spread(nodeAffinityPolicy="Ignore")) == set()


def test_a_spread_by_match_label_keys_counts_pods_like_it(room: Room) -> None:
    room.there("w", "a0", app="v1")
    everybody = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    keys = {"selector": everybody, "matchLabelKeys": ["app"]}
    assert room.may(spread(**keys), app="v2") == ZONED
    assert room.may(spread(**keys), app="v1") == {"b0", "b1", "c0"}


def test_labels_that_change_are_heard(room: Room) -> None:
    room.there("w", "a0", app="db")
    assert room.may(far(term())) == ALL
    room.there("w", "a0", app="web")
    assert room.may(far(term())) == {"b0", "b1", "c0", "none"}


def test_pods_that_come_together_mind_each_other(room: Room) -> None:
    """Each of three wants a zone of its own; a fourth finds none but the node without a zone."""
    for number in range(4):
        room.scheduler.pod_seen(a_pod(room.pod(f"p{number}", far(term()))), 1.0)
    orders = [one for one in room.scheduler.plan(1.0) if isinstance(one, BindPod)]
    assert sorted(ZONES[one.node] for one in orders) == ["", "a", "b", "c"]


@pytest.mark.parametrize("planner", ["", "fifo"])
def test_who_waits_for_a_neighbour_starts_when_it_has_come(planner: str) -> None:
    room = Room(core_choice(planner, "pause") if planner else None)
    room.scheduler.pod_seen(a_pod(room.pod("asks", near(term()), app="other")), 1.0)
    told = [one for one in room.scheduler.plan(1.0) if isinstance(one, TellPod)]
    assert [one.reason for one in told] == ["PodAntiAffinity"]
    made = bound(room.pod("w"), "b1")
    made["spec"]["schedulerName"] = "another"
    room.scheduler.pod_seen(a_pod(made), 2.0)
    orders = [one for one in room.scheduler.plan(2.0) if isinstance(one, BindPod)]
    assert [ZONES[one.node] for one in orders] == ["b"]


@pytest.mark.parametrize(
    ("spec", "zones"),
    [
        (far(term()), ["a", "b", "c"]),
        (near(term()), ["a", "a", "a"]),
        (spread(), ["a", "b", "c"]),
    ],
    ids=["far", "near", "spread"],
)
@pytest.mark.parametrize("planner", ["fifo", "priority", "gandiva"])
def test_a_gang_that_asks_for_places_by_each_other_gets_them_of_any_planner(
    planner: str, spec: Json, zones: list[str]
) -> None:
    room = Room(core_choice(planner, "pause"))
    for number in range(3):
        made = room.pod(f"p{number}", spec)
        made["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = "g"
        size = {"kueue.x-k8s.io/pod-group-total-count": "3"}
        made["metadata"]["annotations"] = size
        room.scheduler.pod_seen(a_pod(made), 1.0)
    orders = [one for one in room.scheduler.plan(1.0) if isinstance(one, BindPod)]
    assert sorted(ZONES[one.node] for one in orders) == zones
