"""Free GPUs at their lowest cap: starts under caps that do not trust an agent to be alive."""

from __future__ import annotations

import math
import time
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
NOTE = "wattherd.dev/gpus-at-rest"
FOUND_W = [300.0, 300.0]


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[AgentNode]:
    labels = A40 | {"power-of": namespace}
    made = AgentNode(plane, namespace, Driver(tmp_path), tmp_path, silence="60s", labels=labels)
    with defined(plane.api):
        yield made
    plane.api.remove_nodes([made.name])


def promised(node: AgentNode) -> str:
    """Whose GPUs are not promised to rest."""
    return str(node.about().get("annotations", {}).get(NOTE, "nothing")).rpartition(" ")[2]


def test_idle_gpus_rest_which_is_told_and_taken_back(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent("--rest")
    with running(agent, helper):
        wait_until(lambda: promised(node) == "-", "all rest")
        assert node.limits_w() == [100.0, 100.0]
        uid = node.pod("one", "1", "250W")["metadata"]["uid"]
        wait_until(lambda: node.applied("one") == "250", "told that it is held")
        assert (node.limits_w(), promised(node)) == ([100.0, 250.0], uid)
        agent.kill()
        agent.begin()
        node.ask("one", None)
        wait_until(lambda: node.limits_w() == [100.0, 300.0], "raised to what was found")
        assert promised(node) == uid
        node.api.delete(f"/api/v1/namespaces/{node.namespace}/pods/one", gracePeriodSeconds=0)
        wait_until(lambda: promised(node) == "-", "all rest again")
        assert node.limits_w() == [100.0, 100.0]
        agent.stop()
        assert promised(node) == "nothing"
        assert node.limits_w() == FOUND_W


def test_no_pod_starts_on_a_gpu_that_a_dead_agent_left_at_a_high_cap(node: AgentNode) -> None:
    api, domain = node.api, f"pdu-{node.namespace}"
    of_node = {"matchLabels": {"power-of": node.namespace}}
    pods = f"/api/v1/namespaces/{node.namespace}/pods"
    api.create(path_of("PowerDomain"), an_object("PowerDomain", domain, nodeSelector=of_node))
    api.create(
        path_of("PowerBudget"), an_object("PowerBudget", domain, domain=domain, constant="450W")
    )
    helper, agent = node.helper(), node.agent("--rest")
    with running(agent, helper), a_scheduler(node.plane, node.namespace) as scheduler:
        wait_until(lambda: promised(node) == "-", "all rest")
        for name in ("one", "two"):
            api.create(pods, a_pod(name, gpus=1, scheduler=scheduler))
        wait_until(lambda: len(bound(api, node.namespace)) == 2, "both run, at caps")
        wait_until(lambda: node.applied("one") and node.applied("two"), "which are told")
        assert math.fsum(node.limits_w()) <= 450.0
        assert min(node.limits_w()) > 100.0
        agent.kill()
        api.delete(f"{pods}/two", gracePeriodSeconds=0)
        api.create(pods, a_pod("three", gpus=1, scheduler=scheduler))
        time.sleep(6.0)
        assert "three" not in bound(api, node.namespace)
        agent.begin()
        wait_until(lambda: "three" in bound(api, node.namespace), "an agent shows that it may")
        wait_until(lambda: node.applied("three"), "and holds its cap")
        assert math.fsum(node.limits_w()) <= 450.0
