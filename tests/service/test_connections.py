"""Whoever keeps a service waiting is left, and does not keep anybody else waiting."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from service.serving import WATTHERD, Serving, until
from wattherd.server.api.connections import ConnectionLimits, Hall, Talk, limits_of, server_of
from wattherd.server.auth.caller import Role
from wattherd.server.auth.rates import HeldRequests

pytestmark = pytest.mark.long

QUICK = ConnectionLimits(
    connections=24, reserve=4, per_address=12, streams=6, passed_on=4,
    head_s=1.0, body_s=1.0, body_bytes_per_s=1000.0, stalled_s=2.0,
)  # fmt: skip
LEFT_S = 6.0
"""Much longer than any of these limits, much shorter than for ever."""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path / "state", QUICK)
    guarded.let_in("ann", Role.USER)
    yield guarded
    guarded.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LEFT_S)


def post(token: str, *more: bytes) -> bytes:
    head = (b"POST /api/v1/jobs HTTP/1.1", b"host: 127.0.0.1", b"content-type: application/json",
            b"authorization: Bearer " + token.encode(), *more)  # fmt: skip
    return b"\r\n".join(head) + b"\r\n\r\n"


def readable(wire: socket.socket, timeout_s: float) -> bool:
    """Whether something is to be read; `select` would refuse numbers of files above 1,023."""
    with selectors.DefaultSelector() as asked:
        asked.register(wire, selectors.EVENT_READ)
        return bool(asked.select(timeout_s))


def left_after(wire: socket.socket, drip: Callable[[], bytes]) -> float:
    """Seconds until the other side hangs up, while it is sent a little every 0.1 s."""
    began_s, wire_is_open = time.monotonic(), True
    while wire_is_open:
        assert time.monotonic() - began_s < LEFT_S, "the connection was kept"
        with contextlib.suppress(OSError):
            wire.sendall(drip())
        if readable(wire, 0.1):
            try:
                wire_is_open = bool(wire.recv(65_536))
            except OSError:
                wire_is_open = False
    return time.monotonic() - began_s


WAITING: dict[str, tuple[Callable[[str], bytes], bytes]] = {
    "nothing": (lambda _: b"", b""),
    "half a line": (lambda _: b"GET /api/v1/jo", b""),
    "a line that goes on": (lambda _: b"GET /", b"a"),
    "half a head": (lambda _: b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b""),
    "headers without end": (lambda _: b"GET / HTTP/1.1\r\n", b"x: y\r\n"),
    "empty lines": (lambda _: b"", b"\r\n"),
    "a body that does not come": (lambda token: post(token, b"content-length: 100"), b""),
    "a body that drips": (lambda token: post(token, b"content-length: 10000"), b" "),
    "chunks that drip": (lambda token: post(token, b"transfer-encoding: chunked"), b"1\r\n \r\n"),
    "a stranger's body that drips": (lambda _: post("wh_x_y", b"content-length: 10000"), b" "),
    "empty lines behind an answer": (
        lambda _: b"GET /api/v1/health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"\r\n",
    ),
    "a second head that drips": (
        lambda _: b"GET /api/v1/health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /",
        b"a",
    ),
}


@pytest.mark.parametrize("what", WAITING)
def test_whoever_keeps_the_service_waiting_is_left(guarded: Guarded, what: str) -> None:
    first, drip = WAITING[what]
    with connected(guarded.port) as wire:
        wire.sendall(first(guarded.tokens["ann"]))
        assert left_after(wire, lambda: drip) >= 0.5


def test_a_slow_body_that_keeps_coming_is_waited_for(guarded: Guarded) -> None:
    body = json.dumps({"run": "true", "name": "x" * 6000}).encode()
    with connected(guarded.port) as wire:
        wire.sendall(post(guarded.tokens["ann"], b"content-length: %d" % len(body)))
        for at in range(0, len(body), 500):  # for more than two seconds
            wire.sendall(body[at : at + 500])
            time.sleep(0.2)
        assert b" 4" in wire.recv(65_536)[:13]  # it was read: the name is too long


def test_a_body_is_limited_however_it_comes(guarded: Guarded) -> None:
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with connected(guarded.port) as wire:
        wire.sendall(post(guarded.tokens["ann"], b"transfer-encoding: chunked"))
        with contextlib.suppress(OSError):
            for _ in range(64):
                wire.sendall(chunk)
        assert b" 413 " in wire.recv(65_536)


def test_a_head_is_limited(guarded: Guarded) -> None:
    with connected(guarded.port) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        with contextlib.suppress(OSError):
            for number in range(5000):
                wire.sendall(b"x-%d: " % number + b"y" * 1000 + b"\r\n")
        with contextlib.suppress(OSError):  # cut off hard, if more was on its way
            assert b" 431 " in wire.recv(65_536)
    assert guarded.ask("GET", "/api/v1/whoami", "ann").status == 200


def test_a_reader_who_takes_nothing_is_left(guarded: Guarded) -> None:
    job_id = guarded.submit("ann", "head -c 20000000 /dev/zero; echo")
    guarded.until(
        lambda: guarded.ask("GET", f"/api/v1/jobs/{job_id}", "ann").json["state"] == "Succeeded"
    )
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(LEFT_S)
        wire.connect(("127.0.0.1", guarded.port))
        bearer = guarded.tokens["ann"]
        wire.sendall(
            f"GET /api/v1/jobs/{job_id}/logs HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {bearer}\r\n\r\n".encode()
        )
        hall = guarded.server.hall
        guarded.until(lambda: any(one.used for one in hall))
        until(lambda: not any(one.used for one in hall), 15.0)


def test_a_caller_has_so_many_streams_and_no_more(guarded: Guarded) -> None:
    guarded.let_in("bob", Role.USER)
    streams = []
    statuses = []
    for _ in range(6):
        stream = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=LEFT_S)
        bearer = {"authorization": f"Bearer {guarded.tokens['ann']}"}
        stream.request("GET", "/api/v1/events", headers=bearer)
        streams.append(stream)
        statuses.append(stream.getresponse().status)
    assert statuses == [200] * 4 + [429] * 2
    assert guarded.ask("GET", "/api/v1/whoami", "ann").status == 200
    assert guarded.ask("GET", "/api/v1/events?follow=false", "bob").status == 200
    for stream in streams:
        stream.close()
    guarded.until(lambda: guarded.desk.streams.take("ann of old") is True)


def test_however_many_callers_a_tenant_has_another_finds_room() -> None:
    held = HeldRequests(each=4, total=24)
    got = Counter(who // 10 for who in range(100) if held.take(f"a{who}", "vision"))
    assert got.total() == 12
    assert sum(held.take(f"b{who}", "speech") for who in range(100)) == 6
    assert sum(held.take(f"c{who}", "audio") for who in range(100)) == 3
    assert held.take("operator")
    for who in range(6):
        held.give_back(f"b{who}", "speech")
    assert held.take("d", "late")


def test_the_site_itself_and_callers_of_no_tenant_have_all_the_room() -> None:
    held = HeldRequests(each=4, total=8)
    assert [held.take(f"a{who % 3}") for who in range(9)] == [True] * 8 + [False]


def test_a_slow_body_keeps_no_place_although_its_caller_is_known(guarded: Guarded) -> None:
    body_s, bearer = guarded.server.hall.limits.body_s, guarded.tokens["ann"]
    with socket.create_connection(("127.0.0.1", guarded.port), LEFT_S) as wire:
        wire.sendall(
            b"POST /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 900000\r\nauthorization: Bearer " + bearer.encode() + b"\r\n\r\n{"
        )
        hall = guarded.server.hall
        guarded.until(lambda: any(one.used for one in hall))
        end_s = time.monotonic() + 4 * body_s
        while any(one.used for one in hall):
            wire.sendall(b" " * 20_000)
            assert time.monotonic() < end_s
            time.sleep(body_s / 10)
        assert len(hall) == 1  # it goes on, as long as nobody needs the place


def test_what_a_request_says_of_its_address_is_believed_of_named_proxies_alone(
    tmp_path: Path,
) -> None:
    def audit(state: str, **more: object) -> str:
        guarded = Guarded(tmp_path / state, QUICK, **more)
        try:
            guarded.let_in("root", Role.ADMIN)
            guarded.ask("GET", "/api/v1/jobs", **{"x-forwarded-for": "203.0.113.7"})
            return guarded.ask("GET", "/api/v1/audit/requests", "root").text
        finally:
            guarded.close()

    assert "203.0.113.7" not in audit("direct")
    assert "203.0.113.7" in audit("behind", trusted_proxies=["127.0.0.0/8"])


# --- Who goes where there is no room -------------------------------------------------------------


class _Known(Talk):
    """On whose connection somebody is answered."""

    used = True  # type: ignore[assignment]

    def __init__(self) -> None: ...


def test_the_oldest_of_the_largest_crowd_goes_first() -> None:
    hall = Hall(ConnectionLimits(connections=10, reserve=2, per_address=6))
    alone = hall.admit("203.0.113.1")
    crowd = [hall.admit("198.51.100.1") for _ in range(6)]
    assert all(crowd)
    assert len(hall) == 7
    assert hall.admit("198.51.100.1") is not None  # its own oldest one went
    assert len(hall) == 7
    assert crowd[0] not in list(hall)
    assert hall.admit("203.0.113.2") is not None
    assert hall.admit("203.0.113.3") is not None  # no room but the reserve: of the crowd again
    assert len(hall) == 8
    assert alone in list(hall)
    assert hall.admit("127.0.0.1") is not None
    assert hall.admit("") is not None  # a socket on this machine
    assert len(hall) == 10
    assert hall.admit("::ffff:127.0.0.1") is not None
    assert len(hall) == 10


def test_who_is_known_keeps_the_place() -> None:
    hall = Hall(ConnectionLimits(connections=6, reserve=2, per_address=4))
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::", "2001:db8::3"):
        visitor = hall.admit(host)
        assert visitor is not None
        assert visitor.address == "2001:db8::/64"
        visitor.talk = _Known()
    assert hall.admit("2001:db8::4") is None
    assert hall.admit("2001:db8:1::1") is None  # the rest is this machine's
    for _ in range(2):
        visitor = hall.admit("127.0.0.1")
        assert visitor is not None
        visitor.talk = _Known()
    assert hall.admit("127.0.0.1") is None


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 65_536, 1 << 20])
def test_connections_leave_half_of_the_descriptors_to_others(descriptors: int) -> None:
    limits = limits_of(descriptors)
    assert limits.connections + limits.passed_on <= descriptors // 2
    assert 0 < limits.reserve < limits.per_address < limits.connections


# --- A whole service, under attack ---------------------------------------------------------------


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


class _Poor(Serving):
    """With so few descriptors that 300 connections would take them all."""

    def begin(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*WATTHERD, "serve", "--state", str(self.state), "--port", str(self.port),
                 "--slots", "2", *self.options],
                stderr=errors, preexec_fn=_few_descriptors,
            )  # fmt: skip

    def open_files(self) -> int:
        assert self.process is not None
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def seconds_of_processor(self) -> float:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        ticks = text.rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


ATTACKS = {
    "300 half requests": (300, b"POST /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n", b""),
    "2000 idle ones": (2000, b"", b""),
    "200 bodies of a byte a second": (
        200,
        b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 60000\r\n\r\n",
        b"a",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_under_attack_an_operator_is_answered_and_jobs_go_on(tmp_path: Path, attack: str) -> None:
    count, first, drip = ATTACKS[attack]
    service = _Poor(tmp_path / "state", "--allow-root-jobs")
    made = service.call("token", "create", "--state", str(service.state), "--role", "admin")
    bearer = {"authorization": f"Bearer {made.stdout.strip()}"}
    service.begin()
    over, most_open = threading.Event(), [0]

    def attacking() -> None:
        wires: list[socket.socket] = []
        while not over.is_set():
            gone = {wire for wire in wires if _is_gone(wire, drip)}
            for wire in gone:
                wire.close()
            wires = [wire for wire in wires if wire not in gone]
            for _ in range(count - len(wires)):
                wire = socket.socket()
                wire.settimeout(0.5)
                with contextlib.suppress(OSError):
                    wire.connect(("127.0.0.1", service.port))
                    wire.sendall(first)
                wires.append(wire)
                if over.is_set():
                    break
            most_open[0] = max(most_open[0], service.open_files())
            over.wait(1.0)
        for wire in wires:
            wire.close()

    thread = threading.Thread(target=attacking)
    try:
        until(lambda: service.ask("health") is not None)
        job = service.ask("jobs", {"run": "sleep 6; echo done"}, **bearer)["id"]
        thread.start()
        first_s = time.monotonic()
        slowest_s, used_s = 0.0, service.seconds_of_processor()
        asked = 0
        while asked < 3 or time.monotonic() < first_s + 8.0:
            began_s = time.monotonic()
            told = service.call("queue", WATTHERD_TOKEN=made.stdout.strip())
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            assert told.returncode == 0, told.stderr
            asked += 1
        used_s = service.seconds_of_processor() - used_s
        took_s = time.monotonic() - first_s
        until(lambda: service.ask(f"jobs/{job}", **bearer)["state"] == "Succeeded")
        document = service.ask(f"jobs/{job}", **bearer)
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
        service.end()
    assert document["attempts"] == 1
    assert slowest_s < 20.0
    assert most_open[0] < 220, "descriptors were about to run out"
    assert used_s < 0.8 * took_s, "it does not spin"
    assert "Too many open files" not in service.errors.read_text()
    assert "Traceback" not in service.errors.read_text()


def _is_gone(wire: socket.socket, drip: bytes) -> bool:
    try:
        if drip:
            wire.send(drip)
        if not readable(wire, 0.0):
            return False
        return wire.recv(4096) == b""
    except (OSError, ValueError):
        return True


def test_taking_in_pauses_while_the_system_has_no_descriptors(tmp_path: Path) -> None:
    """The limits are above what the process may have: taking in fails, and goes on later."""
    script = """
import resource, socket, sys
from wattherd.server.api.connections import ConnectionLimits, server_of
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
server_of(app, ConnectionLimits(head_s=2.0), lifespan="off").run(sockets=[listener])
"""
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stream
        )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        wires = [connected(port) for _ in range(100)]
        time.sleep(1.0)
        before = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        time.sleep(1.0)
        after = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        assert sum(map(int, after)) - sum(map(int, before)) < 50  # hundredths of a second

        def answers() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.request("GET", "/")
                return connection.getresponse().read() == b"here"
            return False

        until(answers, 20.0)  # the idle ones are left after two seconds
        for wire in wires:
            wire.close()
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    assert errors.read_text().count("no connection can be taken in") <= 1


def test_a_handshake_that_is_not_finished_is_left(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="makes certificates")
    authority, pem = trustme.CA(), tmp_path / "cert.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)

    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"here"})  # type: ignore[operator]

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = server_of(app, QUICK, ssl_certfile=str(pem), lifespan="off")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        half = [connected(port) for _ in range(40)]  # more than there are places
        tls = ssl.create_default_context()
        authority.configure_trust(tls)
        with connected(port) as plain, tls.wrap_socket(plain, server_hostname="127.0.0.1") as wire:
            wire.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert b"here" in wire.recv(4096) + wire.recv(4096)
        for one in half:
            left_after(one, lambda: b"")
            one.close()
        until(lambda: len(server.hall) == 0, LEFT_S)
    finally:
        server.should_exit = True
        thread.join()
