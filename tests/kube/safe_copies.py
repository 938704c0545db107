"""Copies of the second scheduler with the rights that we ship, and the watts that they hand out."""

from __future__ import annotations

import http
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kube_server
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node
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
LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": DOMAIN}
Copy = subprocess.Popen[Any]


@contextmanager
def shipped_rights(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """A kubeconfig with the rights that we ship, and no others, for this namespace's account."""
    made = shipped_objects(namespace)
    token = plane.api.token(namespace, "wattherd")
    try:
        for one in made:
            plane.api.create(path_of(one), one)
        yield plane.kubeconfig_of(token, "rbac")
    finally:
        for one in made:
            plane.api.call("DELETE", f"{path_of(one)}/{one['metadata']['name']}")


def shipped_objects(namespace: str) -> list[Object]:
    text = RBAC.read_text().replace("kube-system", namespace)
    return [one for one in yaml.safe_load_all(text) if one["kind"] != "ServiceAccount"]


def path_of(made: Object) -> str:
    space = made["metadata"].get("namespace")
    inside = f"namespaces/{space}/" if space else ""
    version = made["apiVersion"]
    root = "apis" if "/" in version else "api"
    return f"/{root}/{version}/{inside}{made['kind'].lower()}s"


@contextmanager
def safe_fleet(plane: ControlPlane) -> Iterator[list[str]]:
    """Six nodes of eight T4s in one domain."""
    names = plane.api.fleet(a_node(f"safe-{row}", gpus=GPUS, labels=LABELS) for row in range(NODES))
    try:
        yield names
    finally:
        plane.api.remove_nodes(names)


def a_copy(
    kubeconfig: Path, namespace: str, *more: str, budget_w: int = BUDGET_W, **options: Any
) -> Copy:
    """A process that schedules while it has the lease; `options` are those of `Popen`."""
    given = ["--name", NAME, "--budget", f"{DOMAIN}={budget_w}W", "--lease", f"{namespace}/{LEASE}"]
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler"]
    return subprocess.Popen([*command, f"--kubeconfig={kubeconfig}", *given, *more], **options)


def end(copy: Copy) -> None:
    """In peace: its lease is given back."""
    kube_server.end(copy, within_s=120)


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


def written(api: KubeApi, namespace: str, note: str = "watts") -> dict[str, str]:
    """What bindings wrote, by pod: the watts they reserved, or another annotation of ours."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][f"wattherd.dev/{note}"]
        for pod in items
        if pod["spec"].get("nodeName")
    }


def holder(api: KubeApi, namespace: str, lease: str = LEASE) -> str:
    """Who has the lease; empty if nobody has."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"
    status, found = api.call("GET", path)
    return str(found["spec"].get("holderIdentity") or "") if status == http.HTTPStatus.OK else ""


def kill_holder(api: KubeApi, namespace: str, lease: str) -> str:
    """Whoever has the lease, a process started here; says who that was."""
    identity = holder(api, namespace, lease)
    pid = int(identity.split("-")[-2])
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
    return identity


def kill_holder_amid(
    api: KubeApi,
    namespace: str,
    lease: str,
    making: Callable[[], object],
    begun: Callable[[], object],
) -> str:
    """Whoever has the lease, once it has `begun` and while we are `making`; says who that was.

    Not before somebody has it: where something else binds (kube-scheduler, by what an earlier
    leader left), the first pod may run before there is anybody to kill.
    """
    wait_until(lambda: holder(api, namespace, lease), "somebody leads", within_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(making)
        wait_until(begun, "the first run", every_s=0.005)
        killed = kill_holder(api, namespace, lease)
        work.result()
    return killed


def wait_succeeded(api: KubeApi, namespace: str, lease: str, before: str) -> None:
    """Until another one leads than `before`."""
    wait_until(lambda: holder(api, namespace, lease) not in ("", before), "the other one leads",
               within_s=PATIENCE_S)  # fmt: skip


def is_of(copy: Copy, identity: str) -> bool:
    return f"-{copy.pid}-" in identity


def leader(api: KubeApi, namespace: str, copies: list[Copy]) -> Copy:
    """The copy that has the lease."""
    identity = holder(api, namespace)
    return next(copy for copy in copies if is_of(copy, identity))
