"""Prometheus and Alertmanager with the files of `deploy/` against a real service."""

from __future__ import annotations

import json
import queue
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.library.client import Client

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def program(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def eventually(what: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            if found := what():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("it never comes")


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class _Pager(BaseHTTPRequestHandler):
    heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).heard.put((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def pager() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pager)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "config", "prometheus.yml"),
        ("promtool", "check", "rules", "rules.yml"),
        ("promtool", "test", "rules", "rules.test.yml"),
        ("promtool", "check", "rules", "kubernetes.rules.yml"),
        ("promtool", "test", "rules", "kubernetes.rules.test.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=" ".join,
)
def test_the_tools_find_nothing_wrong(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("alert", "receiver"),
    [({"severity": "critical"}, "on-call"), ({"severity": "warning"}, "operators"), ({}, "log")],
)
def test_alerts_reach_who_they_are_for(alert: dict[str, str], receiver: str) -> None:
    labels = [f"{name}={value}" for name, value in alert.items()]
    command = ["amtool", "config", "routes", "test", "--config.file=alertmanager.yml", *labels]
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == receiver


def test_drawing_too_much_rings_the_pager_and_stops(tmp_path: Path, pager: str) -> None:
    with ExitStack() as stack:
        state, log = str(tmp_path / "state"), tmp_path / "serve.log"
        serve = [sys.executable, "-m", "wattherd.cli.main", "serve", "--state", state]
        stack.enter_context(program(log, *serve, "--port", "0", "--slots", "2", "--budget", "1W"))
        url = eventually(lambda: re.search(r"http://(127[.:0-9]+)", log.read_text()))
        service = Client(url[0])
        _checked_by_promtool(url[0])
        alertmanager = stack.enter_context(_alertmanager(tmp_path, pager))
        prometheus = stack.enter_context(_prometheus(tmp_path, url[1], alertmanager))
        path, body = _heard("WattherdOverBudget", "firing")
        assert path == "/on-call"
        assert body["alerts"][0]["labels"]["scope"] == "site"
        query = urllib.parse.quote("rate(wattherd_power_overshoot_joules_total[1m])")
        asked = f"{prometheus}/api/v1/query?query={query}"
        eventually(lambda: float(get(asked)["data"]["result"][0]["value"][1]) > 0.0)
        service.put("power", {"budget": "1kW"})
        _heard("WattherdOverBudget", "resolved")


def _heard(name: str, status: str) -> tuple[str, Any]:
    until_s = time.monotonic() + PATIENCE_S
    while (left_s := until_s - time.monotonic()) > 0:
        path, body = _Pager.heard.get(timeout=left_s)
        labels = {one["labels"]["alertname"] for one in body["alerts"] if one["status"] == status}
        if name in labels:
            return path, body
    raise AssertionError(f"{name} is never {status}")


def _checked_by_promtool(url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def _alertmanager(folder: Path, pager: str) -> Iterator[str]:
    config = (DEPLOY / "alertmanager.yml").read_text()
    assert config.count("http://127.0.0.1:9099") == 2
    config = config.replace("http://127.0.0.1:9099", pager).replace(
        "group_interval: 1m", "group_interval: 1s"
    )
    (folder / "alertmanager.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    command = ("prometheus-alertmanager", "--config.file=alertmanager.yml",
               f"--storage.path={folder / 'alerts'}", f"--web.listen-address={address}",
               "--cluster.listen-address=")  # fmt: skip
    with program(folder / "alertmanager.log", *command):
        eventually(lambda: get(f"http://{address}/api/v2/status"))
        yield address


@contextmanager
def _prometheus(folder: Path, target: str, alertmanager: str) -> Iterator[str]:
    config = (DEPLOY / "prometheus.yml").read_text()
    for old, new in (
        ("127.0.0.1:8700", target),
        ("127.0.0.1:9093", alertmanager),
        (": 5s", ": 1s"),
    ):
        assert old in config
        config = config.replace(old, new)
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(DEPLOY / "rules.yml", folder)
    url = f"127.0.0.1:{free_port()}"
    command = ("prometheus", "--config.file=prometheus.yml",
               f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={url}")  # fmt: skip
    with program(folder / "prometheus.log", *command):
        eventually(lambda: get(f"http://{url}/api/v1/status/runtimeinfo"))
        yield f"http://{url}"
