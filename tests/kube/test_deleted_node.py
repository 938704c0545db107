"""A node is deleted under a gang that runs on it: its watts count until its pods are gone."""

from __future__ import annotations

import kube_ledger
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from safe_copies import written
from test_extender import nodes_of
from test_power_budgets import NAME, a_scheduler

DOMAIN, GPUS, MEMBERS = "deleted", 8, 2
BUDGET_W = 2 * GPUS * kube_ledger.IDLE_W + MEMBERS * kube_ledger.RISE_W
LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": DOMAIN}


def on(node: str, name: str, **metadata: object) -> Object:
    there = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return a_pod(name, gpus=1, scheduler=NAME, spec=there, **metadata)


def in_gang(node: str, number: int) -> Object:
    return on(
        node,
        f"gang-{number}",
        labels={"kueue.x-k8s.io/pod-group-name": "gang"},
        annotations={"kueue.x-k8s.io/pod-group-total-count": str(MEMBERS)},
    )


def why(api: KubeApi, namespace: str, name: str) -> str:
    conditions: list[Object] = api.pod(namespace, name)["status"].get("conditions", [])
    return "".join(one.get("message", "") for one in conditions if one["status"] == "False")


def test_watts_of_a_deleted_node_are_free_when_its_pods_are_gone(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods, health = plane.api, f"/api/v1/namespaces/{namespace}/pods", kube_ledger.an_address()
    names = ("deleted-0", "deleted-1")
    given = (f"--budget={DOMAIN}={BUDGET_W:g}W", f"--health={health}")
    nodes = [a_node(name, gpus=GPUS, labels=LABELS) for name in names]
    with nodes_of(api, nodes), a_scheduler(plane, *given):
        api.create_all(pods, [in_gang(names[0], number) for number in range(MEMBERS)])
        wait_until(lambda: len(written(api, namespace)) == MEMBERS, "the gang runs")
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
        api.delete(f"/api/v1/nodes/{names[0]}")
        api.create(pods, on(names[1], "next"))
        full = f"has 0 W left of {BUDGET_W:g} W"
        wait_until(lambda: full in why(api, namespace, "next"), lambda: why(api, namespace, "next"))
        assert set(written(api, namespace)) == {"gang-0", "gang-1"}
        for number in range(MEMBERS):
            api.delete(f"{pods}/gang-{number}", gracePeriodSeconds=0)
        wait_until(lambda: set(written(api, namespace)) == {"next"}, "its watts are used")
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
