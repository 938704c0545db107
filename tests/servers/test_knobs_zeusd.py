"""GPU limits through a daemon: its answers by a small server on a socket, and zeusd itself.

zeusd is a Rust program (`cargo install zeusd`, minutes): where it is on the PATH, or named by
WATTHERD_ZEUSD, the slow tests run it on a driver library built here.
"""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from nvml_driver import COMPILER, IGNORED, NO_PERMISSION, Driver

from wattherd.devices.knobs.contract import KnobLimits, KnobUnit, OrderResult
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.wire.device_errors import DeviceErrorKind

ZEUSD = os.environ.get("WATTHERD_ZEUSD") or shutil.which("zeusd")


@dataclass
class Daemon:
    """Four GPUs of 100 to 350 W, as zeusd 0.5.0 tells of them."""

    limits_mw: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(4), 300_000))
    refusal: tuple[int, Any] | None = None
    token: str = ""
    deaf: bool = False

    def answer(self, method: str, target: str, token: str) -> tuple[int, Any]:
        if self.token and token != f"Bearer {self.token}":
            return 401, {"error": "Authentication required."}
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        gpu = int(query["gpu_ids"])
        if gpu not in self.limits_mw:
            return 400, f"GPU index {gpu} does not exist."
        match method, parts.path:
            case "GET", "/gpu/get_power_limit":
                return 200, {str(gpu): {"power_limit_mw": self.limits_mw[gpu]}}
            case "GET", "/gpu/get_power_limit_constraints":
                limits = {"min_power_limit_mw": 100_000, "max_power_limit_mw": 350_000}
                return 200, {str(gpu): limits}
            case "POST", "/gpu/set_power_limit" if query["block"] == "true":
                if self.refusal:
                    return self.refusal
                if not self.deaf:
                    self.limits_mw[gpu] = int(query["power_limit_mw"])
                return 200, None
        return 404, None


@contextmanager
def serving(daemon: Daemon, path: Path) -> Iterator[None]:
    """The daemon on a socket of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization") or ""
            status, content = daemon.answer(self.command, self.path, token)
            body = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None: ...

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            path.unlink()


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def sock(daemon: Daemon, tmp_path: Path) -> Iterator[Path]:
    with serving(daemon, tmp_path / "z.sock"):
        yield tmp_path / "z.sock"


def test_a_limit_is_set_read_back_and_put_back(daemon: Daemon, sock: Path) -> None:
    with open_knob(f"zeusd+unix://{sock}?gpu=2") as knob:
        assert knob.limits() == KnobLimits(
            unit=KnobUnit.WATT, lowest=100.0, highest=350.0, default=None, now=300.0
        )
        outcome = knob.set(250.0)
        assert (outcome.result, outcome.read_back) == (OrderResult.TOOK_EFFECT, 250.0)
        assert knob.set(50.0).result is OrderResult.CLAMPED
        assert daemon.limits_mw == {0: 300_000, 1: 300_000, 2: 100_000, 3: 300_000}
        assert knob.restore().read_back == 300.0


def test_a_daemon_that_drops_orders_is_caught(daemon: Daemon, sock: Path) -> None:
    daemon.deaf = True
    outcome = open_knob(f"zeusd+unix://{sock}?gpu=0&settle=0.1s").set(250.0)
    assert outcome.result is OrderResult.UNCHANGED


@pytest.mark.parametrize(
    ("status", "content", "result", "trouble"),
    [
        (
            403,
            {"errors": {"0": "NVML error: no permission"}},
            OrderResult.REFUSED,
            DeviceErrorKind.REFUSED,
        ),
        (400, {"errors": {"0": "Invalid request"}}, OrderResult.REFUSED, DeviceErrorKind.GARBAGE),
        (404, None, OrderResult.REFUSED, DeviceErrorKind.ABSENT),
        (500, {"errors": {"0": "GPU lost"}}, OrderResult.UNREACHABLE, DeviceErrorKind.UNREACHABLE),
    ],
)
def test_refusals_have_their_name(
    daemon: Daemon,
    sock: Path,
    status: int,
    content: Any,
    result: OrderResult,
    trouble: DeviceErrorKind,
) -> None:
    daemon.refusal = status, content
    outcome = open_knob(f"zeusd+unix://{sock}?gpu=0").set(250.0)
    assert (outcome.result, outcome.trouble) == (result, trouble)
    assert content is None or content["errors"]["0"] in outcome.problem


def test_a_token_goes_along(daemon: Daemon, sock: Path, tmp_path: Path) -> None:
    daemon.token = "t0p"
    uri = f"zeusd+unix://{sock}?gpu=0"
    assert open_knob(uri).set(250.0).trouble is DeviceErrorKind.REFUSED
    (tmp_path / "user").write_text("token: t0p")
    assert open_knob(f"{uri}&credentials={tmp_path}/user").set(250.0).in_force


def test_without_a_daemon_it_is_unreachable(tmp_path: Path) -> None:
    assert (
        open_knob(f"zeusd+unix://{tmp_path}/none?gpu=0").read().trouble
        is DeviceErrorKind.UNREACHABLE
    )


# --- zeusd itself ----------------------------------------------------------------------------


@pytest.fixture
def gpus(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@contextmanager
def zeusd(gpus: Driver) -> Iterator[Path]:
    path = gpus.folder / "zeusd.sock"
    command = [ZEUSD or "", "serve", "--socket-path", path, "--enable", "gpu-control,gpu-read"]
    with (gpus.folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=gpus.environment, stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + 20
        while not path.exists():
            assert process.poll() is None, (gpus.folder / "log").read_text()
            assert time.monotonic() < until_s
            time.sleep(0.05)
        yield path
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(ZEUSD is None, reason="zeusd is not installed (cargo install zeusd)")
@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a driver with")
def test_zeusd_sets_reads_clamps_and_refuses(gpus: Driver) -> None:
    with zeusd(gpus) as path, open_knob(f"zeusd+unix://{path}?gpu=1&settle=0.2s") as knob:
        assert (knob.limits().lowest, knob.limits().highest) == (100.0, 350.0)
        assert knob.set(250.0).result is OrderResult.TOOK_EFFECT
        assert (gpus.kept("limit0"), gpus.kept("limit1")) == (None, 250_000)
        assert knob.set(20.0).read_back == 100.0
        assert knob.restore().read_back == 300.0
        gpus.setters(NO_PERMISSION)
        assert knob.set(250.0).trouble is DeviceErrorKind.REFUSED
        gpus.setters(IGNORED)
        assert knob.set(250.0).result is OrderResult.UNCHANGED
        absent = open_knob(f"zeusd+unix://{path}?gpu=7").set(250.0)
        assert absent.result is OrderResult.REFUSED
    assert open_knob(f"zeusd+unix://{path}?gpu=1").set(250.0).result is OrderResult.UNREACHABLE
