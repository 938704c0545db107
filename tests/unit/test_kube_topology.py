"""Gangs in one rack, block or NVLink domain, as they must or would rather."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube_builders import Json, a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.kube.api.api_objects import PodGroup, decoder
from wattherd.kube.api.objects import LabelSelector
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.core_config import CoreChoice
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.orders import BindPod, EvictPod, TellPod
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.kube.facts.topology_wish import TopologyWish, topology_wish
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

RACKS = {"a0": "a", "a1": "a", "a2": "a", "b0": "b", "b1": "b", "c0": "c", "none": ""}
"""Rack a has 12 GPUs, b has 8, c has 4; one node of 4 is in no rack."""
REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "podset-preferred-topology"
PREFERRED = f"kueue.x-k8s.io/{PREFERRED}"
PLANNERS = ["", "fifo", "priority", "drf", "tiresias"]


class Hall:
    """Seven nodes of four GPUs; who is bound is seen to be so."""

    def __init__(self, planner: str = "", choice: CoreChoice | None = None) -> None:
        choice = core_choice(planner, "pause") if planner else choice
        self.scheduler = KubeScheduler(fleet_of("first-fit"), choice=choice)
        for name, rack in RACKS.items():
            made = node_json(a_machine(name, gpus=4, model="T4"))
            made["metadata"]["labels"] |= {"rack": rack} if rack else {}
            made["metadata"]["labels"] |= {"block": "north" if rack in ("a", "b") else "south"}
            made["metadata"]["labels"] |= {"hall": "1" if rack in ("a", "b") else "2"}
            self.scheduler.node_seen(a_node(made))
        self.now_s = 1.0
        self.pods: dict[str, Json] = {}
        self.places: dict[str, str] = {}
        self.told: dict[str, TellPod] = {}
        self.evicted: list[str] = []

    def pod(self, name: str, gpus: int = 1, **spec: Any) -> Json:
        made = pod_json(name, Request(cpu_milli=1000, gpu_count=gpus, gpu_milli=1000))
        made["spec"] |= {"schedulerName": "wattherd", **spec}
        made["metadata"]["labels"] = {}
        return made

    def gang(
        self, name: str, pods: int, gpus: int = 1, *, of: int = 0, job: str = "", **more: Any
    ) -> None:
        """Pods of one gang of `of`, with the annotations in `more`."""
        about = more.pop("annotations", {})
        for number in range(pods):
            made = self.pod(f"{name}-{job}{number}", gpus, **more)
            made["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = name
            if job:
                made["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = job
            total = {"kueue.x-k8s.io/pod-group-total-count": str(of or pods)}
            made["metadata"]["annotations"] |= total | about
            self.put(made)

    def put(self, made: Json) -> None:
        self.pods[made["metadata"]["uid"]] = made
        self.scheduler.pod_seen(a_pod(made), self.now_s)

    def there(self, name: str, node: str, gpus: int, **spec: Any) -> None:
        self.places[name] = node
        self.put(bound(self.pod(name, gpus, **spec), node))

    def settle(self) -> None:
        for _ in range(20):
            self.now_s += 1.0
            orders = self.scheduler.plan(self.now_s)
            for one in orders:
                if isinstance(one, BindPod):
                    made = bound(self.pods[one.uid], one.node, **one.annotations)
                    self.places[made["metadata"]["name"]] = one.node
                    self.put(made)
                elif isinstance(one, EvictPod):
                    self.evicted.append(one.key)
                    self.gone(one.uid)
                elif isinstance(one, TellPod):
                    self.told[one.uid] = one
            if not orders:
                return
        raise AssertionError("it never comes to rest")

    def gone(self, uid: str) -> None:
        name = self.pods.pop(uid)["metadata"]["name"]
        self.places.pop(name, None)
        self.scheduler.pod_gone(uid)

    def racks(self, name: str) -> list[str]:
        """Of the pods whose names begin so."""
        return sorted(RACKS[node] for pod, node in self.places.items() if pod.startswith(name))


# --- one place, or none ---------------------------------------------------------------------------


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_gang_that_must_share_a_rack_gets_one_of_any_planner(planner: str) -> None:
    """Without the wish its first pods would go to a0, which has room for half of it."""
    hall = Hall(planner)
    hall.there("other-0", "a0", 2)
    hall.there("other-1", "a1", 4)
    hall.gang("g", 2, 4, annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g") == ["b", "b"]


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_smallest_rack_that_holds_it_is_taken(planner: str) -> None:
    hall = Hall(planner)
    for name, pods, rack in (("four", 4, "c"), ("eight", 8, "b"), ("twelve", 12, "a")):
        hall.gang(name, pods, annotations={REQUIRED: "rack"})
        hall.settle()
        assert hall.racks(name) == [rack] * pods


@pytest.mark.parametrize(("wish", "started"), [(REQUIRED, 0), (PREFERRED, 12)])
@pytest.mark.parametrize("planner", ["", "fifo"])
def test_where_it_must_it_waits_and_where_it_would_rather_it_spreads(
    planner: str, wish: str, started: int
) -> None:
    hall = Hall(planner)
    for node in ("a0", "b0", "c0"):
        hall.there(f"other-{node}", node, 4)
    hall.gang("g", 12, annotations={wish: "rack"})
    hall.settle()
    assert len(hall.racks("g")) == started


@pytest.mark.parametrize("planner", PLANNERS)
def test_it_starts_when_a_rack_has_room(planner: str) -> None:
    hall = Hall(planner)
    for node in ("a0", "b0"):
        hall.there(f"other-{node}", node, 1)
    hall.gang("g", 3, 4, annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g") == []
    hall.gone("uid-other-a0")
    hall.settle()
    assert hall.racks("g") == ["a", "a", "a"]


@pytest.mark.parametrize(
    ("pods", "level", "reason", "text"),
    [
        (3, "rack", "WaitingForGpus", "its 3 pods must share one rack; there is room for 2"),
        (2, "hall", "Fragmented", "its 2 pods must share one hall; there is room for 2"),
        (4, "rack", "NeverFits", "its 4 pods must share one rack, the largest (a) holds 3"),
        (2, "link", "NodeSelectorMismatch", "its 2 pods must share one link, and no node has"),
    ],
)
def test_the_reason_says_how_much_room_the_best_place_has(
    pods: int, level: str, reason: str, text: str
) -> None:
    """Only a1 and c0 are free; a1 is in one hall, c0 in another one."""
    hall = Hall()
    for node in ("a0", "a2", "b0", "b1", "none"):
        hall.there(f"other-{node}", node, 1)
    hall.gang("g", pods, 4, annotations={REQUIRED: level})
    hall.settle()
    told = hall.told["uid-g-0"]
    assert (told.reason, told.text[: len(text)]) == (reason, text)
    assert hall.places.keys() == {f"other-{node}" for node in ("a0", "a2", "b0", "b1", "none")}


def test_who_would_rather_be_in_one_rack_gets_one_block_where_no_rack_will_do() -> None:
    """Block north has a0, b0 and b1 left, and no rack two whole nodes; c0 is in block south."""
    hall = Hall()
    hall.scheduler.topology_seen("nodes", ("block", "rack"))
    for node in ("a0", "a1", "b0"):
        hall.there(f"other-{node}", node, 1)
    hall.gang("g", 2, 4, annotations={PREFERRED: "rack"})
    hall.settle()
    assert sorted(hall.places[name] for name in ("g-0", "g-1")) == ["a2", "b1"]
    hall.scheduler.topology_seen("nodes", None)
    hall.gang("h", 2, 4, annotations={PREFERRED: "rack"})
    hall.settle()
    assert sorted(hall.places[name] for name in ("h-0", "h-1")) == ["c0", "none"]


@pytest.mark.parametrize(("planner", "gpus"), [("", 1), ("priority", 4)])
def test_room_is_made_in_one_rack_and_not_here_and_there(planner: str, gpus: int) -> None:
    hall = Hall(planner)
    for node in ("a0", "b0", "b1", "c0", "none"):
        hall.there(f"other-{node}", node, gpus)
    hall.settle()
    hall.gang("g", 3, 4, annotations={REQUIRED: "rack"}, priority=5)
    hall.settle()
    assert hall.racks("g") == ["a", "a", "a"]
    assert hall.evicted[0] == "default/other-a0"
    assert set(hall.evicted[1:]) <= {"default/other-none"}, "who went makes room for itself"


def test_a_rack_without_watts_is_passed() -> None:
    """Rack b would fit best, and may draw what one pod of two needs."""
    hall = Hall()
    tree = DomainTree({"rack-b": DomainBranch(selector=LabelSelector(match_labels={"rack": "b"}))})
    idle_mw, most_mw = 4 * 10_000, 4 * 70_000
    hall.scheduler.power_seen(tree, {"rack-b": idle_mw + most_mw})
    hall.gang("g", 2, 4, annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g") == ["a", "a"]


def test_pods_that_come_later_join_their_gang() -> None:
    hall = Hall()
    hall.gang("g", 6, of=6, annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g") == ["b"] * 6
    hall.there("other", "c0", 1)
    for number in range(3):
        hall.gang("g", 1, of=6, job=f"late{number}-", annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g") == ["b"] * 8, "the ninth pod has no room in their rack"


def test_sets_of_pods_of_one_gang_have_places_of_their_own() -> None:
    """Twenty pods fit in no rack, but twelve and eight do."""
    hall = Hall("fifo")
    hall.gang("g", 8, of=20, job="actor", annotations={REQUIRED: "rack"})
    hall.gang("g", 12, of=20, job="learner", annotations={REQUIRED: "rack"})
    hall.settle()
    assert hall.racks("g-actor") == ["b"] * 8
    assert hall.racks("g-learner") == ["a"] * 12


def test_pods_that_are_no_gang_are_placed_as_they_come() -> None:
    hall = Hall()
    for number in range(14):
        made = hall.pod(f"p{number:02}")
        made["metadata"]["annotations"] = {REQUIRED: "rack"}
        hall.put(made)
    hall.settle()
    assert hall.racks("p") == ["a"] * 12 + ["b"] * 2


def test_a_native_group_is_where_its_constraints_say() -> None:
    hall = Hall()
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 8}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }
    about = {"name": "ring", "namespace": "default", "uid": "uid-ring"}
    group = decoder(PodGroup).decode(json.dumps({"metadata": about, "spec": spec}).encode())
    hall.scheduler.group_seen(GroupId(GroupKind.NATIVE, "default", "ring"), group)
    hall.there("other", "a0", 1)
    for number in range(8):
        hall.put(hall.pod(f"g-{number}", schedulingGroup={"podGroupName": "ring"}))
    hall.settle()
    assert hall.racks("g") == ["b"] * 8


# --- what is asked for ----------------------------------------------------------------------------


def asks(**annotations: str) -> TopologyWish | None:
    made = pod_json("p", Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    made["metadata"]["annotations"] = annotations
    return topology_wish(a_pod(made), None, [("zone", "block", "rack")])


@pytest.mark.parametrize(
    ("annotations", "levels", "must"),
    [
        ({REQUIRED: "block"}, (("zone", "block"),), True),
        ({REQUIRED: "nvlink"}, (("nvlink",),), True),
        (
            {PREFERRED: "rack"},
            (("zone", "block", "rack"), ("zone", "block"), ("zone",)),
            False,
        ),
        ({PREFERRED: "nvlink"}, (("nvlink",),), False),
        (
            {REQUIRED: "block", PREFERRED: "rack"},
            (("zone", "block", "rack"), ("zone", "block")),
            True,
        ),
        ({REQUIRED: "rack", PREFERRED: "zone"}, (("zone", "block", "rack"),), True),
        (
            {REQUIRED: "rack", PREFERRED: "nvlink"},
            (("zone", "block", "rack", "nvlink"), ("zone", "block", "rack")),
            True,
        ),
        ({"kai.scheduler/topology-required-placement": "zone"}, (("zone",),), True),
    ],
)
def test_levels_are_tried_from_the_narrowest_that_is_preferred_to_the_one_that_must_be(
    annotations: dict[str, str], levels: tuple[tuple[str, ...], ...], must: bool
) -> None:
    assert asks(**annotations) == TopologyWish(levels, must)


def test_who_asks_for_no_place_has_no_wish() -> None:
    assert asks() is None
