"""A setpoint in a register: written, read back, put back, and refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("pymodbus", reason="pymodbus is not installed")

from wattherd.devices.knobs.contract import OrderResult
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.registry import open_knob
from wattherd.errors import UserError
from wattherd.testing.modbus_battery import SETPOINT, ModbusBattery, a_battery


def test_a_negative_setpoint_is_written_read_back_and_put_back(tmp_path: Path) -> None:
    with a_battery(ModbusBattery(setpoint_w=250.0)) as battery:
        with open_knob(battery.uri(SETPOINT), KnobJournal(tmp_path / "journal.json")) as knob:
            outcome = knob.set(-1200.0)
            assert (outcome.result, outcome.read_back) == (OrderResult.TOOK_EFFECT, -1200.0)
            assert battery.setpoint_w == -1200.0
            assert knob.restore().in_force
        assert battery.setpoint_w == 250.0


def test_units_and_signs_are_those_of_the_address() -> None:
    with a_battery(ModbusBattery(setpoint_w=2.0)) as battery:
        with open_knob(battery.uri(SETPOINT) + "&unit=kW&scale=-1") as knob:
            assert knob.read().value == -2000.0
            assert knob.set(500.0).in_force
        assert battery.setpoint_w == -0.5


def test_a_register_that_is_not_there_and_nobody_are_told_apart() -> None:
    with a_battery(ModbusBattery()) as battery:
        port = battery.port
        with open_knob(f"modbus://127.0.0.1:{port}/7/900?timeout=1s") as knob:
            outcome = knob.set(1.0)
            assert outcome.result is OrderResult.REFUSED
            assert "no such register" in outcome.problem
    with open_knob(f"modbus://127.0.0.1:{port}/7/4?timeout=0.5s") as knob:
        assert knob.set(1.0).result is OrderResult.UNREACHABLE


def test_no_limit_is_no_number() -> None:
    with a_battery(ModbusBattery()) as battery, open_knob(battery.uri(SETPOINT)) as knob:
        assert knob.set(math.inf).result is OrderResult.REFUSED
        assert battery.told_w == []


@pytest.mark.parametrize(
    "address", ["modbus://h/7", "modbus://h/7/4?scale=0", "modbus://h/7/4?x=1"]
)
def test_addresses_that_cannot_be_used(address: str) -> None:
    with pytest.raises(UserError):
        open_knob(address)
