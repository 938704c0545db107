"""Pools that Karpenter or the Cluster Autoscaler scales grow within the watts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from control_plane import ControlPlane
from growth_kinds import DEFINITIONS, define
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_pools import account

POOLS, CLAIMS = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims"
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
STATED = "wattherd.dev/stated-gpus"


@pytest.fixture(scope="module", autouse=True)
def _kinds(plane: ControlPlane) -> Iterator[None]:
    made = define(plane.api)
    yield
    for name in made:
        plane.api.delete(f"{DEFINITIONS}/{name}")


@contextmanager
def keeper(plane: ControlPlane, *options: str) -> Iterator[list[str]]:
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "wattherd.cli.main"]
    given = [f"--kubeconfig={account(plane)}", "--grow", "--idle-after=1s", "--hold=0s"]
    said: list[str] = []
    with subprocess.Popen(
        [*command, "kube", "pools", *given, *options], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = process.stderr
        reader = threading.Thread(target=lambda: said.extend(iter(lines.readline, "")), daemon=True)
        reader.start()
        try:
            yield said
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
            reader.join()


def a_pool(name: str, domain: str, gpus: str | None = None, **annotations: str) -> Object:
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": domain}
    spec: dict[str, Any] = {"template": {"metadata": {"labels": labels}, "spec": {}}}
    spec["limits"] = {"cpu": "1000", **({"nvidia.com/gpu": gpus} if gpus else {})}
    about = {"name": name, "annotations": {f"wattherd.dev/{k}": v for k, v in annotations.items()}}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": about, "spec": spec}


def limit(plane: ControlPlane, name: str) -> str | None:
    found: str | None = plane.api.get(f"{POOLS}/{name}")["spec"]["limits"].get("nvidia.com/gpu")
    return found


def test_karpenters_pools_may_have_the_gpus_that_there_are_watts_for(
    plane: ControlPlane, namespace: str
) -> None:
    """A T4 draws 70 W at most and 10 W idle (catalog)."""
    api, domain, node = plane.api, f"pdu-{namespace}", f"{namespace}-node"
    plane.api.create(POOLS, a_pool(namespace, domain, gpus="6"))
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": domain}
    try:
        with keeper(plane, f"--budget={domain}=400W") as said:
            wait_until(lambda: limit(plane, namespace) == "5", lambda: f"five of 70 W: {said}")
            noted = api.get(f"{POOLS}/{namespace}")["metadata"]["annotations"][STATED]
            assert noted == "6"
            made = a_node(node, gpus=2, labels={**labels, "karpenter.sh/nodepool": namespace})
            api.fleet([made])  # idle: 20 W, so that five more fit
            wait_until(lambda: limit(plane, namespace) == "6", "no more than was stated")
            pods = f"/api/v1/namespaces/{namespace}/pods"
            api.create(pods, a_pod("busy", gpus=2, spec={"nodeName": node}))
            # 140 W are drawn, so that three more fit
            wait_until(lambda: limit(plane, namespace) == "5", "two and three more")
    finally:
        api.delete(f"{POOLS}/{namespace}")
        api.remove_nodes([node])


def test_idle_nodes_of_karpenter_go_with_their_claims(plane: ControlPlane, namespace: str) -> None:
    api, node = plane.api, f"{namespace}-node"
    api.fleet([a_node(node, gpus=1, labels={"nvidia.com/gpu.product": "Tesla-T4"})])
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": namespace}}
    api.create(CLAIMS, {**claim, "spec": {}})
    api.merge(f"{CLAIMS}/{namespace}/status", {"status": {"nodeName": node}})
    try:
        with keeper(plane):
            gone = lambda: api.call("GET", f"{CLAIMS}/{namespace}")[0] == 404  # noqa: E731
            wait_until(gone, "its claim is deleted")
    finally:
        api.remove_nodes([node])


def test_the_cluster_autoscaler_is_asked_once_there_are_watts(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    requests = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{namespace}/provisioningrequests"
    for name, count in (("large", 4), ("small", 2)):
        for number in range(count):
            pod = a_pod(f"{name}-{number}", gpus=1, annotations={CONSUMES: name}, scheduler="x")
            api.create(pods, pod)
    nodes = api.fleet([a_node(f"{namespace}-node", gpus=0)])

    def asked() -> set[str]:
        return {one["metadata"]["name"] for one in api.get(requests)["items"]}

    try:
        with keeper(plane, "--budget=1500W", "--gpu-power=700W") as said:
            wait_until(lambda: asked() == {"small"}, lambda: f"asked for: {asked()} {said}")
            wait_until(lambda: any("4 GPUs need 2800 W" in line for line in said), "told why not")
        spec = api.get(f"{requests}/small")["spec"]
        assert spec["podSets"] == [{"count": 2, "podTemplateRef": {"name": "small"}}]
        assert spec["provisioningClassName"].startswith("best-effort-atomic-scale-up.")
        template = api.get(f"/api/v1/namespaces/{namespace}/podtemplates/small")["template"]
        assert template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert not template["spec"].get("volumes")
        with keeper(plane, "--budget=4500W", "--gpu-power=700W") as said:
            wait_until(lambda: asked() == {"small", "large"}, lambda: f"asked for all: {said}")
    finally:
        api.remove_nodes(nodes)
