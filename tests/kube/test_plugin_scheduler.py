"""A package's scheduler decides on a control plane, and what it does wrong is a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

pytest.importorskip("hatchling", reason="builds the package: of the development tools")

from plugin_packages import install_both

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_both(tmp_path_factory.mktemp("packages"))


def test_a_packages_scheduler_and_power_policy_decide_who_runs(
    plane: ControlPlane, namespace: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs; the pod with the longest name came first, and waits."""
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    pods = ("the-longest", "middle", "a")
    with nodes_of(plane.api, [a_node(f"{namespace}-n", gpus=2, labels=T4)]):
        for name in pods:
            made = a_pod(name, gpus=1, scheduler="short-names")
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", made)
        options = ("--scheduler=short-names-first", "--power=square-root", "--budget=200W")
        with a_scheduler(plane, "short-names", *options):
            wait_until(
                lambda: set(bound(plane.api, namespace)) == {"middle", "a"},
                lambda: str(bound(plane.api, namespace)),
                within_s=PATIENCE_S,
            )
            wait_until(
                lambda: "devices that others give back" in why(plane.api, namespace, pods[0]),
                lambda: why(plane.api, namespace, pods[0]),
                within_s=PATIENCE_S,
            )
            plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/a")
            wait_until(
                lambda: pods[0] in bound(plane.api, namespace),
                lambda: why(plane.api, namespace, pods[0]),
                within_s=PATIENCE_S,
            )


def test_a_packages_scheduler_that_raises_is_a_reason_of_its_pods(
    plane: ControlPlane, namespace: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    with nodes_of(plane.api, [a_node(f"{namespace}-n", gpus=2, labels=T4)]):
        made = a_pod("waits", gpus=1, scheduler="raising")
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", made)
        with a_scheduler(plane, "raising", "--scheduler=raises"):
            wait_until(
                lambda: "to be mended: KeyError" in why(plane.api, namespace, "waits"),
                lambda: why(plane.api, namespace, "waits"),
                within_s=PATIENCE_S,
            )
            assert bound(plane.api, namespace) == {}
