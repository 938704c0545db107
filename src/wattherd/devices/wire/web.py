"""JSON from a device's web server, once, by the rules of `devices.wire.http_client`.

Devices have no redirects that are followed, and are not behind proxies.
"""

from __future__ import annotations

import base64
import functools
import http
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.devices.wire import cooperative_io, http_client
from wattherd.devices.wire.credentials import Credentials, read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.http_client import (
    PORTS,
    HttpClient,
    HttpRequest,
    HttpRules,
    NoAnswer,
    Origin,
)
from wattherd.devices.wire.http_pool import KeptConnections
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"credentials", "insecure", "ca"})
MOST_BYTES = 4_000_000
MOST_SAID = 300

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
class WebAnswer:
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
        shared = cooperative_io.sharing()
        if shared is None:
            return self._got(target)
        # Devices behind one board ask it for the same document: once a round is enough.
        return shared.once((self, target), lambda: self._got(target))

    def _got(self, target: str) -> Any:
        answer = self.request("GET", target)
        if answer.content is None:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"{target} is no JSON: b''")
        return answer.content

    def request(
        self, method: str, target: str, content: Any = None, more: Mapping[str, str] | None = None
    ) -> WebAnswer:
        """The answer to any method, sent once; `content` becomes JSON, `more` are header fields.

        Raises:
            DeviceError: no answer in time, none for us, or one that is neither empty nor JSON.
        """
        head = {"Accept": "application/json",
                **self.login(read_credentials(self.secrets)), **(more or {})}  # fmt: skip
        body = None if content is None else json.dumps(content).encode()
        if content is not None:
            head["Content-Type"] = "application/json"
        if method != "GET":
            cooperative_io.unshare()
        raw = self._exchange(HttpRequest(method, target, head, body))
        etag = raw.headers.get("etag", "")
        if raw.status == http.HTTPStatus.NOT_MODIFIED:
            return WebAnswer(None, etag, unchanged=True)
        if not 200 <= raw.status < 300:
            raise no_answer(target, raw)
        try:
            return WebAnswer(json.loads(raw.body) if raw.body.strip() else None, etag)
        except (ValueError, RecursionError):  # the latter: brackets in brackets in brackets
            raise DeviceError(
                DeviceErrorKind.GARBAGE, f"{target} is no JSON: {raw.body[:40]!r}"
            ) from None

    def _exchange(self, request: HttpRequest) -> http_client.HttpAnswer:
        scheme = "http" if self.tls is None else "https"
        origin = Origin(scheme, self.host, self.port, self.unix)
        rules = HttpRules(timeout_s=self.timeout_s, most_bytes=MOST_BYTES, tls=self.tls)
        try:
            if cooperative_io.aside():
                return cooperative_io.wait(
                    cooperative_io.kept("http", KeptConnections).ask(origin, rules, request)
                )
            return HttpClient(origin, rules).ask(request)
        except NoAnswer as failure:
            problem = failure.problem
            if problem.startswith("certificate not trusted"):
                problem += "; name its authority with ?ca="
            raise DeviceError(failure.trouble, problem) from None


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
    version = authority.stat().st_mtime_ns if authority is not None else 0
    try:
        return _trusting(authority, version, insecure=uri.flag("insecure"))
    except ssl.SSLError:
        raise uri.error(f"no certificate in {authority}", field="ca") from None


@functools.lru_cache(maxsize=64)
def _trusting(authority: Path | None, version: int, *, insecure: bool) -> ssl.SSLContext:
    """One for all devices of the same trust: the system's authorities take 10 ms to read.

    `version` makes another one of a file that was changed.
    """
    del version
    context = ssl.create_default_context(cafile=authority)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def no_answer(target: str, raw: http_client.HttpAnswer) -> DeviceError:
    """What an answer that is no success means for who asked."""
    problem = f"{target}: HTTP {raw.status} {raw.headers.get('location') or raw.reason}"
    match raw.status:
        case 401 | 403:
            said = _said(raw.body)
            return DeviceError(DeviceErrorKind.REFUSED, f"{problem}{said}; see ?credentials=FILE")
        case 404 | 410:
            return DeviceError(DeviceErrorKind.ABSENT, problem)
        case _ if 300 <= raw.status < 400:
            return DeviceError(DeviceErrorKind.REFUSED, f"{problem}: redirects are not followed")
        case _ if raw.status >= 500:
            return DeviceError(DeviceErrorKind.UNREACHABLE, f"{problem}{_said(raw.body)}")
    return DeviceError(DeviceErrorKind.GARBAGE, f"{problem}{_said(raw.body)}")


def _said(body: bytes) -> str:
    """The beginning of what a server says about its refusal, on one line."""
    text = " ".join(body[:MOST_SAID].decode(errors="replace").split())
    return f" {text}" if text.strip("{}") else ""
