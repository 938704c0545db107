"""A UPS: the driver against upsd with its own dummy driver, and against worse servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.errors import UserError

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("both_ways")]

PLACES = "/lib/nut:/usr/lib/nut:/usr/libexec/nut:/usr/local/sbin"
UPSD, DUMMY = (shutil.which(name, path=PLACES) for name in ("upsd", "dummy-ups"))
needs_nut = pytest.mark.skipif(not (UPSD and DUMMY), reason="NUT's upsd is not installed")
PATIENCE_S = 20.0


class Ups:
    """dummy-ups, which follows a file, behind upsd on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._said_s = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.say(500.0)
        user = f"user = {os.environ.get('USER') or 'root'}"
        self.write(
            "ups.conf", f"[rack]\ndriver = dummy-ups\nport = {folder / 'rack.dev'}\n{user}\n"
        )
        self.write("upsd.conf", f"LISTEN 127.0.0.1 {self.port}\nMAXAGE 5\n")
        self.write("upsd.users", "[monitor]\npassword = secret\n")
        self.write("nut.conf", "MODE=standalone\n")
        self.driver = self.start(DUMMY or "", "-a", "rack", "-F")
        self.server = self.start(UPSD or "", "-F")

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)
        (self.folder / name).chmod(0o640)

    def say(self, watts: float) -> None:
        """Not twice in a second by the file's time: dummy-ups would not look at the later one."""
        self.write("rack.dev", f"ups.status: OL\nups.realpower: {watts:g}\nups.model: warm\n")
        self._said_s = max(self._said_s + 1, int(time.time()))
        os.utime(self.folder / "rack.dev", (self._said_s, self._said_s))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        places = {"NUT_CONFPATH": str(self.folder), "NUT_STATEPATH": str(self.folder),
                  "NUT_PIDPATH": str(self.folder), "NUT_ALTPIDPATH": str(self.folder)}  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "-u", "root"] if os.geteuid() == 0 else command,
                env={**os.environ, **places}, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        for process in (self.server, self.driver):
            process.kill()
            process.wait()

    def uri(self, more: str = "") -> str:
        return f"nut://127.0.0.1:{self.port}/rack?{more}"

    def eventually(self, expected: float | DeviceErrorKind) -> None:
        until_s = time.monotonic() + PATIENCE_S
        found: float | DeviceErrorKind | None = None
        while time.monotonic() < until_s:
            found = outcome(self.uri())
            if found == expected:
                return
            time.sleep(0.1)
        raise AssertionError(f"{found}, never {expected}: {(self.folder / 'log').read_text()}")


def outcome(uri: str) -> float | DeviceErrorKind:
    try:
        return open_meter(uri).read().watts
    except DeviceError as error:
        return error.trouble


@pytest.fixture(scope="module")
def ups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ups]:
    ups = Ups(tmp_path_factory.mktemp("ups"))
    try:
        ups.eventually(500.0)
        yield ups
    finally:
        ups.stop()


@needs_nut
def test_values_are_followed_as_they_change(ups: Ups) -> None:
    for watts in (1234.5, 500.0):
        ups.say(watts)
        ups.eventually(watts)


@needs_nut
def test_what_the_server_refuses_has_a_name(ups: Ups) -> None:
    assert outcome(ups.uri("variable=ups.none")) is DeviceErrorKind.ABSENT
    assert outcome(ups.uri("variable=ups.model")) is DeviceErrorKind.GARBAGE
    assert outcome(ups.uri().replace("rack", "other")) is DeviceErrorKind.ABSENT


@needs_nut
def test_a_user_may_log_in(ups: Ups, tmp_path: Path) -> None:
    (tmp_path / "user").write_text("{username: monitor, password: secret}")
    ups.eventually(500.0)
    assert outcome(ups.uri(f"credentials={tmp_path / 'user'}")) == 500.0


@needs_nut
def test_a_lost_driver_and_a_killed_server_are_unreachable(tmp_path: Path) -> None:
    ups = Ups(tmp_path)
    try:
        ups.eventually(500.0)
        ups.driver.kill()
        ups.eventually(DeviceErrorKind.UNREACHABLE)
    finally:
        ups.stop()
    assert outcome(ups.uri()) is DeviceErrorKind.UNREACHABLE


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b'VAR rack ups.realpower "750.5"\n', 750.5),
        (b'VAR rack ups.realpower "nan"\n', DeviceErrorKind.GARBAGE),
        (b'VAR rack ups.load "50"\n', DeviceErrorKind.GARBAGE),
        (b'VAR rack ups.realpower "7\n', DeviceErrorKind.GARBAGE),
        (b"ERR\n", DeviceErrorKind.GARBAGE),
        (b"ERR ACCESS-DENIED\n", DeviceErrorKind.REFUSED),
        (b"ERR DATA-STALE\n", DeviceErrorKind.UNREACHABLE),
        (b"\x00\xff\n", DeviceErrorKind.GARBAGE),
        (b"x" * 10_000, DeviceErrorKind.GARBAGE),
        (b"VAR rack", DeviceErrorKind.UNREACHABLE),  # and hangs up
        (b"", DeviceErrorKind.UNREACHABLE),
    ],
)
def test_each_answer_has_its_meaning(said: bytes, expected: float | DeviceErrorKind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=_answer_once, args=[server, said])
        thread.start()
        assert outcome(f"nut://127.0.0.1:{server.getsockname()[1]}/rack") == expected
        thread.join()


def _answer_once(server: socket.socket, said: bytes, pause_s: float = 0.0) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        try:
            for start in range(0, len(said), 1 if pause_s else 4096):
                connection.sendall(said[start : start + (1 if pause_s else 4096)])
                time.sleep(pause_s)
        except OSError:
            return  # the client has heard enough


@pytest.mark.long
def test_a_server_that_drips_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=_answer_once, args=[server, b"VAR rack ups.realpower", 0.5])
        thread.start()
        began_s = time.monotonic()
        uri = f"nut://127.0.0.1:{server.getsockname()[1]}/rack?timeout=0.3s"
        assert outcome(uri) is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - began_s < 8.0  # all of it would take longer
        thread.join()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nut://h", "names nothing"),
        ("nut://h/a b", "names nothing"),
        ("nut://h/ups?variable=x%0aSHUTDOWN", "names nothing"),
        ("nut:///ups", "no host"),
    ],
)
def test_an_address_is_checked(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_meter(text)
