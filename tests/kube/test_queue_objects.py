"""Queue objects on a cluster: promises kept, lent and taken back, quota told, status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_server import wait_until
from power_api import an_object, condition, defined, path_of

NAME = "wattherd-queues"
LONG_S = 240.0
QUEUES = {
    "research": {"guaranteedPercent": 75},
    "vision": {"parent": "research", "weight": 2},
    "speech": {"parent": "research", "weight": 1},
    "students": {"guaranteedPercent": 25, "maximumPercent": 75},
}


@pytest.fixture(scope="module", autouse=True)
def _kinds(plane: ControlPlane) -> Iterator[None]:
    with defined(plane.api):
        yield


@pytest.fixture
def scheduler(plane: ControlPlane) -> Iterator[None]:
    """On eight GPUs, with queues."""
    api = plane.api
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    nodes = api.fleet(a_node(f"queues-{row}", gpus=4, labels=labels) for row in range(2))
    for name, spec in QUEUES.items():
        api.create(path_of("Queue"), an_object("Queue", name, **spec))
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", f"--name={NAME}"]
    with subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"]) as process:
        yield
        process.terminate()
        process.wait(timeout=60)
    api.remove_nodes(nodes)


@pytest.mark.usefixtures("scheduler")
def test_queues_lend_take_back_and_tell(plane: ControlPlane, namespace: str) -> None:
    """Students borrow up to their maximum; research takes back what it is promised."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"

    def create(queue: str, count: int, label: str) -> None:
        for number in range(count):
            made = a_pod(f"{queue}-{number}", gpus=1, scheduler=NAME, labels={label: queue})
            api.create(pods, made)

    def bound(queue: str) -> int:
        items = api.get(pods)["items"]
        names = [pod["metadata"]["name"] for pod in items if pod["spec"].get("nodeName")]
        return sum(name.startswith(queue) for name in names)

    create("students", 7, "kueue.x-k8s.io/queue-name")
    wait_until(lambda: bound("students") == 6, "students borrow", within_s=LONG_S)

    def waits() -> str:
        told = [
            one["message"]
            for pod in api.get(pods)["items"]
            for one in pod["status"].get("conditions", ())
            if one["type"] == "PodScheduled" and one["status"] == "False"
        ]
        return " ".join(told)

    wait_until(lambda: "QuotaExceeded" in waits(), "quota is told", within_s=LONG_S)
    assert "queue 'students' may hold 6 GPUs at most" in waits()

    def status(queue: str) -> dict[str, float]:
        found: dict[str, float] = api.get(path_of("Queue", queue)).get("status", {})
        return found

    wait_until(lambda: status("students").get("borrowedGpus") == 4, "borrowing is told")
    assert (status("students")["pending"], status("students")["admitted"]) == (1, 6)
    create("vision", 6, "wattherd.dev/queue")
    wait_until(lambda: bound("vision") == 6, "what was lent is given back", within_s=LONG_S)
    assert bound("students") == 2
    wait_until(lambda: status("research").get("usedGpus") == 6, "the queue above counts them")
    api.merge(path_of("Queue", "students"), {"spec": {"guaranteedPercent": 50}})
    ready = lambda: condition(api, "Queue", "research")  # noqa: E731
    wait_until(lambda: ready().get("reason") == "Invalid", "too much is promised")
    assert "research, students are promised 125 %" in ready()["message"]
    assert bound("vision") == 6
