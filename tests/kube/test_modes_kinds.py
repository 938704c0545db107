"""Beside kinds of others that are installed each mode works, with the rights it is shipped with."""

from __future__ import annotations

import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from kube_api import a_node
from kube_server import wait_until
from stock_modes import STOCK, beside_kube_scheduler
from test_second_scheduler import T4, bound, nodes_of

KUEUE = ("kueue.x-k8s.io", "v1beta2")
OF_CLUSTER = {"topologies": (*KUEUE, "Topology")}
IN_NAMESPACES = {
    "workloads": (*KUEUE, "Workload"),
    "podgroups": ("scheduling.x-k8s.io", "v1alpha1", "PodGroup"),
    "jobsets": ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    "leaderworkersets": ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
    "rayclusters": ("ray.io", "v1", "RayCluster"),
}


@pytest.mark.parametrize("name", STOCK)
def test_a_pod_gets_its_node_beside_kinds_of_others(
    plane: ControlPlane, namespace: str, name: str
) -> None:
    api = plane.api
    with (
        served(api, OF_CLUSTER, scope="Cluster"),
        served(api, IN_NAMESPACES),
        nodes_of(api, [a_node("beside-kinds", gpus=2, labels=T4)]),
        beside_kube_scheduler(plane, name, namespace, "--budget=500W") as mode,
    ):
        api.create(f"/api/v1/namespaces/{namespace}/pods", mode.pod("one"))
        wait_until(lambda: "one" in bound(api, namespace), "it is bound")
