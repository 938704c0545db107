"""Every value that the chart's schema takes is one that the commands begin with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="needs the extra kube")

from wattherd.devices.meters.registry import PROTOCOLS
from wattherd.experiments.placement.policies import place_policy
from wattherd.policy.place.registry import BUILT_IN
from wattherd.policy.rebalance.sleep import AfterIdle
from wattherd.server.kube.core_choice import schedulers
from wattherd.server.kube.run import budgets_mw
from wattherd.units import seconds, watts

CHART = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "chart"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def at(path: str) -> dict[str, Any]:
    """The schema of a value, as in `agent.silence`."""
    found: dict[str, Any] = SCHEMA
    for name in path.split("."):
        found = found["properties"][name]
    return found.get("items", found)


def some_budget(text: str) -> None:
    [budget] = budgets_mw([text]).values()
    assert budget > 0


def some_time(text: str) -> None:
    assert seconds(text) > 0


def some_power(text: str) -> None:
    assert not text or watts(text) > 0


def idle(text: str) -> None:
    AfterIdle(after_s=seconds(text), spare=0)


READ: dict[str, Callable[[str], object]] = {
    "policy": place_policy,
    "budgets": some_budget,
    "scheduler.patience": some_time,
    "agent.silence": some_time,
    "agent.safeCap": some_power,
    "agent.limit": some_power,
    "agent.base": some_power,
    "agent.rackLimit": some_power,
    "pools.gpuPower": some_power,
    "pools.idleAfter": idle,
    "pools.hold": some_time,
    "pools.wakeMost": some_time,
}
GIVEN = {
    "policy": "tiresias",
    "budgets": "0W",
    "agent.silence": "0s",
    "agent.safeCap": "150",
    "agent.limit": "0W",
    "agent.meter": "carrier-pigeon://loft",
    "pools.gpuPower": "700",
    "pools.hold": "0s",
}
"""What passed once, and ended in a crash-loop."""


@pytest.mark.parametrize("path", READ)
def test_what_the_schema_takes_the_command_reads(path: str) -> None:
    @settings(deadline=None, max_examples=25)
    @given(st.from_regex(re.compile(at(path)["pattern"], re.ASCII), fullmatch=True))
    def read(text: str) -> None:
        READ[path](text.removesuffix("\n"))

    read()


@pytest.mark.parametrize("path", GIVEN)
def test_what_the_command_does_not_begin_with_is_no_value(path: str) -> None:
    assert not re.search(at(path)["pattern"], GIVEN[path])


def test_every_scheduler_can_be_chosen_and_what_solves_for_it_is_in_the_image() -> None:
    image = (CHART.parent / "Containerfile").read_text()
    assert "[kube,kube-agent,server,fast,lp]" in image
    assert sorted(at("scheduler.planner")["enum"]) == sorted(["", *schedulers()])


def test_every_built_in_policy_can_be_chosen() -> None:
    pattern = at("policy")["pattern"]
    chosen = [*BUILT_IN, "fgd@exact", "pwr+fgd:0.1", "wattherd@room=0.7"]
    assert all(re.search(pattern, name) for name in chosen)


def test_meters_are_those_that_there_are_drivers_for() -> None:
    """What follows is checked by the driver, as the agent begins."""
    for path in ("agent.meter", "agent.rackMeter"):
        pattern = at(path)["pattern"]
        for scheme in sorted(PROTOCOLS.keys() - {"replay"}):
            assert re.search(pattern, f"{scheme}:" if scheme == "rapl" else f"{scheme}://x")


def test_somebody_is_at_work_wherever_it_is_installed() -> None:
    assert at("scheduler.replicas")["minimum"] == 1
    assert at("pools.replicas")["minimum"] == 1
