"""Requests to a real API server that is busy, unwilling, frozen, or not ours."""

from __future__ import annotations

import asyncio
import http
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_cluster import Cluster
from kube_parts import a_transport
from kube_server import wait_until

from wattherd.kube.api.access import find_access, in_cluster
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi, RequestLimits, Transport

RBAC = "rbac.authorization.k8s.io"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


def version(loop: LoopThread, transport: Transport) -> int:
    return loop.run(transport.request("GET", "/version")).status


# --- who we are --------------------------------------------------------------------------------


def test_a_client_certificate_is_enough(plane: ControlPlane) -> None:
    user = {"client-certificate": "admin.crt", "client-key": "admin.key"}
    with a_transport(plane.write_kubeconfig("certificate", user)) as client:
        loop, transport = client
        assert loop.run(transport.request("GET", "/api/v1/namespaces")).status == http.HTTPStatus.OK


def test_a_program_gives_a_token_that_the_server_takes(plane: ControlPlane) -> None:
    script = plane.folder / "login"
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        f'"status":{{"token":"{plane.token}"}}}}'
    )
    script.write_text(f"#!/bin/sh\necho '{credential}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    login = {"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"}
    with a_transport(plane.write_kubeconfig("program", {"exec": login})) as client:
        assert version(*client) == http.HTTPStatus.OK


def test_a_token_that_was_replaced_on_disk_is_used_at_once(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """As of a service account: the first answer to the old one is 401."""
    host, port = plane.url.removeprefix("https://").split(":")
    (tmp_path / "ca.crt").write_bytes((plane.folder / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "token").write_text("of-yesterday")
    inside = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = in_cluster(inside, tmp_path)

    async def ask() -> int:
        async with Transport(access) as transport:
            with pytest.raises(RefusedByApi) as refused:
                await transport.request("GET", "/version")
            assert refused.value.status == http.HTTPStatus.UNAUTHORIZED
            (tmp_path / "token").write_text(plane.token)
            return (await transport.request("GET", "/version")).status

    assert asyncio.run(ask()) == http.HTTPStatus.OK


def test_a_server_that_is_not_the_one_we_know_gets_no_token(
    plane: ControlPlane, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.crt")
    text = plane.kubeconfig.read_text().replace(f"{plane.folder}/ca.crt", f"{tmp_path}/other.crt")
    (tmp_path / "config").write_text(text)
    with (
        a_transport(tmp_path / "config") as client,
        pytest.raises(ApiUnreachable, match="certificate"),
    ):
        version(*client)


def test_whoever_acts_for_another_has_the_rights_of_that_one(
    plane: ControlPlane, namespace: str
) -> None:
    user = {"token": plane.token, "as": "ada", "as-groups": ["lab"]}
    with a_transport(plane.write_kubeconfig("acting", user)) as client:
        loop, transport = client
        with pytest.raises(RefusedByApi, match='User "ada" cannot list'):
            loop.run(transport.request("GET", "/api/v1/nodes"))


# --- answers -----------------------------------------------------------------------------------


def test_a_refusal_has_the_words_of_the_server(cluster: Cluster) -> None:
    with (
        a_transport(cluster.kubeconfig) as (loop, transport),
        pytest.raises(RefusedByApi) as refused,
    ):
        loop.run(transport.request("GET", "/api/v1/nodes/nowhere"))
    assert (refused.value.status, refused.value.reason) == (404, "NotFound")
    assert str(refused.value) == '404 NotFound: nodes "nowhere" not found'


def test_nobody_there_is_told_apart_from_a_refusal(plane: ControlPlane, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(plane.kubeconfig.read_text().replace(plane.url, "https://127.0.0.1:1"))
    with a_transport(config) as client, pytest.raises(ApiUnreachable, match="127\\.0\\.0\\.1"):
        version(*client)


def test_a_frozen_server_is_given_up_on_in_time(plane: ControlPlane) -> None:
    with a_transport(plane.kubeconfig, timeout_s=1) as client:
        version(*client)
        plane.apiserver.pause()
        try:
            with pytest.raises(ApiUnreachable, match="no answer within 1 s"):
                version(*client)
        finally:
            plane.apiserver.resume()
        wait_until(plane.api.ready, "the server is back")


def test_requests_take_turns_at_the_rate_they_were_given(cluster: Cluster) -> None:
    with a_transport(cluster.kubeconfig, rate_per_s=0.01, burst=2, timeout_s=2) as client:
        assert [version(*client) for _ in range(2)] == [200, 200]
        with pytest.raises(ApiUnreachable, match="no answer within 2 s"):
            version(*client)


# --- too many requests -------------------------------------------------------------------------


@pytest.fixture
def narrow(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """Kubeconfig of a user who may read, one request at a time; a second one is answered 429."""
    level = {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    }
    account = {"kind": "ServiceAccount", "name": "busy", "namespace": namespace}
    rule = {
        "subjects": [
            {"kind": "ServiceAccount", "serviceAccount": {"name": "busy", "namespace": namespace}}
        ],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
        ],
    }
    flow = {
        "priorityLevelConfiguration": {"name": namespace},
        "matchingPrecedence": 2,
        "rules": [rule],
    }
    token = plane.api.token(namespace, "busy")
    rights = {
        "metadata": {"name": "busy"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"},
        "subjects": [account],
    }
    plane.api.create(f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", rights)
    about = {"metadata": {"name": namespace}}
    plane.api.create(f"{FLOW}/prioritylevelconfigurations", {**about, "spec": level})
    plane.api.create(f"{FLOW}/flowschemas", {**about, "spec": flow})
    yield plane.kubeconfig_of(token, f"{namespace}-busy")
    plane.api.delete(f"{FLOW}/flowschemas/{namespace}")
    plane.api.delete(f"{FLOW}/prioritylevelconfigurations/{namespace}")


def test_who_is_turned_away_comes_again_when_told_to(
    plane: ControlPlane, namespace: str, narrow: Path
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/any"
    plane.api.create(path.rpartition("/")[0], {"metadata": {"name": "any"}})
    with a_transport(narrow, timeout_s=180) as (loop, transport):
        wait_until(lambda: may_read(loop, transport, path), "the rights have taken effect")
        plane.etcd.pause()
        try:
            first = loop.begin(transport.request("GET", path))  # waits for etcd, and in the way
            wait_until(lambda: is_turned_away(loop, transport), "there is no second place")
            second = loop.begin(transport.request("GET", "/version"))
        finally:
            plane.etcd.resume()
        assert first.result(180).status == http.HTTPStatus.OK
        assert second.result(180).status == http.HTTPStatus.OK
    wait_until(plane.api.ready, "all is well again")


def may_read(loop: LoopThread, transport: Transport, path: str) -> bool:
    try:
        return loop.run(transport.request("GET", path)).status == http.HTTPStatus.OK
    except RefusedByApi:
        return False


def is_turned_away(loop: LoopThread, transport: Transport) -> bool:
    """By one request without patience."""

    async def ask() -> bool:
        try:
            await transport.request("GET", "/version", timeout_s=0.9)  # less than the server asks
        except ApiUnreachable:
            return True
        return False

    return loop.run(ask())


def test_a_disruption_budget_is_an_answer_and_not_a_wait(cluster: Cluster, namespace: str) -> None:
    """Eviction says 429 as well; coming again would not help."""
    node = f"{namespace}-node"
    cluster.api.fleet([a_node(node)])
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = cluster.api.create(pods, a_pod("kept", labels={"app": "kept"}, spec={"nodeName": node}))
    budget = {
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.api.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
    wait_until(lambda: cluster.api.phase(namespace, "kept") == "Running", "the pod runs")
    body = b'{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"kept"}}'
    with (
        a_transport(cluster.kubeconfig, timeout_s=60) as (loop, transport),
        pytest.raises(RefusedByApi, match="disruption budget") as refused,
    ):
        loop.run(transport.request("POST", f"{pods}/kept/eviction", body=body))
    assert refused.value.status == http.HTTPStatus.TOO_MANY_REQUESTS
    assert cluster.api.pod(namespace, "kept")["metadata"]["uid"] == made["metadata"]["uid"]
    cluster.api.remove_nodes([node])


# --- loops -------------------------------------------------------------------------------------


def test_a_transport_outside_its_context_says_so(cluster: Cluster) -> None:
    transport = Transport(find_access(cluster.kubeconfig), RequestLimits())
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(transport.request("GET", "/version"))


def test_a_loop_that_is_closed_cancels_its_work_and_ends_its_thread() -> None:
    loop = LoopThread("short-lived")
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop.begin(work())
    assert begun.wait(60)
    loop.close()
    loop.close()
    assert cancelled.is_set()
    assert "short-lived" not in {thread.name for thread in threading.enumerate()}
