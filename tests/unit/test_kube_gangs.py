"""Gangs as their group objects say, gangs that lose a node midway, and gangs that lack room."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kube_builders import a_node, a_pod, bound, fleet_of, node_json, pod_json
from test_kube_scheduler import IDLE_MW, RISE_MW, WHOLE, World

from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.account.gang_feasibility import TELL_AGAIN_S
from wattherd.kube.api.api_objects import PodGroup, decoder
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.orders import BindPod, EvictPod
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.kube.facts.pod_request import PodRequest, ask_of
from wattherd.model.job import Request
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive, sharing

GROUP = GroupId(GroupKind.NATIVE, "default", "ring")


@pytest.fixture
def world() -> World:
    made = World()
    made.add_nodes(2)
    return made


def native(world: World, count: int, first: int = 0, **spec: Any) -> None:
    """Pods of the native group `ring`."""
    for member in range(first, first + count):
        world.create(f"ring-{member}", schedulingGroup={"podGroupName": "ring"}, **spec)


def state(world: World, least: int | None, **more: Any) -> None:
    """The object of the group: a gang of so many, or no gang at all."""
    policy: dict[str, Any] = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    group = {
        "metadata": {"name": "ring", "namespace": "default", "uid": "uid-ring"},
        "spec": {"schedulingPolicy": policy, **more},
    }
    world.scheduler.group_seen(GROUP, decoder(PodGroup).decode(json.dumps(group).encode()))
    world.settle()


# --- what group objects say -----------------------------------------------------------------------


def test_a_gang_waits_for_its_group_however_late_that_is_heard_of(world: World) -> None:
    native(world, 2)
    world.settle()
    assert world.places == {}
    assert world.why("ring-0") == "WaitingForGang: the PodGroup ring is not there; create it"
    state(world, 3)
    assert world.places == {}
    native(world, 1, first=2)
    world.settle()
    assert len(world.places) == 3


@pytest.mark.parametrize(("stated", "evicts"), [(1, True), (10, False), (None, False)])
def test_the_priority_of_its_group_counts_and_not_that_of_its_pods(
    world: World, stated: int | None, evicts: bool
) -> None:
    native(world, 4, priority=1 if stated == 10 else 7)
    state(world, 4, **({} if stated is None else {"priority": stated}))
    assert len(world.places) == 4
    world.create("boss", priority=5)
    world.settle()
    assert world.evicted == ([f"uid-ring-{n}" for n in range(4)] if evicts else [])


def test_a_budget_that_is_cut_ends_the_group_of_less_priority() -> None:
    world = World(budgets_mw={"": 4 * IDLE_MW + 3 * RISE_MW})
    world.add_nodes(2)
    native(world, 2, priority=9)
    state(world, 2, priority=-1)
    world.create("other", priority=0)
    world.settle()
    assert len(world.places) == 3
    for order in world.scheduler.budget("", 4 * IDLE_MW + RISE_MW, world.now_s):
        world._obey(order)
    assert sorted(world.evicted) == ["uid-ring-0", "uid-ring-1"]


def test_a_group_that_must_share_a_place_waits_where_no_node_has_its_label(world: World) -> None:
    native(world, 2)
    state(world, 2, schedulingConstraints={"topology": [{"key": "rack"}]})
    assert world.places == {}
    said = "NodeSelectorMismatch: its 2 pods must share one rack, and no node has that label; "
    assert world.why("ring-0").startswith(said)
    assert world.why("ring-1").startswith(said)
    [told] = world.gangs_told
    assert (told.group, told.reason) == (GROUP, "NodeSelectorMismatch")


def test_other_groups_are_waited_for_where_they_are_objects(world: World) -> None:
    world.scheduler.groups_are_objects(GroupKind.OLDER)
    made = pod_json("p", WHOLE, schedulerName="wattherd")
    made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "ring"}
    world.pods["uid-p"] = made
    world.scheduler.pod_seen(a_pod(made), 0.0)
    world.settle()
    assert "the PodGroup ring is not there" in world.why("p")


def test_a_group_of_volcano_starts_with_as_many_as_it_says(world: World) -> None:
    world.scheduler.groups_are_objects(GroupKind.VOLCANO)
    for number in range(3):
        named = {"scheduling.volcano.sh/group-name": "ring"}
        marked(world, f"ring-{number}", annotations=named)
    world.settle()
    assert "the PodGroup ring is not there" in world.why("ring-0")
    about = {"name": "ring", "namespace": "default", "uid": "uid-ring"}
    group = json.dumps({"metadata": about, "spec": {"minMember": 3, "queue": "q"}}).encode()
    known = GroupId(GroupKind.VOLCANO, "default", "ring")
    world.scheduler.group_seen(known, decoder(PodGroup).decode(group))
    world.settle()
    assert sorted(world.places) == ["ring-0", "ring-1", "ring-2"]


def marked(world: World, name: str, **about: dict[str, str]) -> None:
    """A pod with these labels and annotations."""
    made = pod_json(name, WHOLE, schedulerName="wattherd")
    made["metadata"].update(about)
    world.pods[made["metadata"]["uid"]] = made
    world.scheduler.pod_seen(a_pod(made), world.now_s)


LWS = "leaderworkerset.sigs.k8s.io"


def of_set(world: World, group: int, worker: int) -> None:
    """A pod of the LeaderWorkerSet `serve`, whose groups are of three."""
    labels = {f"{LWS}/name": "serve", f"{LWS}/group-index": str(group)}
    marked(world, f"serve-{group}-{worker}", labels=labels, annotations={f"{LWS}/size": "3"})


def test_groups_of_a_leader_worker_set_are_gangs_of_their_own(world: World) -> None:
    for group, worker in ((0, 0), (0, 1), (1, 0), (1, 1)):
        of_set(world, group, worker)
    world.settle()
    assert world.places == {}
    assert world.why("serve-1-0").startswith("WaitingForGang: 2 of 3 pods of serve/1 are there")
    of_set(world, 1, 2)
    world.settle()
    assert sorted(world.places) == ["serve-1-0", "serve-1-1", "serve-1-2"]


def test_a_leader_that_must_be_ready_before_there_are_workers_waits_for_none(world: World) -> None:
    of_set(world, 0, 0)
    world.settle()
    assert world.places == {}
    about = {"name": "serve", "namespace": "default", "uid": "uid-serve"}
    group = json.dumps({"metadata": about, "spec": {"minMember": 1}}).encode()
    known = GroupId(GroupKind.LWS, "default", "serve")
    world.scheduler.group_seen(known, decoder(PodGroup).decode(group))
    world.settle()
    assert sorted(world.places) == ["serve-0-0"]


def test_as_many_start_together_as_the_group_says_and_the_others_as_there_is_room(
    world: World,
) -> None:
    native(world, 6)
    state(world, 3)
    assert sorted(world.places) == [f"ring-{n}" for n in range(4)]
    assert world.why("ring-5").startswith("WaitingForGpus")


def test_fewer_than_the_group_says_do_not_start(world: World) -> None:
    native(world, 6)
    state(world, 5)
    assert world.places == {}
    assert "the first 5 pods of ring start together" in world.why("ring-5")


def test_a_member_that_is_refused_is_not_among_the_first_if_others_will_do(world: World) -> None:
    world.create(
        "ring-0", schedulingGroup={"podGroupName": "ring"}, resourceClaims=[{"name": "watts"}]
    )
    native(world, 2, first=1)
    state(world, 2)
    assert sorted(world.places) == ["ring-1", "ring-2"]


def test_pods_of_a_group_that_is_no_gang_start_one_by_one(world: World) -> None:
    native(world, 6)
    state(world, None)
    assert len(world.places) == 4


# --- a node goes midway ---------------------------------------------------------------------------


def starting(world: World) -> list[BindPod]:
    """A gang over both nodes of which one pod on each is bound, the others are not yet."""
    world.gang("g", 4)
    orders = world.scheduler.plan(1.0)
    binds = [one for one in orders if isinstance(one, BindPod)]
    for node in ("n0", "n1"):
        see(world, next(one for one in binds if one.node == node))
    return binds


def see(world: World, order: BindPod) -> None:
    world.pods[order.uid] = bound(world.pods[order.uid], order.node, **order.annotations)
    world.scheduler.pod_seen(a_pod(world.pods[order.uid]), world.now_s)


def evicted(world: World) -> set[str]:
    return {one.uid for one in world.scheduler.plan(2.0) if isinstance(one, EvictPod)}


def test_a_gang_is_undone_whose_node_goes_while_it_is_bound(world: World) -> None:
    binds = starting(world)
    seen = {uid for uid, made in world.pods.items() if "nodeName" in made["spec"]}
    world.scheduler.node_gone("n1")
    assert not world.scheduler.fleet.stands("n1")
    assert evicted(world) == seen
    late, unsent = (one for one in binds if one.uid not in seen)
    see(world, late)  # its binding was under way
    world.scheduler.not_bound(unsent.uid)
    assert evicted(world) == {late.uid}
    for uid in (*seen, late.uid):
        world.delete(uid.removeprefix("uid-"))
    world.add_nodes(1)
    world.gang("again", 4)
    world.settle()
    assert sorted(world.places) == [f"again-{n}" for n in range(4)]
    world.gang("g", 3, size=4)
    for row in range(4):
        world.delete(f"again-{row}")
    world.settle()
    assert len(world.places) == 4
    assert world.evicted == []


def test_a_gang_that_runs_is_left_to_its_owner_when_a_node_goes(world: World) -> None:
    world.gang("g", 4)
    world.settle()
    world.delete("g-0")
    world.scheduler.node_gone("n1")
    world.settle()
    assert world.evicted == []


# --- gangs that lack room -------------------------------------------------------------------------


def test_a_gang_that_lacks_room_is_not_tried_for_every_pod_that_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_nodes(8)
    for row in range(20):
        world.create(f"single-{row}")
    world.settle()
    world.gang("g", 20)
    world.settle()
    tried = list[Holding]()
    hold = NodeFleet.hold

    def noted(fleet: NodeFleet, holding: Holding) -> None:
        tried.append(holding)
        hold(fleet, holding)

    monkeypatch.setattr(NodeFleet, "hold", noted)
    for row in range(10):
        world.delete(f"single-{row}")
        world.scheduler.plan(world.now_s)
    assert tried == []
    assert world.why("g-0").startswith(
        "WaitingForGpus: needs 1 GPU, 0 of 20 that it may use are free"
    )
    world.now_s += TELL_AGAIN_S
    world.delete("single-10")
    world.settle()
    assert "11 of 20 pods of its gang find a place" in world.why("g-0")
    for row in range(11, 20):
        world.delete(f"single-{row}")
    world.settle()
    assert len(world.places) == 20


ASKS = (exclusive(1_000, 1), exclusive(3_000, 2), sharing(500, 300), exclusive(2_000, 0))


def filled(policy: str, draws: np.random.Generator) -> NodeFleet:
    """Nodes of several sizes and models with pods on them."""
    fleet = fleet_of(policy)
    for row in range(6):
        machine = a_machine(f"n{row}", gpus=row % 4, model=("T4", "V100M16")[row % 2])
        fleet.node_seen(node_facts(a_node(node_json(machine))))
    assert fleet.placer is not None
    for serial in range(int(draws.integers(12))):
        seat(fleet, ASKS[int(draws.integers(len(ASKS)))], f"there-{serial}")
    return fleet


def seat(fleet: NodeFleet, request: Request, uid: str) -> bool:
    """Whether a pod found a place by the policy."""
    ask = asked(request)
    spot = fleet.choose(ask, fleet.open_for(ask))
    if spot is not None:
        gpus = spot.allocation.gpus
        fleet.hold(Holding(uid=uid, key=uid, ask=ask, node=spot.node, gpus=gpus, confirmed=True))
    return spot is not None


def asked(request: Request) -> PodRequest:
    return ask_of(a_pod(pod_json("p", request)))


@pytest.mark.parametrize("policy", ["first-fit", "fgd"])
@pytest.mark.parametrize("seed", range(6))
def test_no_more_pods_find_a_place_than_were_counted(policy: str, seed: int) -> None:
    draws = np.random.default_rng(seed)
    for request in (*ASKS, exclusive(1_000, 1, "T4")):
        fleet = filled(policy, draws)
        everywhere = np.ones(len(fleet.order), dtype=np.bool_)
        most = fleet.room_for(asked(request), everywhere)
        found = 0
        while seat(fleet, request, f"new-{found}"):
            found += 1
        assert found == most
        assert fleet.room_for(asked(request), everywhere) == 0
