"""Budgets of PowerDomain and PowerBudget objects, in both modes: put in force, kept, told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from control_plane import ControlPlane
from draw_watch import SampledDraw
from kube_api import KubeApi, a_node, a_pod
from kube_server import end, wait_until
from power_api import an_object, condition, defined, path_of, there
from shipped_rights import account

from promises import promise

NAME = "wattherd-power"
NODES, GPUS = 4, 8
IDLE_W, RISE_W = 10, 60
"""Of a T4, by the catalog: free, and what it adds in use."""
EMPTY_W = NODES * GPUS * IDLE_W
HALF_W = EMPTY_W // 2
EVERY_S = 0.2
LONG_S = 240.0


@pytest.fixture(scope="module", autouse=True)
def _kinds(plane: ControlPlane) -> Iterator[None]:
    with defined(plane.api):
        yield


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[list[str]]:
    """Four nodes, two in each of two racks."""
    nodes = [
        a_node(
            f"power-{row}",
            gpus=GPUS,
            labels={"nvidia.com/gpu.product": "Tesla-T4", "rack": str(row % 2)},
        )
        for row in range(NODES)
    ]
    names = plane.api.fleet(nodes)
    yield names
    plane.api.remove_nodes(names)


@contextmanager
def tree(api: KubeApi, site: str, rack_0: str) -> Iterator[None]:
    """`hall` above `rack-0` and `rack-1`; the hall's budget is `site`, the first rack's limit."""
    made = [
        an_object("PowerDomain", "hall", limit="1MW"),
        an_object("PowerDomain", "rack-0", parent="hall", limit=rack_0,
                  nodeSelector={"matchLabels": {"rack": "0"}}),
        an_object("PowerDomain", "rack-1", parent="hall",
                  nodeSelector={"matchLabels": {"rack": "1"}}),
        an_object("PowerBudget", "now", domain="hall", constant=site),
    ]  # fmt: skip
    with there(api, made):
        yield


@contextmanager
def a_scheduler(plane: ControlPlane, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    options = [f"--kubeconfig={plane.kubeconfig}", f"--name={NAME}", *more]
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", *options]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            end(process)


class Bound:
    """What is written on bound pods, by rack."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"

    def by_rack(self) -> dict[str, int]:
        found = {"rack-0": 0, "rack-1": 0}
        for pod in self._api.get(self._path)["items"]:
            if pod["spec"].get("nodeName"):
                found[pod["metadata"]["annotations"]["wattherd.dev/power-domain"]] += 1
        return found

    def count(self) -> int:
        return sum(self.by_rack().values())


@contextmanager
def sampled(bound: Bound) -> Iterator[list[dict[str, int]]]:
    seen: list[dict[str, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            seen.append(bound.by_rack())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def watts(count: int, empty_w: int = EMPTY_W) -> str:
    """A budget that bears so many pods."""
    return f"{empty_w + count * RISE_W}W"


def status(api: KubeApi, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(path_of(kind, name)).get("status", {})
    return found


def test_a_tree_of_domains_is_kept_and_told(
    plane: ControlPlane, namespace: str, fleet: list[str]
) -> None:
    """Room for 20 GPUs in the hall and 6 in one rack, 200 pods; then the budget rises."""
    del fleet
    api, bound = plane.api, Bound(plane.api, namespace)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with ExitStack() as stack:
        stack.enter_context(tree(api, watts(20), watts(6, HALF_W)))
        seen = stack.enter_context(sampled(bound))
        stack.enter_context(a_scheduler(plane))
        api.create_all(pods, [a_pod(f"p-{n}", gpus=1, scheduler=NAME) for n in range(200)])
        wait_until(lambda: bound.count() == 20, "all that fit run", within_s=LONG_S)
        told = lambda name, watts: status(api, "PowerDomain", name).get("boundWatts") == watts  # noqa: E731
        wait_until(lambda: told("hall", EMPTY_W + 20 * RISE_W), "the watts are told")
        hall = status(api, "PowerDomain", "hall")
        assert (hall["nodes"], hall["budgetWatts"]) == (NODES, EMPTY_W + 20 * RISE_W)
        assert condition(api, "PowerDomain", "hall")["reason"] == "InForce"
        assert condition(api, "PowerBudget", "now")["status"] == "True"
        promise(all(sum(one.values()) <= 20 and one["rack-0"] <= 6 for one in seen), seen)
        api.merge(path_of("PowerBudget", "now"), {"spec": {"constant": watts(22)}})
        wait_until(lambda: bound.count() == 22, "the budget rose", within_s=LONG_S)
        bad = {"spec": {"parent": "nowhere"}}
        api.merge(path_of("PowerDomain", "rack-0"), bad)
        ready = lambda: condition(api, "PowerDomain", "rack-0")  # noqa: E731
        wait_until(lambda: ready().get("reason") == "UnknownParent", "the parent is missed")
        assert "it stays below hall" in ready()["message"]
        assert bound.by_rack() == {"rack-0": 6, "rack-1": 16}
    promise(all(sum(one.values()) <= 22 and one["rack-0"] <= 6 for one in seen), seen)


AGENT = {"wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": "40"}
LEAST_W = 40
"""The lowest cap of these GPUs, by their agent."""


class Agents:
    """What the agents on the nodes do: they set the caps that pods ask for, and say so."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._over.wait(EVERY_S):
            for pod in self._api.get(self._pods)["items"]:
                notes = pod["metadata"].get("annotations", {})
                asked = notes.get("wattherd.dev/cap-w")
                if pod["spec"].get("nodeName") and asked != notes.get("wattherd.dev/cap-applied-w"):
                    told = {"metadata": {"annotations": {"wattherd.dev/cap-applied-w": asked}}}
                    path = f"{self._pods}/{pod['metadata']['name']}"
                    self._api.call("PATCH", path, told, kind="application/merge-patch+json")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def waiting(api: KubeApi, namespace: str) -> dict[str, list[str]]:
    """What pods that are not bound were told."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: [
            one.get("message", "") for one in pod["status"].get("conditions", ())
        ]
        for pod in items
        if not pod["spec"].get("nodeName")
    }


def a_job(name: str, priority: str) -> dict[str, Any]:
    """A gang of four pods of one GPU each."""
    pod = a_pod("any", gpus=1, scheduler=NAME, spec={"restartPolicy": "Never"})
    pod["spec"]["priorityClassName"] = priority
    gang = {
        "labels": {"kueue.x-k8s.io/pod-group-name": name},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "4"},
    }
    template = {"metadata": gang, "spec": pod["spec"]}
    spec = {"parallelism": 4, "completions": 4, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def priorities(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Names of two priorities."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    names = {"low": "power-low", "high": "power-high"}
    for name, value in ((names["low"], 10), (names["high"], 20)):
        plane.api.create(path, {"metadata": {"name": name}, "value": value})
    yield names
    for name in names.values():
        plane.api.delete(f"{path}/{name}")


def test_a_cut_caps_what_runs_then_stops_by_priority_and_a_rise_resumes(
    plane: ControlPlane, namespace: str, fleet: list[str], priorities: dict[str, str]
) -> None:
    """Two jobs of four GPUs and a single pod: 9 x 70 W, cut to what caps bear, then far below.

    With the rights that the scheduler is shipped with, and no others.
    """
    api = plane.api
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    for name in fleet:
        api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": AGENT}})

    def running(job: str) -> int:
        items = api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"job-name={job}")
        return sum(1 for pod in items["items"] if pod["spec"].get("nodeName"))

    def waits(job: str) -> dict[str, str]:
        told = waiting(api, namespace).items()
        return {pod: " ".join(why) for pod, why in told if pod.startswith(f"{job}-")}

    def suspended(job: str) -> bool:
        return bool(api.get(f"{jobs}/{job}")["spec"].get("suspend"))

    def within() -> bool:
        told = condition(api, "PowerDomain", "hall", "WithinBudget")
        generation = api.get(path_of("PowerDomain", "hall"))["metadata"]["generation"]
        return told.get("status") == "True" and told["observedGeneration"] == generation

    floor_w = 9 * (LEAST_W - IDLE_W)
    seen = SampledDraw(api, namespace, "now", rise_w=9 * RISE_W, empty_w=EMPTY_W)
    with tree(api, watts(9), watts(16, HALF_W)), Agents(api, namespace), seen:
        with account(plane, "scheduler") as ours, a_scheduler(plane, f"--kubeconfig={ours}"):
            for name in ("low", "high"):
                api.create(jobs, a_job(name, priorities[name]))
            single = a_pod("single", gpus=1, scheduler=NAME,
                           spec={"priorityClassName": priorities["high"]})  # fmt: skip
            api.create(f"/api/v1/namespaces/{namespace}/pods", single)
            wait_until(lambda: running("low") + running("high") == 8,
                       lambda: f"both run: {waiting(api, namespace)}", within_s=LONG_S)  # fmt: skip
            wait_until(seen.full, "the single pod, too", within_s=LONG_S)
            seen.set(6 * RISE_W)
            wait_until(seen.kept, "all are capped", within_s=LONG_S)
            assert not suspended("low")
            assert running("low") + running("high") == 8
            seen.set(floor_w - RISE_W)
            wait_until(lambda: len(waits("low")) == 4 and not suspended("low"),
                       "the less important stops whole, and waits", within_s=LONG_S)  # fmt: skip
            wait_until(lambda: all("WaitingForPower" in one for one in waits("low").values()),
                       lambda: str(waits("low")))  # fmt: skip
            assert not suspended("high")
            wait_until(seen.kept, "it is kept", within_s=LONG_S)
            wait_until(within, "and told")
            assert running("high") == 4
        # The next one to lead knows all that from the objects.
        with account(plane, "scheduler") as ours, a_scheduler(plane, f"--kubeconfig={ours}"):
            seen.set(9 * RISE_W)
            wait_until(lambda: running("low") == 4, "it runs again", within_s=LONG_S)
            assert not suspended("low")
            assert "wattherd.dev/suspended" not in api.get(f"{jobs}/low")["metadata"]["labels"]
            wait_until(seen.full, "nobody is capped", within_s=LONG_S)
    assert seen.looks > 5
    promise(not seen.broken, seen.broken)
