"""Ask a web server for JSON, once, within a time that holds for the whole answer.

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
from typing import Any

from wattherd.meters.contract import MeterError, Trouble
from wattherd.meters.credentials import Credentials, read_credentials
from wattherd.meters.meter import timeout_s
from wattherd.meters.uri import MeterUri

OPTIONS = frozenset({"credentials", "insecure", "ca"})
MOST_BYTES = 4_000_000
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
class Server:
    """A web server as an address describes it; `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    secrets: Path | None
    login: Login
    timeout_s: float

    def get(self, target: str) -> Any:
        """The JSON at a path with its query.

        Raises:
            MeterError: no answer in time, none for us, or none that is JSON.
        """
        head = {"Accept": "application/json", "User-Agent": "wattherd", "Connection": "close",
                **self.login(read_credentials(self.secrets))}  # fmt: skip
        status, reason, body = self._exchange(target, head)
        if status != http.HTTPStatus.OK:
            raise _no_answer(target, status, reason, body)
        try:
            return json.loads(body)
        except ValueError:
            raise MeterError(Trouble.GARBAGE, f"{target} is no JSON: {body[:40]!r}") from None

    def _exchange(self, target: str, head: Mapping[str, str]) -> tuple[int, str, bytes]:
        started_s = time.monotonic()
        try:
            return self._ask(target, head, started_s + self.timeout_s)
        except ssl.SSLCertVerificationError as error:
            problem = (
                f"certificate not trusted: {error.verify_message}; name its authority with ?ca="
            )
            raise MeterError(Trouble.REFUSED, problem) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() - started_s >= self.timeout_s:
                problem = f"no complete answer within {self.timeout_s:g} s"
                raise MeterError(Trouble.TIMEOUT, problem) from None
            raise _broken(self, error) from None

    def _ask(self, target: str, head: Mapping[str, str], until_s: float) -> tuple[int, str, bytes]:
        with socket.create_connection((self.host, self.port), self.timeout_s) as plain:
            wire = plain if self.tls is None else self._wrapped(self.tls, plain)
            timer = threading.Timer(until_s - time.monotonic(), _cut, [wire])
            timer.daemon = True
            timer.start()
            try:
                if isinstance(wire, ssl.SSLSocket):
                    wire.do_handshake()
                return self._talk(wire, target, head)
            finally:
                timer.cancel()
                wire.close()

    def _wrapped(self, tls: ssl.SSLContext, plain: socket.socket) -> ssl.SSLSocket:
        return tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)

    def _talk(
        self, wire: socket.socket, target: str, head: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.sock = wire
        connection.request("GET", target, headers=dict(head))
        with connection.getresponse() as answer:
            body = answer.read(MOST_BYTES + 1)
            if len(body) > MOST_BYTES:
                raise MeterError(Trouble.GARBAGE, f"{target} is longer than {MOST_BYTES} bytes")
            if answer.length:
                raise http.client.IncompleteRead(body, answer.length)
            return answer.status, answer.getheader("Location") or answer.reason, body


def server(uri: MeterUri, login: Login) -> Server:
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
        timeout_s=timeout_s(uri),
    )


def _context(uri: MeterUri) -> ssl.SSLContext:
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


def _no_answer(target: str, status: int, reason: str, body: bytes) -> MeterError:
    problem = f"{target}: HTTP {status} {reason}"
    match status:
        case 401 | 403:
            return MeterError(Trouble.REFUSED, f"{problem}; see ?credentials=FILE")
        case 404 | 410:
            return MeterError(Trouble.ABSENT, problem)
        case _ if 300 <= status < 400:
            return MeterError(Trouble.REFUSED, f"{problem}: redirects are not followed")
        case _ if status >= 500:
            return MeterError(Trouble.UNREACHABLE, problem)
    return MeterError(Trouble.GARBAGE, f"{problem} {body[:200].decode(errors='replace')}")


def _broken(where: Server, error: Exception) -> MeterError:
    place = f"{where.host}:{where.port}"
    if isinstance(error, ssl.SSLError):
        return MeterError(Trouble.GARBAGE, f"{place} does not speak TLS: {error.reason}")
    lost = isinstance(error, OSError | http.client.RemoteDisconnected | http.client.IncompleteRead)
    if lost:
        return MeterError(Trouble.UNREACHABLE, f"{place}: {error}")
    return MeterError(Trouble.GARBAGE, f"{place} does not speak HTTP: {type(error).__name__}")
