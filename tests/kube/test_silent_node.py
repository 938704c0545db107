"""Nodes that fall silent: their watts are counted, over restarts, until somebody makes sure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kube_ledger
import pytest
import recovery
import safe_copies
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from safe_copies import DOMAIN, GPUS, LABELS, NAME, Copy, written

IDLE_W = 2 * GPUS * 10
BUDGET_W = IDLE_W + safe_copies.RISE_W
"""Of two idle nodes and one pod."""
NODES = ("quiet", "loud")
UNFENCED = "wattherd.dev/unfenced"
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


@pytest.fixture
def account(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    with safe_copies.shipped_rights(plane, namespace) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    """Two; nobody carries the first: it says once that it is ready, and then nothing."""
    quiet, loud = NODES
    made = a_node(quiet, gpus=GPUS, labels=LABELS)
    del made["metadata"]["annotations"]
    plane.api.create("/api/v1/nodes", made)
    plane.api.fleet([a_node(loud, gpus=GPUS, labels=LABELS)])
    speak(plane.api, quiet)
    yield
    plane.api.remove_nodes(NODES)


def speak(api: KubeApi, node: str) -> None:
    """It is ready, and takes pods."""
    say(api, node, "True")
    api.merge(f"/api/v1/nodes/{node}", {"spec": {"taints": None}})


def say(api: KubeApi, node: str, ready: str) -> None:
    condition = {"type": "Ready", "status": ready, "reason": "Test", "message": "test"}
    moment = "2026-01-01T00:00:00Z"
    condition |= {"lastHeartbeatTime": moment, "lastTransitionTime": moment}
    api.merge(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}})


def is_silent(api: KubeApi, node: str) -> bool:
    conditions = api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "Unknown" for one in conditions)


def note_on(api: KubeApi, node: str) -> str:
    return str(api.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations", {}).get(UNFENCED))


def why(api: KubeApi, namespace: str, pod: str) -> str:
    conditions: list[Object] = api.pod(namespace, pod)["status"].get("conditions", [])
    return "".join(one.get("message", "") for one in conditions if one["status"] == "False")


def a_copy(account: Path, namespace: str, health: str) -> Copy:
    more = f"--health={health}"
    return safe_copies.a_copy(account, namespace, more, budget_w=BUDGET_W)


@pytest.mark.parametrize(
    "told",
    [pytest.param("by hand"), pytest.param("by the node controller", marks=pytest.mark.slow)],
)
def test_a_restart_does_not_free_the_watts_of_a_silent_node(
    plane: ControlPlane, namespace: str, account: Path, nodes: None, told: str
) -> None:
    """Its pod is deleted by force while no scheduler is there to see it."""
    del nodes
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    health = kube_ledger.an_address()
    copy = a_copy(account, namespace, health)
    try:
        there = {"nodeSelector": {"kubernetes.io/hostname": "quiet"}}
        api.create(pods, a_pod("first", gpus=1, scheduler=NAME, spec=there))
        wait_until(lambda: written(api, namespace) == {"first": "60"}, "the first pod is bound")
        if told == "by hand":
            say(api, "quiet", "Unknown")
        wait_until(lambda: is_silent(api, "quiet"), "the node is silent")
        wait_until(lambda: "first" in note_on(api, "quiet"), "who was there is written down")
        safe_copies.end(copy)
        api.delete(f"{pods}/first", gracePeriodSeconds=0)
        copy = a_copy(account, namespace, health)
        here = {"nodeSelector": {"kubernetes.io/hostname": "loud"}}
        api.create(pods, a_pod("second", gpus=1, scheduler=NAME, spec=here))
        full = f"has 0 W left of {BUDGET_W} W"
        wait_until(lambda: full in why(api, namespace, "second"), "it waits for watts")
        assert written(api, namespace) == {}
        api.merge("/api/v1/nodes/quiet", {"spec": {"taints": [OUT_OF_SERVICE]}})
        wait_until(lambda: written(api, namespace) == {"second": "60"}, "somebody made sure")
        wait_until(lambda: note_on(api, "quiet") == "None", "nothing is remembered any more")
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
    finally:
        safe_copies.end(copy)


def test_while_all_nodes_are_silent_nothing_is_given_and_all_is_counted(
    plane: ControlPlane, namespace: str, account: Path, nodes: None
) -> None:
    """Their carrier is stopped. Who runs is left alone, who waits is told, until they speak."""
    del nodes
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    health, nowhere = kube_ledger.an_address(), "none of 2 nodes may take the pod"
    copy = safe_copies.a_copy(
        account, namespace, f"--health={health}", budget_w=BUDGET_W + safe_copies.RISE_W
    )
    try:
        api.create(pods, a_pod("first", gpus=1, scheduler=NAME))
        wait_until(lambda: set(written(api, namespace)) == {"first"}, "the first pod is bound")
        # More than the budget: it waits from the beginning, and its reason tells what is known.
        api.create(pods, a_pod("wide", gpus=GPUS, scheduler=NAME))
        wait_until(lambda: why(api, namespace, "wide"), "the wide pod is told why it waits")
        plane.kwok.pause()
        for name in NODES:
            say(api, name, "Unknown")
        wait_until(lambda: all(is_silent(api, name) for name in NODES), "all nodes are silent")
        # That news may reach the scheduler after a pod that is created now, which it would bind.
        wait_until(lambda: nowhere in why(api, namespace, "wide"), "the scheduler has heard of it")
        api.delete(f"{pods}/wide", gracePeriodSeconds=0)
        api.create(pods, a_pod("second", gpus=1, scheduler=NAME))
        wait_until(lambda: why(api, namespace, "second"), "it is told why it waits")
        assert nowhere in why(api, namespace, "second")
        assert set(written(api, namespace)) == {"first"}
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
        plane.kwok.resume()
        wait_until(lambda: not all(is_silent(api, name) for name in NODES), "a node speaks")
        with recovery.told("node that returns"):
            wait_until(lambda: set(written(api, namespace)) == {"first", "second"}, "both run")
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
    finally:
        plane.kwok.resume()
        safe_copies.end(copy)
