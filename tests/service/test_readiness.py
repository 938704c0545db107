"""A service that cannot keep what it is told says so, and is ready again by itself."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from click.testing import CliRunner

from service.guarded import Guarded
from wattherd.cli.main import cli
from wattherd.server.api import http as rules
from wattherd.store import database
from wattherd.store.entry import StoreDoubt

pytestmark = pytest.mark.long

HEALTH, ALIVE, JOBS = "/api/v1/health", "/api/v1/alive", "/api/v1/jobs"


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 1.0)
    guarded = Guarded(tmp_path / "state")
    yield guarded
    guarded.close()


def locked(guarded: Guarded) -> sqlite3.Connection:
    """Another program writes to the store, and does not end."""
    connection = sqlite3.connect(
        guarded.site.config.state / "journal.sqlite", isolation_level=None, timeout=10
    )
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_service_whose_store_refuses_is_not_ready_but_alive_and_changes_nothing(
    guarded: Guarded,
) -> None:
    assert guarded.ask("GET", HEALTH).status == 200
    with closing(locked(guarded)):
        begun_s = time.monotonic()
        reply = guarded.ask("POST", JOBS, body={"run": "true"})
        took_s = time.monotonic() - begun_s
        assert (reply.status, "nothing was changed" in reply.json["hint"]) == (503, True)
        assert took_s < 4.0, "one wait for the lock, or that of another who writes, and its own"
        health = guarded.ask("GET", HEALTH)
        assert (health.status, health.json["ok"]) == (503, False)
        assert "locked" in health.json["problem"]
        assert guarded.ask("GET", ALIVE).status == 200
    # Nobody hands anything in: a balancer that goes by `/health` sends nobody here.
    guarded.until(lambda: guarded.ask("GET", HEALTH).status == 200)
    assert guarded.ask("GET", f"{JOBS}?over=true").json["jobs"] == []
    assert guarded.submit("") == "j-1"


def test_a_service_whose_core_has_stopped_is_neither_ready_nor_alive(guarded: Guarded) -> None:
    keeper = guarded.site.keeper
    keeper._give_up(RuntimeError("out of luck"))
    keeper._clerk.join(20.0)  # it may be at work on what it took before
    assert not keeper._clerk.is_alive()
    for path in (HEALTH, ALIVE):
        reply = guarded.ask("GET", path)
        assert (reply.status, "out of luck" in reply.json["problem"]) == (503, True)
    reply = guarded.ask("POST", JOBS, body={"run": "true"})
    assert reply.status == 504


def test_what_may_have_been_kept_is_never_called_unchanged(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = guarded.site.keeper

    def doubt(*_: Any, **__: Any) -> None:
        raise StoreDoubt("the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(guarded.site.store.journal, "append", doubt)
        reply = guarded.ask("POST", JOBS, body={"run": "true"})
        assert (reply.status, "may have been done" in reply.json["hint"]) == (504, True)
    never: Future[str] = Future()
    with monkeypatch.context() as patched:
        patched.setattr(rules, "PATIENCE_S", 0.3)
        patched.setattr(keeper, "post", lambda *_, **__: never)
        reply = guarded.ask("PUT", "/api/v1/power", body={"budget": "2kW"})
        assert (reply.status, "may have been done" in reply.json["hint"]) == (504, True)
    assert not never.cancelled()


class _Flaky(BaseHTTPRequestHandler):
    """Keeps a job at the first request, says that it does not know, and knows it at the third."""

    def do_POST(self) -> None:
        server: Any = self.server
        self.rfile.read(int(self.headers["content-length"]))
        server.keys.append(self.headers["idempotency-key"])
        codes = (HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.CREATED)
        code = codes[min(len(server.keys), 3) - 1]
        body = b'{"id": "j-1", "state": "Queued", "reason": null, "error": "not now"}'
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_command_line_asks_again_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from wattherd.library.client import Client

    monkeypatch.setattr("wattherd.library.client.PAUSES_S", (0.01, 0.01, 0.01))
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Flaky)
    server.keys = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        job = Client(f"http://127.0.0.1:{server.server_port}").post("jobs", {"run": "true"})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert job["id"] == "j-1"
    assert len(server.keys) == 3
    assert len(set(server.keys)) == 1


def test_a_job_that_was_kept_in_doubt_is_handed_in_once_by_the_command_line(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = guarded.site.store.journal
    append, lost = journal.append, []

    def once(entries: Any) -> None:
        append(entries)
        if not lost:
            lost.append(entries)
            journal._told = (entries[0].seq - 1, journal.digest(entries[0].seq - 1))
            raise StoreDoubt("the connection was lost")

    monkeypatch.setattr(journal, "append", once)
    monkeypatch.setenv("WATTHERD_SERVER", guarded.url)
    said = CliRunner().invoke(cli, ["submit", "--", "sh", "-c", "true"])
    assert said.exit_code == 0, said.output
    assert lost
    listed = guarded.ask("GET", f"{JOBS}?over=true").json["jobs"]
    assert [row["id"] for row in listed] == ["j-1"]
