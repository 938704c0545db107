"""`wattherd power hold` with a battery on the row: a cut is bridged, a failed battery is not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hold_site import end_watchdogs, eventually, holding, watched, write_site

pytest.importorskip("pymodbus", reason="pymodbus is not installed")

from wattherd.testing.modbus_battery import CHARGE, GIVES, SETPOINT, ModbusBattery, a_battery
from wattherd.testing.redfish_boards import Board, BoardRoom, a_room

pytestmark = pytest.mark.long


@pytest.fixture
def battery() -> Iterator[ModbusBattery]:
    with a_battery(ModbusBattery(setpoint_w=0.0)) as battery:
        yield battery


@pytest.fixture
def room(tmp_path: Path, battery: ModbusBattery) -> Iterator[BoardRoom]:
    """Four nodes that want 600 W each, and whose limits take three seconds."""
    boards = [Board(delay_s=3.0) for _ in range(4)]
    with a_room(*boards) as room:
        room.beside_w = lambda: -battery.gives_w()
        try:
            yield room
        finally:
            end_watchdogs(tmp_path / "site.yaml")


def storages(battery: ModbusBattery, **more: Any) -> dict[str, Any]:
    return {"battery": {
        "feed": "row", "power": "2kW", "energy": "10Wh", "reserve": 0.9,
        "meter": battery.uri(GIVES), "charge": battery.uri(CHARGE),
        "setpoint": battery.uri(SETPOINT), **more,
    }}  # fmt: skip


def test_a_cut_is_bridged_by_the_battery_and_its_setpoint_is_put_back(
    room: BoardRoom, battery: ModbusBattery, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "0:2400W,6s:1600W",
                      storages=storages(battery), safety={"start_heat": 0.0})  # fmt: skip
    with holding(site, "--release") as loop:
        eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 1600.0)
        time.sleep(1.5)  # a cycle, its readings, and the inverter
        assert max(watched(room, 1.0)) <= 1.02 * 1600.0  # the nodes have not heard of it yet
        assert battery.gives_w() > 500.0
        eventually(lambda: room.draw_w() + battery.gives_w() <= 1.02 * 1600.0)
        told = loop.said("cycle")[-1]["storages"]["battery"]
        assert 0.0 < told["charge"] < 1.0
        assert loop.end() == 0
    assert battery.setpoint_w == 0.0
    assert json.loads(site.with_name("site.journal.json").read_text())["found"] == {}


def test_a_battery_that_does_nothing_frees_no_watt(
    room: BoardRoom, battery: ModbusBattery, tmp_path: Path
) -> None:
    battery.deaf = True
    site = write_site(tmp_path / "site.yaml", room, "1600W", storages=storages(battery, reserve=0))
    with holding(site):
        eventually(lambda: room.draw_w() <= 1600.0)
        assert max(watched(room, 6.0)) <= 1.01 * 1600.0
        assert battery.told_w  # it was asked to


def test_a_killed_loop_leaves_the_battery_at_rest(
    room: BoardRoom, battery: ModbusBattery, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1600W", storages=storages(battery, reserve=0))
    with holding(site) as loop:
        eventually(lambda: battery.setpoint_w > 10.0)
        loop.end(9)
    eventually(lambda: battery.setpoint_w == 0.0)
