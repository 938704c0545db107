"""The extender's promises: one node, reserved; budgets never exceeded; answers in time."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import a_node, a_pod, an_extender, asked_over_http, bound, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.placement.plugin_scorers import CheckedRows
from wattherd.experiments.placement.policies import place_policy
from wattherd.kube.api.serial import SerialExecutor
from wattherd.kube.decide.extender import Extender, Grant
from wattherd.kube.decide.extender_wire import BindArgs
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.kube.live.extender_app import BindResult, ExtenderApp
from wattherd.model.job import Request
from wattherd.plugin_watch import PluginWatch
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import cpu_only, exclusive, sharing

RISE_MW = round(1000 * (GPUS["T4"].max_w - GPUS["T4"].idle_w))
IDLE_MW = round(1000 * GPUS["T4"].idle_w)
WHOLE = exclusive(1_000, 1)


def machines(extender: Extender, count: int, *, gpus: int = 2, **labels: str) -> list[str]:
    """Nodes `n0`, `n1`... with T4s; returns their names."""
    names = [f"n{row}" for row in range(count)]
    for name in names:
        made = node_json(a_machine(name, gpus=gpus, model="T4"))
        made["metadata"]["labels"].update(labels)
        extender.node_seen(a_node(made))
    return names


def asked(
    extender: Extender, name: str, request: Request, nodes: list[str], at_s: float = 0.0
) -> str | None:
    return extender.filter(a_pod(pod_json(name, request)), nodes, at_s).node


def why(extender: Extender, request: Request, nodes: list[str], name: str = "new") -> set[str]:
    """The texts of a refusal, all nodes together."""
    verdict = extender.filter(a_pod(pod_json(name, request)), nodes, 0.0)
    assert verdict.node is None
    return {refusal.line() for refusal in verdict.refusals.values()}


# --- one node, reserved -------------------------------------------------------------------------


def test_what_was_given_is_not_given_again_before_it_is_seen() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    found = [asked(extender, f"p{n}", WHOLE, nodes) for n in range(5)]
    assert found == ["n0", "n0", "n1", "n1", None]


@given(st.sets(st.integers(0, 12)), st.randoms(use_true_random=False))
def test_the_nodes_asked_about_are_found_whoever_else_is_named(rows: set[int], mix: Random) -> None:
    """Of ten known nodes few, most, all or none are named, and some that nobody knows."""
    extender = an_extender("first-fit")
    known = machines(extender, 10)
    extender.warm_up()
    named = [f"n{row}" for row in rows]
    mix.shuffle(named)
    found = extender.fleet.rows_of(named)
    assert [
        facts.name for facts, is_in in zip(extender.fleet.order, found, strict=True) if is_in
    ] == [name for name in sorted(known) if name in named]


def test_the_same_question_gets_the_same_answer() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    assert asked(extender, "p", WHOLE, nodes) == "n0"
    asked(extender, "q", WHOLE, nodes)
    assert asked(extender, "p", WHOLE, nodes, 5.0) == "n0"
    assert len(extender.fleet.holdings) == 2


def test_a_node_that_is_no_longer_offered_is_given_up_for_another() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    assert asked(extender, "p", WHOLE, nodes) == "n0"
    assert asked(extender, "p", WHOLE, ["n1"]) == "n1"
    assert [asked(extender, f"q{n}", WHOLE, nodes) for n in range(2)] == ["n0", "n0"]


def test_only_nodes_that_were_offered_are_answered() -> None:
    extender = an_extender("first-fit")
    machines(extender, 3)
    assert asked(extender, "p", WHOLE, ["n2", "unheard-of"]) == "n2"


def test_a_reservation_is_confirmed_by_the_pod_and_else_overdue() -> None:
    extender = an_extender("first-fit", hold_s=60.0)
    nodes = machines(extender, 1)
    seen, unseen = pod_json("seen", WHOLE), pod_json("unseen", WHOLE)
    for made in (seen, unseen):
        extender.filter(a_pod(made), nodes, 0.0)
    extender.pod_seen(a_pod(bound(seen, "n0")), 1.0)
    assert extender.overdue(60.0) == []
    assert [one.uid for one in extender.overdue(60.5)] == ["uid-unseen"]
    extender.unbound("uid-unseen")
    extender.unbound("uid-seen")
    assert set(extender.fleet.holdings) == {"uid-seen"}


def test_to_bind_needs_a_reservation_on_that_very_node() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    asked(extender, "p", sharing(1_000, 300), nodes)
    granted = extender.grant("uid-p", "n0", 1.0)
    assert isinstance(granted, Grant)
    assert granted.annotations == {
        "wattherd.dev/gpus": "0",
        "wattherd.dev/watts": f"{RISE_MW / 1000:g}",
    }
    for uid, node in (("uid-p", "n1"), ("uid-q", "n0")):
        refused = extender.grant(uid, node, 1.0)
        assert not isinstance(refused, Grant)
        assert refused.token is RefusalToken.NOT_CHOSEN


def test_every_decision_has_a_name_of_its_own() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    for n in range(3):
        asked(extender, f"p{n}", WHOLE, nodes)
    assert len({one.decision for one in extender.fleet.holdings.values()}) == 3


# --- what others do -----------------------------------------------------------------------------


def test_pods_of_others_count_and_hold_while_they_end() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 1, gpus=1)
    other = bound(pod_json("other", WHOLE), "n0")
    extender.pod_seen(a_pod(other), 0.0)
    assert asked(extender, "p", WHOLE, nodes) is None
    leaving = other | {
        "metadata": other["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    }
    extender.pod_seen(a_pod(leaving), 1.0)
    assert asked(extender, "p", WHOLE, nodes) is None
    extender.pod_seen(a_pod(other | {"status": {"phase": "Succeeded"}}), 2.0)
    assert asked(extender, "p", WHOLE, nodes) == "n0"


def test_an_overcommitted_node_is_closed_until_it_has_room_again() -> None:
    """Ten one-GPU pods on a node with two: the API server lets others do that."""
    extender = an_extender("first-fit")
    nodes = machines(extender, 1)
    for n in range(10):
        extender.pod_seen(a_pod(bound(pod_json(f"x{n}", WHOLE), "n0")), 0.0)
    for left in range(9, 0, -1):
        extender.pod_gone(f"uid-x{left}")
        expected = None if left >= 2 else "n0"
        assert asked(extender, "p", WHOLE, nodes) == expected
        extender.pod_gone("uid-p")
    extender.pod_gone("uid-x0")
    assert [asked(extender, f"q{n}", WHOLE, nodes) for n in range(3)] == ["n0", "n0", None]


def test_a_node_that_was_deleted_takes_nothing_and_its_pods_still_draw() -> None:
    site = {"": 2 * 2 * IDLE_MW + 2 * RISE_MW}
    extender = an_extender("first-fit", budgets_mw=site)
    nodes = machines(extender, 2)
    for n in range(2):
        extender.pod_seen(a_pod(bound(pod_json(f"x{n}", WHOLE), "n0")), 0.0)
    extender.node_gone("n0")
    assert asked(extender, "p", WHOLE, nodes) is None
    for n in range(2):
        extender.pod_gone(f"uid-x{n}")
    assert "n0" not in extender.fleet.nodes
    assert asked(extender, "p", WHOLE, nodes) == "n1"


def test_a_pod_made_anew_under_its_old_name_is_another_pod() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 1, gpus=1)
    first = pod_json("p", WHOLE)
    again = first | {"metadata": first["metadata"] | {"uid": "uid-again"}}
    assert extender.filter(a_pod(first), nodes, 0.0).node == "n0"
    assert extender.filter(a_pod(again), nodes, 0.0).node is None
    extender.pod_gone("uid-p")
    assert extender.filter(a_pod(again), nodes, 0.0).node == "n0"


# --- watts --------------------------------------------------------------------------------------


def test_a_budget_of_ten_pods_takes_exactly_ten_of_those_that_race() -> None:
    """By what is seen alone 18 got in (measured); nothing is seen here at all."""
    budget = 40 * IDLE_MW + 10 * RISE_MW
    extender = an_extender("fgd", budgets_mw={"rack": budget})
    nodes = machines(extender, 20, **{"wattherd.dev/power-domain": "rack"})
    found = [asked(extender, f"p{n}", WHOLE, nodes) for n in range(30)]
    assert sum(node is not None for node in found) == 10
    text = (
        "PowerBudget: power domain rack may draw 1,000 W of 1,000 W, the pod adds 60 W; "
        "raise its budget by 60 W, or free them"
    )
    assert text in why(extender, WHOLE, nodes)


def test_a_full_domain_sends_pods_to_the_next_one() -> None:
    extender = an_extender("first-fit", budgets_mw={"a": 2 * IDLE_MW + RISE_MW})
    for name, domain in (("n0", "a"), ("n1", "b")):
        made = node_json(a_machine(name, gpus=2, model="T4"))
        made["metadata"]["labels"]["wattherd.dev/power-domain"] = domain
        extender.node_seen(a_node(made))
    found = [asked(extender, f"p{n}", WHOLE, ["n0", "n1"]) for n in range(4)]
    assert found == ["n0", "n1", "n1", None]


def test_shares_join_a_device_that_draws_already() -> None:
    budget = {"": 2 * IDLE_MW + RISE_MW}
    extender = an_extender("gpu-clustering", budgets_mw=budget)
    nodes = machines(extender, 1)
    found = [asked(extender, f"p{n}", sharing(100, 300), nodes) for n in range(4)]
    assert found == ["n0", "n0", "n0", None]
    assert asked(extender, "cpu", cpu_only(100), nodes) == "n0"


def test_below_its_use_a_budget_lets_in_only_what_draws_nothing_more() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 1)
    asked(extender, "p", WHOLE, nodes)
    extender.domains.budgets_mw[""] = 1
    assert asked(extender, "q", WHOLE, nodes) is None
    assert asked(extender, "cpu", cpu_only(100), nodes) == "n0"


# --- reasons ------------------------------------------------------------------------------------


def test_reasons_are_tokens_with_numbers_and_equal_for_equal_nodes() -> None:
    extender = an_extender("fgd")
    nodes = machines(extender, 3)
    assert why(extender, exclusive(1_000, 3), nodes) == {
        "NoRoom: has no room for 1000 milli-CPU and 3 GPUs together"
    }
    assert why(extender, exclusive(1_000, 1, "A100-80GB"), nodes) == {"GpuModelMismatch: has T4"}


def test_a_gpu_that_is_not_in_the_catalog_is_never_the_best() -> None:
    extender = an_extender("fgd")
    made = node_json(a_machine("odd", gpus=1, model="T4"))
    made["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-Z9000"
    extender.node_seen(a_node(made))
    assert why(extender, WHOLE, ["odd"]) == {
        "GpuModelUnknown: GPU NVIDIA-Z9000 is not in the catalog"
    }
    assert asked(extender, "cpu", cpu_only(100), ["odd"]) == "odd"


def test_a_pod_that_contradicts_itself_is_refused_everywhere() -> None:
    extender = an_extender("fgd")
    nodes = machines(extender, 1)
    made = pod_json("p", exclusive(100, 2))
    made["metadata"]["annotations"]["wattherd.dev/gpu-milli"] = "500"
    verdict = extender.filter(a_pod(made), nodes, 0.0)
    assert verdict.refusals[""].line() == "InvalidPod: a share of one GPU, but 2 of nvidia.com/gpu"


# --- scores -------------------------------------------------------------------------------------


def test_scores_follow_the_policy_and_unknown_nodes_get_nothing() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 12)
    scores = extender.prioritize(a_pod(pod_json("p", WHOLE)), [*nodes, "unheard-of"])
    by_name = sorted(nodes)
    assert [scores[name] for name in by_name] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert scores["unheard-of"] == 0
    assert not extender.fleet.holdings


def test_the_reserved_node_scores_highest() -> None:
    extender = an_extender("first-fit")
    nodes = machines(extender, 2)
    asked(extender, "p", WHOLE, ["n1"])
    assert extender.prioritize(a_pod(pod_json("p", WHOLE)), nodes) == {"n0": 0, "n1": 10}


# --- over HTTP ----------------------------------------------------------------------------------


FINE = BindResult()


class Desk:
    """An application with its thread; `bind` answers what it is told to."""

    def __init__(self, extender: Extender, bound: BindResult = FINE, **options: float) -> None:
        self.turns = SerialExecutor()
        self.bound: list[tuple[BindArgs, Grant]] = []
        self.app = ExtenderApp(extender, self.turns, self._bind, **options)
        self._answer = bound

    async def _bind(self, args: BindArgs, grant: Grant) -> BindResult:
        self.bound.append((args, grant))
        return self._answer

    def ask(self, path: str, asked: object, method: str = "POST") -> Any:
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        return asyncio.run(asked_over_http(self.app, path, body, method))

    def filter(self, name: str, nodes: list[str]) -> Any:
        return self.ask("/filter", {"Pod": pod_json(name, WHOLE), "NodeNames": nodes})


@pytest.fixture
def extender() -> Extender:
    made = an_extender("first-fit")
    machines(made, 2)
    return made


def test_scores_are_whole_numbers_on_the_wire(extender: Extender) -> None:
    asked = {"Pod": pod_json("p", WHOLE), "NodeNames": ["n0", "n1"]}
    assert Desk(extender).ask("/prioritize", asked) == [
        {"Host": "n0", "Score": 10},
        {"Host": "n1", "Score": 9},
    ]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"Pod": 7}', b'{"Pod": {}, "Nodes": {"items": []}, "NodeNames": null}'],
    ids=["empty", "list", "no pod", "whole nodes"],
)
@pytest.mark.parametrize("path", ["/filter", "/prioritize"])
def test_what_kube_scheduler_does_not_send_is_an_error(
    extender: Extender, path: str, body: bytes
) -> None:
    status, text = Desk(extender).ask(path, body)
    assert status == 400
    assert text.endswith("\n")


def test_nothing_is_decided_before_the_cluster_was_seen(extender: Extender) -> None:
    extender.synced = False
    desk = Desk(extender)
    answer = desk.filter("p", ["n0"])
    assert (answer["NodeNames"], bool(answer["Error"])) == ([], True)
    assert desk.ask("/readyz", b"", "GET")[0] == 503
    assert desk.ask("/healthz", b"", "GET")[0] == 200


def test_a_late_filter_fails_closed_and_late_scores_open(extender: Extender) -> None:
    """The thread that decides is held up; the answer comes all the same, and says so."""
    desk = Desk(extender, deadline_s=0.05)
    go_on = threading.Event()
    desk.turns.submit(go_on.wait, 60)
    answer = desk.filter("p", ["n0", "n1"])
    assert answer["NodeNames"] == []
    assert "tried again" in answer["Error"]
    asked = {"Pod": pod_json("q", WHOLE), "NodeNames": ["n0"]}
    assert desk.ask("/prioritize", asked) == [{"Host": "n0", "Score": 0}]
    assert "wattherd_extender_late_total 2" in desk.ask("/metrics", b"", "GET")[1]
    go_on.set()
    desk.turns.close()
    assert extender.fleet.holdings["uid-p"].node == "n0"  # decided, and there when asked again


def test_a_packages_scorer_that_does_not_return_is_told_and_deadlines_are_kept() -> None:
    """Nor is the event loop held up by it, which answers probes as well."""
    goes_on = threading.Event()

    def rows(world: Any, shape: int, rows: Any, options: Any) -> Any:
        goes_on.wait(60)
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)

    checked = CheckedRows("slow", rows, watch=PluginWatch("scorer 'slow'", 0.02))
    policy = place_policy("first-fit")
    scorer = replace(policy.parts[0].scorer, rows=checked, kernel_id=None)
    slow = replace(policy, parts=(replace(policy.parts[0], scorer=scorer),))
    extender = an_extender(slow)
    machines(extender, 2)
    assert extender.fleet.placer is not None
    assert not extender.prompt
    desk = Desk(extender, deadline_s=0.1)
    try:
        answer = desk.filter("p", ["n0", "n1"])
        assert answer["NodeNames"] == []
        assert answer["Error"].startswith("scorer 'slow' has not returned for 0 s: it is at ")
        assert ", in rows" in answer["Error"]
        status, text = desk.ask("/readyz", b"", "GET")
        assert (status, text.startswith("scorer 'slow' has not returned")) == (503, True)
        assert desk.ask("/healthz", b"", "GET")[0] == 200
    finally:
        goes_on.set()
        desk.turns.close()
    assert desk.ask("/readyz", b"", "GET") == (200, "ok\n")
    assert extender.fleet.holdings["uid-p"].node == "n0"


def test_a_binding_that_fails_for_good_gives_its_room_back(extender: Extender) -> None:
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n0"}
    lost = Desk(extender, BindResult("the pod is gone", free=True))
    lost.filter("p", ["n0"])
    assert lost.ask("/bind", args) == {"Error": "the pod is gone"}
    assert not extender.fleet.holdings
    unsure = Desk(extender, BindResult("nobody answers"))
    unsure.filter("p", ["n0"])
    assert unsure.ask("/bind", args) == {"Error": "nobody answers"}
    assert "uid-p" in extender.fleet.holdings


def test_what_if_is_answered_and_nothing_is_reserved(extender: Extender) -> None:
    desk = Desk(extender)
    for _ in range(3):
        answer = desk.ask("/simulate", pod_json("p", exclusive(1_000, 2)))
        assert (answer["feasible"], answer["reserved"]) == (True, False)
        assert [one["node"] for one in answer["pods"]] == ["n0"]
    assert not extender.fleet.holdings
    many = {"kind": "List", "items": [pod_json(f"p{n}", WHOLE) for n in range(9)]}
    answer = desk.ask("/simulate", many)
    assert (answer["feasible"], answer["reason"], answer["pods"]) == (False, "WaitingForGpus", [])


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"items": []}', b'{"spec": {}}'], ids=["empty", "bare", "none", "idle"]
)
def test_what_is_no_pod_is_an_error(extender: Extender, body: bytes) -> None:
    status, text = Desk(extender).ask("/simulate", body)
    assert status == 400
    assert "pod" in text
