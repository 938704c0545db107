"""`wattherd kube scheduler` on a real control plane: gangs, watts, and the simulation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import end, wait_until
from openb_fleet import check, fleet, whole_trace

POLICIES = ("fgd", "pwr+fgd:0.1", "wattherd")
BOUND_S = 120.0
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}


@contextmanager
def a_scheduler(plane: ControlPlane, name: str, *options: str) -> Iterator[str]:
    """The command as users start it; yields what pods call it."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", "--name", name]
    given = [f"--kubeconfig={plane.kubeconfig}", *options]
    with subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            while line.startswith(("health on", "planned by")):  # who decides is told first
                line = process.stderr.readline()
            if name not in line:
                process.terminate()
                raise AssertionError(line + process.stderr.read())
            yield name
        finally:
            end(process)


@contextmanager
def nodes_of(api: KubeApi, nodes: list[Object]) -> Iterator[list[str]]:
    names = api.fleet(nodes)
    try:
        yield names
    finally:
        api.remove_nodes(names)


def bound(api: KubeApi, namespace: str) -> dict[str, str]:
    """Nodes of the pods that are bound, by pod."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in items
        if pod["spec"].get("nodeName")
    }


def why(api: KubeApi, namespace: str, name: str) -> str:
    """What `kubectl describe pod` says of a pod that waits."""
    conditions = api.pod(namespace, name)["status"].get("conditions", ())
    return "".join(each.get("message", "") for each in conditions if each["status"] == "False")


def members(gang: str, count: int, scheduler: str, **spec: Any) -> list[Object]:
    labels = {"kueue.x-k8s.io/pod-group-name": gang}
    size = {"kueue.x-k8s.io/pod-group-total-count": str(count)}
    return [
        a_pod(
            f"{gang}-{n}", gpus=1, scheduler=scheduler, spec=spec, labels=labels, annotations=size
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_pods_go_where_the_simulation_puts_them(
    plane: ControlPlane, namespace: str, openb: Path, policy: str
) -> None:
    """A small part of the trace; the whole of it is `test_every_pod_of_the_trace...`."""
    part = fleet(openb, "second", nodes=5, pods=60)
    options = ("--policy", policy, "--history", str(part.history))
    with (
        nodes_of(plane.api, part.nodes()),
        a_scheduler(plane, "wattherd-few", *options) as scheduler,
    ):
        refused = check(plane.api, namespace, part, policy, scheduler, BOUND_S)
    assert refused


def test_gangs_start_whole_and_who_waits_is_told_why(plane: ControlPlane, namespace: str) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    nodes = [a_node(f"gang-{row}", gpus=2, labels=T4) for row in range(2)]
    with nodes_of(api, nodes), a_scheduler(plane, "wattherd-gangs") as scheduler:
        three = members("three", 3, scheduler)
        api.create_all(pods, three[:2])
        wait_until(lambda: "2 of 3 pods" in why(api, namespace, "three-0"), "told to wait")
        assert bound(api, namespace) == {}
        api.create(pods, three[2])
        wait_until(lambda: len(bound(api, namespace)) == 3, "the gang runs")
        api.create_all(pods, members("two", 2, scheduler))
        wait_until(lambda: "WaitingForGpus" in why(api, namespace, "two-0"), "told what it lacks")
        assert len(bound(api, namespace)) == 3


def test_a_native_gang_waits_and_says_so(plane: ControlPlane, namespace: str) -> None:
    """kube-scheduler leaves such pods without a condition."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    groups = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups"
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "native"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    named = {"schedulingGroup": {"podGroupName": "native"}}
    nodes = [a_node("native-0", gpus=2, labels=T4)]
    with nodes_of(api, nodes), a_scheduler(plane, "wattherd-native") as scheduler:
        api.create(groups, group)
        made = [a_pod(f"n-{n}", gpus=1, scheduler=scheduler, spec=named) for n in range(2)]
        api.create(pods, made[0])
        wait_until(lambda: "1 of 2 pods" in why(api, namespace, "n-0"), "told to wait")
        api.create(pods, made[1])
        wait_until(lambda: len(bound(api, namespace)) == 2, "both run")


def test_a_budget_takes_exactly_the_pods_that_fit(plane: ControlPlane, namespace: str) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    labels = T4 | {"wattherd.dev/power-domain": "pdu-2"}
    nodes = [a_node(f"budget-{row}", gpus=4, labels=labels) for row in range(3)]
    # 12 T4s idle at 10 W; one more in use adds 60 W (catalog).
    with (
        nodes_of(api, nodes),
        a_scheduler(plane, "wattherd-budget", "--budget", "pdu-2=370W") as scheduler,
    ):
        api.create_all(pods, [a_pod(f"r-{n}", gpus=1, scheduler=scheduler) for n in range(10)])
        wait_until(lambda: len(bound(api, namespace)) == 4, "as many as fit run")
        waiting = lambda: [n for n in range(10) if why(api, namespace, f"r-{n}")]  # noqa: E731
        wait_until(lambda: len(waiting()) == 6, "the others are told")
        assert len(bound(api, namespace)) == 4
        first = next(iter(bound(api, namespace)))
        api.delete(f"{pods}/{first}", gracePeriodSeconds=0)
        wait_until(lambda: len(bound(api, namespace)) == 4, "its watts go to the next one")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_pod_of_the_trace_goes_where_the_simulation_puts_it(
    kube_programs: Path, openb: Path, policy: str
) -> None:
    """1,213 nodes, every arrival of the default trace in the published order of seed 42."""
    with whole_trace(kube_programs, openb) as (plane, whole):
        options = ("--policy", policy, "--history", str(whole.history))
        with a_scheduler(plane, "wattherd", *options) as scheduler:
            assert check(plane.api, "openb", whole, policy, scheduler, BOUND_S)
