"""A budget cut below use, beside a stock kube-scheduler: caps, then suspension by priority.

For wattherd as the scheduler it is `test_power_budgets`, for Kueue `test_kueue`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, a_node
from kube_server import wait_until
from power_api import condition, defined, path_of
from stock_modes import STOCK, beside_kube_scheduler
from test_power_budgets import (
    AGENT,
    EMPTY_W,
    EVERY_S,
    GPUS,
    HALF_W,
    IDLE_W,
    LEAST_W,
    LONG_S,
    NODES,
    RISE_W,
    Agents,
    drawn_w,
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


class Sampled:
    """What may be drawn, every 0.2 s: never above the budget, but after a cut, and then less."""

    def __init__(self, api: KubeApi, namespace: str, budget_w: float) -> None:
        self._api, self._namespace = api, namespace
        self.budget_w = budget_w
        self._before_w = 0.0
        self.looks = 0
        self.broken: list[tuple[float, float, float]] = []
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._looking:
                self._look()

    def _look(self) -> None:
        now_w = drawn_w(self._api, self._namespace)
        if now_w > max(self.budget_w, self._before_w):
            self.broken.append((now_w, self.budget_w, self._before_w))
        self._before_w = now_w
        self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def set(self, watts: float) -> None:
        """Change the budget of the hall; nobody waits who could still start under the old one."""
        with self._looking:
            self._look()
            self._api.merge(path_of("PowerBudget", "now"), {"spec": {"constant": f"{watts:g}W"}})
            self.budget_w = watts


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
        seen = stack.enter_context(Sampled(api, namespace, EMPTY_W + 8 * RISE_W))
        mode = stack.enter_context(beside_kube_scheduler(plane, name, namespace))
        for job in ("low", "high"):
            api.create(jobs, mode.job(job, 4, priorities[job]))
        wait_until(lambda: running("low") + running("high") == 8, "both run", within_s=LONG_S)
        seen.set(EMPTY_W + 6 * RISE_W)
        wait_until(lambda: drawn_w(api, namespace) <= seen.budget_w, "all are capped",
                   within_s=LONG_S)  # fmt: skip
        assert not about("low")["spec"].get("suspend")
        assert running("low") + running("high") == 8
        seen.set(EMPTY_W + floor_w - RISE_W)
        wait_until(lambda: about("low")["spec"].get("suspend"), "the less important job goes",
                   within_s=LONG_S)  # fmt: skip
        written = about("low")["metadata"]
        assert written["labels"]["wattherd.dev/suspended"] == "power"
        why = written["annotations"]["wattherd.dev/suspended-why"]
        assert why.startswith("BudgetCut: power domain hall may draw")
        wait_until(lambda: not running("low"), "its pods are gone", within_s=LONG_S)
        wait_until(lambda: drawn_w(api, namespace) <= seen.budget_w, "it is kept", within_s=LONG_S)
        within = lambda: condition(api, "PowerDomain", "hall", "WithinBudget")  # noqa: E731
        wait_until(lambda: within().get("status") == "True", "and told", within_s=LONG_S)
        assert running("high") == 4
        assert not about("high")["spec"].get("suspend")
        seen.set(EMPTY_W + 8 * RISE_W)
        wait_until(lambda: running("low") == 4, "it runs again", within_s=LONG_S)
        wait_until(lambda: drawn_w(api, namespace) == EMPTY_W + 8 * RISE_W, "nobody is capped",
                   within_s=LONG_S)  # fmt: skip
    assert seen.looks > 5
    promise(not seen.broken, seen.broken)
