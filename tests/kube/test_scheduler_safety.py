"""Budgets and rights of the second scheduler: races, two copies, a killed leader."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until

RBAC = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "rbac.yaml"
NAME = "wattherd-safe"
LEASE = "wattherd"
"""The one that the shipped rights are for."""
DOMAIN = "pdu-safe"
NODES, GPUS, FIT = 6, 8, 20
RISE_W = 60
"""Of a T4 in use (70 W) above a free one (10 W), by the catalog."""
BUDGET_W = NODES * GPUS * 10 + FIT * RISE_W
EVERY_S = 0.2
PATIENCE_S = 240.0


@pytest.fixture
def account(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """A kubeconfig with the rights that we ship, and no others, for this namespace's account."""
    api = plane.api
    text = RBAC.read_text().replace("kube-system", namespace)
    made = [one for one in yaml.safe_load_all(text) if one["kind"] != "ServiceAccount"]
    token = api.token(namespace, "wattherd")
    for one in made:
        api.create(_path(one), one)
    yield plane.kubeconfig_of(token, "rbac")
    for one in made:
        api.delete(f"{_path(one)}/{one['metadata']['name']}")


def _path(made: Object) -> str:
    space = made["metadata"].get("namespace")
    inside = f"namespaces/{space}/" if space else ""
    return f"/apis/{made['apiVersion']}/{inside}{made['kind'].lower()}s"


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[list[str]]:
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": DOMAIN}
    names = plane.api.fleet(a_node(f"safe-{row}", gpus=GPUS, labels=labels) for row in range(NODES))
    yield names
    plane.api.remove_nodes(names)


def a_copy(kubeconfig: Path, namespace: str) -> subprocess.Popen[bytes]:
    options = [
        "--name",
        NAME,
        "--budget",
        f"{DOMAIN}={BUDGET_W}W",
        "--lease",
        f"{namespace}/{LEASE}",
    ]
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler"]
    return subprocess.Popen([*command, f"--kubeconfig={kubeconfig}", *options])


@contextmanager
def sampled(api: KubeApi, namespace: str) -> Iterator[list[float]]:
    """Watts of the domain by what is written on bound pods, again and again, and at the end.

    What stood between two looks may have been missed; what stands at the end is not.
    """
    seen: list[float] = []
    over = threading.Event()

    def draw_w() -> float:
        return NODES * GPUS * 10 + RISE_W * len(written(api, namespace))

    def look() -> None:
        while not over.wait(EVERY_S):
            seen.append(draw_w())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
        looking.result()
        seen.append(draw_w())


def written(api: KubeApi, namespace: str) -> dict[str, str]:
    """Watts that bindings reserved, by pod."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"]["wattherd.dev/watts"]
        for pod in items
        if pod["spec"].get("nodeName")
    }


def test_no_budget_is_exceeded_by_a_race_two_copies_and_a_killed_leader(
    plane: ControlPlane, namespace: str, account: Path, fleet: list[str]
) -> None:
    """200 pods for the watts of 20, with the rights that we ship; then the leader is killed."""
    del fleet
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    copies = [a_copy(account, namespace) for _ in range(2)]
    try:
        with sampled(api, namespace) as watts:
            api.create_all(pods, [a_pod(f"r-{n}", gpus=1, scheduler=NAME) for n in range(200)])
            wait_until(lambda: len(written(api, namespace)) == FIT, "all that fit run",
                       within_s=PATIENCE_S)  # fmt: skip
            leader = _leader(api, namespace, copies)
            leader.kill()
            leader.wait()
            for name in sorted(written(api, namespace))[:5]:
                api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
            wait_until(lambda: len(written(api, namespace)) == FIT, "the other one takes over",
                       within_s=PATIENCE_S)  # fmt: skip
    finally:
        for copy in copies:
            copy.terminate()
            copy.wait(timeout=60)
    assert max(watts) == BUDGET_W
    assert set(written(api, namespace).values()) == {str(RISE_W)}


def _leader(
    api: KubeApi, namespace: str, copies: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    lease = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}")
    holder = lease["spec"]["holderIdentity"]
    return next(copy for copy in copies if f"-{copy.pid}-" in holder)
