"""Queue objects: trees of promises whatever is written, turns, quota, borrowing and giving back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import a_pod, pod_json
from msgspec import UNSET
from msgspec.structs import replace
from test_kube_scheduler import WHOLE, World, fleet_of

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.decide.queue_status import queue_status
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.power_kinds import Queue
from wattherd.kube.facts.power_plan import Word
from wattherd.kube.facts.queue_plan import DEFAULT, LEAST_PCT, QueuePlan
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import exclusive

_QUEUE = decoder(Queue)


def a_queue(name: str, **spec: Any) -> Queue:
    return _QUEUE.decode(json.dumps({"metadata": {"name": name, "uid": name}, "spec": spec}))


def a_plan(**queues: dict[str, Any]) -> QueuePlan:
    plan = QueuePlan()
    for name, spec in queues.items():
        plan.queue_seen(name, a_queue(name, **spec))
    return plan


PERCENT = st.none() | st.sampled_from([0.0, 10.0, 30.0, 50.0, 70.0])


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d", "default"]),
        st.tuples(st.sampled_from(["", "a", "b", "x"]), PERCENT, st.integers(1, 3)),
    )
)
def test_a_set_of_queues_is_a_tree_that_promises_all_there_is_or_says_what_is_wrong(
    given_: dict[str, tuple[str, float | None, int]],
) -> None:
    plan = QueuePlan()
    for name, (parent, guaranteed, weight) in given_.items():
        share: dict[str, Any] = (
            {"weight": weight} if guaranteed is None else {"guaranteedPercent": guaranteed}
        )
        plan.queue_seen(name, a_queue(name, **share, **({"parent": parent} if parent else {})))
    state = plan.state()
    assert set(state.verdicts) == set(given_)
    if all(one.ready for one in state.verdicts.values()) and given_:
        assert state.tree is not None
        leaves = state.tree.leaves
        assert sum(one.guaranteed for one in leaves) == pytest.approx(1.0)
        for name, (_, guaranteed, _) in given_.items():
            if guaranteed:
                assert state.tree[name].queue.guaranteed_pct == pytest.approx(guaranteed, abs=1e-3)
        assert state.tree.leaf(DEFAULT) is not None or DEFAULT in given_
    else:
        assert state.tree is None


def test_weights_share_what_guarantees_leave() -> None:
    state = a_plan(a={"guaranteedPercent": 40}, b={"weight": 2}, c={}).state()
    assert state.tree is not None
    assert state.tree["b"].guaranteed == pytest.approx(0.4, abs=1e-6)
    assert state.tree["c"].guaranteed == pytest.approx(0.2, abs=1e-6)
    assert state.tree[DEFAULT].guaranteed <= 2 * LEAST_PCT / 100


def test_what_makes_no_tree_leaves_the_one_before_it_in_force() -> None:
    plan = a_plan(a={"guaranteedPercent": 60}, b={"guaranteedPercent": 40})
    before = plan.state().tree
    plan.queue_seen("b", a_queue("b", guaranteedPercent=50))
    state = plan.state()
    assert state.tree is before
    assert state.verdicts["a"].word is Word.INVALID
    assert "a, b are promised 110 % of the cluster" in state.verdicts["a"].text
    plan.queue_seen("b", a_queue("b", parent="c"))
    state = plan.state()
    assert state.tree is before
    assert (state.verdicts["b"].word, state.verdicts["a"].ready) == (Word.UNKNOWN_PARENT, True)


def a_world(**queues: dict[str, Any]) -> World:
    """Eight GPUs."""
    world = World()
    world.add_nodes(4)
    world.scheduler.queues_seen(a_plan(**queues).state())
    return world


def create(world: World, queue: str, count: int, label: str = "wattherd.dev/queue") -> None:
    for number in range(count):
        made = pod_json(f"{queue}-{number}", WHOLE, schedulerName="wattherd")
        made["metadata"]["labels"] = {label: queue}
        world.pods[made["metadata"]["uid"]] = made
        world.scheduler.pod_seen(a_pod(made), world.now_s)


def placed(world: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in world.places:
        queue = name.partition("-")[0]
        found[queue] = found.get(queue, 0) + 1
    return found


def test_queues_are_served_by_what_they_are_promised() -> None:
    world = a_world(a={"guaranteedPercent": 75}, b={"guaranteedPercent": 25})
    create(world, "a", 8)
    create(world, "b", 8, label="kueue.x-k8s.io/queue-name")
    world.settle()
    assert placed(world) == {"a": 6, "b": 2}


def test_what_is_lent_is_taken_back() -> None:
    world = a_world(a={"guaranteedPercent": 75}, b={"guaranteedPercent": 25})
    create(world, "b", 8)
    world.settle()
    assert placed(world) == {"b": 8}
    create(world, "a", 4)
    world.settle()
    assert placed(world) == {"a": 4, "b": 4}
    assert len(world.evicted) == 4


def test_a_maximum_holds_on_an_idle_cluster_and_is_told_with_numbers() -> None:
    world = a_world(a={"guaranteedPercent": 25, "maximumPercent": 50})
    create(world, "a", 6)
    world.settle()
    assert placed(world) == {"a": 4}
    told = world.told["uid-a-5"]
    assert told.reason == "QuotaExceeded"
    assert "asked 1 GPU, in use 4 GPUs, available 0 GPUs" in told.text
    assert "queue 'a' may hold 4 GPUs at most" in told.text


def test_an_unknown_queue_is_told_of_with_those_there_are() -> None:
    world = a_world(a={})
    create(world, "b", 1)
    world.settle()
    assert world.told["uid-b-0"].reason == "UnknownQueue"
    assert "there are a, default" in world.told["uid-b-0"].text
    world.scheduler.queues_seen(a_plan(a={}, b={}).state())
    world.settle()
    assert placed(world) == {"b": 1}


def test_a_queue_may_be_held_to_a_power_domain() -> None:
    world = World()
    world.add_nodes(2)
    world.add_nodes(1, **{"wattherd.dev/power-domain": "hall"})
    world.scheduler.queues_seen(a_plan(a={"domain": "hall"}).state())
    create(world, "a", 3)
    world.settle()
    assert sorted(world.places.values()) == ["n2", "n2"]


def test_status_counts_pods_and_what_is_borrowed() -> None:
    world = a_world(top={"guaranteedPercent": 50}, a={"parent": "top", "maximumPercent": 100})
    plan = a_plan(top={"guaranteedPercent": 50}, a={"parent": "top"})
    create(world, "a", 9)
    world.settle()
    figures = world.scheduler.queue_figures()
    for name in ("top", "a"):
        status = queue_status(a_queue(name), plan.state(), figures, 0.0)
        assert (status.pending, status.admitted, status.used_gpus) == (1, 8, 8)
        assert status.borrowed_gpus == 4.0
        assert status.guaranteed_gpus == 4.0


def test_priority_stops_others_of_its_queue_only() -> None:
    world = a_world(a={"guaranteedPercent": 50}, b={"guaranteedPercent": 50})
    create(world, "a", 4)
    create(world, "b", 4)
    world.settle()
    for queue in ("a", "b"):
        made = pod_json(f"{queue}-urgent", WHOLE, schedulerName="wattherd", priority=5)
        made["metadata"]["labels"] = {"wattherd.dev/queue": queue}
        world.pods[made["metadata"]["uid"]] = made
        world.scheduler.pod_seen(a_pod(made), world.now_s)
        world.settle()
        assert placed(world) == {"a": 4, "b": 4}
        assert f"{queue}-urgent" in world.places
    assert world.evicted == ["uid-a-3", "uid-b-3"]


def test_a_namespace_holds_no_more_than_its_limit() -> None:
    queue = {"guaranteedPercent": 50, "userLimitFactor": 0.5}
    world = a_world(a=queue)
    create(world, "a", 4)
    world.settle()
    assert placed(world) == {"a": 2}
    assert "namespace 'default' may hold 2 GPUs of queue 'a'" in world.told["uid-a-3"].text


# --- quota taken by priority ----------------------------------------------------------------------


def urgent(world: World, gpus: int, **spec: Any) -> None:
    made = pod_json("a-urgent", exclusive(1_000, gpus), schedulerName="wattherd", **spec)
    made["metadata"]["labels"] = {"wattherd.dev/queue": "a"}
    world.pods[made["metadata"]["uid"]] = made
    world.scheduler.pod_seen(a_pod(made), world.now_s)
    world.settle()


HALF = {"guaranteedPercent": 50, "maximumPercent": 50}
WITHIN = HALF | {"preemption": {"withinQueue": "LowerPriority"}}


def test_where_a_queue_says_so_the_important_take_quota_from_as_few_as_will_do() -> None:
    world = a_world(a=WITHIN, b={})
    create(world, "a", 4)
    create(world, "b", 2)
    world.settle()
    urgent(world, 2, priority=5)
    assert sorted(world.evicted) == ["uid-a-2", "uid-a-3"]
    assert placed(world) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("queue", "spec"),
    [
        (HALF, {"priority": 5}),
        (WITHIN, {}),
        (WITHIN, {"priority": 5, "preemptionPolicy": "Never"}),
    ],
    ids=["the queue does not say so", "nobody is less important", "the pod does not want it"],
)
def test_else_quota_is_waited_for(queue: dict[str, Any], spec: dict[str, Any]) -> None:
    world = a_world(a=queue)
    create(world, "a", 4)
    world.settle()
    urgent(world, 2, **spec)
    assert world.evicted == []
    assert world.told["uid-a-urgent"].reason == "QuotaExceeded"


def test_nobody_is_stopped_for_quota_where_room_would_be_missing_still() -> None:
    world = a_world(a=WITHIN, b={})
    create(world, "b", 8)
    world.settle()
    create(world, "a", 4)
    world.settle()
    assert placed(world) == {"a": 4, "b": 4}
    before = list(world.evicted)
    urgent(world, 4, priority=5)  # no node has four
    assert world.evicted == before


def test_a_rule_about_stopping_others_is_a_change_of_the_queues() -> None:
    plan = a_plan(a=HALF)
    before = plan.state()
    plan.queue_seen("a", a_queue("a", **HALF))
    assert plan.state().rules_as(before)
    plan.queue_seen("a", a_queue("a", **WITHIN))
    assert not plan.state().rules_as(before)
    assert plan.state().preempting == {"a"}


# --- what is lent goes to who had least lately --------------------------------------------------

LENT = {
    "all": {"guaranteedPercent": 100},
    "a": {"parent": "all", "guaranteedPercent": 50},
    "b": {"parent": "all", "guaranteedPercent": 25},
    "c": {"parent": "all", "guaranteedPercent": 25},
}
FADING = LENT | {"all": {"guaranteedPercent": 100, "halfLife": "1h"}}


class CapacityWorld(World):
    """Planned by `capacity` of the core."""

    def a_scheduler(self) -> KubeScheduler:
        return KubeScheduler(fleet_of(self.policy), holder="test", choice=core_choice("capacity"))


def wait_out_notice(world: World) -> None:
    """The capacity scheduler tells who is to stop some seconds before."""
    world.settle()
    world.now_s += 20.0
    world.settle()


def test_capacity_stops_the_less_important_of_a_queue_where_the_queue_says_so() -> None:
    for queue, stopped in ((WITHIN, 2), (HALF, 0)):
        plan = a_plan(a=queue, b={})
        world = begun(CapacityWorld("first-fit"), plan)
        create(world, "a", 4)
        world.settle()
        urgent(world, 2, priority=5)
        wait_out_notice(world)
        assert len(world.evicted) == stopped, queue
        assert all(uid.startswith("uid-a-") for uid in world.evicted)


def test_capacity_has_namespaces_come_down_to_the_user_limit_where_the_queue_says_so() -> None:
    for above, least, most in ((True, 1, 2), (False, 0, 0)):
        limits = HALF | {"userLimitPercent": 50, "userLimitFactor": 1}
        queue = limits | {"preemption": {"aboveUserLimit": above}}
        world = begun(CapacityWorld("first-fit"), a_plan(a=queue, b={}))
        create(world, "a", 4)
        world.settle()
        made = pod_json("other", exclusive(1_000, 2), schedulerName="wattherd")
        made["metadata"] |= {"labels": {"wattherd.dev/queue": "a"}, "namespace": "theirs"}
        world.pods[made["metadata"]["uid"]] = made
        world.scheduler.pod_seen(a_pod(made), world.now_s)
        wait_out_notice(world)
        assert least <= len(world.evicted) <= most, (above, world.evicted)


def begun(world: World, plan: QueuePlan) -> World:
    world.add_nodes(4)
    world.scheduler.queues_seen(plan.state())
    return world


def end(world: World) -> None:
    """All pods that there are end."""
    for made in list(world.pods.values()):
        world.delete(made["metadata"]["name"])
    world.settle()


def c_alone_for_an_hour(world: World) -> None:
    create(world, "c", 8)
    world.settle()
    assert placed(world) == {"c": 8}
    world.now_s += 3600.0
    end(world)


def both_ask(world: World) -> dict[str, int]:
    """GPUs of b and c, eight pods of each waiting, a's half idle."""
    for number in range(16):
        name = "cb"[number % 2]
        made = pod_json(f"{name}-again-{number}", WHOLE, schedulerName="wattherd")
        made["metadata"]["labels"] = {"wattherd.dev/queue": name}
        world.put(made)
    for _ in range(3):  # what was lent and is not owed to c is not taken back for it either
        world.settle()
        world.now_s += 60.0
    return placed(world)


@pytest.mark.parametrize("kind", [World, CapacityWorld])
def test_half_life_lends_to_who_had_least_lately(kind: type[World]) -> None:
    world = begun(kind(), a_plan(**LENT))
    c_alone_for_an_hour(world)
    assert both_ask(world) == {"b": 4, "c": 4}, "who has least now"
    world = begun(kind(), a_plan(**FADING))
    c_alone_for_an_hour(world)
    assert both_ask(world) == {"b": 6, "c": 2}, "what c is promised, and no more"


@pytest.mark.parametrize("kind", [World, CapacityWorld])
def test_what_was_used_is_known_to_the_next_core(kind: type[World]) -> None:
    """A node that comes makes another cluster, and a new core of it."""
    world = begun(kind(), a_plan(**FADING))
    create(world, "c", 8)
    world.settle()
    world.now_s += 3600.0
    before = world.scheduler.core
    world.add_nodes(1, gpus=0)
    world.settle()
    assert world.scheduler.core is not before
    end(world)
    assert both_ask(world) == {"b": 6, "c": 2}


def test_what_was_used_is_told_and_known_after_a_restart() -> None:
    plan = a_plan(**FADING)
    world = begun(World(), plan)
    c_alone_for_an_hour(world)
    figures = world.scheduler.queue_figures()
    told = {name: queue_status(a_queue(name), plan.state(), figures, 0.0) for name in FADING}
    assert (told["b"].recent_gpus, told["c"].recent_gpus) == (0.0, 4.0)
    plan.look(world.now_s + 3600.0)
    assert plan.state().lately.gpus["c"] == pytest.approx(2.0, abs=0.01), "also without a plan"
    assert told["all"].recent_gpus is UNSET, "nobody asks how much all had"
    again = QueuePlan()
    for name, spec in FADING.items():
        again.queue_seen(name, replace(a_queue(name, **spec), status=told[name]))
    later = begun(World(), again)
    assert both_ask(later) == {"b": 6, "c": 2}
    lied = replace(a_queue("b", **FADING["b"]), status=replace(told["b"], recent_gpus=1e9))
    again.queue_seen("b", lied)
    assert again.state().lately.gpus["b"] < 8, "who plans knows by itself"


def test_what_is_promised_above_is_taken_back_whatever_fades_below() -> None:
    """The research team is owed six, however its own two queues share them."""
    world = begun(
        World(),
        a_plan(
            research={"guaranteedPercent": 75, "halfLife": "1h"},
            vision={"parent": "research", "weight": 2},
            speech={"parent": "research", "weight": 1},
            students={"guaranteedPercent": 25},
        ),
    )
    create(world, "students", 8)
    world.settle()
    create(world, "vision", 6)
    world.settle()
    assert placed(world) == {"students": 2, "vision": 6}


@pytest.mark.parametrize("kind", [World, CapacityWorld])
def test_what_is_lent_goes_to_the_queue_of_the_highest_priority(kind: type[World]) -> None:
    """Of eight GPUs b and c are promised two each, and ask for all."""
    shares = {"guaranteedPercent": 25}
    world = begun(kind(), a_plan(b=shares, c=shares))
    assert both_ask(world) == {"b": 4, "c": 4}
    world = begun(kind(), a_plan(b=shares, c=shares | {"priority": 1}))
    assert both_ask(world) == {"b": 2, "c": 6}


def test_promises_made_even_keep_their_half_life() -> None:
    """Three times a third leave nothing for pods without a queue: the largest gives a little."""
    state = a_plan(a={"halfLife": "1h30m"}, b={}, c={}, d={"parent": "a"}).state()
    assert state.tree is not None
    assert state.tree["a"].queue.half_life_s == 5400.0
    assert state.tree["d"].half_life_s == 5400.0


def test_a_half_life_of_nothing_is_no_tree() -> None:
    state = a_plan(a={"halfLife": "0s"}).state()
    assert "0 s is no half-life" in state.verdicts["a"].text


# --- what is lent is shared by weights ----------------------------------------------------------

NOTHING_PROMISED = {"guaranteedPercent": 0}
BOTH = {"strategies": ["FinalShare", "InitialShare"]}


def by_weight(share: dict[str, Any] | None = BOTH, **weights: float) -> QueuePlan:
    """Queues to which nothing is promised, below one at the top that says how they share."""
    top = {"guaranteedPercent": 100} | ({} if share is None else {"fairSharing": share})
    below = {
        name: NOTHING_PROMISED | {"parent": "all", "fairSharing": {"weight": weight}}
        for name, weight in weights.items()
    }
    return a_plan(all=top, **below)


def queued_together(world: World, **counts: int) -> None:
    """Pods of all queues, one of each queue after the other."""
    for number in range(max(counts.values())):
        for queue, count in counts.items():
            if number < count:
                made = pod_json(f"{queue}-{number}", WHOLE, schedulerName="wattherd")
                made["metadata"]["labels"] = {"wattherd.dev/queue": queue}
                world.put(made)


def test_capacity_shares_what_is_lent_by_weights() -> None:
    """Eight GPUs, of which nothing is promised to either queue."""
    world = begun(CapacityWorld("first-fit"), by_weight(a=3, b=1))
    queued_together(world, a=8, b=8)
    world.settle()
    assert placed(world) == {"a": 6, "b": 2}


def test_capacity_takes_back_by_weights_from_who_borrows_more() -> None:
    """Without weights a queue that holds nothing gets its first GPU, and no more."""
    for share, expected in ((BOTH, {"a": 4, "b": 4}), (None, {"a": 1, "b": 7})):
        world = begun(CapacityWorld("first-fit"), by_weight(share, a=1, b=1))
        create(world, "b", 8)
        world.settle()
        assert placed(world) == {"b": 8}
        create(world, "a", 8)
        for _ in range(12):  # a plan takes back a part of the cluster at most
            world.settle()
            world.now_s += 20.0
        assert placed(world) == expected, share


def test_how_queues_share_is_said_at_the_top_and_for_all() -> None:
    state = by_weight(a=3).state()
    assert state.tree is not None
    assert state.tree.root.fair_sharing == ("final-share", "initial-share")
    assert (state.tree["a"].queue.weight, state.tree["all"].queue.weight) == (3, 1)
    assert not state.rules_as(by_weight(None, a=3).state())
    assert not state.rules_as(by_weight(a=2).state())
    alone = {"fairSharing": {"strategies": ["InitialShare"]}}
    below = a_plan(a={}, b={"parent": "a"} | alone).state()
    assert "state it of a Queue without parent" in below.verdicts["b"].text
    assert below.verdicts["a"].ready
    two = a_plan(a={"fairSharing": BOTH}, b=alone, c={}).state()
    assert "a, b state different" in two.verdicts["a"].text
    assert two.verdicts["a"] == two.verdicts["b"]
    assert (two.verdicts["c"].ready, two.tree) == (True, None)
    same = a_plan(a=alone, b=alone).state().tree
    assert same is not None
    assert same.root.fair_sharing == ("initial-share",)
    turned = a_plan(a={"fairSharing": {"strategies": ["InitialShare", "FinalShare"]}}).state()
    assert "unknown strategies [initial-share, final-share]" in turned.verdicts["a"].text
