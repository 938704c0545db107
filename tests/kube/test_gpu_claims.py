"""GPUs that pods hold by claims of a GPU driver, allocated by a stock kube-scheduler.

No driver is at work: the slices are made as NVIDIA's publishes them, and pods run on KWOK's nodes.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import end, wait_until
from shipped_rights import account
from t4_racks import IDLE_W, RISE_W

from promises import promise

DRA = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
MIXED, PARTED = "claims-mixed", "claims-parted"
PRODUCT = {"nvidia.com/gpu.product": "Tesla-T4"}
GPUS, PARTS = 4, 3
"""GPUs of each node, and parts of each on the node that is parted."""


def a_device(name: str, **attributes: str) -> Object:
    told = {"productName": "Tesla T4", **attributes}
    return {"name": name, "attributes": {key: {"string": text} for key, text in told.items()}}


def a_slice(node: str, devices: list[Object]) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-gpus"}, "spec": spec}


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    """One whose plugin and driver publish the same GPUs, one whose driver publishes parts alone."""
    api = plane.api
    whole = [a_device(f"gpu-{n}", type="gpu", uuid=f"GPU-{n}") for n in range(GPUS)]
    parts = [
        a_device(f"gpu-{n}-mig-{part}", type="mig", uuid=f"MIG-{n}-{part}", parentUUID=f"GPU-{n}")
        for n in range(GPUS)
        for part in range(PARTS)
    ]
    api.create(f"{DRA}/deviceclasses", {
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    })  # fmt: skip
    names = api.fleet([a_node(MIXED, gpus=GPUS, labels=PRODUCT), a_node(PARTED, gpus=0)])
    slices = [a_slice(MIXED, whole), a_slice(PARTED, parts)]
    for one in slices:
        api.create(f"{DRA}/resourceslices", one)
    scheduler = plane.scheduler(name="gpu-claims")
    scheduler.start()
    yield
    scheduler.kill()
    for one in slices:
        api.delete(f"{DRA}/resourceslices/{one['metadata']['name']}")
    api.remove_nodes(names)
    api.delete(f"{DRA}/deviceclasses/{DRIVER}")


def claiming(api: KubeApi, namespace: str, name: str, node: str, count: int) -> None:
    """A pod whose claim has so many devices of the node, bound by kube-scheduler."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}
    spec = {"devices": {"requests": [request]}}
    api.create(f"{DRA}/namespaces/{namespace}/resourceclaims",
               {"metadata": {"name": name}, "spec": spec})  # fmt: skip
    more = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod(name, spec=more))
    wait_until(lambda: api.pod(namespace, name)["spec"].get("nodeName"), f"{name} is bound")


@contextmanager
def at_work(plane: ControlPlane, mode: str, *options: str) -> Iterator[str]:
    """A mode with its shipped rights; where its metrics are."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", mode, "--health=127.0.0.1:0"]
    with (
        account(plane, mode) as ours,
        subprocess.Popen(
            [*command, f"--kubeconfig={ours}", *options], stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("health on "), line + process.stderr.read()
            yield line.removeprefix("health on ").strip()
        finally:
            end(process)


def counted_w(url: str) -> float | None:
    """What may be drawn at the site, as it is told."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    head = 'wattherd_kube_counted_watts{domain=""} '
    return next((float(one.removeprefix(head)) for one in lines if one.startswith(head)), None)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("mode", ["scheduler", "admit", "dra"])
def test_every_mode_counts_a_gpu_once_for_as_long_as_a_claim_holds_some_of_it(
    plane: ControlPlane, namespace: str, mode: str
) -> None:
    api, idle_w = plane.api, 2 * GPUS * IDLE_W
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def counts(url: str, busy: int) -> None:
        watts = idle_w + busy * RISE_W
        wait_until(lambda: counted_w(url) == watts, lambda: f"{counted_w(url)} W, not {watts}")

    claiming(api, namespace, "two", MIXED, 2)
    with at_work(plane, mode, "--budget=9kW") as url:
        counts(url, 2)
        claiming(api, namespace, "parts", PARTED, 2)
        of = api.get(f"{DRA}/namespaces/{namespace}/resourceclaims/parts")["status"]["allocation"]
        gpus = {one["device"].rsplit("-", 2)[0] for one in of["devices"]["results"]}
        counts(url, 2 + len(gpus))
        claiming(api, namespace, "rest", PARTED, GPUS * PARTS - 2)
        counts(url, 2 + GPUS)
        api.delete(f"{pods}/parts")
        api.delete(f"{pods}/two")
        counts(url, GPUS)


@pytest.mark.usefixtures("nodes")
def test_our_pods_go_to_no_gpu_that_a_claim_holds(plane: ControlPlane, namespace: str) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"

    def bound() -> dict[str, str]:
        items = api.get(pods)["items"]
        ours = (one for one in items if one["spec"]["schedulerName"] == "wattherd")
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in ours}

    claiming(api, namespace, "three", MIXED, 3)
    with at_work(plane, "scheduler") as url:
        wait_until(lambda: counted_w(url), "it counts")
        for name in ("one", "other"):
            api.create(pods, a_pod(name, gpus=1, scheduler="wattherd"))

        def why() -> str:
            waits = [name for name, node in bound().items() if not node]
            told = api.pod(namespace, waits[0])["status"].get("conditions", ()) if waits else ()
            return "".join(one.get("message", "") for one in told)

        wait_until(lambda: sorted(bound().values()) == ["", MIXED] and why(), lambda: bound())
        promise(sorted(bound().values()) == ["", MIXED], bound())
        api.delete(f"{pods}/three")
        wait_until(lambda: set(bound().values()) == {MIXED}, lambda: f"{bound()}: {why()}")
