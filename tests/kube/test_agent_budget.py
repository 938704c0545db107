"""From a budget that is cut to a limit in a GPU, and back: scheduler, agent and driver together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from agent_parts import AgentNode, running
from control_plane import ControlPlane
from kube_api import a_pod
from kube_server import wait_until
from nvml_driver import COMPILER, Driver
from power_api import an_object, defined, path_of
from test_second_scheduler import a_scheduler, bound

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")
A40 = {"nvidia.com/gpu.product": "NVIDIA-A40"}
"""Idle at 30 W, 300 W at most, caps down to 100 W: as the driver's GPUs."""


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[AgentNode]:
    labels = A40 | {"power-of": namespace}
    made = AgentNode(plane, namespace, Driver(tmp_path), tmp_path, silence="60s", labels=labels)
    with defined(plane.api):
        yield made
    plane.api.remove_nodes([made.name])


def test_a_budget_that_is_cut_lowers_the_gpus_of_a_pod_that_goes_on(node: AgentNode) -> None:
    api, domain = node.api, f"pdu-{node.namespace}"
    of_node = {"matchLabels": {"power-of": node.namespace}}
    pods = f"/api/v1/namespaces/{node.namespace}/pods"

    def budget(constant: str) -> None:
        api.merge(path_of("PowerBudget", domain), {"spec": {"constant": constant}})

    api.create(path_of("PowerDomain"), an_object("PowerDomain", domain, nodeSelector=of_node))
    api.create(
        path_of("PowerBudget"), an_object("PowerBudget", domain, domain=domain, constant="600W")
    )
    helper, agent = node.helper(), node.agent()
    with running(agent, helper), a_scheduler(node.plane, node.namespace) as scheduler:
        wait_until(lambda: node.about()["labels"].get("wattherd.dev/agent"), "the agent is known")
        api.create(pods, a_pod("trainer", gpus=2, scheduler=scheduler))
        wait_until(lambda: bound(api, node.namespace) == {"trainer": node.name}, "it runs")
        assert node.limits_w() == [300.0, 300.0]
        budget("450W")
        wait_until(lambda: math.fsum(node.limits_w()) <= 450.0, "its GPUs are lowered")
        wait_until(lambda: float(node.applied("trainer") or "999") <= 450.0, "which is told")
        assert bound(api, node.namespace) == {"trainer": node.name}
        assert min(node.limits_w()) > 150.0  # no lower than it takes
        budget("600W")
        wait_until(lambda: node.limits_w() == [300.0, 300.0], "raised again")
        assert bound(api, node.namespace) == {"trainer": node.name}
