"""The one client, against servers and proxies on loopback that a careful client must not trust."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from web_server import Certificates, Site, certificates, serving

from wattherd.devices.wire import http_client
from wattherd.devices.wire.device_errors import DeviceErrorKind
from wattherd.devices.wire.http_client import (
    HttpClient,
    HttpRequest,
    HttpRules,
    NoAnswer,
    Origin,
    origin_of,
)
from wattherd.library.client import Client, ServiceUnreachable

TOKEN = {"authorization": "Bearer wh_secret"}
ELSEWHERE = "gpu1.example"
"""A name that is not this machine's, for which proxies count; nobody resolves it."""


@pytest.fixture(autouse=True)
def _no_proxies_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("pem"))


class Peer:
    """Takes connections one after another and lets `behave` have each; keeps what it was sent."""

    def __init__(self, behave: Callable[[socket.socket, bytes], None]) -> None:
        self._behave = behave
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._listener.settimeout(0.05)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                taken, _ = self._listener.accept()
            except TimeoutError:
                continue
            with taken, contextlib.suppress(OSError):
                taken.settimeout(5)
                self.heard.append(taken.recv(65_536))
                self._behave(taken, self.heard[-1])

    def waits(self, most_s: float) -> bool:
        return self._over.wait(most_s)


def saying(text: bytes) -> Callable[[socket.socket, bytes], None]:
    return lambda taken, _: taken.sendall(text)


def ok(body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def client(port: int, host: str = "127.0.0.1", scheme: str = "http", **rules: object) -> HttpClient:
    return HttpClient(Origin(scheme, host, port), HttpRules(**{"timeout_s": 5.0, **rules}))  # type: ignore[arg-type]


def get(target: str = "/", **headers: str) -> HttpRequest:
    return HttpRequest("GET", target, headers)


# --- Time and size -------------------------------------------------------------------------------

DRIPS = {
    "head": b"HTTP/1.1 200 OK\r\nx-drip: " + b"a" * 1000,
    "body": b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"a" * 1000,
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 200,
    "provisional": b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
}


@pytest.mark.parametrize("what", DRIPS)
def test_a_server_that_drips_is_left_when_the_time_for_the_whole_answer_is_up(what: str) -> None:
    def drip(taken: socket.socket, _: bytes) -> None:
        for byte in DRIPS[what]:
            taken.sendall(bytes([byte]))
            if peer.waits(0.02):
                return

    with Peer(drip) as peer:
        began_s = time.monotonic()
        with pytest.raises(NoAnswer, match=r"no complete answer within 0\.5 s") as failure:
            client(peer.port, timeout_s=0.5).ask(get())
        assert failure.value.trouble is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - began_s < 2.0


def test_a_server_that_takes_nothing_in_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        request = HttpRequest("POST", "/", {}, b"x" * (32 << 20))
        with pytest.raises(NoAnswer) as failure:
            client(deaf.getsockname()[1], timeout_s=0.5).ask(request)
    assert failure.value.trouble is DeviceErrorKind.TIMEOUT


def test_a_resolver_that_hangs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over, real = threading.Event(), socket.getaddrinfo

    def hangs(host: str, *more: object, **named: object) -> object:
        if host == ELSEWHERE and not named.get("flags"):
            over.wait(10)
        return real(host, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    began_s = time.monotonic()
    with pytest.raises(NoAnswer) as failure:
        client(80, ELSEWHERE, timeout_s=0.3).ask(get())
    over.set()
    assert failure.value.trouble is DeviceErrorKind.TIMEOUT
    assert time.monotonic() - began_s < 3.0


def test_an_answer_without_end_is_cut() -> None:
    def flood(taken: socket.socket, _: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.waits(0):
            taken.sendall(b"x" * 65_536)

    with Peer(flood) as peer, pytest.raises(NoAnswer, match="longer than 100000 bytes"):
        client(peer.port, most_bytes=100_000).ask(get())


def test_an_answer_cut_short_is_none() -> None:
    short = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345"
    with Peer(saying(short)) as peer, pytest.raises(NoAnswer) as failure:
        client(peer.port).ask(get())
    assert failure.value.trouble is DeviceErrorKind.UNREACHABLE


@pytest.mark.long
def test_a_stream_may_be_silent_for_longer_than_its_head_may() -> None:
    def slow(taken: socket.socket, _: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\nfirst\n")
        peer.waits(1.0)
        taken.sendall(b"second\n")

    with Peer(slow) as peer, client(peer.port, timeout_s=0.5).stream(get()) as incoming:
        assert b"".join(incoming.chunks()) == b"first\nsecond\n"


# --- Redirects -----------------------------------------------------------------------------------


def test_a_redirect_within_the_server_is_followed_for_questions_alone() -> None:
    def behave(taken: socket.socket, asked: bytes) -> None:
        moved = b"HTTP/1.1 307 Moved\r\nlocation: /new?a=1\r\ncontent-length: 0\r\n\r\n"
        taken.sendall(ok(b"here") if asked.startswith(b"GET /new?a=1 ") else moved)

    with Peer(behave) as peer:
        asking = client(peer.port, redirects=True)
        assert asking.ask(get("/old", **TOKEN)).body == b"here"
        assert asking.ask(HttpRequest("POST", "/old", TOKEN, b"{}")).status == 307
        assert client(peer.port).ask(get("/old")).status == 307


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_to_anybody_else_takes_no_token_along(code: int) -> None:
    with Peer(saying(ok())) as thief:
        for place in (f"http://127.0.0.1:{thief.port}/", f"//localhost:{thief.port}/x"):
            moved = f"HTTP/1.1 {code} Moved\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n"
            with Peer(saying(moved.encode())) as peer, pytest.raises(NoAnswer) as failure:
                client(peer.port, redirects=True).ask(get(**TOKEN))
            assert failure.value.trouble is DeviceErrorKind.REFUSED
        assert thief.heard == []


def test_a_redirect_out_of_tls_is_refused(pem: Certificates) -> None:
    with Peer(saying(ok())) as thief:
        site = Site(pages={"/": {}}, status=302, location=f"http://127.0.0.1:{thief.port}/")
        tls = ssl.create_default_context(cafile=pem.authority)
        with serving(site, cert=pem.server), pytest.raises(NoAnswer, match="redirected to http:"):
            client(site.port, scheme="https", tls=tls, redirects=True).ask(get(**TOKEN))
        assert thief.heard == []


def test_redirects_in_a_circle_end() -> None:
    moved = b"HTTP/1.1 302 Moved\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n"
    with Peer(saying(moved)) as peer, pytest.raises(NoAnswer, match="more than 5 redirects"):
        client(peer.port, redirects=True).ask(get())


# --- Proxies -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("knows_localhost")
def test_nothing_for_this_machine_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(saying(ok(b"mine"))) as peer, Peer(saying(ok(b"thief"))) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        for host in ("127.0.0.1", "localhost"):
            assert client(peer.port, host, proxies=True).ask(get(**TOKEN)).body == b"mine"
        assert proxy.heard == []


def test_the_command_line_shows_its_token_to_no_proxy(tmp_path: Path) -> None:
    with Peer(saying(ok(b'{"jobs": []}'))) as peer, Peer(saying(ok(b"{}"))) as proxy:
        env = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            **dict.fromkeys(("http_proxy", "ALL_PROXY"), f"http://127.0.0.1:{proxy.port}"),
            "WATTHERD_TOKEN": "wh_secret",
        }

        def queue(server: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "wattherd.cli.main", "queue", "--server", server],
                env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip

        queue(f"http://127.0.0.1:{peer.port}")
        assert b"authorization: Bearer wh_secret" in peer.heard[0]
        refused = queue(f"http://{ELSEWHERE}:8700")
        assert refused.returncode == 4
        assert f"NO_PROXY={ELSEWHERE}" in refused.stderr
        assert proxy.heard == []


def test_a_proxy_that_is_named_is_asked_where_there_is_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer(saying(ok(b"by proxy"))) as proxy:
        monkeypatch.setenv("http_proxy", f"http://ann:pa%40ss@127.0.0.1:{proxy.port}")
        asking = client(8080, ELSEWHERE, proxies=True)
        assert asking.ask(get("/page")).body == b"by proxy"
        assert proxy.heard[0].startswith(b"GET http://gpu1.example:8080/page HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic YW5uOnBhQHNz" in proxy.heard[0]
        for header in ("Authorization", "cookie", "X-Auth-Token"):
            with pytest.raises(NoAnswer, match="in clear"):
                asking.ask(get(**{header: "x"}))
        assert len(proxy.heard) == 1
        with pytest.raises(NoAnswer) as unasked:  # without the rule the environment is not heard
            client(8080, ELSEWHERE, timeout_s=2.0).ask(get())
        assert unasked.value.trouble in (DeviceErrorKind.UNREACHABLE, DeviceErrorKind.TIMEOUT)


def test_tls_goes_through_a_proxy_unread(
    monkeypatch: pytest.MonkeyPatch, pem: Certificates
) -> None:
    """The proxy is real enough to carry bytes; the name is the certificate's."""

    def carry(taken: socket.socket, asked: bytes) -> None:
        assert asked.startswith(b"CONNECT 192.0.2.1:443 HTTP/1.1\r\n")
        with socket.create_connection(("127.0.0.1", site.port)) as onward:
            taken.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=[onward, taken])
            back.start()
            seen.append(_copy(taken, onward))
            back.join(5)

    seen: list[bytes] = []
    trusting = ssl.create_default_context(cafile=pem.authority)
    with (
        serving(Site(pages={"/": {"in": "tunnel"}}), cert=pem.server) as site,
        Peer(carry) as proxy,
    ):
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        asking = client(443, "192.0.2.1", "https", proxies=True, tls=trusting)
        with pytest.raises(NoAnswer, match="certificate not trusted"):  # it is 127.0.0.1's
            asking.ask(get(**TOKEN))
        trusting.check_hostname = False
        assert asking.ask(get(**TOKEN)).body == b'{"in": "tunnel"}'
    assert b"wh_secret" not in b"".join(seen)


def _copy(source: socket.socket, target: socket.socket) -> bytes:
    heard = b""
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            heard += part
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)
    return heard


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(saying(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(NoAnswer, match=f"proxy http://127.0.0.1:{proxy.port} answers 407"):
            client(443, ELSEWHERE, "https", proxies=True).ask(get())
        monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:secret@127.0.0.1:1")
        with pytest.raises(NoAnswer, match=r"socks5://127\.0\.0\.1 is of a kind"):
            client(443, ELSEWHERE, "https", proxies=True).ask(get())


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "left_out"),
    [
        ("*", "a.example", 80, True),
        ("example", "a.example", 80, True),
        (".a.example", "a.example", 80, True),
        ("*.a.example", "b.a.example", 80, True),
        ("a.example", "ba.example", 80, False),
        ("A.Example.", "a.example", 80, False),
        ("a.example", "A.EXAMPLE", 80, True),
        ("a.example:81, b", "a.example", 80, False),
        ("x,a.example:80", "a.example", 80, True),
        ("10.0.0.0/8", "10.2.3.4", 80, True),
        ("10.0.0.0/8", "11.2.3.4", 80, False),
        ("10.2.3.4", "10.2.3.4", 80, True),
        ("[fd00::]/8", "fd00::1", 80, False),
        ("fd00::/8", "fd00::1", 80, True),
        ("", "a.example", 80, False),
    ],
)
def test_no_proxy_leaves_servers_out(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str, port: int, left_out: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    found = http_client._proxy_of(Origin("http", host.lower(), port))
    assert (found is None) is left_out


def test_a_header_is_not_taken_for_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Web servers hand a header `Proxy:` on as HTTP_PROXY to what they run."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example")
    assert http_client._proxy_of(Origin("http", ELSEWHERE, 80)) is not None
    monkeypatch.setenv("REQUEST_METHOD", "GET")
    assert http_client._proxy_of(Origin("http", ELSEWHERE, 80)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST.",
                                  "a.localhost", "0.0.0.0", "::ffff:127.0.0.1"])  # fmt: skip
def test_this_machine_has_many_names(host: str) -> None:
    assert http_client.is_this_machine(host)
    assert not http_client.is_this_machine(f"x{host}y")


# --- TLS -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("knows_localhost")
def test_a_certificate_of_another_name_or_authority_ends_it(pem: Certificates) -> None:
    with serving(Site(pages={"/": {}}), cert=pem.server) as site:
        trusting = ssl.create_default_context(cafile=pem.authority)
        assert client(site.port, scheme="https", tls=trusting).ask(get()).status == 200
        for asking in (
            client(site.port, "localhost", "https", tls=trusting),
            client(site.port, scheme="https"),
        ):
            with pytest.raises(NoAnswer, match="certificate not trusted") as failure:
                asking.ask(get(**TOKEN))
            assert failure.value.trouble is DeviceErrorKind.REFUSED
        assert len(site.seen) == 1


# --- Asking again --------------------------------------------------------------------------------


def test_what_does_no_harm_is_asked_again_and_nothing_else() -> None:
    def behave(taken: socket.socket, _: bytes) -> None:
        if len(peer.heard) % 2 == 0:
            taken.sendall(ok())

    with Peer(behave) as peer:
        assert client(peer.port, again=True).ask(get()).status == 200
        assert len(peer.heard) == 2
        keyed = HttpRequest("POST", "/", {"Idempotency-Key": "1"}, b"{}")
        assert client(peer.port, again=True).ask(keyed).status == 200
        assert peer.heard[2].partition(b"\r\n\r\n")[0] == peer.heard[3].partition(b"\r\n\r\n")[0]
        for asking, request in (
            (client(peer.port, again=True), HttpRequest("POST", "/", {}, b"{}")),
            (client(peer.port, again=True), HttpRequest("DELETE", "/", {})),
        ):
            with pytest.raises(NoAnswer):
                asking.ask(request)
            peer.heard.append(b"")
        assert len(peer.heard) == 8


def test_nobody_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(NoAnswer, match="refused"):
        client(port, again=True, timeout_s=20.0).ask(get())
    assert time.monotonic() - began_s < 5.0


def test_a_socket_on_this_machine_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(ok(b"by path"))

        thread = threading.Thread(target=answer)
        thread.start()
        origin = Origin("http", "localhost", 80, str(path))
        assert HttpClient(origin, HttpRules(timeout_s=5.0)).ask(get()).body == b"by path"
        thread.join()


@pytest.mark.parametrize("url", ["ftp://a", "http://", "a:80", "http://a:99999", ""])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|range"):
        origin_of(url)


def test_the_command_line_says_what_is_wrong_with_a_stream_that_breaks() -> None:
    def breaks(taken: socket.socket, _: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n9\r\nxx")

    with Peer(breaks) as peer:
        chunks = Client(f"http://127.0.0.1:{peer.port}").stream("jobs/j-1/logs")
        assert next(chunks) == b"first"
        with pytest.raises(ServiceUnreachable):
            list(chunks)
