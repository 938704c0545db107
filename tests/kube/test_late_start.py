"""Schedulers that start while the API server is away: they wait for it, and keep its budgets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_server import end, wait_until
from power_api import an_object, defined, path_of
from test_second_scheduler import T4, bound, nodes_of, why

from promises import promise

NAME = "wattherd-late"
GPUS, FIT = 8, 3
EMPTY_W, RISE_W = GPUS * 10, 60
"""Of T4s, by the catalog: free, and what one in use adds."""
LONG_S = 400.0
"""Kernels may have to be compiled first."""
UNKNOWN = "trouble: it is not known what the API server has"


@pytest.fixture
def told(plane: ControlPlane) -> Iterator[None]:
    """A budget for as many pods as `FIT`, as an object."""
    with defined(plane.api):
        plane.api.create(path_of("PowerDomain"), an_object("PowerDomain", "late", limit="1MW"))
        spec = {"domain": "late", "constant": f"{EMPTY_W + FIT * RISE_W}W"}
        plane.api.create(path_of("PowerBudget"), an_object("PowerBudget", "late", **spec))
        yield


@contextmanager
def away(plane: ControlPlane) -> Iterator[None]:
    """The API server is."""
    plane.apiserver.kill()
    try:
        yield
    finally:
        plane.apiserver.start()


@contextmanager
def a_scheduler(
    plane: ControlPlane, log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """One that was started, and what it has said."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", "--name", NAME]
    with (
        log.open("wb") as written,
        subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"], stderr=written) as process,
    ):
        try:
            yield process, log.read_text
        finally:
            end(process)


def test_budgets_hold_for_who_started_before_the_api_server(
    plane: ControlPlane, namespace: str, told: None, tmp_path: Path
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    node = a_node("late-0", gpus=GPUS, labels=T4 | {"wattherd.dev/power-domain": "late"})
    names = {f"p-{number}" for number in range(GPUS)}
    with nodes_of(api, [node]), ExitStack() as stack:
        api.create_all(pods, [a_pod(name, gpus=1, scheduler=NAME) for name in sorted(names)])
        with away(plane):
            _, said = stack.enter_context(a_scheduler(plane, tmp_path / "log"))
            wait_until(lambda: UNKNOWN in said(), said, within_s=LONG_S)

        def settled() -> bool:
            waiting = names - bound(api, namespace).keys()
            return all("WaitingForPower" in why(api, namespace, name) for name in waiting)

        wait_until(settled, said)
        there = bound(api, namespace)
        promise(len(there) == FIT, there)


def test_who_waits_for_the_api_server_can_be_ended(plane: ControlPlane, tmp_path: Path) -> None:
    with away(plane), a_scheduler(plane, tmp_path / "log") as (process, said):
        wait_until(lambda: UNKNOWN in said(), said, within_s=LONG_S)
        process.terminate()
        assert process.wait(timeout=60) == 0
