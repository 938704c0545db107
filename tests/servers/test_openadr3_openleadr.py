"""The OpenADR 3 client against OpenLEADR's server (LF Energy, Rust), which was not written here.

`WATTHERD_OPENLEADR_VTN` names the unpacked crate `openleadr-vtn` in which `cargo build --features
internal-oauth` has left the program; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal as signals
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from postgres_server import Postgres

from wattherd.cli.power import power
from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.registry import open_signal

CRATE = os.environ.get("WATTHERD_OPENLEADR_VTN", "")
pytestmark = pytest.mark.long
if not CRATE:
    reason = "WATTHERD_OPENLEADR_VTN names no openleadr-vtn"
    pytest.skip(reason, allow_module_level=True)
BASE = SignalSite(base_w=40_000.0, least_w=5_000.0)


class Vtn:
    """The server, and what its operator tells it."""

    def __init__(self, port: int) -> None:
        self.port, self.token = port, ""
        self.token = self.ask("POST", "/auth/token", form={
            "grant_type": "client_credentials", "client_id": "bl-client",
            "client_secret": "bl-client"})["access_token"]  # fmt: skip
        self.program = ""

    def begin(self, name: str) -> None:
        """A program of its own for each test: events with reports cannot be deleted."""
        self.program = self.ask("POST", "/programs", {"programName": name})["id"]

    def ask(self, method: str, path: str, body: Any = None, form: Any = None) -> Any:
        data = (
            urlencode(form).encode()
            if form
            else None
            if body is None
            else json.dumps(body).encode()
        )
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        request.add_header("Content-Type", kind)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            pytest.fail(f"{method} {path}: {error.code} {error.read().decode()}")

    def event(self, kw: float, kind: str = "IMPORT_CAPACITY_LIMIT", **fields: Any) -> Any:
        start = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
        event = {
            "programID": self.program, "objectType": "EVENT",
            "payloadDescriptors": [{"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": kind,
                                    "units": "KW"}],
            "intervalPeriod": {"start": start.replace("+00:00", "Z"), "duration": "PT1H"},
            "intervals": [{"id": 0, "payloads": [{"type": kind, "values": [kw]}]}],
            **fields,
        }  # fmt: skip
        return self.ask("POST", "/events", event)


@pytest.fixture(scope="module")
def vtn(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vtn]:
    folder = Path(CRATE)
    program = next(
        (one for one in (folder / "target/debug/openleadr-vtn", folder / "openleadr-vtn")
         if one.is_file()), None)  # fmt: skip
    assert program is not None, f"{folder} holds no program: cargo build"
    url = database(postgres, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "DATABASE_URL": url, "PORT": str(port), "RUST_LOG": "warn",
        "OAUTH_TOKEN_URL": f"http://127.0.0.1:{port}/auth/token",
        "MDNS_SERVER_NAME": "none", "PATH": os.environ["PATH"],
    }  # fmt: skip
    log = tmp_path_factory.mktemp("vtn") / "log"
    with log.open("wb") as stream, subprocess.Popen(
        [program], env=environment, stdout=stream, stderr=stream
    ) as process:  # fmt: skip
        try:
            for _ in range(200):
                if process.poll() is not None:
                    pytest.fail(log.read_text())
                try:
                    socket.create_connection(("127.0.0.1", port), 0.1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield Vtn(port)
        finally:
            process.send_signal(signals.SIGKILL)


def database(postgres: Postgres, folder: Path) -> str:
    """A database with the server's tables, an operator and a VEN."""
    url = postgres.database().replace("postgresql+psycopg", "postgresql")
    files = sorted((folder / "migrations").glob("*.sql"))
    files.append(folder / "src/api/fixtures/users.sql")
    for file in files:
        # PostgreSQL wants a name for a table in brackets until its version 16.
        text = file.read_text().replace(
            "unnest(_scopes) AS scope)", "unnest(_scopes) AS scope) AS a"
        )
        done = subprocess.run(
            ["psql", "-q", "-1", "-v", "ON_ERROR_STOP=1", url],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return url


@pytest.fixture
def address(vtn: Vtn, tmp_path: Path) -> str:
    vtn.begin(tmp_path.name)
    secret = tmp_path / "secret.yaml"
    secret.write_text("client_id: ven-client-client-id\nclient_secret: ven-client\n")
    return (f"openadr3+http://127.0.0.1:{vtn.port}?program={vtn.program}&every=0.1s"
            f"&credentials={secret}")  # fmt: skip


def until(
    signal: LimitSignal, wanted: Callable[[ToldLimits], bool], most_s: float = 15.0
) -> ToldLimits:
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        if wanted(signal.told()):
            return signal.told()
        time.sleep(0.05)
    pytest.fail(f"never came: {signal.told()}")


def kilowatts(told: ToldLimits) -> list[float]:
    return sorted(one.limit_w / 1e3 for one in told.spans)


def test_events_of_the_server_come_change_and_go(vtn: Vtn, address: str) -> None:
    signal = open_signal(address, BASE)
    try:
        until(signal, lambda told: told.contact is SourceContact.HEARD)
        first = vtn.event(30)
        until(signal, lambda told: kilowatts(told) == [30])
        vtn.event(20, "DISPATCH_SETPOINT", priority=2)
        vtn.event(25, "DISPATCH_SETPOINT", priority=0)
        told = until(signal, lambda told: len(told.events) == 3)
        assert 30 in kilowatts(told)
        assert 25 in kilowatts(told)
        body = {name: one for name, one in first.items()
                if name not in ("id", "createdDateTime", "modificationDateTime")}  # fmt: skip
        body["intervals"][0]["payloads"][0]["values"] = [15]
        vtn.ask("PUT", f"/events/{first['id']}", body)
        until(signal, lambda told: 15 in kilowatts(told) and 30 not in kilowatts(told))
        vtn.ask("DELETE", f"/events/{first['id']}")
        until(signal, lambda told: 15 not in kilowatts(told))
    finally:
        signal.close()


def test_more_events_than_fit_on_a_page_are_all_followed(vtn: Vtn, address: str) -> None:
    made = [vtn.event(10 + number / 10) for number in range(60)]
    signal = open_signal(address, BASE)
    try:
        told = until(signal, lambda told: len(told.events) == 60)
        assert kilowatts(told) == [10 + number / 10 for number in range(60)]
        for one in made[:20]:
            vtn.ask("DELETE", f"/events/{one['id']}")
        until(signal, lambda told: len(told.events) == 40)
    finally:
        signal.close()
        for one in made[20:]:
            vtn.ask("DELETE", f"/events/{one['id']}")


def test_the_server_takes_our_reports(vtn: Vtn, address: str, tmp_path: Path) -> None:
    event = vtn.event(30)
    signal = open_signal(f"{address}&report=site-a", BASE)
    try:
        until(signal, lambda told: len(told.events) == 1 and not told.note)
        reports = vtn.ask("GET", f"/reports?eventID={event['id']}")
        for _ in range(50):
            if reports:
                break
            time.sleep(0.1)
            reports = vtn.ask("GET", f"/reports?eventID={event['id']}")
    finally:
        signal.close()
    (report,) = reports
    assert report["clientName"] == "site-a"
    interval = report["resources"][0]["intervals"][0]
    assert interval["payloads"] == [{"type": "LOAD_SHED_DELTA_AVAILABLE", "values": [10.0]}]

    loads = tmp_path / "loads.csv"
    loads.write_text("name,draw,floor,works\na,30kW,20kW,100%\n")
    done = CliRunner().invoke(power, ["promise", str(loads), "--reduce", "9kW", "--report", address,
                                      "--event", event["id"], "--name", "site-b"])  # fmt: skip
    assert done.exit_code == 0, done.output
    told = vtn.ask("GET", f"/reports?eventID={event['id']}")
    assert {one["clientName"] for one in told} == {"site-a", "site-b"}


def test_a_wrong_secret_is_refused_by_the_server(vtn: Vtn, address: str, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("client_id: ven-client-client-id\nclient_secret: wrong\n")
    signal = open_signal(address, BASE)
    try:
        told = until(signal, lambda told: bool(told.note))
    finally:
        signal.close()
    assert told.contact is SourceContact.WAITING
    assert "no token from" in told.note
