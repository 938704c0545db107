"""Queue objects beside a stock kube-scheduler: what each mode does with quota, and how it is told.

For wattherd as the scheduler they are `test_queue_objects` and `test_reasons`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from control_plane import ControlPlane
from kube_api import a_node
from kube_server import wait_until
from power_api import an_object, condition, defined, path_of
from stock_modes import Mode, beside_kube_scheduler
from test_reasons import Kubectl, kubectl
from test_second_scheduler import T4, bound, nodes_of, why

__all__ = ["kubectl"]

TOLD = (
    "QuotaExceeded: asked 1 GPU, in use 2 GPUs, available 0 GPUs (queue 'small' may hold 2 GPUs "
    "at most; raise its maximum); or wait until pods of its queue end"
)


@pytest.fixture
def queues(plane: ControlPlane) -> Iterator[None]:
    """Two of eight GPUs are promised, and not one more given."""
    with defined(plane.api), nodes_of(plane.api, [a_node("quota", gpus=8, labels=T4)]):
        small = an_object("Queue", "small", guaranteedPercent=25, maximumPercent=25)
        plane.api.create(path_of("Queue"), small)
        yield


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("name", ["extender", "admit"])
def test_quota_is_kept_told_and_given_back(
    plane: ControlPlane, namespace: str, kubectl: Kubectl, name: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"

    def create(mode: Mode, pod: str, queue: str = "small") -> None:
        api.create(pods, mode.pod(pod, labels={"wattherd.dev/queue": queue}))

    with beside_kube_scheduler(plane, name, namespace, "--budget=10kW") as mode:
        told = lambda: condition(api, "Queue", "small")  # noqa: E731
        wait_until(lambda: told().get("reason") == "InForce", "the queue is in force")
        for number in range(3):
            create(mode, f"small-{number}")
        wait_until(lambda: len(bound(api, namespace)) == 2, "what is promised runs")
        waits = next(one for one in ("small-0", "small-1", "small-2")
                     if one not in bound(api, namespace))  # fmt: skip
        said = lambda: kubectl("describe", "pod", waits)  # noqa: E731
        wait_until(lambda: TOLD in kubectl.reasons(waits), said)
        wait_until(lambda: TOLD in why(api, namespace, waits), said)
        status = lambda: api.get(path_of("Queue", "small")).get("status", {})  # noqa: E731
        full = lambda: (status().get("pending"), status().get("usedGpus")) == (1, 2)  # noqa: E731
        wait_until(full, lambda: str(status()))
        create(mode, "other", queue="default")
        wait_until(lambda: "other" in bound(api, namespace), "another queue has quota")
        create(mode, "lost", queue="nowhere")
        unknown = lambda: any("UnknownQueue" in one for one in kubectl.reasons("lost"))  # noqa: E731
        wait_until(unknown, lambda: kubectl("describe", "pod", "lost"))
        assert waits not in bound(api, namespace)
        api.merge(path_of("Queue", "small"), {"spec": {"maximumPercent": 37.5}})
        wait_until(lambda: waits in bound(api, namespace), "what was said to help helps")
        create(mode, "last")
        wait_until(lambda: kubectl.reasons("last"), "quota is used up again")
        api.delete(f"{pods}/small-0", gracePeriodSeconds=0)
        wait_until(lambda: "last" in bound(api, namespace), "the other cure helps, too")
