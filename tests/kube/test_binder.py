"""Bindings on a real API server: each row of what may become of one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, a_node, a_pod
from kube_cluster import Cluster
from kube_parts import a_transport
from kube_server import wait_until

from wattherd.kube.api.binder import (
    FREES,
    Bind,
    Binder,
    BindingOutcome,
    BindingState,
)
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.names import DECISION, DOMAIN, EPOCH, WATTS

NODES = ("bind-one", "bind-two")
Binding = tuple[LoopThread, Binder]


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    cluster.api.fleet(a_node(name, pods=500) for name in NODES)
    yield NODES
    cluster.api.remove_nodes(NODES)


@pytest.fixture
def binding(cluster: Cluster, nodes: tuple[str, ...]) -> Iterator[Binding]:
    with a_transport(cluster.kubeconfig, timeout_s=60) as (loop, transport):
        yield loop, Binder(transport, np.random.default_rng(1), knows_node=nodes.__contains__)


def make(api: KubeApi, namespace: str, name: str, **more: Any) -> str:
    """A pod that no scheduler touches; its uid."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = api.create(path, a_pod(name, scheduler="tests", **more))
    return str(made["metadata"]["uid"])


def a_bind(namespace: str, pod: str, uid: str, node: str = NODES[0], **more: Any) -> Bind:
    return Bind(namespace=namespace, pod=pod, uid=uid, node=node, **{"decision": "d-1", **more})


def bound(binding: Binding, bind: Bind) -> BindingOutcome:
    loop, binder = binding
    return loop.run(binder.bind(bind))


def test_a_binding_carries_its_watts_onto_the_pod(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    uid = make(cluster.api, namespace, "pod", gpus=1, annotations={"mine": "kept"})
    told = {WATTS: "412.5", DOMAIN: "rack-1", EPOCH: "7"}
    assert (
        bound(binding, a_bind(namespace, "pod", uid, annotations=told)).outcome
        is BindingState.BOUND
    )
    pod = cluster.api.pod(namespace, "pod")
    assert pod["spec"]["nodeName"] == NODES[0]
    expected = {**told, DECISION: "d-1", "mine": "kept"}
    assert expected.items() <= pod["metadata"]["annotations"].items()
    wait_until(lambda: cluster.api.phase(namespace, "pod") == "Running", "the pod runs")


def test_the_same_decision_again_is_the_same_success(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    bind = a_bind(namespace, "pod", make(cluster.api, namespace, "pod"))
    assert [bound(binding, bind).outcome for _ in range(2)] == [
        BindingState.BOUND,
        BindingState.BOUND,
    ]


@pytest.mark.parametrize(
    "other", [{"node": NODES[1]}, {"decision": "d-2"}], ids=["another node", "another decision"]
)
def test_a_pod_that_somebody_else_bound_is_taken(
    cluster: Cluster, namespace: str, binding: Binding, other: dict[str, str]
) -> None:
    uid = make(cluster.api, namespace, "pod")
    assert bound(binding, a_bind(namespace, "pod", uid, **other)).outcome is BindingState.BOUND
    late = bound(binding, a_bind(namespace, "pod", uid))
    assert late.outcome is BindingState.TAKEN
    assert "already assigned" in late.why


def test_a_pod_made_anew_under_its_name_is_not_bound_by_an_old_decision(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    old = make(cluster.api, namespace, "pod")
    cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/pod", gracePeriodSeconds=0)
    make(cluster.api, namespace, "pod")
    assert bound(binding, a_bind(namespace, "pod", old)).outcome is BindingState.STALE
    assert "nodeName" not in cluster.api.pod(namespace, "pod")["spec"]


def test_a_gate_that_was_not_seen_holds(cluster: Cluster, namespace: str, binding: Binding) -> None:
    gates = {"schedulingGates": [{"name": "wattherd.dev/power"}]}
    uid = make(cluster.api, namespace, "pod", spec=gates)
    assert bound(binding, a_bind(namespace, "pod", uid)).outcome is BindingState.GATED


def test_a_pod_that_is_deleted_or_on_its_way_is_gone(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    uid = make(cluster.api, namespace, "going", finalizers=["test.wattherd.dev/held"])
    path = f"/api/v1/namespaces/{namespace}/pods/going"
    cluster.api.delete(path, gracePeriodSeconds=0)
    assert bound(binding, a_bind(namespace, "going", uid)).outcome is BindingState.GONE
    cluster.api.merge(path, {"metadata": {"finalizers": None}})
    assert bound(binding, a_bind(namespace, "going", uid)).outcome is BindingState.GONE


def test_a_node_that_nobody_knows_is_never_asked_for(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    """The API server would bind to it."""
    uid = make(cluster.api, namespace, "pod")
    refused = bound(binding, a_bind(namespace, "pod", uid, node="nowhere"))
    assert (refused.outcome, refused.why) == (BindingState.NO_NODE, "no node nowhere")
    assert "nodeName" not in cluster.api.pod(namespace, "pod")["spec"]


def test_whoever_may_not_bind_sends_nothing(
    cluster: Cluster, namespace: str, binding: Binding
) -> None:
    loop, binder = binding
    binder.may_bind = lambda: False
    uid = make(cluster.api, namespace, "pod")
    assert bound((loop, binder), a_bind(namespace, "pod", uid)).outcome is BindingState.FENCED
    assert "nodeName" not in cluster.api.pod(namespace, "pod")["spec"]


def test_without_the_right_to_bind_the_missing_right_is_told(
    plane: ControlPlane, namespace: str
) -> None:
    kubeconfig = plane.kubeconfig_of(plane.api.token(namespace, "nobody"), f"{namespace}-nobody")
    uid = make(plane.api, namespace, "pod")
    with a_transport(kubeconfig) as (loop, transport):
        binder = Binder(transport, np.random.default_rng(1))
        refused = bound((loop, binder), a_bind(namespace, "pod", uid))
    assert refused.outcome is BindingState.DENIED
    assert 'cannot create resource "pods/binding"' in refused.why


def test_three_hundred_pods_are_bound_once_each_sixty_four_at_a_time(
    plane: ControlPlane, namespace: str, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, binder = binding
    with ThreadPoolExecutor(8) as pool:
        names = [f"pod-{number}" for number in range(300)]
        uids = list(pool.map(lambda name: make(plane.api, namespace, name), names))
    binds = [
        a_bind(namespace, name, uid, NODES[number % 2], decision=f"d-{number}")
        for number, (name, uid) in enumerate(zip(names, uids, strict=True))
    ]
    most = now = 0
    send = Binder._sent

    async def counted(self: Binder, *of: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return await send(self, *of)
        finally:
            now -= 1

    monkeypatch.setattr(Binder, "_sent", counted)
    done = loop.run(binder.bind_all([*binds, *binds]))
    assert {each.outcome for each in done} == {BindingState.BOUND}
    assert most == binder.in_flight
    created = [
        entry["objectRef"]["name"]
        for entry in plane.audit()
        if entry["objectRef"].get("subresource") == "binding"
        and entry["objectRef"]["namespace"] == namespace
        and entry["responseStatus"]["code"] == 201
    ]
    assert sorted(created) == sorted(names)


def test_while_the_store_is_frozen_nothing_is_known_and_nothing_is_freed(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    """A write hangs, and may come through long after we gave up on it."""
    uid = make(plane.api, namespace, "pod")
    bind = a_bind(namespace, "pod", uid)
    with a_transport(plane.kubeconfig, timeout_s=1) as (loop, transport):
        draws = np.random.default_rng(1)
        hasty = Binder(transport, draws, knows_node=nodes.__contains__, patience_s=2)
        plane.etcd.pause()
        try:
            unknown = bound((loop, hasty), bind)
        finally:
            plane.etcd.resume()
        assert unknown.outcome is BindingState.UNKNOWN
        assert unknown.outcome not in FREES
        wait_until(plane.api.ready, "the API server is back")
        patient = Binder(transport, draws, knows_node=nodes.__contains__, patience_s=120)
        assert bound((loop, patient), bind).outcome is BindingState.BOUND
    assert plane.api.pod(namespace, "pod")["spec"]["nodeName"] == bind.node


def test_a_binding_outlives_a_killed_api_server(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    uid = make(plane.api, namespace, "pod")
    with a_transport(plane.kubeconfig, timeout_s=5) as (loop, transport):
        draws = np.random.default_rng(1)
        binder = Binder(transport, draws, knows_node=nodes.__contains__, patience_s=180)
        plane.apiserver.kill()
        work = loop.begin(binder.bind(a_bind(namespace, "pod", uid)))
        plane.apiserver.start()
        assert work.result(180).outcome is BindingState.BOUND
