"""The plane that the other tests stand on does what a cluster does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Refused, a_node, a_pod
from kube_cluster import Cluster, NamedCluster
from kube_server import wait_until


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[list[str]]:
    names = cluster.api.fleet(a_node(f"smoke-{index}", gpus=4) for index in range(3))
    yield names
    cluster.api.remove_nodes(names)


def test_a_pod_is_bound_by_kube_scheduler_runs_and_ends(
    plane: ControlPlane, fleet: list[str], namespace: str
) -> None:
    api = plane.api
    scheduler = plane.scheduler(name="smoke")
    scheduler.start()
    try:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        api.create(pods, a_pod("ends", gpus=4, runs="100ms"))
        api.create(pods, a_pod("stays", gpus=4))
        api.create(pods, a_pod("too-large", gpus=5))
        wait_until(lambda: api.phase(namespace, "ends") == "Succeeded", "the pod ended")
        wait_until(lambda: api.phase(namespace, "stays") == "Running", "the pod runs")
        assert api.pod(namespace, "stays")["spec"]["nodeName"] in fleet
        wait_until(lambda: _waits_for_gpus(api, namespace), "the scheduler says why")
    finally:
        scheduler.kill()
    binds = [each["objectRef"]["name"] for each in plane.audit() if _is_bind(each, namespace)]
    assert sorted(binds) == ["ends", "stays"]


def _waits_for_gpus(api: KubeApi, namespace: str) -> bool:
    conditions = api.pod(namespace, "too-large")["status"].get("conditions", ())
    return any("Insufficient nvidia.com/gpu" in each.get("message", "") for each in conditions)


def _is_bind(entry: dict[str, object], namespace: str) -> bool:
    about = entry["objectRef"]
    assert isinstance(about, dict)
    return about.get("subresource") == "binding" and about["namespace"] == namespace


def test_a_service_account_may_do_nothing_until_it_is_told_so(
    plane: ControlPlane, namespace: str
) -> None:
    token = plane.api.token(namespace, "nobody")
    nobody = KubeApi(plane.url, plane.tls(), token)
    with closing(nobody), pytest.raises(Refused, match=r'cannot list resource "pods"') as refused:
        nobody.get(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.status == 403


def test_kubectl_and_the_kubeconfig_agree_with_the_plane(
    plane: ControlPlane, kube_programs: Path, tmp_path: Path
) -> None:
    command = [kube_programs / "kubectl", f"--kubeconfig={plane.kubeconfig}", "version", "-o=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    versions = json.loads(done.stdout)
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"]
    with closing(NamedCluster(plane.kubeconfig, tmp_path)) as named:
        assert named.api.ready()


def test_nothing_listens_beyond_this_machine(plane: ControlPlane) -> None:
    ours = {each.pid for each in (plane.etcd, plane.apiserver, plane.controllers, plane.kwok)}
    inodes = {inode for pid in ours for inode in _sockets(pid)}
    assert inodes
    open_to_all = [
        line
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if _listens(line) and line.split()[9] in inodes and not _on_loopback(line)
    ]
    assert not open_to_all


def _sockets(pid: int) -> set[str]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(each.readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:"):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def _listens(line: str) -> bool:
    return line.split()[3] == "0A"


def _on_loopback(line: str) -> bool:
    return line.split()[1].split(":", maxsplit=1)[0] == "0100007F"


def test_a_killed_api_server_and_a_killed_etcd_come_back_with_their_data(
    plane: ControlPlane, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    plane.api.create(maps, {"metadata": {"name": "kept"}, "data": {"told": "before"}})
    plane.apiserver.kill()
    assert not plane.api.ready()
    plane.etcd.kill()
    plane.etcd.start()
    plane.apiserver.start()
    assert plane.api.get(f"{maps}/kept")["data"] == {"told": "before"}
