"""`kubectl describe pod` beside a stock kube-scheduler: the one reason, and what would unblock it.

For wattherd as the scheduler it is `test_reasons`.
"""

from __future__ import annotations

import pytest
from control_plane import GANGS, ControlPlane
from kube_api import Object, a_node
from kube_server import wait_until
from stock_modes import STOCK, Mode, beside_kube_scheduler
from test_reasons import NATIVE, Kubectl, kubectl
from test_second_scheduler import T4, bound, nodes_of

__all__ = ["kubectl"]

POWER = {
    "extender": (
        "WaitingForPower: the pod adds 60 W, power domain mode-1 has 40 W left of 140 W; "
        "raise the budget of power domain mode-1 by 20 W, or free 20 W there"
    ),
    "admit": (
        "WaitingForPower: the pod adds 60 W, power domain mode-1 has 40 W left of 140 W; "
        "raise the budget of power domain mode-1 by 20 W, or free 20 W there"
    ),
    "dra": (
        "WaitingForPower: the pod's claim asks for 60 W, power domain mode-1 has 40 W left of "
        "100 W that can be claimed; raise the budget of power domain mode-1 by 20 W, or end pods "
        "that claim 20 W there"
    ),
}
PIECES = (
    "Fragmented: needs 2 GPUs on one node; 2 of 4 are free, but on 2 nodes, at most 1 on "
    "one (mode-piece-0); wait until 1 more GPU on mode-piece-0 is free, or ask for 1 GPU"
)


@pytest.mark.parametrize("name", STOCK)
def test_who_waits_is_told_the_one_reason(
    plane: ControlPlane, namespace: str, kubectl: Kubectl, name: str
) -> None:
    """For power, for GPUs in one piece, and for the members of a gang."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    labels = T4 | {"wattherd.dev/power-domain": "mode-1"}
    watts = [a_node("mode-watts", gpus=4, labels=labels)]
    pieces = [a_node(f"mode-piece-{row}", gpus=2, labels=T4) for row in range(2)]

    def said(pod: str) -> str:
        return kubectl("describe", "pod", pod)

    def on(node: str) -> Object:
        return {"nodeSelector": {"kubernetes.io/hostname": node}}

    with (
        nodes_of(api, watts + pieces),
        beside_kube_scheduler(
            plane, name, namespace, "--budget=mode-1=140W", flags=(GANGS,)
        ) as mode,
    ):
        spec = on("mode-watts")
        api.create(pods, mode.pod("first", spec=spec))
        wait_until(lambda: "first" in bound(api, namespace), "the first one runs")
        api.create(pods, mode.pod("second", spec=spec))
        wait_until(lambda: POWER[name] in kubectl.reasons("second"), lambda: said("second"))
        for row in range(2):
            api.create(pods, mode.pod(f"small-{row}", spec=on(f"mode-piece-{row}")))
        wait_until(lambda: len(bound(api, namespace)) == 3, "one on each node")
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["mode-watts"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
        there = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        api.create(pods, mode.pod("large", gpus=2, spec={"affinity": there}))
        in_pieces = lambda: any(PIECES in one for one in kubectl.reasons("large"))  # noqa: E731
        wait_until(in_pieces, lambda: said("large"))
        _native_gang(plane, namespace, kubectl, mode)


def _native_gang(plane: ControlPlane, namespace: str, kubectl: Kubectl, mode: Mode) -> None:
    """Of one with a member too few kube-scheduler says nothing at all."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    groups = f"{NATIVE}/namespaces/{namespace}/podgroups"
    about = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    api.create(groups, {**about, "metadata": {"name": "ring"}, "spec": gang})
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    members = [mode.pod(f"ring-{number}", spec=spec) for number in range(2)]
    api.create(pods, members[0])
    said = "WaitingForGang: 1 of 2 pods of ring are there; create the others"
    wait_until(
        lambda: said in kubectl.reasons("ring-0"), lambda: kubectl("describe", "pod", "ring-0")
    )
    events = lambda: kubectl("describe", "podgroup", "ring").split("Events:")[1]  # noqa: E731
    wait_until(lambda: said in events(), events)
    api.create(pods, members[1])
    wait_until(lambda: {"ring-0", "ring-1"} <= bound(api, namespace).keys(), "what helps helps")
