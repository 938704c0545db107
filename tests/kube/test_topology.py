"""Gangs in one rack on a real control plane, by labels of nodes and by Kueue's Topology."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

NAME = "wattherd-racks"
RACKS = {"rack-a0": "a", "rack-a1": "a", "rack-b0": "b", "rack-c0": "c"}
"""Two GPUs each; racks b and c are in the same block."""
KUEUE = ("kueue.x-k8s.io", "v1beta2")


def nodes() -> list[Object]:
    made = []
    for name, rack in RACKS.items():
        block = "one" if rack == "a" else "two"
        made.append(a_node(name, gpus=2, labels={**T4, "rack": rack, "block": block}))
    return made


@pytest.fixture
def at_work(plane: ControlPlane) -> Iterator[None]:
    with (
        served(plane.api, {"topologies": (*KUEUE, "Topology")}, scope="Cluster"),
        nodes_of(plane.api, nodes()),
        a_scheduler(plane, NAME),
    ):
        yield


@pytest.mark.usefixtures("at_work")
def test_a_gang_gets_one_rack_or_waits_and_one_that_would_rather_gets_a_block(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"

    def gang(name: str, size: int, wish: str) -> list[str]:
        names = [f"{name}-{number}" for number in range(size)]
        about = {"kueue.x-k8s.io/pod-group-total-count": str(size)}
        about[f"kueue.x-k8s.io/podset-{wish}-topology"] = "rack"
        labels = {"kueue.x-k8s.io/pod-group-name": name}
        for one in names:
            api.create(pods, a_pod(one, gpus=2, scheduler=NAME, labels=labels, annotations=about))
        return names

    def racks(names: list[str]) -> list[str]:
        wait_until(lambda: set(names) <= bound(api, namespace).keys(), f"{names} run")
        where = bound(api, namespace)
        return sorted(RACKS[where[one]] for one in names)

    levels = [{"nodeLabel": "block"}, {"nodeLabel": "rack"}]
    topologies = f"/apis/{'/'.join(KUEUE)}/topologies"
    made: Object = {"apiVersion": "/".join(KUEUE), "kind": "Topology"}
    api.create(topologies, {**made, "metadata": {"name": "hall"}, "spec": {"levels": levels}})
    assert racks(gang("must", 2, "required")) == ["a", "a"]
    gang("waits", 2, "required")
    said = "its 2 pods must share one rack; there is room for 2, but at most 1 in one"
    wait_until(
        lambda: said in why(api, namespace, "waits-0"), lambda: why(api, namespace, "waits-0")
    )
    assert racks(gang("may", 2, "preferred")) == ["b", "c"]
