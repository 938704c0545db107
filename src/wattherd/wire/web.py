"""Ask a web server for JSON, or tell it some, once, within a time that holds for the whole answer.

The standard library's time limit is per packet: a server that sends a byte a second would hold a
control loop for ever. Here a timer cuts the connection. Certificates are verified, redirects are
not followed (they would carry the credentials along), and proxies of the environment not used.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wattherd.wire.credentials import Credentials, read_credentials
from wattherd.wire.trouble import DeviceError, Trouble
from wattherd.wire.uri import Uri

OPTIONS = frozenset({"credentials", "insecure", "ca"})
MOST_BYTES = 4_000_000
MOST_SAID = 300
PORTS = {"http": 80, "https": 443}

Login = Callable[[Credentials], Mapping[str, str]]


def basic(credentials: Credentials) -> Mapping[str, str]:
    """The header of a user with a password (RFC 7617), if there is one."""
    if not credentials.username:
        return {}
    pair = f"{credentials.username}:{credentials.password.get_secret_value()}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def bearer(credentials: Credentials) -> Mapping[str, str]:
    """The header of a bearer token (RFC 6750), else of a user."""
    token = credentials.token.get_secret_value().strip()
    return {"Authorization": f"Bearer {token}"} if token else basic(credentials)


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: `content` is its JSON (None if there is none), `etag` its version.

    `unchanged` says that it is still the version that was asked about (If-None-Match).
    """

    content: Any
    etag: str = ""
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """A web server as an address describes it; `tls` is None for plain HTTP.

    With `unix`, the path of a socket on this machine, host and port are names only.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    secrets: Path | None
    login: Login
    timeout_s: float
    unix: str = ""

    def get(self, target: str) -> Any:
        """The JSON at a path with its query.

        Raises:
            DeviceError: no answer in time, none for us, or none that is JSON.
        """
        answer = self.request("GET", target)
        if answer.content is None:
            raise DeviceError(Trouble.GARBAGE, f"{target} is no JSON: b''")
        return answer.content

    def request(
        self, method: str, target: str, content: Any = None, more: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer to any method, sent once; `content` becomes JSON, `more` are header fields.

        Raises:
            DeviceError: no answer in time, none for us, or one that is neither empty nor JSON.
        """
        head = {"Accept": "application/json", "User-Agent": "wattherd", "Connection": "close",
                **self.login(read_credentials(self.secrets)), **(more or {})}  # fmt: skip
        body = b"" if content is None else json.dumps(content).encode()
        if content is not None:
            head["Content-Type"] = "application/json"
        raw = self._exchange(_Request(method, target, head, body))
        if raw.status == http.HTTPStatus.NOT_MODIFIED:
            return Answer(None, raw.etag, unchanged=True)
        if not 200 <= raw.status < 300:
            raise _no_answer(target, raw)
        try:
            return Answer(json.loads(raw.body) if raw.body.strip() else None, raw.etag)
        except (ValueError, RecursionError):  # the latter: brackets in brackets in brackets
            raise DeviceError(Trouble.GARBAGE, f"{target} is no JSON: {raw.body[:40]!r}") from None

    def _exchange(self, request: _Request) -> _Raw:
        started_s = time.monotonic()
        try:
            return self._ask(request, started_s + self.timeout_s)
        except ssl.SSLCertVerificationError as error:
            problem = (
                f"certificate not trusted: {error.verify_message}; name its authority with ?ca="
            )
            raise DeviceError(Trouble.REFUSED, problem) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() - started_s >= self.timeout_s:
                problem = f"no complete answer within {self.timeout_s:g} s"
                raise DeviceError(Trouble.TIMEOUT, problem) from None
            raise _broken(self, error) from None

    def _ask(self, request: _Request, until_s: float) -> _Raw:
        with self._connected() as plain:
            wire = plain if self.tls is None else self._wrapped(self.tls, plain)
            timer = threading.Timer(until_s - time.monotonic(), _cut, [wire])
            timer.daemon = True
            timer.start()
            try:
                if isinstance(wire, ssl.SSLSocket):
                    wire.do_handshake()
                return self._talk(wire, request)
            finally:
                timer.cancel()
                wire.close()

    def _wrapped(self, tls: ssl.SSLContext, plain: socket.socket) -> ssl.SSLSocket:
        return tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)

    def _connected(self) -> socket.socket:
        if not self.unix:
            return socket.create_connection((self.host, self.port), self.timeout_s)
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(self.timeout_s)
            plain.connect(self.unix)
        except OSError:
            plain.close()
            raise
        return plain

    def _talk(self, wire: socket.socket, request: _Request) -> _Raw:
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.sock = wire
        connection.request(
            request.method, request.target, request.body or None, headers=dict(request.head)
        )
        with connection.getresponse() as answer:
            body = answer.read(MOST_BYTES + 1)
            if len(body) > MOST_BYTES:
                problem = f"{request.target} is longer than {MOST_BYTES} bytes"
                raise DeviceError(Trouble.GARBAGE, problem)
            if answer.length:
                raise http.client.IncompleteRead(body, answer.length)
            reason = answer.getheader("Location") or answer.reason
            return _Raw(answer.status, reason, body, answer.getheader("ETag") or "")


class _Request(NamedTuple):
    method: str
    target: str
    head: Mapping[str, str]
    body: bytes


class _Raw(NamedTuple):
    status: int
    reason: str
    body: bytes
    etag: str


def server(uri: Uri, login: Login) -> Server:
    """The server that `uri` names; its scheme ends in http or https.

    Raises:
        UserError: no host, or a file that is not there or holds no certificate.
    """
    kind = uri.scheme.rpartition("+")[2]
    return Server(
        host=uri.needs_host(),
        port=PORTS[kind] if uri.port is None else uri.port,
        tls=_context(uri) if kind == "https" else None,
        secrets=uri.file("credentials"),
        login=login,
        timeout_s=uri.timeout_s,
    )


def _context(uri: Uri) -> ssl.SSLContext:
    authority = uri.file("ca")
    try:
        context = ssl.create_default_context(cafile=authority)
    except ssl.SSLError:
        raise uri.error(f"no certificate in {authority}", field="ca") from None
    if uri.flag("insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _cut(wire: socket.socket) -> None:
    """End a conversation from another thread: whoever waits for bytes sees the end of them."""
    try:
        # Of the plain socket: that of TLS would first forget the key that a reader is using.
        socket.socket.shutdown(wire, socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _no_answer(target: str, raw: _Raw) -> DeviceError:
    problem = f"{target}: HTTP {raw.status} {raw.reason}"
    match raw.status:
        case 401 | 403:
            said = _said(raw.body)
            return DeviceError(Trouble.REFUSED, f"{problem}{said}; see ?credentials=FILE")
        case 404 | 410:
            return DeviceError(Trouble.ABSENT, problem)
        case _ if 300 <= raw.status < 400:
            return DeviceError(Trouble.REFUSED, f"{problem}: redirects are not followed")
        case _ if raw.status >= 500:
            return DeviceError(Trouble.UNREACHABLE, f"{problem}{_said(raw.body)}")
    return DeviceError(Trouble.GARBAGE, f"{problem}{_said(raw.body)}")


def _said(body: bytes) -> str:
    """The beginning of what a server says about its refusal, on one line."""
    text = " ".join(body[:MOST_SAID].decode(errors="replace").split())
    return f" {text}" if text.strip("{}") else ""


def _broken(where: Server, error: Exception) -> DeviceError:
    place = f"{where.host}:{where.port}"
    if isinstance(error, ssl.SSLError):
        return DeviceError(Trouble.GARBAGE, f"{place} does not speak TLS: {error.reason}")
    lost = isinstance(error, OSError | http.client.RemoteDisconnected | http.client.IncompleteRead)
    if lost:
        return DeviceError(Trouble.UNREACHABLE, f"{place}: {error}")
    return DeviceError(Trouble.GARBAGE, f"{place} does not speak HTTP: {type(error).__name__}")
