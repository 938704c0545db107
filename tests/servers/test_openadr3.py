"""The OpenADR 3 client against a server on loopback: pages, tokens, updates, reports, faults."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.openadr3 import Vtn
from wattherd.devices.signals.registry import open_signal
from wattherd.devices.wire.clock import SYSTEM
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.uri import parse

BASE = SignalSite(base_w=40_000.0, least_w=5_000.0)


@dataclass
class Server:
    """What a VTN has and how it behaves."""

    events: list[Any] = field(default_factory=list)
    skips: bool = True  # whether it knows `skip`
    most: int = 50
    secret: str = ""  # of client `ven`; empty: no authorization
    life_s: float = 3600.0
    form_only: bool = False  # takes client and secret in the form only
    token_url: str | None = "own"
    tokens: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    reports: list[dict[str, Any]] = field(default_factory=list)
    refuses_reports: bool = False
    seen: list[str] = field(default_factory=list)
    port: int = 0

    def page(self, target: str) -> Any:
        query = {name: one[0] for name, one in parse_qs(urlsplit(target).query).items()}
        at = int(query.get("skip", 0)) if self.skips else 0
        return self.events[at : at + min(self.most, int(query.get("limit", 50)))]

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        basic = "Basic " + base64.b64encode(f"ven:{self.secret}".encode()).decode()
        in_form = form.get("client_secret") == self.secret and form.get("client_id") == "ven"
        if not (in_form or (authorization == basic and not self.form_only)):
            return 401, {"error": "invalid_client", "error_description": "unknown client"}
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        self.tokens.append(f"t{len(self.tokens)}")
        self.valid = {self.tokens[-1]}
        return 200, {"access_token": self.tokens[-1], "token_type": "Bearer",
                     "expires_in": self.life_s}  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    server_: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server_.seen.append(self.path)
        if path == "/v3/auth/server" and self.server_.token_url:
            own = f"http://127.0.0.1:{self.server_.port}/v3/auth/token"
            url = own if self.server_.token_url == "own" else self.server_.token_url
            self._answer(200, {"tokenURL": url})
        elif path == "/v3/events":
            self._guarded(lambda: (200, self.server_.page(self.path)))
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v3/auth/token":
            form = {name: one[0] for name, one in parse_qs(body.decode()).items()}
            self._answer(*self.server_.token(form, self.headers.get("Authorization", "")))
        elif self.server_.refuses_reports:
            self._answer(400, {"title": "no reports here"})
        else:
            self._guarded(lambda: (201, self.server_.reports.append(json.loads(body)) or {}))

    def _guarded(self, then: Callable[[], tuple[int, Any]]) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server_.secret and token not in self.server_.valid:
            self._answer(401, {"title": "Unauthorized"})
        else:
            self._answer(*then())

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"server_": server})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        server.port = web.server_address[1]
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"openadr3+http://127.0.0.1:{server.port}/v3?program=p&every=0.02s"
        finally:
            web.shutdown()
            thread.join()


@contextmanager
def opened(uri: str) -> Iterator[LimitSignal]:
    signal = open_signal(uri, BASE)
    try:
        yield signal
    finally:
        signal.close()


def until(
    signal: LimitSignal, wanted: Callable[[ToldLimits], bool], most_s: float = 10.0
) -> ToldLimits:
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        if wanted(signal.told()):
            return signal.told()
        time.sleep(0.01)
    pytest.fail(f"never came: {signal.told()}")


def event(key: str, kw: float, **fields: Any) -> dict[str, Any]:
    start = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return {
        "id": key, "programID": "p", "intervalPeriod": {"start": start, "duration": "PT1H"},
        "intervals": [{"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [kw]}]}],
        **fields,
    }  # fmt: skip


def kilowatts(told: ToldLimits) -> list[float]:
    return sorted(one.limit_w / 1e3 for one in told.spans)


def heard(told: ToldLimits) -> bool:
    return told.contact is SourceContact.HEARD


# --- pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "skips"), [(50, True), (7, True), (200, False)])
def test_all_pages_are_read_whatever_their_size(most: int, skips: bool) -> None:
    many = [event(f"e{number}", 10 + number / 100) for number in range(120)]
    with serving(Server(many if skips else many[:50], most=most, skips=skips)) as uri:
        vtn = Vtn(parse(uri))
        rows, _ = vtn.events(())
    assert [one["id"] for one in rows] == [one["id"] for one in (many if skips else many[:50])]


def test_an_event_that_slips_between_two_pages_once_is_not_cancelled() -> None:
    many = [event(f"e{number}", 10 + number) for number in range(4)]
    server = Server(many, most=2)
    with serving(server) as uri, opened(uri) as signal:
        until(signal, lambda told: len(told.spans) == 4)
        reads, whole = 0, server.page

        def slipping(target: str) -> Any:
            nonlocal reads
            reads += "skip=0" in target
            rows = whole(target)
            return rows[1:] if reads == 1 and "skip=0" in target else rows

        server.page = slipping  # type: ignore[method-assign]
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            assert len(signal.told().spans) == 4
        server.events = many[:3]
        until(signal, lambda told: len(told.spans) == 3)


# --- tokens ----------------------------------------------------------------------------------


def credentials(folder: Path, secret: str = "s3cret", **more: str) -> str:
    lines = [f"client_id: ven\nclient_secret: {secret}\n"]
    lines += [f"{name}: {value}\n" for name, value in more.items()]
    (folder / "secret.yaml").write_text("".join(lines))
    return f"&credentials={folder}/secret.yaml"


@pytest.mark.parametrize("form_only", [False, True])
@pytest.mark.parametrize("token_url", ["own", None])
def test_client_credentials_bring_a_token_where_the_server_says(
    tmp_path: Path, form_only: bool, token_url: str | None
) -> None:
    server = Server([event("e", 20)], secret="s3cret", form_only=form_only, token_url=token_url)
    with serving(server) as uri, opened(uri + credentials(tmp_path)) as signal:
        told = until(signal, heard)
        assert kilowatts(told) == [20]
        for _ in range(3):
            heard_s = signal.told().heard_at_s
            until(signal, lambda told, last=heard_s: told.heard_at_s != last)
    assert len(server.tokens) == 1  # kept


def test_a_token_is_renewed_before_it_expires_and_once_it_is_refused(tmp_path: Path) -> None:
    now_s = [0.0]
    clock = SYSTEM._replace(steady_s=lambda: now_s[0])
    server = Server([event("e", 20)], secret="s3cret", life_s=600.0)
    with serving(server) as uri:
        vtn = Vtn(parse(uri + credentials(tmp_path)), clock)
        vtn.events(())
        now_s[0] = 539.0
        vtn.events(())
        assert server.tokens == ["t0"]
        now_s[0] = 541.0
        vtn.events(())
        assert server.tokens == ["t0", "t1"]
        server.valid = set()  # the server forgets all tokens
        vtn.events(())
        assert server.tokens == ["t0", "t1", "t2"]


def test_a_wrong_secret_is_told_and_never_shown(tmp_path: Path) -> None:
    server = Server(secret="right")
    with serving(server) as uri, opened(uri + credentials(tmp_path, "wr0ng")) as signal:
        told = until(signal, lambda told: bool(told.note))
    assert told.contact is SourceContact.WAITING
    assert "invalid_client: unknown client" in told.note
    assert "wr0ng" not in told.note


def test_a_token_address_without_encryption_is_refused_by_an_encrypted_server() -> None:
    vtn = Vtn(parse("openadr3+https://127.0.0.1:1/v3?program=p"))
    asked: list[str] = []

    class Web:
        tls = object()

        def request(self, _: str, target: str) -> Any:
            asked.append(target)
            return type("Answer", (), {"content": {"tokenURL": "http://127.0.0.1/token"}})()

    vtn._server = Web()  # type: ignore[assignment]
    with pytest.raises(DeviceError, match="would show our secret"):
        vtn._token_url(type("Credentials", (), {"token_url": ""})())
    assert asked == ["/v3/auth/server"]


# --- updates ---------------------------------------------------------------------------------


def test_older_news_of_an_event_changes_nothing_and_newer_does() -> None:
    server = Server([event("e", 20, modificationDateTime="2030-01-01T12:00:00Z")])
    with serving(server) as uri, opened(uri) as signal:
        until(signal, lambda told: kilowatts(told) == [20])
        server.events = [event("e", 30, modificationDateTime="2030-01-01T11:00:00Z"),
                         event("f", 25)]  # fmt: skip
        assert kilowatts(until(signal, lambda told: len(told.spans) == 2)) == [20, 25]
        server.events = [event("e", 35, modificationDateTime="2030-01-01T13:00:00Z")]
        until(signal, lambda told: kilowatts(told) == [35])


def test_an_event_that_becomes_unreadable_keeps_its_last_version() -> None:
    server = Server([event("e", 20)])
    with serving(server) as uri, opened(uri) as signal:
        until(signal, lambda told: kilowatts(told) == [20])
        server.events = [{"id": "e", "intervals": "?"}, event("f", 25)]
        told = until(signal, lambda told: len(told.spans) == 2)
        assert "event e: intervals: Input should be a valid list; its last version" in told.note
        server.events = [event("f", 25)]
        until(signal, lambda told: kilowatts(told) == [25])


def test_events_for_other_targets_are_not_followed_and_ours_are_asked_for() -> None:
    server = Server([event("e", 20, targets=["hall-1"]), event("f", 25, targets=["hall-2"])])
    with serving(server) as uri, opened(f"{uri}&targets=hall-1,row 2") as signal:
        assert kilowatts(until(signal, heard)) == [20]
    assert "&targets=hall-1&targets=row%202" in server.seen[0]


# --- reports ---------------------------------------------------------------------------------


def test_every_event_is_answered_once_for_each_version_with_what_is_promised() -> None:
    server = Server([event("e", 30), event("low", 1)])
    with serving(server) as uri, opened(f"{uri}&report=site-a") as signal:
        until(signal, lambda _: len(server.reports) == 2)
        server.events = [event("e", 20, modificationDateTime="2030-01-01T12:00:00Z")]
        until(signal, lambda _: len(server.reports) == 3)
    values = [
        (one["eventID"], one["clientName"],
         [row["payloads"][0]["values"][0] for row in one["resources"][0]["intervals"]])
        for one in server.reports
    ]  # fmt: skip
    # 1 kW is below the least that the site can reach: declined as a whole.
    assert values == [("e", "site-a", [10.0]), ("low", "site-a", [0.0]), ("e", "site-a", [20.0])]


def test_a_report_that_is_refused_is_told_and_holds_up_no_limit() -> None:
    server = Server([event("e", 30)], refuses_reports=True)
    with serving(server) as uri, opened(f"{uri}&report=site-a") as signal:
        told = until(signal, lambda told: bool(told.note))
        assert told.contact is SourceContact.HEARD
        assert kilowatts(told) == [30]
        assert "report on e: garbage: /v3/reports: HTTP 400" in told.note
        server.refuses_reports = False
        until(signal, lambda _: len(server.reports) == 1)
