"""A PowerBudget that follows a web server: what it says, its silence, a restart meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from control_plane import ControlPlane
from kube_api import KubeApi
from kube_server import end, wait_until
from power_api import an_object, condition, defined, path_of, there

from unit.web_server import Site, serving

LIMIT_W, SAFE_W = 40_000, 10_000
VALID_S = 10
SINCE_S = 1_500_000_000
"""Some time that is over."""


@contextmanager
def a_scheduler(plane: ControlPlane) -> Iterator[None]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler"]
    command += [f"--kubeconfig={plane.kubeconfig}", "--name=wattherd-signal"]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            end(process)


@contextmanager
def followed(api: KubeApi, port: int) -> Iterator[None]:
    """A hall whose budget is what the server at `port` says."""
    address = f"http://127.0.0.1:{port}/limits?safe=25%25&every=0.2s&valid={VALID_S}s"
    made = [
        an_object("PowerDomain", "grid-hall", limit=f"{LIMIT_W}W"),
        an_object("PowerBudget", "grid", domain="grid-hall", signal={"address": address}),
    ]
    with defined(api), there(api, made):
        yield


def limits(*rows: tuple[float, str]) -> dict[str, Any]:
    return {"/limits": {"limits": [{"at": at, "limit": limit} for at, limit in rows]}}


def said(api: KubeApi) -> tuple[float | None, str]:
    """What the budget allows now, and how it stands."""
    status = api.get(path_of("PowerBudget", "grid")).get("status", {})
    return status.get("watts"), condition(api, "PowerBudget", "grid").get("reason", "")


def in_force(api: KubeApi) -> float | None:
    """What the domain may draw."""
    found: float | None = (
        api.get(path_of("PowerDomain", "grid-hall")).get("status", {}).get("budgetWatts")
    )
    return found


def becomes(api: KubeApi, watts: float, reason: str) -> None:
    wait_until(
        lambda: said(api) == (watts, reason) and in_force(api) == watts,
        lambda: f"{watts}, {reason}: {api.get(path_of('PowerBudget', 'grid'))['status']}",
    )


def test_a_budget_says_what_its_server_says_and_the_safe_level_when_that_is_silent(
    plane: ControlPlane,
) -> None:
    api, site = plane.api, Site(limits((SINCE_S, "30kW")))
    with serving(site), followed(api, site.port), a_scheduler(plane):
        becomes(api, 30_000, "InForce")
        later_s = round(time.time()) + 3600
        site.pages = limits((SINCE_S, "45%"), (later_s, "8kW"))
        becomes(api, 18_000, "InForce")
        step = api.get(path_of("PowerBudget", "grid"))["status"]["nextStep"]
        assert step["watts"] == 8_000
        site.pages = {"/limits": {"limits": "none"}}
        becomes(api, 18_000, "SignalLost")  # its last word, as long as that is valid
        becomes(api, SAFE_W, "SignalLost")
        site.pages = limits((SINCE_S, "20kW"))
        becomes(api, 20_000, "InForce")


def test_a_server_that_is_gone_is_outlived_also_over_a_restart(plane: ControlPlane) -> None:
    api, site = plane.api, Site(limits((SINCE_S, "30kW")))
    with ExitStack() as there:
        there.enter_context(serving(site))
        with followed(api, site.port):
            with a_scheduler(plane):
                becomes(api, 30_000, "InForce")
                there.close()
                becomes(api, 30_000, "SignalLost")
                becomes(api, SAFE_W, "SignalLost")
                with serving(site, port=site.port):
                    becomes(api, 30_000, "InForce")
            with a_scheduler(plane):
                becomes(api, 30_000, "SignalWaiting")  # what it said last, on the object
                site.pages = limits((SINCE_S, "12kW"))
                with serving(site, port=site.port):
                    becomes(api, 12_000, "InForce")
