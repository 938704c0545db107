"""What comes and goes leaves nothing in memory: for a short while exactly, for a long one by size.

`benchmarks/kube_soak.py` measures the resident memory of a process at work, on up to 5,000 nodes. A
short while is not enough to see by that a few bytes a pod: so a scheduler of this very process is
gone through for whatever still knows of those who are gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, a_node, a_pod
from kube_server import wait_until
from test_extender import nodes_of

from wattherd.kube.live.scheduler import LiveScheduler
from wattherd.server.kube.run import KubeOptions, live_scheduler
from wattherd.testing.table_sizes import grown, remembered, sizes

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "kube_soak.py"
NAME, WORD = "wattherd-soak", "mortal"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
WARM_UP, ROUNDS, PODS, MEMBERS = 2, 6, 8, 3


def some_live_and_die(api: KubeApi, namespace: str, number: int) -> None:
    """Single pods, a native gang, one that fits nowhere, and a node: all are gone in the end."""
    first = f"{WORD}-{number}"
    pods, groups = f"/api/v1/namespaces/{namespace}/pods", GROUPS.format(namespace)
    made = [a_pod(f"{first}-{n}", gpus=1, scheduler=NAME) for n in range(PODS)]
    named = {"schedulingGroup": {"podGroupName": first}}
    made += [a_pod(f"{first}-gang-{n}", gpus=1, scheduler=NAME, spec=named) for n in range(MEMBERS)]
    made.append(a_pod(f"{first}-hopeless", gpus=64, scheduler=NAME))
    group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
    group |= {"metadata": {"name": first}}
    policy = {"schedulingPolicy": {"gang": {"minCount": MEMBERS}}}
    api.create("/api/v1/nodes", a_node(f"{first}-node", labels={"nvidia.com/gpu.product": "T4"}))
    api.create_all(pods, made)
    wait_until(lambda: is_told(api, namespace, f"{first}-gang-0"), "the gang is told what it lacks")
    api.create(groups, {**group, "spec": policy})
    wait_until(lambda: bound(api, namespace) == PODS + MEMBERS, "all but one run")
    wait_until(lambda: is_told(api, namespace, f"{first}-hopeless"), "it is told why")
    for pod in made:
        api.call("DELETE", f"{pods}/{pod['metadata']['name']}?gracePeriodSeconds=0")
    api.call("DELETE", f"{groups}/{first}")
    free = {"metadata": {"finalizers": None}}  # its controller takes them off when it comes to it
    api.call("PATCH", f"{groups}/{first}", free, kind="application/merge-patch+json")
    api.remove_nodes([f"{first}-node"])


def bound(api: KubeApi, namespace: str) -> int:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return sum(bool(one["spec"].get("nodeName")) for one in items)


def is_told(api: KubeApi, namespace: str, name: str) -> bool:
    return bool(api.pod(namespace, name)["status"].get("conditions"))


def wait_forgotten(live: LiveScheduler) -> None:
    known = lambda: remembered(live, WORD)  # noqa: E731
    wait_until(lambda: not known(), lambda: f"still known: {known()}", every_s=0.5)


def sizes_at_rest(live: LiveScheduler, api: KubeApi, namespace: str) -> dict[str, int]:
    """When all is forgotten, and a last pod was placed on the nodes that stay.

    Which nodes would not do is kept from one look at them to the next, and may be of a node that
    went meanwhile.
    """
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wait_forgotten(live)
    api.create(pods, a_pod(f"{WORD}-last", gpus=1, scheduler=NAME))
    wait_until(lambda: bound(api, namespace) == 1, "the last one runs")
    api.call("DELETE", f"{pods}/{WORD}-last?gracePeriodSeconds=0")
    wait_forgotten(live)
    return sizes(live)


def test_nothing_is_known_of_what_is_gone(plane: ControlPlane, namespace: str) -> None:
    api = plane.api
    nodes = [a_node(f"soak-{row}", labels={"nvidia.com/gpu.product": "T4"}) for row in range(2)]
    live = live_scheduler(KubeOptions(kubeconfig=plane.kubeconfig, name=NAME, budgets=("1MW",)))
    with nodes_of(api, nodes):
        live.begin()
        try:
            for number in range(WARM_UP):
                some_live_and_die(api, namespace, number)
            before = sizes_at_rest(live, api, namespace)
            for number in range(WARM_UP, WARM_UP + ROUNDS):
                some_live_and_die(api, namespace, number)
            more = lambda: grown(before, sizes_at_rest(live, api, namespace))  # noqa: E731
            wait_until(lambda: not more(), lambda: f"still larger: {more()}", every_s=0.5)
        finally:
            live.close()


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("mode", ["scheduler", "extender"])
@pytest.mark.parametrize("nodes", [500, 5000])
def test_memory_does_not_grow_with_what_came_and_went(
    kube_programs: Path, mode: str, nodes: int
) -> None:
    del kube_programs
    options = [f"--nodes={nodes}", "--pods=200", "--minutes=6", f"--mode={mode}"]
    done = subprocess.run(
        [sys.executable, SOAK, *options], stdout=subprocess.PIPE, text=True, check=False
    )
    found = json.loads(done.stdout)
    assert found["growth"] <= found["allowed"], found["resident_mib"]
    assert found["pods_bound"] > 12 * 200 / 20
    assert done.returncode == 0
