"""A rack PDU: the driver against net-snmp's daemon, whose values a script changes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pysnmp", reason="pysnmp is not installed")

from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.errors import UserError

SNMPD = shutil.which("snmpd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
POWER = "1.3.6.1.4.1.318.1.1.26.4.3.1.5"
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("both_ways")]
needs_snmpd = pytest.mark.skipif(SNMPD is None, reason="snmpd is not installed")

# The protocol of pass_persist: PING/PONG, then `get` with an OID, answered by OID, type and value.
SCRIPT = f"""
import pathlib, sys, time

values = pathlib.Path(sys.argv[1])
for line in iter(sys.stdin.readline, ""):
    if line.strip() == "PING":
        print("PONG", flush=True)
    elif line.strip() == "get":
        oid = sys.stdin.readline().strip().lstrip(".")
        known = dict(each.split("=") for each in values.read_text().splitlines())
        time.sleep(float(known.get("delay", 0)))
        kind, _, value = known.get(oid.removeprefix("{POWER}."), "").partition(":")
        print(f".{{oid}}\\n{{kind}}\\n{{value}}" if kind else "NONE", flush=True)
    else:
        sys.stdin.readline()
        print("NONE", flush=True)
"""


class Pdu:
    """snmpd on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, folder / "values"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "answer.py").write_text(SCRIPT)
        (folder / "snmpd.conf").write_text(
            f"rocommunity public 127.0.0.1\nrocommunity secret 127.0.0.1\n"
            f"createUser watt SHA shared-password AES private-password\nrouser watt priv\n"
            f"pass_persist .{POWER} {sys.executable} {folder / 'answer.py'} {self.values}\n"
        )
        self.say("1=gauge:0")
        self.process = self.start()

    def say(self, *lines: str) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text("\n".join(lines))
        fresh.replace(self.values)

    def start(self) -> subprocess.Popen[bytes]:
        command = [SNMPD or "", "-f", "-Lf", self.folder / "log", "-C", "-c",
                   self.folder / "snmpd.conf", "-p", self.folder / "pid",
                   f"udp:127.0.0.1:{self.port}"]  # fmt: skip
        environment = {"SNMP_PERSISTENT_DIR": str(self.folder / "kept"), "MIBS": ""}
        process = subprocess.Popen(command, env=environment)
        for _ in range(50):
            try:
                with open_meter(self.uri("1", "timeout=0.2s")) as meter:
                    meter.read()
            except DeviceError:
                time.sleep(0.05)
            else:
                return process
        process.kill()
        process.wait()
        raise AssertionError((self.folder / "log").read_text())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def uri(self, index: str, more: str = "") -> str:
        return f"snmp://127.0.0.1:{self.port}/{POWER}.{index}?{more}"


@pytest.fixture(scope="module")
def pdu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pdu]:
    with closing(Pdu(tmp_path_factory.mktemp("pdu"))) as pdu:
        yield pdu


def trouble(uri: str) -> DeviceErrorKind:
    with open_meter(uri) as meter, pytest.raises(DeviceError) as error:
        meter.read()
    return error.value.trouble


@needs_snmpd
def test_values_are_followed_as_they_change(pdu: Pdu) -> None:
    with open_meter(f"snmp://127.0.0.1:{pdu.port}/rpdu2") as meter:
        for hundredths_kw in (0, 812, 1500):
            pdu.say(f"1=gauge:{hundredths_kw}")
            assert meter.read().watts == hundredths_kw * 10.0


@needs_snmpd
@pytest.mark.parametrize("version", ["1", "2c"])
@pytest.mark.parametrize(
    ("said", "watts"),
    [("integer:-5", -5.0), ("gauge:4000000000", 4e9), ("string:812.5", 812.5)],
)
def test_every_kind_of_number(pdu: Pdu, version: str, said: str, watts: float) -> None:
    pdu.say(f"3={said}")
    with open_meter(pdu.uri("3", f"version={version}")) as meter:
        assert meter.read().watts == watts


@needs_snmpd
@pytest.mark.parametrize("version", ["1", "2c"])
def test_no_object_and_no_number_have_their_names(pdu: Pdu, version: str) -> None:
    pdu.say("4=string:warm")
    assert trouble(pdu.uri("4", f"version={version}")) is DeviceErrorKind.GARBAGE
    assert trouble(pdu.uri("99", f"version={version}")) is DeviceErrorKind.ABSENT


@needs_snmpd
def test_the_community_comes_from_a_file(pdu: Pdu, tmp_path: Path) -> None:
    pdu.say("1=gauge:7")
    for community, known in (("secret", True), ("wrong", False)):
        (tmp_path / community).write_text(f"community: {community}")
        uri = pdu.uri("1", f"timeout=0.6s&credentials={tmp_path / community}")
        if known:
            with open_meter(uri) as meter:
                assert meter.read().watts == 7.0
        else:
            assert trouble(uri) is DeviceErrorKind.TIMEOUT


@needs_snmpd
def test_a_user_of_version_3_is_authenticated_and_encrypted(pdu: Pdu, tmp_path: Path) -> None:
    pdu.say("1=gauge:8")
    secrets = tmp_path / "user"
    user = "{{username: {}, password: {}, privacy_password: private-password}}"
    uri = pdu.uri("1", f"version=3&credentials={secrets}")
    secrets.write_text(user.format("watt", "shared-password"))
    with open_meter(uri) as meter:
        assert meter.read().watts == 8.0
    for name, password in (("watt", "wrong-password"), ("nobody", "shared-password")):
        secrets.write_text(user.format(name, password))
        assert trouble(uri) is DeviceErrorKind.REFUSED
    secrets.write_text("{username: watt, password: shared-password}")
    assert trouble(uri) is DeviceErrorKind.REFUSED  # the agent answers this user only if encrypted


def test_a_wrapped_float_is_a_number() -> None:
    from pysnmp.proto.rfc1902 import Opaque

    from wattherd.devices.meters.snmp import _number

    assert _number(Opaque(hexValue="9f7804444b2000"), "1.2") == 812.5


@needs_snmpd
def test_a_slow_agent_times_out_and_its_late_answer_is_not_believed(pdu: Pdu) -> None:
    with open_meter(pdu.uri("1", "timeout=0.3s")) as meter:
        pdu.say("1=gauge:1", "delay=4")
        started_s = time.monotonic()
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - started_s < 4.0
        pdu.say("1=gauge:2")
        assert _read_in_time(meter) == 2.0


def _read_in_time(meter: Meter) -> float:
    """The first reading: an agent that is asleep does not answer."""
    end_s = time.monotonic() + 30.0
    while True:
        try:
            return meter.read().watts
        except DeviceError as error:
            if error.trouble is not DeviceErrorKind.TIMEOUT or time.monotonic() > end_s:
                raise


@needs_snmpd
def test_a_killed_agent_is_silent_until_it_is_back(tmp_path: Path) -> None:
    pdu = Pdu(tmp_path)
    with closing(pdu), open_meter(pdu.uri("1", "timeout=0.3s")) as meter:
        assert _read_in_time(meter) == 0.0
        pdu.close()
        with pytest.raises(DeviceError) as error:
            meter.read()
        assert error.value.trouble is DeviceErrorKind.TIMEOUT
        pdu.say("1=gauge:5")
        pdu.process = pdu.start()
        assert _read_in_time(meter) == 5.0


def test_noise_is_no_reading() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noisy:
        noisy.bind(("127.0.0.1", 0))
        noisy.settimeout(5)
        uri = f"snmp://127.0.0.1:{noisy.getsockname()[1]}/{POWER}.1?timeout=0.3s"
        thread = threading.Thread(target=_answer_once, args=[noisy])
        thread.start()
        assert trouble(uri) in (DeviceErrorKind.GARBAGE, DeviceErrorKind.TIMEOUT)
        thread.join()


def _answer_once(noisy: socket.socket) -> None:
    _, peer = noisy.recvfrom(4096)
    noisy.sendto(b"\xff\x00 no BER at all", peer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("snmp://h", "names no object"),
        ("snmp://h/sysDescr", "names no object"),
        ("snmp://h/1.3.6/1", "names no object"),
        ("snmp://h/rpdu2/x", "names no object"),
        ("snmp:///1.3.6.1", "no host"),
        ("snmp://h/1.3.6.1?version=4", "unknown"),
    ],
)
def test_an_address_is_checked(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_meter(text)
