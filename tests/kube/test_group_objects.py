"""Gangs as large as others' objects say: older and Volcano's PodGroups, LeaderWorkerSets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_reasons import Kubectl, kubectl
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

from wattherd.server.kube.explain import explain_pod
from wattherd.server.kube.what_if import Supposed, compare, take

__all__ = ["kubectl"]

OLDER = ("scheduling.x-k8s.io", "v1alpha1")
VOLCANO = ("scheduling.volcano.sh", "v1beta1")
SETS = ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets")
LWS = "leaderworkerset.sigs.k8s.io"
NAME = "wattherd-groups"


@pytest.fixture
def at_work(plane: ControlPlane) -> Iterator[None]:
    """The kinds are served before the scheduler starts."""
    with (
        served(plane.api, {"podgroups": (*OLDER, "PodGroup")}),
        served(plane.api, {"podgroups": (*VOLCANO, "PodGroup")}),
        served(plane.api, {SETS[2]: (SETS[0], SETS[1], "LeaderWorkerSet")}),
        nodes_of(plane.api, [a_node("groups", gpus=8, labels=T4)]),
        a_scheduler(plane, NAME),
    ):
        yield


def group_of(kind: tuple[str, str], name: str, least: int) -> Object:
    about = {"apiVersion": "/".join(kind), "kind": "PodGroup", "metadata": {"name": name}}
    return {**about, "spec": {"minMember": least}, "status": {"phase": "Inqueue"}}


def supposed(plane: ControlPlane, namespace: str, scheduler: str) -> dict[str, str]:
    """Of each pod that waits, what a scheduler of that name would say on a snapshot of now."""
    taken = take(plane.kubeconfig, None)
    [told] = compare(taken, ["fgd"], Supposed(scheduler=scheduler))["policies"]
    waits = ((one["pod"].partition("/"), one) for one in told["waits"])
    return {
        name: f"{one['reason']}: {one['text']}"
        for (space, _, name), one in waits
        if space == namespace
    }


@pytest.mark.usefixtures("at_work")
def test_gangs_wait_for_as_many_as_their_objects_say(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"

    def create(name: str, **about: dict[str, str]) -> None:
        api.create(pods, a_pod(name, gpus=1, scheduler=NAME, **about))

    def waits(pod: str, text: str) -> None:
        wait_until(lambda: text in why(api, namespace, pod), lambda: why(api, namespace, pod))

    def runs(*names: str) -> None:
        wait_until(lambda: set(names) <= bound(api, namespace).keys(), f"{names} run")

    volcano = {"scheduling.volcano.sh/group-name": "crater"}
    create("crater-0", annotations=volcano)
    waits("crater-0", "the PodGroup crater is not there; create it")
    groups = "/apis/{}/{}/namespaces/" + namespace + "/podgroups"
    api.create(groups.format(*VOLCANO), group_of(VOLCANO, "crater", 2))
    waits("crater-0", "1 of 2 pods of crater are there")
    told = lambda: kubectl("describe", "podgroups.scheduling.volcano.sh", "crater")  # noqa: E731
    wait_until(lambda: "WaitingForGang" in told(), told)
    create("crater-1", annotations=volcano)
    runs("crater-0", "crater-1")
    status = api.get(f"{groups.format(*VOLCANO)}/crater").get("status", {})
    assert "conditions" not in status  # a phase or condition is a step of Volcano's controllers

    # The label of the older groups comes before Volcano's annotation.
    older = {"scheduling.x-k8s.io/pod-group": "ring"}
    api.create(groups.format(*OLDER), group_of(OLDER, "ring", 3))
    for number in range(2):
        create(f"ring-{number}", labels=older, annotations=volcano)
    waits("ring-0", "2 of 3 pods of ring are there")
    create("ring-2", labels=older, annotations=volcano)
    runs("ring-0", "ring-1", "ring-2")

    # A leader whose workers are made when it is ready waits for none of them.
    spec = {"leaderWorkerTemplate": {"size": 2}, "startupPolicy": "LeaderReady"}
    made = {"apiVersion": "/".join(SETS[:2]), "kind": "LeaderWorkerSet", "spec": spec}
    sets = f"/apis/{SETS[0]}/{SETS[1]}/namespaces/{namespace}/{SETS[2]}"
    size = {f"{LWS}/size": "2"}
    for name, leader_first in (("serve", True), ("shard", False)):
        labels = {f"{LWS}/name": name, f"{LWS}/group-index": "0", f"{LWS}/group-key": f"{name}-0"}
        policy = {} if leader_first else {"startupPolicy": "LeaderCreated"}
        api.create(sets, {**made, "metadata": {"name": name}, "spec": {**spec, **policy}})
        create(f"{name}-0", labels=labels, annotations=size)
    runs("serve-0")
    waits("shard-0", "1 of 2 pods of shard-0 are there")
    assert supposed(plane, namespace, NAME) == {"shard-0": why(api, namespace, "shard-0")}
    asked = {"kubeconfig": plane.kubeconfig, "context": None, "supposed": Supposed()}
    document = explain_pod("shard-0", namespace, **asked)
    assert (document["reason"], document["told"]) == (
        "WaitingForGang", f"{document['reason']}: {document['text']}",
    )  # fmt: skip
