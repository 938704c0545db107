"""Limits and power of nodes over IPMI: ipmitool against two simulated boards, one with DCMI."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if shutil.which("ipmitool") is None:
    pytest.skip("ipmitool is not installed", allow_module_level=True)

from test_ipmi import Bmc, needs_simulator

from wattherd.devices.knobs.contract import NO_LIMIT, OrderResult
from wattherd.devices.knobs.registry import open_knob, open_switch
from wattherd.devices.wire.device_errors import DeviceErrorKind

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("both_ways")]

needs_dcmi = pytest.mark.skipif(
    importlib.util.find_spec("pyghmi") is None, reason="pyghmi is not installed"
)
PATIENCE_S = 20.0
INSUFFICIENT, OUT_OF_RANGE = 0xD4, 0x84


class Dcmi:
    """The board of dcmi_board.py on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state.json"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        found = {"limit_w": 750, "active": True, "action": 0x11, "on": True}
        self.state.write_text(json.dumps({**found, "deaf": False, "refuses": 0}))
        (folder / "user").write_text("{username: monitor, password: secret}")
        script = Path(__file__).with_name("dcmi_board.py")
        command = [sys.executable, script, str(self.port), self.state]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def now(self) -> dict[str, Any]:
        return dict(json.loads(self.state.read_text()))

    def say(self, **changes: Any) -> None:
        self.state.write_text(json.dumps({**self.now(), **changes}))

    def uri(self, more: str = "timeout=5s&settle=0.1s") -> str:
        return f"ipmi://127.0.0.1:{self.port}?cipher=3&credentials={self.folder}/user&{more}"

    def started(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while open_knob(self.uri("timeout=1s")).read().value is None:
            assert self.process.poll() is None
            assert time.monotonic() < until_s


@pytest.fixture
def dcmi(tmp_path: Path) -> Iterator[Dcmi]:
    board = Dcmi(tmp_path)
    try:
        board.started()
        yield board
    finally:
        board.process.kill()
        board.process.wait()


@needs_dcmi
def test_a_limit_is_set_activated_read_back_and_put_back(dcmi: Dcmi) -> None:
    with open_knob(dcmi.uri()) as knob:
        outcome = knob.set(500.0)
        assert (outcome.result, outcome.read_back) == (OrderResult.TOOK_EFFECT, 500.0)
        now = dcmi.now()
        assert (now["limit_w"], now["active"], now["action"]) == (500, True, 0x11)
        assert knob.restore().read_back == 750.0


@needs_dcmi
def test_a_node_without_an_active_limit_gets_none_back(dcmi: Dcmi) -> None:
    dcmi.say(active=False, limit_w=0)
    with open_knob(dcmi.uri()) as knob:
        assert knob.read().value == NO_LIMIT
        assert knob.set(400.0).in_force
        assert dcmi.now()["active"] is True
        assert knob.restore().result is OrderResult.TOOK_EFFECT
    assert dcmi.now()["active"] is False


@needs_dcmi
def test_boards_that_drop_or_refuse_orders_are_told(dcmi: Dcmi) -> None:
    dcmi.say(deaf=True)
    dropped = open_knob(dcmi.uri()).set(500.0)
    assert (dropped.result, dropped.read_back) == (OrderResult.UNCHANGED, 750.0)
    dcmi.say(deaf=False, refuses=INSUFFICIENT)
    assert open_knob(dcmi.uri()).set(500.0).trouble is DeviceErrorKind.REFUSED
    dcmi.say(refuses=OUT_OF_RANGE)
    assert open_knob(dcmi.uri()).set(500.0).result is OrderResult.REFUSED


@needs_dcmi
def test_a_board_that_is_killed_is_unreachable(dcmi: Dcmi) -> None:
    knob = open_knob(dcmi.uri("timeout=0.5s"))
    dcmi.process.kill()
    dcmi.process.wait()
    assert knob.set(500.0).result is OrderResult.UNREACHABLE


# --- ipmi_sim: chassis power, and no DCMI -------------------------------------------------------


@pytest.fixture
def bmc(tmp_path: Path) -> Iterator[Bmc]:
    bmc = Bmc(tmp_path, "admin")
    try:
        bmc.eventually(4200.0)
        yield bmc
    finally:
        bmc.stop()


@needs_simulator
def test_a_chassis_is_switched_off_and_on(bmc: Bmc) -> None:
    switch = open_switch(f"{bmc.uri('')}&settle=3s")
    assert switch.read().on is True
    assert switch.turn(on=False).result is OrderResult.TOOK_EFFECT
    assert bmc.power.read_text().strip() == "0"
    assert switch.turn(on=True).on is True
    assert bmc.power.read_text().strip() == "1"


@needs_simulator
def test_a_board_without_dcmi_has_no_limit(bmc: Bmc) -> None:
    outcome = open_knob(bmc.uri("") + "&level=administrator").set(500.0)
    assert (outcome.result, outcome.trouble) == (OrderResult.REFUSED, DeviceErrorKind.ABSENT)
    as_operator = open_knob(bmc.uri("")).set(500.0)  # the simulator asks more of what it lacks
    assert (as_operator.result, as_operator.trouble) == (
        OrderResult.REFUSED,
        DeviceErrorKind.REFUSED,
    )


@needs_simulator
def test_a_board_that_is_gone_has_no_position(bmc: Bmc) -> None:
    bmc.stop()
    found = open_switch(bmc.uri("").replace("timeout=3s", "timeout=0.5s")).turn(on=False)
    assert (found.on, found.result) == (None, OrderResult.UNREACHABLE)
