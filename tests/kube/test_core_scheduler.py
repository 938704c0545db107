"""`wattherd kube scheduler --scheduler NAME` on a control plane: the core's planners decide."""

from __future__ import annotations

import time

import pytest
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

IDLE_W, RISE_W = 10, 60
"""Of a T4 that is free, and what it adds in use, by the catalog."""
PATIENCE_S = 120.0


@pytest.mark.parametrize(
    ("planner", "first"),
    [("fifo", {"long", "mid"}), ("sjf", {"mid", "short"}), ("srtf", {"mid", "short"})],
)
def test_who_goes_first_is_for_the_planner_to_say_and_watts_are_kept(
    plane: ControlPlane, namespace: str, planner: str, first: set[str]
) -> None:
    """Four GPUs, watts for two; pods in order of their coming, each with its length."""
    name = f"core-{planner}"
    jobs = {"long": "5h", "mid": "1h", "short": "10m"}
    with nodes_of(plane.api, [a_node(f"{namespace}-n", gpus=4, labels=T4)]):
        for pod, length in jobs.items():
            made = a_pod(
                pod, gpus=1, scheduler=name, annotations={"wattherd.dev/duration": length},
            )  # fmt: skip
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", made)
            time.sleep(1.1)  # times of creation are whole seconds
        options = (
            f"--scheduler={planner}", "--power=pause", f"--budget={4 * IDLE_W + 2 * RISE_W}W",
        )  # fmt: skip
        with a_scheduler(plane, name, *options):
            wait_until(
                lambda: set(bound(plane.api, namespace)) == first,
                lambda: str(bound(plane.api, namespace)),
                within_s=PATIENCE_S,
            )
            (waits,) = jobs.keys() - first
            wait_until(
                lambda: "WaitingForPower" in why(plane.api, namespace, waits),
                lambda: why(plane.api, namespace, waits),
                within_s=PATIENCE_S,
            )
            assert set(bound(plane.api, namespace)) == first
            plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{min(first)}")
            wait_until(
                lambda: waits in bound(plane.api, namespace),
                lambda: why(plane.api, namespace, waits),
                within_s=PATIENCE_S,
            )
