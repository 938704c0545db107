"""An extender that fails: who asks for it waits, others go on, and no watts are lost over it.

Run with `-s`, these tests say how long the recovery took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kube_ledger
import pytest
from control_plane import ControlPlane
from failing_proxy import FailingProxy, a_proxy
from kube_api import KubeApi, a_node, a_pod
from kube_server import wait_until
from test_extender import SCHEDULER, a_scheduler, an_extender, nodes_of

DOMAIN, GPUS, FIT, FIRST = "fails", 8, 5, 2
BUDGET_W = kube_ledger.IDLE_W * GPUS + kube_ledger.RISE_W * FIT
LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": DOMAIN}
LONG_S = 300.0
PLAIN = "plain"


def breaks(proxy: FailingProxy) -> None:
    proxy.failing = True


def mends(proxy: FailingProxy) -> None:
    proxy.failing = False


def holds(proxy: FailingProxy) -> None:
    proxy.in_time.clear()


def releases(proxy: FailingProxy) -> None:
    proxy.in_time.set()


WAYS: dict[str, tuple[Callable[[FailingProxy], None], Callable[[FailingProxy], None]]] = {
    "answers 500": (breaks, mends),
    "refuses connections": (FailingProxy.refuse, FailingProxy.listen),
    "answers late": (holds, releases),
}
PATIENCE = {"answers late": "2s"}
"""How long kube-scheduler waits for an answer, where it is to give up."""


def make(api: KubeApi, namespace: str, *names: str, scheduler: str = SCHEDULER) -> None:
    made = [a_pod(name, gpus=1, scheduler=scheduler) for name in names]
    api.create_all(f"/api/v1/namespaces/{namespace}/pods", made)


def told(api: KubeApi, namespace: str, name: str) -> list[Any]:
    found: list[Any] = api.pod(namespace, name)["status"].get("conditions", [])
    return found


@pytest.mark.parametrize("how", WAYS)
def test_an_extender_that_fails_binds_nobody_and_goes_on_where_it_was(
    plane: ControlPlane, namespace: str, how: str
) -> None:
    """Of twelve pods five have watts; one of another scheduler, without GPUs, needs none."""
    api, (begin, end) = plane.api, WAYS[how]
    health = kube_ledger.an_address()
    given = (f"--budget={DOMAIN}={BUDGET_W}W", f"--health={health}")
    plain = plane.scheduler(config={"profiles": [{"schedulerName": PLAIN}]}, name=PLAIN)
    nodes = [a_node("fails-0", gpus=GPUS, labels=LABELS)]
    with (
        nodes_of(api, nodes),
        an_extender(plane, *given) as extender,
        a_proxy(lambda: extender) as proxy,
        a_scheduler(plane, proxy.url, "fails", patience=PATIENCE.get(how, "30s")),
    ):
        plain.start()
        try:
            make(api, namespace, *(f"first-{n}" for n in range(FIRST)))
            wait_until(lambda: len(written_by_us(api, namespace)) == FIRST, "the first pods run")
            begin(proxy)
            late = [f"late-{n}" for n in range(10)]
            make(api, namespace, *late)
            api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod("other", scheduler=PLAIN))
            wait_until(lambda: api.pod(namespace, "other")["spec"].get("nodeName"), "others go on")
            wait_until(lambda: all(told(api, namespace, name) for name in late),
                       "all that wait are told", within_s=LONG_S)  # fmt: skip
            assert [one for one in late if api.pod(namespace, one)["spec"].get("nodeName")] == []
            assert bool(proxy.failed) == (how != "refuses connections")
            end(proxy)
            back_s = time.monotonic()
            ours = lambda: written_by_us(api, namespace)  # noqa: E731
            wait_until(lambda: len(ours()) > FIRST, "the next pod runs", within_s=LONG_S)
            print(f"\nextender that {how}: first binding {time.monotonic() - back_s:.1f} s after")
            wait_until(lambda: len(ours()) == FIT, "as many run as fit", within_s=LONG_S)
            gone = ours()[0]
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{gone}", gracePeriodSeconds=0)
            wait_until(lambda: len(ours()) == FIT and gone not in ours(), "its watts are used",
                       within_s=LONG_S)  # fmt: skip
            kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
            assert kube_ledger.counted(health)[f'counted_watts{{domain="{DOMAIN}"}}'] == BUDGET_W
        finally:
            plain.kill()


def written_by_us(api: KubeApi, namespace: str) -> list[str]:
    """Pods that were bound within the budget."""
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["spec"].get("nodeName")
        and "wattherd.dev/watts" in pod["metadata"].get("annotations", {})
    ]
