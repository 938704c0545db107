"""The agent of a node on a real control plane: caps asked, held, told, given up, put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from agent_parts import AgentNode, Controller, running
from control_plane import ControlPlane
from kube_server import wait_until
from nvml_driver import COMPILER, LOST, Driver

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")
FOUND_W = [300.0, 300.0]


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[AgentNode]:
    made = AgentNode(plane, namespace, Driver(tmp_path), tmp_path)
    yield made
    plane.api.remove_nodes([made.name])


def test_a_cap_is_held_told_changed_and_given_back(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        node.pod("both", "0,1", "400")
        wait_until(lambda: node.applied("both") == "400", "told that it is held")
        assert node.limits_w() == [200.0, 200.0]
        node.ask("both", "120")  # less than two GPUs can be held to
        wait_until(lambda: node.applied("both") == "200", "told what really holds")
        assert node.limits_w() == [100.0, 100.0]
        node.ask("both", None)
        wait_until(lambda: node.applied("both") is None, "nothing is told where nothing is asked")
        wait_until(lambda: node.limits_w() == FOUND_W, "put back")
        node.pod("one", "1", "250W")
        wait_until(lambda: node.applied("one") == "250", "told that it is held")
        assert node.limits_w() == [300.0, 250.0]
        node.api.delete(f"/api/v1/namespaces/{node.namespace}/pods/one", gracePeriodSeconds=0)
        wait_until(lambda: node.limits_w() == FOUND_W, "put back when the pod is gone")


def test_the_node_says_what_it_draws_and_may_be_held_to(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        wait_until(lambda: "wattherd.dev/draw-w" in node.about()["annotations"], "watts are told")
        about = node.about()
        assert about["annotations"]["wattherd.dev/draw-w"] == "900"  # 300 W, and twice as much
        assert about["annotations"]["wattherd.dev/draw-at"].endswith("Z")
        labels = {key: about["labels"].get(f"wattherd.dev/{key}") for key in
                  ("agent", "gpu-cap-min-w", "gpu-cap-max-w")}  # fmt: skip
        assert labels == {"agent": "true", "gpu-cap-min-w": "100", "gpu-cap-max-w": "350"}
        node.pod("one", "0", "150")
        wait_until(lambda: node.applied("one") == "150", "told that it is held")
        agent.stop()
        assert node.applied("one") is None
        assert node.limits_w() == FOUND_W
        about = node.about()
        ours = [key for key in (*about["labels"], *about["annotations"]) if "wattherd.dev" in key]
        assert ours == ["wattherd.dev/gpu-shares"]


def test_caps_sink_while_who_decides_is_silent(node: AgentNode) -> None:
    controller = Controller(node.api, node.namespace)
    helper, agent = node.helper(), node.agent(f"--lease={node.namespace}/wattherd")
    try:
        with running(agent, helper):
            node.pod("both", "0,1", "500")
            node.pod("free", "0")
            wait_until(lambda: node.applied("both") == "500", "told that it is held")
            controller.silent.set()
            wait_until(lambda: node.applied("both") == "200", "told that it has sunk")
            assert node.limits_w() == [100.0, 100.0]
            wait_until(lambda: any("silent" in line for line in agent.said), "and why")
            controller.silent.clear()
            wait_until(lambda: node.applied("both") == "500", "held again")
            assert node.limits_w() == [250.0, 250.0]
    finally:
        controller.close()


def test_an_agent_that_is_killed_or_hangs_loses_its_lease(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        node.pod("both", "0,1", "500")
        wait_until(lambda: node.applied("both") == "500", "told that it is held")
        agent.kill()
        wait_until(lambda: node.limits_w() == [100.0, 100.0], "sunk without an agent")
        agent.begin()
        wait_until(lambda: node.limits_w() == [250.0, 250.0], "held again by its successor")
        agent.freeze()
        wait_until(lambda: node.limits_w() == [100.0, 100.0], "sunk while the agent hangs")
        agent.thaw()
        wait_until(lambda: node.limits_w() == [250.0, 250.0], "held again")


def test_a_helper_that_is_killed_leaves_caps_and_its_successor_goes_on(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        node.pod("both", "0,1", "500")
        wait_until(lambda: node.applied("both") == "500", "told that it is held")
        helper.kill()
        wait_until(lambda: any("does not answer" in line for line in agent.said), "it is missed")
        assert node.limits_w() == [250.0, 250.0]
        assert len(node.journal()) == 2
        helper.begin()
        node.ask("both", "400")
        wait_until(lambda: node.applied("both") == "400", "held by its successor")
        agent.stop()
        assert node.limits_w() == FOUND_W
        assert node.journal() == {}


def test_limits_that_a_driver_forgets_are_set_again(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        node.pod("one", "0", "150")
        wait_until(lambda: node.applied("one") == "150", "told that it is held")
        node.forget_limits()
        wait_until(lambda: node.limits_w() == [150.0, 300.0], "set again")
        node.driver.say(300.0, LOST)
        wait_until(lambda: node.applied("one") is None, "of a lost GPU nothing is known")
        node.forget_limits()
        node.driver.say(300.0)
        wait_until(lambda: node.applied("one") == "150", "set again once it is back")
        assert node.limits_w() == [150.0, 300.0]


def test_while_its_daemonset_is_there_an_agent_leaves_caps_to_its_successor(
    node: AgentNode,
) -> None:
    sets = f"/apis/apps/v1/namespaces/{node.namespace}/daemonsets"
    labels = {"app": "agent"}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    template["spec"]["nodeSelector"] = {"nowhere": "true"}  # type: ignore[assignment]
    spec = {"selector": {"matchLabels": labels}, "template": template}
    node.api.create(sets, {"metadata": {"name": "agent"}, "spec": spec})
    named = f"--daemonset={node.namespace}/agent"
    helper, agent = node.helper(), node.agent(named)
    with running(agent, helper):
        node.pod("one", "0", "150")
        wait_until(lambda: node.applied("one") == "150", "told that it is held")
        agent.stop()
        assert node.applied("one") == "150"
        assert node.limits_w() == [150.0, 300.0]
        agent.begin()
        node.ask("one", "160")
        wait_until(lambda: node.applied("one") == "160", "its successor goes on")
        node.api.delete(f"{sets}/agent")
        agent.stop()
        assert node.applied("one") is None
        assert node.limits_w() == FOUND_W
