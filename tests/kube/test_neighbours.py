"""Required affinity, anti-affinity and spread between pods, on a real API server."""

from __future__ import annotations

import pytest
from control_plane import ControlPlane
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

NAME = "wattherd-neighbours"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LONG_S = 120.0


def term(app: str) -> Object:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}


@pytest.mark.parametrize("options", [(), ("--scheduler=fifo-first-fit",)], ids=["default", "core"])
def test_pods_keep_apart_together_and_even_and_who_cannot_says_so(
    plane: ControlPlane, namespace: str, options: tuple[str, ...]
) -> None:
    """Two zones of two nodes of four GPUs each."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    zone = {f"{namespace}-{name}": name[0] for name in ("a0", "a1", "b0", "b1")}
    nodes = [a_node(name, gpus=4, labels=T4 | {"zone": at}) for name, at in zone.items()]
    apart = {"affinity": {"podAntiAffinity": {REQUIRED: [term("apart")]}}}
    near = {"affinity": {"podAffinity": {REQUIRED: [term("apart"), term("apart")]}}}
    even = {"topologySpreadConstraints": [
        {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term("even")}]}  # fmt: skip

    def make(name: str, app: str, spec: Object) -> None:
        api.create(pods, a_pod(name, gpus=1, scheduler=NAME, spec=spec, labels={"app": app}))

    def zones(app: str) -> list[str]:
        return sorted(zone[node] for pod, node in bound(api, namespace).items() if app in pod)

    with nodes_of(api, nodes), a_scheduler(plane, NAME, *options):
        make("near", "near", near)
        told = lambda: why(api, namespace, "near")  # noqa: E731
        wait_until(lambda: "PodAntiAffinity" in told(), told, within_s=LONG_S)
        for number in range(3):
            make(f"apart-{number}", "apart", apart)
        wait_until(
            lambda: zones("apart") == ["a", "b"], lambda: f"{zones('apart')}", within_s=LONG_S
        )
        wait_until(lambda: len(zones("near")) == 1, told, within_s=LONG_S)
        for number in range(4):
            make(f"even-{number}", "even", even)
        wait_until(lambda: len(zones("even")) == 4, lambda: f"{zones('even')}", within_s=LONG_S)
        assert zones("even") == ["a", "a", "b", "b"]
        (waits,) = {f"apart-{n}" for n in range(3)} - bound(api, namespace).keys()
        wait_until(lambda: "PodAntiAffinity" in why(api, namespace, waits), "it says so")
        gone = next(pod for pod in bound(api, namespace) if pod.startswith("apart"))
        api.delete(f"{pods}/{gone}", gracePeriodSeconds=0)
        wait_until(lambda: waits in bound(api, namespace), "its place is free", within_s=LONG_S)
        assert zones("apart") == ["a", "b"]
