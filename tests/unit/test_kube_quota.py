"""Behind an extender queues bound what their pods hold, and say so; nobody is stopped for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import a_pod, an_extender, bound, pod_json
from test_kube_extender import machines
from test_kube_queues import a_plan, a_queue

from wattherd.kube.decide import extender_wire as wire
from wattherd.kube.decide.extender import Extender, ExtenderVerdict
from wattherd.kube.decide.queue_status import queue_status
from wattherd.kube.facts.orders import AskAgain
from wattherd.testing.builders import cpu_only, exclusive

Json = dict[str, Any]
HALF = {"guaranteedPercent": 25, "maximumPercent": 50}
TOLD = (
    "QuotaExceeded: asked 1 GPU, in use 4 GPUs, available 0 GPUs (queue 'a' may hold 4 GPUs at "
    "most; raise its maximum); or wait until pods of its queue end"
)


def an_extender_of(**queues: Json) -> tuple[Extender, list[str]]:
    """Eight GPUs on four nodes."""
    extender = an_extender("first-fit")
    nodes = machines(extender, 4)
    extender.queues_seen(a_plan(**queues).state())
    return extender, nodes


def of_queue(queue: str, name: str, gpus: int = 1, **spec: Any) -> Json:
    request = exclusive(1_000, gpus) if gpus else cpu_only(1_000)
    made = pod_json(name, request, schedulerName="stock", **spec)
    made["metadata"]["labels"] = {"wattherd.dev/queue": queue}
    return made


def asked(extender: Extender, made: Json, nodes: list[str]) -> ExtenderVerdict:
    return extender.filter(a_pod(made), nodes, 0.0)


def test_a_maximum_is_kept_while_others_are_free_and_told_on_every_node() -> None:
    extender, nodes = an_extender_of(a=HALF)
    pods = [of_queue("a", f"p{n}") for n in range(5)]
    assert all(asked(extender, one, nodes).node for one in pods[:4])
    refused = asked(extender, pods[4], nodes)
    assert refused.node is None
    answer = json.loads(wire.filtered(refused, nodes))
    assert answer["FailedNodes"] == dict.fromkeys(nodes, TOLD)
    assert asked(extender, of_queue("default", "other"), nodes).node
    assert asked(extender, of_queue("a", "processors", gpus=0), nodes).node


@pytest.mark.parametrize("alone", [True, False], ids=["one by one", "together"])
def test_who_asks_what_if_is_told_of_quota_in_the_words_of_the_filter(alone: bool) -> None:
    extender, nodes = an_extender_of(a=HALF)
    pods = [of_queue("a", f"p{n}") for n in range(5)]
    assert extender.simulate([a_pod(one) for one in pods[:4]])["feasible"]
    for one in pods[: 4 if alone else 2]:
        assert asked(extender, one, nodes).node
    found = extender.simulate([a_pod(one) for one in pods[4 if alone else 2 :]])
    assert not found["feasible"]
    assert f"{found['reason']}: {found['text']}" == TOLD
    assert found["pods"] == []
    lost = extender.simulate([a_pod(of_queue("nowhere", "lost"))])
    refused = asked(extender, of_queue("nowhere", "lost"), nodes).refusals[""]
    assert f"{lost['reason']}: {lost['text']}" == refused.line()
    assert extender.simulate([a_pod(of_queue("default", "other"))])["feasible"]
    # Nothing was booked by asking.
    for one in pods[:4]:
        assert asked(extender, one, nodes).node
    assert asked(extender, pods[4], nodes).refusals[""].line() == TOLD


def test_what_is_given_back_can_be_had_again() -> None:
    extender, nodes = an_extender_of(a=HALF)
    pods = [of_queue("a", f"p{n}") for n in range(4)]
    for one in pods:
        node = asked(extender, one, nodes).node
        assert node
        extender.pod_seen(a_pod(bound(one, node)), 1.0)
    more = of_queue("a", "more")
    assert asked(extender, more, nodes).node is None
    extender.pod_gone(pods[0]["metadata"]["uid"])
    assert asked(extender, more, nodes).node


def test_pods_that_ran_before_the_queue_was_made_count() -> None:
    extender, nodes = an_extender_of()
    for number in range(4):
        asked(extender, of_queue("a", f"p{number}"), nodes)
    extender.queues_seen(a_plan(a=HALF).state())
    assert asked(extender, of_queue("a", "more"), nodes).node is None


def test_an_unknown_queue_is_refused_with_those_there_are() -> None:
    extender, nodes = an_extender_of(a=HALF)
    refused = asked(extender, of_queue("b", "p"), nodes)
    assert refused.refusals[""].line().startswith("UnknownQueue: no leaf queue is called 'b'")
    assert "there are a, default" in refused.refusals[""].text


def test_pods_go_to_the_power_domain_of_their_queue_only() -> None:
    extender, nodes = an_extender_of(a={"domain": "hall"})
    hall = machines(extender, 1, **{"wattherd.dev/power-domain": "hall"})
    assert asked(extender, of_queue("a", "p0", gpus=2), nodes).node == hall[0]
    refused = asked(extender, of_queue("a", "p1"), nodes)
    answer = json.loads(wire.filtered(refused, nodes))
    said = answer["FailedAndUnresolvableNodes"]
    assert set(said) == set(nodes) - set(hall)
    assert set(answer["FailedNodes"]) == set(hall)
    assert "not in the power domain of the pod's queue" in said[nodes[1]]
    assert not extender.simulate([a_pod(of_queue("a", "p2"))])["feasible"]
    free = extender.simulate([a_pod(of_queue("default", "other"))])
    assert free["pods"][0]["node"] not in hall


def test_a_queue_whose_power_domain_has_no_node_is_said_to_be_the_reason() -> None:
    extender, nodes = an_extender_of(a={"domain": "nowhere"})
    told = extender.simulate([a_pod(of_queue("a", "p"))])
    refused = asked(extender, of_queue("a", "p"), nodes).refusals[nodes[0]]
    assert f"{told['reason']}: {told['text']}" == refused.line()


def test_who_waits_for_quota_is_told_so_beside_what_its_scheduler_says() -> None:
    extender, nodes = an_extender_of(a=HALF)
    for number in range(4):
        asked(extender, of_queue("a", f"p{number}"), nodes)
    waits = of_queue("a", "waits")
    asked(extender, waits, nodes)
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    extender.onlooker.pod_seen(a_pod(waits | {"status": {"conditions": [unplaced]}}))
    [told] = extender.onlooker.told(waits["metadata"]["uid"])
    assert f"{told.reason}: {told.text}" == TOLD
    figures = extender.queue_figures()
    status = queue_status(a_queue("a", **HALF), a_plan(a=HALF).state(), figures, 0.0)
    assert (status.pending, status.used_gpus) == (1, 0)  # reserved, and not there yet


def test_who_was_refused_is_asked_about_again_once_nothing_is_wanting_any_more() -> None:
    extender, nodes = an_extender_of(a=HALF)
    pods = [of_queue("a", f"p{n}") for n in range(4)]
    for one in pods:
        asked(extender, one, nodes)
    waits = of_queue("a", "waits")
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    uid, key = waits["metadata"]["uid"], "default/waits"
    asked(extender, waits, nodes)
    extender.onlooker.pod_seen(a_pod(waits | {"status": {"conditions": [unplaced]}}))
    for again in range(2):
        assert not any(isinstance(one, AskAgain) for one in extender.onlooker.told(uid))
        most = HALF | {"maximumPercent": 75 + again}
        extender.queues_seen(a_plan(a=most).state())
        assert extender.onlooker.told(uid) == [AskAgain(uid, key)]
        assert extender.onlooker.told(uid) == []
        extender.queues_seen(a_plan(a=HALF).state())
        assert asked(extender, waits, nodes).node is None
    extender.queues_seen(a_plan(a=most).state())
    assert asked(extender, waits, nodes).node
    assert extender.onlooker.told(uid) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.booleans()), max_size=30))
def test_whatever_comes_and_goes_no_queue_holds_more_than_its_maximum(
    steps: list[tuple[str, int, bool]],
) -> None:
    """Each step asks for a pod of a queue, or takes it away."""
    extender, nodes = an_extender_of(a=HALF, b={"guaranteedPercent": 0, "maximumPercent": 25})
    held: dict[str, set[str]] = {"a": set(), "b": set()}
    for queue, number, comes in steps:
        made = of_queue(queue, f"{queue}{number}")
        uid = made["metadata"]["uid"]
        if not comes:
            extender.pod_gone(uid)
            held[queue].discard(uid)
        elif asked(extender, made, nodes).node is not None:
            held[queue].add(uid)
        else:
            assert len(held[queue]) == {"a": 4, "b": 2}[queue]
        assert len(held["a"]) <= 4
        assert len(held["b"]) <= 2
