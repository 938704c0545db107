"""The limit of a node on a real control plane: held, handed over, kept while nobody tells it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
from agent_parts import ASKED, AgentNode, running
from control_plane import ControlPlane
from kube_server import wait_until
from nvml_driver import COMPILER, Driver

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")
LIMIT = "wattherd.dev/node-limit"


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[AgentNode]:
    driver = Driver(tmp_path)
    driver.say(60.0)  # and 120 W: they keep any cap
    made = AgentNode(plane, namespace, driver, tmp_path)
    yield made
    plane.api.remove_nodes([made.name])


def limit(node: AgentNode, text: str | None) -> None:
    node.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": {LIMIT: text}}})


def test_a_limit_on_the_node_holds_all_gpus_and_outlives_agent_and_helper(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        limit(node, "400W")
        wait_until(lambda: sum(node.limits_w()) <= 400.0, "all its GPUs are held")
        assert min(node.limits_w()) >= 100.0
        agent.kill()
        helper.kill()
        assert sum(node.limits_w()) <= 400.0
        helper.begin()  # and no agent: nobody tells it of any limit
        over = time.monotonic() + 8.0  # two leases
        while time.monotonic() < over:
            assert sum(node.limits_w()) <= 400.0
            time.sleep(0.2)
        agent.begin()
        limit(node, "plenty")
        words = "wattherd.dev/agent-problem"
        wait_until(lambda: "no power" in node.about()["annotations"].get(words, ""), "it is told")
        state = (node.folder / "state" / "node-caps.json.state").read_text()
        assert sum(node.limits_w()) <= 400.0, (state, agent.said, helper.said, node.about())
        limit(node, None)
        wait_until(lambda: node.limits_w() == [300.0, 300.0], "put back where there is no limit")


def test_whoever_rewrites_a_cap_twenty_times_a_second_gains_nothing(node: AgentNode) -> None:
    helper, agent = node.helper(), node.agent()
    with running(agent, helper):
        limit(node, "600W")
        node.pod("mine", "0", "250")
        node.pod("neighbours", "1", "250")
        wait_until(lambda: node.limits_w() == [250.0, 250.0], "both are held")
        over, seen_w = threading.Event(), list[list[float]]()

        def rewrite() -> None:
            path = f"/api/v1/namespaces/{node.namespace}/pods/mine"
            while not over.wait(0.05):
                for cap_w in ("350", "250"):  # whoever leads writes it back
                    node.api.merge(path, {"metadata": {"annotations": {ASKED: cap_w}}})

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            until_s = time.monotonic() + 10.0
            while time.monotonic() < until_s:
                seen_w.append(node.limits_w())
                time.sleep(0.1)
        finally:
            over.set()
            writer.join()
        assert max(own_w for own_w, _ in seen_w) <= 250.0
        assert min(other_w for _, other_w in seen_w) >= 249.0
