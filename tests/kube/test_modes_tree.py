"""Admission and devices under a tree of PowerDomain objects whose budget is cut while at work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import end, wait_until
from power_api import an_object, defined, path_of
from shipped_rights import kind_path

from promises import promise

FILES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "chart" / "files"
MODES = {
    "admit": ("gate-policy.yaml", "gate"),
    "dra": ("claim-policy.yaml", "claim"),
}
NODES, GPUS = 4, 4
IDLE_W, RISE_W = 10, 60
"""Of a T4 that is free, and what it adds in use, by the catalog."""
EMPTY_W = NODES * GPUS * IDLE_W
PATIENCE_S = 240.0


@contextmanager
def policy(api: KubeApi, name: str) -> Iterator[None]:
    made = list(yaml.safe_load_all((FILES / name).read_text()))
    for one in made:
        api.create(kind_path(one), one)
    try:
        yield
    finally:
        for one in made:
            api.delete(f"{kind_path(one)}/{one['metadata']['name']}")


@contextmanager
def at_work(plane: ControlPlane, mode: str) -> Iterator[None]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", mode]
    with subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"]) as process:
        try:
            yield
        finally:
            end(process)


@pytest.fixture
def hall(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """A hall above two racks, which select nodes by a label of theirs; nodes with their racks."""
    api = plane.api
    rack_of = {f"tree-{row}": str(row % 2) for row in range(NODES)}
    product = {"nvidia.com/gpu.product": "Tesla-T4"}
    api.fleet(
        a_node(name, gpus=GPUS, labels=product | {"rack": rack}) for name, rack in rack_of.items()
    )
    first = {"limit": watts(5, EMPTY_W // 2), "nodeSelector": {"matchLabels": {"rack": "0"}}}
    second = {"nodeSelector": {"matchLabels": {"rack": "1"}}}
    made = [
        an_object("PowerDomain", "tree-hall", limit="1MW"),
        an_object("PowerDomain", "tree-rack-0", parent="tree-hall", **first),
        an_object("PowerDomain", "tree-rack-1", parent="tree-hall", **second),
        an_object("PowerBudget", "tree-now", domain="tree-hall", constant=watts(9)),
    ]
    with defined(api):
        for one in made:
            api.create(path_of(one["kind"]), one)
        yield rack_of
    api.remove_nodes(rack_of)


def watts(count: int, empty_w: int = EMPTY_W) -> str:
    """A budget that bears so many busy GPUs."""
    return f"{empty_w + count * RISE_W}W"


def bound(api: KubeApi, namespace: str) -> dict[str, str]:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in items
        if pod["spec"].get("nodeName")
    }


def touched(pod: Object) -> bool:
    spec = pod["spec"]
    return bool(spec.get("schedulingGates") or spec.get("resourceClaims"))


@pytest.mark.parametrize("mode", MODES)
def test_every_branch_is_kept_and_a_cut_ends_the_least_important(
    plane: ControlPlane, namespace: str, hall: dict[str, str], mode: str
) -> None:
    """5 in the first rack, 9 in the hall; then 6: of those that run the less important go."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    file, word = MODES[mode]
    label = {"wattherd.dev/admission": word}
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    high = f"{namespace}-high"
    api.create(classes, {"metadata": {"name": high}, "value": 10})
    scheduler = plane.scheduler(name=f"tree-{mode}")
    scheduler.start()

    def count() -> int:
        return len(bound(api, namespace))

    with policy(api, file), at_work(plane, mode):
        dry = a_pod("dry", gpus=1, labels=label)
        wait_until(lambda: touched(api.as_made(namespace, dry)), "the policy is there")
        spec = {"priorityClassName": high}
        api.create_all(pods, [a_pod(f"a-{n}", gpus=1, labels=label, spec=spec) for n in range(4)])
        wait_until(lambda: count() == 4, "the important ones run", within_s=PATIENCE_S)
        api.create_all(pods, [a_pod(f"b-{n}", gpus=1, labels=label) for n in range(20)])
        wait_until(lambda: count() == 9, "all that fit run", within_s=PATIENCE_S)
        now = bound(api, namespace)
        promise(sum(hall[node] == "0" for node in now.values()) <= 5, now)
        budget = path_of("PowerBudget", "tree-now")
        api.merge(budget, {"spec": {"constant": watts(6)}})
        wait_until(lambda: count() == 6, "the cut is kept", within_s=PATIENCE_S)
        assert {f"a-{n}" for n in range(4)} <= bound(api, namespace).keys()
        api.merge(budget, {"spec": {"constant": watts(8)}})
        wait_until(lambda: count() == 8, "it rose again", within_s=PATIENCE_S)
    scheduler.kill()
    api.delete(f"{classes}/{high}")
