"""Who deletes the kind of budgets has said nothing of what may be drawn: the last word holds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from control_plane import ControlPlane
from kube_api import KubeApi, a_node, a_pod
from kube_server import end, wait_until
from power_api import DEFINITIONS, an_object, condition, defined, path_of, shipped
from test_second_scheduler import T4, bound, nodes_of, why

NAME = "wattherd-kind"
KIND = "powerbudgets.wattherd.dev"
IDLE_W, RISE_W = 10, 60
LONG_S = 120.0


@contextmanager
def a_scheduler(plane: ControlPlane, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", f"--name={NAME}"]
    with (
        log.open("wb") as told,
        subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"], stderr=told) as process,
    ):
        try:
            yield
        finally:
            end(process)


def again(api: KubeApi) -> None:
    for one in shipped():
        api.call("POST", DEFINITIONS, one)
    wait_until(lambda: not gone(api), "the kind is served")


def gone(api: KubeApi) -> bool:
    return api.call("GET", path_of("PowerBudget"))[0] == 404


def test_a_kind_that_is_deleted_raises_nothing_also_for_who_starts_then(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Four GPUs, watts for two by a budget, for four by the domain's own limit."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    labels = T4 | {"hall": "kind"}

    def states() -> dict[str, str]:
        """Of each pod its node, or why it waits."""
        return {
            (name := pod["metadata"]["name"]): pod["spec"].get("nodeName")
            or why(api, namespace, name)
            for pod in api.get(pods)["items"]
        }

    limit, budget = 4 * (IDLE_W + RISE_W), 4 * IDLE_W + 2 * RISE_W
    here = {"nodeSelector": {"matchLabels": {"hall": "kind"}}}
    nodes = [a_node(f"{namespace}-n", gpus=4, labels=labels)]
    with nodes_of(api, nodes), defined(api), ExitStack() as stack:
        api.create(
            path_of("PowerDomain"), an_object("PowerDomain", "kind", limit=f"{limit}W", **here)
        )
        api.create(
            path_of("PowerBudget"),
            an_object("PowerBudget", "kind", domain="kind", constant=f"{budget}W"),
        )
        # Whatever happens, all kinds are there again for those who take their objects away.
        stack.callback(again, api)
        first, second = tmp_path / "first", tmp_path / "second"
        with a_scheduler(plane, first):
            api.create_all(pods, [a_pod(f"p-{n}", gpus=1, scheduler=NAME) for n in range(4)])
            wait_until(lambda: len(bound(api, namespace)) == 2, "watts for two", within_s=LONG_S)
            wait_until(
                lambda: (
                    condition(api, "PowerDomain", "kind", "WithinBudget").get("status") == "True"
                ),
                "what it may draw is on the domain",
            )
            api.delete(f"{DEFINITIONS}/{KIND}")
            wait_until(lambda: gone(api), "the kind is gone")
            said = lambda: first.read_text()  # noqa: E731
            wait_until(lambda: "trouble: PowerBudget is not served" in said(), said)
            time.sleep(5)
            assert len(bound(api, namespace)) == 2
        with a_scheduler(plane, second):
            waits = next(f"p-{n}" for n in range(4) if f"p-{n}" not in bound(api, namespace))
            api.delete(f"{pods}/{waits}", gracePeriodSeconds=0)
            api.create(pods, a_pod("late", gpus=1, scheduler=NAME))
            told = lambda: f"{states()} {second.read_text()}"  # noqa: E731
            wait_until(lambda: "WaitingForPower" in states().get("late", ""), told, within_s=LONG_S)
            time.sleep(5)
            assert len(bound(api, namespace)) == 2, second.read_text()
            status = api.get(path_of("PowerDomain", "kind"))["status"]
            assert status["budgetWatts"] == budget
    assert "Traceback" not in first.read_text() + second.read_text()
