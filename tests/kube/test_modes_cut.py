"""A budget cut below use, beside a stock kube-scheduler: caps, then suspension by priority.

For wattherd as the scheduler it is `test_power_budgets`, for Kueue `test_kueue`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from control_plane import ControlPlane
from draw_watch import SampledDraw
from kube_api import a_node
from kube_server import wait_until
from power_api import condition, defined
from stock_modes import STOCK, beside_kube_scheduler
from test_power_budgets import (
    AGENT,
    EMPTY_W,
    GPUS,
    HALF_W,
    IDLE_W,
    LEAST_W,
    LONG_S,
    NODES,
    RISE_W,
    Agents,
    priorities,
    tree,
    watts,
)

from promises import promise

__all__ = ["priorities"]


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[None]:
    """Nodes with agents, two in each of two racks."""
    labels = {"nvidia.com/gpu.product": "Tesla-T4", **AGENT}
    nodes = [
        a_node(f"cut-{row}", gpus=GPUS, labels=labels | {"rack": str(row % 2)})
        for row in range(NODES)
    ]
    with defined(plane.api):
        names = plane.api.fleet(nodes)
        yield
        plane.api.remove_nodes(names)


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("name", STOCK)
def test_a_cut_caps_then_suspends_by_priority_and_a_rise_resumes(
    plane: ControlPlane, namespace: str, priorities: dict[str, str], name: str
) -> None:
    """Two jobs of four GPUs: 8 x 70 W in a tree, cut to what caps bear, then far below."""
    api = plane.api
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def running(job: str) -> int:
        items = api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"job-name={job}")
        return sum(1 for pod in items["items"] if pod["spec"].get("nodeName"))

    def about(job: str) -> Any:
        return api.get(f"{jobs}/{job}")

    floor_w = 8 * (LEAST_W - IDLE_W)
    with ExitStack() as stack:
        stack.enter_context(tree(api, watts(8), watts(16, HALF_W)))
        stack.enter_context(Agents(api, namespace))
        seen = stack.enter_context(
            SampledDraw(api, namespace, "now", rise_w=8 * RISE_W, empty_w=EMPTY_W)
        )
        mode = stack.enter_context(beside_kube_scheduler(plane, name, namespace))
        for job in ("low", "high"):
            api.create(jobs, mode.job(job, 4, priorities[job]))
        wait_until(lambda: running("low") + running("high") == 8, "both run", within_s=LONG_S)
        seen.set(6 * RISE_W)
        wait_until(seen.kept, "all are capped", within_s=LONG_S)
        assert not about("low")["spec"].get("suspend")
        assert running("low") + running("high") == 8
        seen.set(floor_w - RISE_W)
        wait_until(lambda: about("low")["spec"].get("suspend"), "the less important job goes",
                   within_s=LONG_S)  # fmt: skip
        written = about("low")["metadata"]
        assert written["labels"]["wattherd.dev/suspended"] == "power"
        why = written["annotations"]["wattherd.dev/suspended-why"]
        assert why.startswith("BudgetCut: power domain hall may draw")
        wait_until(lambda: not running("low"), "its pods are gone", within_s=LONG_S)
        wait_until(seen.kept, "it is kept", within_s=LONG_S)
        within = lambda: condition(api, "PowerDomain", "hall", "WithinBudget")  # noqa: E731
        wait_until(lambda: within().get("status") == "True", "and told", within_s=LONG_S)
        assert running("high") == 4
        assert not about("high")["spec"].get("suspend")
        seen.set(8 * RISE_W)
        wait_until(lambda: running("low") == 4, "it runs again", within_s=LONG_S)
        wait_until(seen.full, "nobody is capped", within_s=LONG_S)
    assert seen.looks > 5
    promise(not seen.broken, seen.broken)
