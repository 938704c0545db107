"""A decision that takes longer than the deadline we ship; a stock kube-scheduler asks for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import kube_ledger
from control_plane import ControlPlane
from kube_api import KubeApi, a_node, a_pod
from kube_server import wait_until
from test_extender import SCHEDULER, a_scheduler, is_ready, nodes_of
from test_outage import bound_at

from promises import promise
from wattherd.kube.live.extender import LiveExtender
from wattherd.kube.live.extender_app import ExtenderApp
from wattherd.server.kube.answering import extender_server
from wattherd.server.kube.run import KubeOptions, live_extender

DOMAIN, GPUS = "late", 8
LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": DOMAIN}
BUDGET_W = kube_ledger.IDLE_W * GPUS + kube_ledger.RISE_W
"""For one pod."""
PATIENCE = "2s"
"""How long kube-scheduler waits for an answer, in the configuration that we ship."""
LONG_S = 120.0


@contextmanager
def answering(plane: ControlPlane) -> Iterator[tuple[LiveExtender, ExtenderApp, str]]:
    """An extender in this process, and its address."""
    options = KubeOptions(kubeconfig=plane.kubeconfig, budgets=(f"{DOMAIN}={BUDGET_W}W",))
    live, app = live_extender(options)
    listener = socket.create_server(("127.0.0.1", 0))
    address = "http://{}:{}".format(*listener.getsockname())
    server = extender_server(app, {})
    live.begin()
    serving = live.feed.loop.begin(server.serve(sockets=[listener]))
    try:
        wait_until(lambda: is_ready(address), "it has seen the cluster")
        yield live, app, address
        server.should_exit = True
        serving.result(60)
    finally:
        live.close()


@contextmanager
def held_up(live: LiveExtender) -> Iterator[None]:
    """Something takes its turn, and does not end."""
    over = threading.Event()
    live.feed.turns.submit(over.wait)
    try:
        yield
    finally:
        over.set()


def why(api: KubeApi, namespace: str, pod: str) -> str:
    conditions = api.pod(namespace, pod)["status"].get("conditions", ())
    return "".join(one.get("message", "") for one in conditions if one["status"] == "False")


def test_a_late_decision_is_told_in_time_and_the_pod_is_bound_once(
    plane: ControlPlane, namespace: str
) -> None:
    """The pod is told while nothing was decided yet; what is decided then is not lost."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with (
        nodes_of(api, [a_node("late-0", gpus=GPUS, labels=LABELS)]),
        answering(plane) as (live, app, address),
        a_scheduler(plane, address, "late", patience=PATIENCE),
    ):
        with held_up(live):
            api.create(pods, a_pod("one", gpus=1, scheduler=SCHEDULER))
            told = "wattherd took longer than 0.2 s; the pod is tried again"
            wait_until(lambda: told in why(api, namespace, "one"), "it is told", within_s=LONG_S)
            assert app.tally.late
            assert not api.pod(namespace, "one")["spec"].get("nodeName")
        bound = lambda: api.pod(namespace, "one")["spec"].get("nodeName")  # noqa: E731
        wait_until(lambda: bound() == "late-0", "it is tried again", within_s=LONG_S)
        notes = api.pod(namespace, "one")["metadata"]["annotations"]
        assert notes["wattherd.dev/watts"] == "60"
        fleet = live.extender.fleet
        wait_until(lambda: len(fleet.holdings) and not fleet.reserved, "nothing is only promised")
    when = bound_at(plane, namespace)
    promise([len(times) for times in when.values()] == [1], when)
