"""Watts of pods on silent nodes are free once the machine is known not to draw them, not before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kube_builders import Json, a_node, a_pod, an_extender, bound, fleet_of, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.fencing import is_silent, remembered
from wattherd.kube.api.names import UNFENCED
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import BindPod
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

IDLE_MW, MOST_MW = (round(1000 * w) for w in (GPUS["T4"].idle_w, GPUS["T4"].max_w))
ROOM_FOR_ONE = {"": 4 * IDLE_MW + (MOST_MW - IDLE_MW)}
TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
SERVICE = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


def machine(name: str, ready: str = "True", *taints: Json, **annotations: str) -> Json:
    made: Any = copy.deepcopy(node_json(a_machine(name, gpus=2, model="T4")))
    made["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    made["spec"]["taints"] = list(taints)
    made["metadata"]["annotations"] = {f"wattherd.dev/{k}": v for k, v in annotations.items()}
    return dict(made)


FENCED = {
    "its kubelet is back": machine("n0"),
    "its kubelet is back and says no": machine("n0", "False"),
    "somebody made sure": machine("n0", "Unknown", TAINT, SERVICE),
    "its board switched it off": machine("n0", "Unknown", TAINT, switched="off"),
    "somebody deleted it": None,
}


def test_silence_is_what_the_node_controller_says_of_it() -> None:
    assert is_silent(a_node(machine("n0", "Unknown")))
    assert is_silent(a_node(machine("n0", "False", TAINT)))
    assert is_silent(a_node(machine("n0", "Unknown", switched="on")))
    assert not any(is_silent(a_node(one)) for one in FENCED.values() if one)


@pytest.mark.parametrize("how", FENCED)
def test_the_scheduler_counts_who_may_still_run(how: str) -> None:
    scheduler = KubeScheduler(fleet_of("first-fit"), ROOM_FOR_ONE, holder="test")
    for name in ("n0", "n1"):
        scheduler.node_seen(a_node(machine(name)))
    first = pod_json("first", exclusive(1_000, 1), schedulerName="wattherd")
    scheduler.pod_seen(a_pod(bound(first, "n0")), 0.0)
    second = pod_json("second", exclusive(1_000, 1), schedulerName="wattherd")
    scheduler.pod_seen(a_pod(second), 0.0)

    def binds(at_s: float) -> list[str]:
        return [one.node for one in scheduler.plan(at_s) if isinstance(one, BindPod)]

    assert binds(1.0) == []
    scheduler.node_seen(a_node(machine("n0", "Unknown", TAINT)))
    scheduler.pod_gone("uid-first")
    assert binds(2.0) == []
    scheduler.node_seen(a_node(machine("n2")))  # a cluster that changed is counted anew
    budget = ROOM_FOR_ONE[""] + 2 * IDLE_MW
    assert not [one for one in scheduler.budget("", budget, 3.0) if isinstance(one, BindPod)]
    if FENCED[how] is None:
        scheduler.node_gone("n0")
    else:
        scheduler.node_seen(a_node(FENCED[how]))
    assert len(binds(4.0)) == 1


@pytest.mark.parametrize("how", FENCED)
def test_the_extender_counts_who_may_still_run(how: str) -> None:
    extender = an_extender("first-fit", budgets_mw=ROOM_FOR_ONE)
    for name in ("n0", "n1"):
        extender.node_seen(a_node(machine(name)))
    extender.pod_seen(a_pod(bound(pod_json("first", exclusive(1_000, 1)), "n0")), 0.0)
    extender.node_seen(a_node(machine("n0", "Unknown", TAINT)))
    extender.pod_gone("uid-first")
    assert set(extender.fleet.holdings) == {"uid-first"}
    if FENCED[how] is None:
        extender.node_gone("n0")
    else:
        extender.node_seen(a_node(FENCED[how]))
    assert not extender.fleet.holdings


def test_a_pod_that_ends_on_a_node_that_speaks_is_gone_at_once() -> None:
    extender = an_extender("first-fit")
    extender.node_seen(a_node(machine("n0")))
    extender.pod_seen(a_pod(bound(pod_json("first", exclusive(1_000, 1)), "n0")), 0.0)
    extender.pod_gone("uid-first")
    assert not extender.fleet.holdings


SILENT = machine("n0", "Unknown", TAINT)


def written_by(decider: Any) -> Json:
    """The silent node, with what the decider has us write on it."""
    text = decider.unfenced.to_write()["n0"]
    made: Any = copy.deepcopy(SILENT)
    made["metadata"]["annotations"][UNFENCED] = text
    return dict(made)


def a_decider(kind: str) -> Any:
    if kind == "extender":
        return an_extender("first-fit", budgets_mw=ROOM_FOR_ONE)
    return KubeScheduler(fleet_of("first-fit"), ROOM_FOR_ONE, holder="test")


@pytest.mark.parametrize("kind", ["scheduler", "extender"])
@pytest.mark.parametrize("how", FENCED)
def test_whoever_comes_later_counts_who_was_deleted_while_nobody_looked(
    kind: str, how: str
) -> None:
    first, second = a_decider(kind), a_decider(kind)
    pod = bound(pod_json("first", exclusive(1_000, 1)), "n0")
    first.node_seen(a_node(machine("n0")))
    first.pod_seen(a_pod(pod), 0.0)
    assert not first.unfenced.to_write()
    first.node_seen(a_node(SILENT))
    noted = written_by(first)
    second.node_seen(a_node(machine("n1")))
    second.node_seen(a_node(noted))  # the pod is shown no more
    assert second.fleet.holdings["uid-first"].ask == first.fleet.holdings["uid-first"].ask
    assert not second.unfenced.to_write()
    if FENCED[how] is None:
        second.node_gone("n0")
        assert not second.unfenced.to_write()
    else:
        cleared: Any = copy.deepcopy(FENCED[how])
        cleared["metadata"]["annotations"][UNFENCED] = noted["metadata"]["annotations"][UNFENCED]
        second.node_seen(a_node(cleared))
        assert second.unfenced.to_write() == {"n0": None}
        second.node_seen(a_node(FENCED[how]))
        assert not second.unfenced.to_write()
    assert not second.fleet.holdings


@pytest.mark.parametrize("kind", ["scheduler", "extender"])
def test_a_pod_that_is_shown_after_its_node_is_no_ghost(kind: str) -> None:
    first, second = a_decider(kind), a_decider(kind)
    pod = bound(pod_json("first", exclusive(1_000, 1)), "n0")
    for decider in (first, second):
        decider.node_seen(a_node(machine("n1")))
    first.node_seen(a_node(SILENT))
    first.pod_seen(a_pod(pod), 0.0)
    second.node_seen(a_node(written_by(first)))
    second.pod_seen(a_pod(pod), 0.0)
    second.node_seen(a_node(machine("n0")))
    assert set(second.fleet.holdings) == {"uid-first"}
    second.pod_gone("uid-first")
    assert not second.fleet.holdings


def test_what_others_wrote_on_a_silent_node_stays() -> None:
    first, second = a_decider("scheduler"), a_decider("extender")
    for decider, name in ((first, "one"), (second, "two")):
        decider.node_seen(a_node(SILENT))
        decider.pod_seen(a_pod(bound(pod_json(name, exclusive(1_000, 1)), "n0")), 0.0)
    second.node_seen(a_node(written_by(first)))
    assert set(remembered(a_node(written_by(second)))) == {"uid-one", "uid-two"}


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"pods": 3}'])
def test_what_cannot_be_read_on_a_node_hides_nothing_else(text: str) -> None:
    spoilt: Any = copy.deepcopy(SILENT)
    spoilt["metadata"]["annotations"][UNFENCED] = text
    scheduler = a_decider("scheduler")
    scheduler.node_seen(a_node(spoilt))
    scheduler.pod_seen(a_pod(bound(pod_json("one", exclusive(1_000, 1)), "n0")), 0.0)
    assert set(remembered(a_node(written_by(scheduler)))) == {"uid-one"}
