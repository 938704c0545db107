"""A run whose turn is over is told, stops, and comes back, and no failed pod is counted for it."""

from __future__ import annotations

import copy
import time
from datetime import UTC, datetime

import kube_ledger
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from test_power_budgets import priorities
from test_second_scheduler import T4, a_scheduler, bound, nodes_of

__all__ = ["priorities"]

NAME = "wattherd-stops"
NOTICE_S = 4
LONG_S = 120.0


def a_job(name: str, priority: str, pods: int, **annotations: str) -> Object:
    """One gang, of which no pod may fail."""
    labels = {"kueue.x-k8s.io/pod-group-name": name}
    size = {"kueue.x-k8s.io/pod-group-total-count": str(pods)}
    spec = {"restartPolicy": "Never", "priorityClassName": priority}
    pod = a_pod("any", gpus=1, scheduler=NAME, spec=spec)
    meta = {"labels": labels, "annotations": size | annotations}
    template = {"metadata": meta, "spec": pod["spec"]}
    counts = {"parallelism": pods, "completions": pods, "backoffLimit": 0}
    return {"metadata": {"name": name}, "spec": {**counts, "template": template}}


def status(api: KubeApi, namespace: str, name: str) -> Object:
    found: Object = api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")["status"]
    return found


def runs(api: KubeApi, namespace: str, name: str) -> int:
    return sum(1 for pod in bound(api, namespace) if pod.startswith(f"{name}-"))


def test_who_is_preempted_is_told_first_comes_back_and_has_not_failed(
    plane: ControlPlane, namespace: str, priorities: dict[str, str]
) -> None:
    """Two jobs of two GPUs each on a node of two; the one that runs says how long it needs."""
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    health = kube_ledger.an_address()
    with (
        nodes_of(api, [a_node(f"{namespace}-n", gpus=2, labels=T4)]),
        a_scheduler(plane, NAME, "--scheduler=priority", f"--health={health}"),
    ):
        notice = {"wattherd.dev/checkpoint-notice": f"{NOTICE_S}s"}
        api.create(jobs, a_job("low", priorities["low"], 2, **notice))
        wait_until(lambda: runs(api, namespace, "low") == 2, "it runs", within_s=LONG_S)
        first = set(bound(api, namespace))
        api.create(jobs, a_job("high", priorities["high"], 2))
        told: dict[str, str] = {}

        def all_told() -> bool:
            for pod in api.get(pods)["items"]:
                text = pod["metadata"].get("annotations", {}).get("wattherd.dev/stop-at")
                if text:
                    told[pod["metadata"]["name"]] = text
            return told.keys() == first

        wait_until(all_told, lambda: f"told: {told}", within_s=LONG_S)
        asked_s = time.monotonic()
        for text in told.values():
            at, _, reason = text.partition(" ")
            left_s = (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()
            assert 0 <= left_s + 1 <= NOTICE_S + 2
            assert reason == "PreemptedForPriority"
        assert set(bound(api, namespace)) == first, "it may save what it has until then"
        wait_until(lambda: runs(api, namespace, "high") == 2, "its turn", within_s=LONG_S)
        assert time.monotonic() - asked_s > NOTICE_S - 2

        def waits_again() -> bool:
            items = api.get(pods, labelSelector="job-name=low")["items"]
            return len(items) == 2 and not any(one["spec"].get("nodeName") for one in items)

        wait_until(waits_again, "its pods are made anew and wait", within_s=LONG_S)
        about = api.get(f"{jobs}/low")
        assert not about["spec"].get("suspend")
        assert "wattherd.dev/suspended" not in about["metadata"].get("labels", {})
        assert not status(api, namespace, "low").get("failed")
        api.delete(f"{jobs}/high", propagationPolicy="Background")
        wait_until(lambda: runs(api, namespace, "low") == 2, "it runs again", within_s=LONG_S)
        stopped = 'stopped_pods_total{reason="PreemptedForPriority",way="suspended"}'
        bindings = 'attempts_total{outcome="bound"}'
        figures = {stopped: 2, "wait_seconds_count": 6, bindings: 6}
        # A wait is over for the process when it hears of the binding, after others may have.
        wait_until(lambda: figures.items() <= kube_ledger.counted(health).items(),
                   lambda: f"{kube_ledger.counted(health)}")  # fmt: skip
        last = copy.deepcopy(status(api, namespace, "low"))
        assert not last.get("failed"), last
        assert not any(one["type"] == "Failed" for one in last.get("conditions", ())), last


def test_a_leader_that_comes_later_lets_a_stopped_job_run_on(
    plane: ControlPlane, namespace: str, priorities: dict[str, str]
) -> None:
    """Whoever suspended it is no more, and its pods are gone."""
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made = a_job("left", priorities["low"], 1)
    made["metadata"]["labels"] = {"wattherd.dev/suspended": "turn"}
    made["spec"]["suspend"] = True
    api.create(jobs, made)
    with (
        nodes_of(api, [a_node(f"{namespace}-n", gpus=1, labels=T4)]),
        a_scheduler(plane, NAME, "--scheduler=fifo"),
    ):
        wait_until(lambda: runs(api, namespace, "left") == 1, "it runs", within_s=LONG_S)
        assert not api.get(f"{jobs}/left")["spec"].get("suspend")
