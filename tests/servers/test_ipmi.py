"""A server's controller: ipmitool against OpenIPMI's simulator, whose sensor follows a file."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if shutil.which("ipmitool") is None:
    pytest.skip("ipmitool is not installed", allow_module_level=True)

from wattherd.devices.meters.ipmi import dcmi_watts, sensor_watts
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.ipmitool import refusal
from wattherd.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

needs_simulator = pytest.mark.skipif(
    shutil.which("ipmi_sim") is None, reason="ipmi_sim (openipmi) is not installed"
)
STEP_W = 40  # of a sensor of eight bits that reaches 10.2 kW
PATIENCE_S = 15.0
ALLOWED = "none md2 md5 straight"
LAN = """name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback {auths}
    allowed_auths_user {auths}
    allowed_auths_operator {auths}
    allowed_auths_admin {auths}
    guid a123456789abcdefa123456789abcdef
  endlan
  user 1 true "" "none" user 10 {auths}
  user 2 true "monitor" "secret" {level} 10 {auths}
  chassis_control "{chassis}"
"""
CHASSIS = """#!/bin/sh
# get power | set power 0|1: the state of the chassis is a file.
case "$2 $3" in
  "get power") echo "power:$(cat {power})" ;;
  "set power") echo "$4" > {power} ;;
  *) exit 1 ;;
esac
"""
BOARD = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 1 0x0b 1 poll 100 file "{watts}" div={step}
main_sdr_add 0x20 {record}
sensor_set_event_support 0x20 0 1 enable scanning per-state {none} {none} {none} {none}
mc_enable 0x20
"""


def record(name: bytes) -> str:
    """A full sensor record (IPMI 2.0, table 43-1): linear, unsigned, watts, `STEP_W` a count."""
    key, entity, setup = [0x20, 0, 1], [0x13, 1], [0x67, 0x40, 0x0B, 1]
    masks, units = [0] * 6, [0, 6, 0]
    factors, limits = [0, STEP_W, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0xFF, 0, *[0] * 6, 0, 0, 0, 0, 0]
    body = [*key, *entity, *setup, *masks, *units, *factors, *limits, 0xC0 | len(name), *name]
    return " ".join(f"0x{byte:02x}" for byte in [0, 0, 0x51, 1, len(body), *body])


class Bmc:
    """ipmi_sim on a free port of 127.0.0.1."""

    def __init__(self, folder: Path, level: str = "user") -> None:
        self.folder, self.watts, self.power = folder, folder / "watts", folder / "power"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "state").mkdir()
        self.user("secret")
        self.say(4200)
        board = BOARD.format(watts=self.watts, step=STEP_W, record=record(b"Total Power"),
                             none="0" * 15)  # fmt: skip
        (folder / "board").write_text(board)
        self.power.write_text("1")
        chassis = folder / "chassis"
        chassis.write_text(CHASSIS.format(power=self.power))
        chassis.chmod(0o755)
        lan = LAN.format(port=self.port, auths=ALLOWED, level=level, chassis=f"{chassis} 0x20")
        (folder / "lan").write_text(lan)
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["ipmi_sim", "-c", folder / "lan", "-f", folder / "board", "-s", folder / "state"],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip

    def user(self, password: str) -> None:
        (self.folder / "user").write_text(f"{{username: monitor, password: {password}}}")

    def say(self, watts: int) -> None:
        self.watts.write_text(str(watts))

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def uri(self, name: str = "Total%20Power") -> str:
        secrets = self.folder / "user"
        return f"ipmi://127.0.0.1:{self.port}/{name}?cipher=3&timeout=3s&credentials={secrets}"

    def eventually(self, watts: float) -> None:
        until_s = time.monotonic() + PATIENCE_S
        found: float | DeviceErrorKind | None = None
        while time.monotonic() < until_s:
            found = outcome(self.uri())
            if found == watts:
                return
            time.sleep(0.05)
        raise AssertionError(f"{found}: {(self.folder / 'log').read_text()}")


def outcome(uri: str) -> float | DeviceErrorKind:
    try:
        return open_meter(uri).read().watts
    except DeviceError as error:
        return error.trouble


@pytest.fixture
def bmc(tmp_path: Path) -> Iterator[Bmc]:
    bmc = Bmc(tmp_path)
    try:
        bmc.eventually(4200.0)
        yield bmc
    finally:
        bmc.stop()


@needs_simulator
def test_a_sensor_is_followed_until_its_controller_is_killed(bmc: Bmc) -> None:
    bmc.say(8000)
    bmc.eventually(8000.0)
    assert outcome(bmc.uri("Fan%201")) is DeviceErrorKind.ABSENT
    assert outcome(bmc.uri("dcmi")) is DeviceErrorKind.REFUSED  # to users, by the simulator
    bmc.user("wrong")
    assert outcome(bmc.uri()) is DeviceErrorKind.UNREACHABLE
    bmc.stop()
    assert outcome(bmc.uri().replace("timeout=3s", "timeout=0.5s")) in (
        DeviceErrorKind.TIMEOUT,
        DeviceErrorKind.UNREACHABLE,
    )


def test_a_silent_controller_times_out() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        began_s = time.monotonic()
        uri = f"ipmi://127.0.0.1:{silent.getsockname()[1]}/dcmi?timeout=0.4s"
        assert outcome(uri) is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - began_s < 15.0


def test_what_ipmitool_prints_is_read() -> None:
    printed = "\n    Instantaneous power reading:                   220 Watts\n"
    assert dcmi_watts(f"{printed}    Power reading state is:   activated\n") == 220.0
    assert sensor_watts("PSU Input,812.5,Watts,ok,10.1,Power Supply\n") == 812.5


@pytest.mark.parametrize(
    "said", ["", "PSU", "Inlet,25,degrees C,ok", "PSU,,Watts,ns", "P,0,Watts,ns"]
)
def test_a_sensor_without_watts_is_no_reading(said: str) -> None:
    with pytest.raises(DeviceError) as error:
        sensor_watts(said)
    assert error.value.trouble is DeviceErrorKind.ABSENT


def test_a_controller_without_dcmi_has_no_such_reading() -> None:
    said = "\n    DCMI request failed because: Invalid command (c1)\n"
    assert refusal(said).trouble is DeviceErrorKind.ABSENT


def test_dcmi_switched_off_is_no_reading() -> None:
    off = "Instantaneous power reading: 0 Watts\nPower reading state is:  deactivated"
    for said, trouble in ((off, DeviceErrorKind.ABSENT), ("what?", DeviceErrorKind.GARBAGE)):
        with pytest.raises(DeviceError) as error:
            dcmi_watts(said)
        assert error.value.trouble is trouble


@pytest.mark.parametrize(
    ("text", "problem"),
    [("ipmi:///dcmi", "no host"), ("ipmi://h/-f", "no sensor"), ("ipmi://h?cipher=0", "unknown")],
)
def test_an_address_is_checked(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_meter(text)
