"""A Job grows into idle GPUs and shrinks for others, by the planner, and no pod fails for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import end, wait_until
from test_second_scheduler import T4, bound, nodes_of

NAME = "wattherd-elastic"
LONG_S = 180.0
SLICE_S = 5.0
"""Of gandiva, for which it is a hundredth of the mean length of jobs: minutes."""
PROGRAM = f"""
from wattherd.experiments.schedule import simulators
from wattherd.policy.schedule.gandiva import Gandiva
simulators.Gandiva = lambda quantum_s, within: Gandiva(quantum_s={SLICE_S}, within=within)
from wattherd.cli.main import main
main()
"""


@contextmanager
def a_scheduler(plane: ControlPlane) -> Iterator[None]:
    options = [f"--kubeconfig={plane.kubeconfig}", f"--name={NAME}", "--scheduler=gandiva"]
    command = [sys.executable, "-c", PROGRAM, "kube", "scheduler", *options]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            end(process)


def a_job(name: str, pods: int, *, widths: str = "") -> Object:
    labels = {"wattherd.dev/elastic": widths} if widths else {}
    pod = a_pod("any", gpus=1, scheduler=NAME, spec={"restartPolicy": "Never"})
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    meta = {"name": name, "labels": labels}
    return {"metadata": meta, "spec": {**spec, "backoffLimit": 0, "template": template}}


def runs(api: KubeApi, namespace: str, name: str) -> int:
    return sum(1 for pod in bound(api, namespace) if pod.startswith(f"{name}-"))


def test_a_job_grows_into_idle_gpus_and_shrinks_for_others_without_a_failed_pod(
    plane: ControlPlane, namespace: str
) -> None:
    """Four GPUs: one pod becomes four, and gives them back when another job comes."""
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def size(name: str) -> tuple[int, int]:
        spec = api.get(f"{jobs}/{name}")["spec"]
        return spec["parallelism"], spec["completions"]

    def said() -> str:
        items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        pods = {one["metadata"]["name"]: one["spec"].get("nodeName") for one in items}
        return f"{api.get(f'{jobs}/elastic')} {pods}"

    with nodes_of(api, [a_node(f"{namespace}-n", gpus=4, labels=T4)]), a_scheduler(plane):
        api.create(jobs, a_job("elastic", 1, widths="1-4"))
        wait_until(lambda: runs(api, namespace, "elastic") == 4, said, within_s=LONG_S)
        assert size("elastic") == (4, 4)
        api.create(jobs, a_job("rigid", 1))
        both = lambda: [runs(api, namespace, name) for name in ("rigid", "elastic")]  # noqa: E731
        wait_until(lambda: both() in ([1, 1], [1, 3]), said, within_s=LONG_S)
        told = api.get(f"{jobs}/elastic")
        assert not told["status"].get("failed"), told["status"]
        assert not any(one["type"] == "Failed" for one in told["status"].get("conditions", ()))
        assert not told["spec"].get("suspend")
        api.delete(f"{jobs}/rigid", propagationPolicy="Background")
        wait_until(lambda: runs(api, namespace, "elastic") == 4, said, within_s=LONG_S)
        last = api.get(f"{jobs}/elastic")["status"]
        assert not last.get("failed"), last
