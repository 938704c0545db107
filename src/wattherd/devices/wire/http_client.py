"""Ask a web server: the command line, single sign-on and all devices do so by these rules.

* A time limit holds for the whole answer, from the look-up of the name to the last byte. What most
  libraries call a timeout is per packet: a server that sends a byte a second would hold a control
  loop for ever (docs/decisions/003).
* Answers end at a number of bytes.
* Certificates are verified. Whoever wants no proof of a server says so in its TLS context.
* Proxies of the environment are used only where a rule says so, never for this machine itself or
  what `NO_PROXY` names, and never for a request that would show them a token or a cookie.
* Redirects are followed only where a rule says so, for questions alone, and to the same scheme,
  host and port: so they carry no token to anybody else, and never from HTTPS to HTTP.
* What failed before an answer came is asked again only if asking twice does no harm.

The standard library does the rest: no more is installed on a node that is asked about its power.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import io
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, cast
from urllib.parse import unquote, urljoin, urlsplit

from wattherd import __version__
from wattherd.devices.wire.device_errors import DeviceErrorKind
from wattherd.errors import ClusterError, harmless, words

PORTS = {"http": 80, "https": 443}
CHUNK = 65_536
MOST_REDIRECTS = 5
MOST_REASON = 100
"""Characters of a status line's words that are shown."""
REDIRECTS = (301, 302, 303, 307, 308)
HARMLESS = ("GET", "HEAD")
PAUSES_S = (0.2, 0.8)
"""Before what failed is asked again."""
SECRET = frozenset({"authorization", "cookie", "x-auth-token"})
"""Headers that nobody but the server may see."""
ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A server that is gone is noticed after a minute, on connections that may be silent for long."""


class NoAnswer(ClusterError):
    """No usable answer; `trouble` says of which kind."""

    def __init__(self, trouble: DeviceErrorKind, problem: str, hint: str = "") -> None:
        """Keep the parts."""
        self.trouble, self.problem, self.hint = trouble, problem, hint
        super().__init__(problem)


class MayNotConnect(OSError):
    """An address is not to be connected to, by the rules of whoever asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRules:
    """What may differ between those who ask. Without `timeout_s` nothing is waited for in vain."""

    timeout_s: float
    most_bytes: int = 4_000_000
    tls: ssl.SSLContext | None = None
    """For HTTPS; None is the usual one, with the system's authorities."""
    proxies: bool = False
    redirects: bool = False
    again: bool = False
    """Ask again where that does no harm."""
    may_connect: Callable[[str], None] | None = None
    """Asked for each address before it is connected to; raises `MayNotConnect` to refuse it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A server: scheme, host and port; with `unix`, a socket on this machine, they are names."""

    scheme: str
    host: str
    port: int
    unix: str = ""

    @property
    def authority(self) -> str:
        """Host and port, the latter only if it is not the usual one."""
        usual = PORTS[self.scheme] == self.port
        return self.name if usual else f"{self.name}:{self.port}"

    @property
    def name(self) -> str:
        """The host as it is written in addresses."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.scheme}://{self.authority}"


def origin_of(url: str) -> Origin:
    """The server of an address.

    Raises:
        ValueError: it is no address of HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no address of HTTP")
    return Origin(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme])


class HttpAnswer(NamedTuple):
    """A whole answer; names of headers are in small letters."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class HttpRequest(NamedTuple):
    """What is asked; `target` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None

    @property
    def harmless(self) -> bool:
        """Whether asking twice is as good as asking once."""
        keyed = any(name.lower() == "idempotency-key" for name in self.headers)
        return self.method in HARMLESS or keyed


@dataclass(frozen=True, slots=True)
class HttpClient:
    """One server and the rules by which it is asked; nothing is kept open in between."""

    origin: Origin
    rules: HttpRules

    def ask(self, request: HttpRequest) -> HttpAnswer:
        """The whole answer, whatever its status.

        Raises:
            NoAnswer: none in time, too long a one, or none by the rules.
        """
        until_s = time.monotonic() + self.rules.timeout_s
        with self._patient(request, until_s) as incoming:
            body = incoming.whole(self.rules.most_bytes)
            return HttpAnswer(incoming.status, incoming.reason, incoming.headers, body)

    def stream(self, request: HttpRequest) -> IncomingAnswer:
        """An answer to be read as it comes; only its head has to come in time.

        Raises:
            NoAnswer: as `ask`.
        """
        until_s = time.monotonic() + self.rules.timeout_s
        incoming = self._patient(request, until_s)
        if incoming.status < http.HTTPStatus.BAD_REQUEST:
            incoming.wait_for_ever()
        return incoming

    def connect(self, request: HttpRequest) -> socket.socket:
        """A connection on which another protocol (WebSocket) sends `request`; TLS is to be begun.

        Raises:
            NoAnswer: as `ask`.
        """
        until_s = time.monotonic() + self.rules.timeout_s
        proxy = _proxy_of(self.origin) if self.rules.proxies else None
        place = f"{self.origin.host}:{self.origin.port}" if proxy is None else f"proxy {proxy}"
        if proxy is not None and self.origin.scheme == "http":
            _keep_secret(request, proxy, self.origin)
        with as_no_answer(place, until_s, self.rules.timeout_s):
            wire = _Wire(until_s, self.rules.may_connect)
            try:
                wire.connect(self.origin if proxy is None else proxy.origin)
                if proxy is not None:
                    _tunnel(wire, proxy, self.origin)
                return wire.detach()
            except BaseException:
                wire.end()
                raise

    def _patient(self, request: HttpRequest, until_s: float) -> IncomingAnswer:
        """Ask once more where a connection broke, as long as there is time and it does no harm."""
        pauses = PAUSES_S if self.rules.again and request.harmless else ()
        for pause_s in pauses:
            try:
                return self._followed(request, until_s)
            except NoAnswer as failure:
                if not isinstance(failure.__context__, _BROKEN):
                    raise
                if time.monotonic() + pause_s >= until_s:
                    raise
                time.sleep(pause_s)
        return self._followed(request, until_s)

    def _followed(self, request: HttpRequest, until_s: float) -> IncomingAnswer:
        incoming = self._once(request, until_s)
        if not self.rules.redirects or request.method not in HARMLESS:
            return incoming
        for _ in range(MOST_REDIRECTS):
            place = incoming.headers.get("location", "")
            if incoming.status not in REDIRECTS or not place:
                return incoming
            incoming.close()
            request = request._replace(target=self._same_server(request.target, place))
            incoming = self._once(request, until_s)
        incoming.close()
        raise NoAnswer(DeviceErrorKind.GARBAGE, f"more than {MOST_REDIRECTS} redirects")

    def _same_server(self, target: str, place: str) -> str:
        """Where a redirect leads to, which must be here."""
        url = urljoin(f"{self.origin}{target}", place)
        try:
            there = origin_of(url)
        except ValueError:
            raise NoAnswer(DeviceErrorKind.GARBAGE, f"redirected to {place!r:.200}") from None
        if there != self.origin:
            hint = "if it is the right one, name it as the server"
            raise NoAnswer(
                DeviceErrorKind.REFUSED, f"redirected to {there}, which is not asked", hint
            )
        parts = urlsplit(url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _once(self, request: HttpRequest, until_s: float) -> IncomingAnswer:
        proxy = _proxy_of(self.origin) if self.rules.proxies else None
        place = f"{self.origin.host}:{self.origin.port}" if proxy is None else f"proxy {proxy}"
        if proxy is not None and self.origin.scheme == "http":
            _keep_secret(request, proxy, self.origin)
        with as_no_answer(place, until_s, self.rules.timeout_s):
            wire = _Wire(until_s, self.rules.may_connect)
            try:
                wire.connect(self.origin if proxy is None else proxy.origin)
                if self.origin.scheme == "https":
                    if proxy is not None:
                        _tunnel(wire, proxy, self.origin)
                    tls = self.rules.tls or ssl.create_default_context()
                    wire.encrypt(tls, self.origin.host)
                return _asked(wire, request, self.origin, proxy, place, self.rules.timeout_s)
            except BaseException:
                wire.end()
                raise


def _asked(
    wire: _Wire,
    request: HttpRequest,
    origin: Origin,
    proxy: Proxy | None,
    place: str,
    timeout_s: float,
) -> IncomingAnswer:
    connection = http.client.HTTPConnection(origin.host, origin.port)
    connection.sock = cast("socket.socket", wire)
    head = {"Host": origin.authority, "User-Agent": f"wattherd/{__version__}",
            "Connection": "close", **request.headers}  # fmt: skip
    target = request.target
    if proxy is not None and origin.scheme == "http":
        target, head = f"{origin}{target}", {**head, **proxy.login}
    connection.request(request.method, target, request.body, headers=head)
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    reason = harmless(answer.reason, MOST_REASON)
    return IncomingAnswer(answer.status, reason, headers, answer, wire, place, timeout_s)


@dataclass(slots=True)
class IncomingAnswer:
    """An answer whose head is here; to be closed."""

    status: int
    reason: str
    headers: Mapping[str, str]
    _answer: http.client.HTTPResponse
    _wire: _Wire
    _place: str
    _timeout_s: float

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._answer.close()
        self._wire.end()

    def wait_for_ever(self) -> None:
        """From now on nothing has to come in time."""
        self._wire.until_s = None

    def whole(self, most: int) -> bytes:
        """The rest of it.

        Raises:
            NoAnswer: it is longer than `most`, or does not come in time or as a whole.
        """
        with as_no_answer(self._place, self._wire.until_s, self._timeout_s):
            body = self._answer.read(most + 1)
            if len(body) <= most and self._answer.length:
                raise http.client.IncompleteRead(body, self._answer.length)
        if len(body) > most:
            raise NoAnswer(DeviceErrorKind.GARBAGE, f"the answer is longer than {most} bytes")
        return body

    def chunks(self) -> Iterator[bytes]:
        """The rest of it, as it comes.

        Raises:
            NoAnswer: it breaks off.
        """
        while True:
            with as_no_answer(self._place, self._wire.until_s, self._timeout_s):
                chunk = self._answer.read1(CHUNK)
                if not chunk and self._answer.length:  # which read1 takes for the end
                    raise http.client.IncompleteRead(b"", self._answer.length)
            if not chunk:
                return
            yield chunk


# --- The wire ------------------------------------------------------------------------------------


class _Wire:
    """A connection on which every wait ends at the same moment; `until_s` None is for ever.

    Takes the place of a socket in `http.client`.
    """

    def __init__(
        self, until_s: float | None, may_connect: Callable[[str], None] | None = None
    ) -> None:
        self.until_s, self._may_connect = until_s, may_connect
        self._socket: socket.socket | None = None

    def connect(self, origin: Origin) -> None:
        """To the first address of the server that answers."""
        if origin.unix:
            self._try(socket.AF_UNIX, origin.unix)
            return
        failure: OSError = OSError("the name has no address")
        for family, address in _addresses(origin.host, origin.port, self.until_s):
            try:
                if self._may_connect is not None:
                    self._may_connect(str(address[0]))
                self._try(family, address)
            except (TimeoutError, MayNotConnect):
                raise
            except OSError as error:
                failure = error
            else:
                return
        raise failure

    def _try(self, family: int, address: Any) -> None:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(self._left_s())
            made.connect(address)
            if family != socket.AF_UNIX:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in ALIVE:
                    made.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:
            made.close()
            raise
        self._socket = made

    def encrypt(self, tls: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on, to whoever proves to be `host`."""
        plain = self._ready()
        self._socket = tls.wrap_socket(plain, server_hostname=host)

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._ready().send(rest[:CHUNK]) :]

    def receive_into(self, buffer: memoryview) -> int:
        """What comes next; 0 at the end."""
        return self._ready().recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For `http.client`, to read from."""
        return io.BufferedReader(_Reader(self), CHUNK)

    def close(self) -> None:
        """As `http.client` says it: of its own view alone, the answer is still to be read."""

    def detach(self) -> socket.socket:
        """The connection itself, without a limit of time."""
        found, self._socket = self._ready(), None
        found.settimeout(None)
        return found

    def end(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()

    def _ready(self) -> socket.socket:
        if self._socket is None:
            raise OSError("not connected")
        self._socket.settimeout(self._left_s())
        return self._socket

    def _left_s(self) -> float | None:
        return None if self.until_s is None else _left_s(self.until_s)


class _Reader(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        super().__init__()
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._wire.receive_into(buffer)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _addresses(host: str, port: int, until_s: float | None) -> list[tuple[int, Any]]:
    """What a name stands for. Resolvers know no time limit of ours: they are asked in a thread."""
    try:
        return _resolved(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    found: list[list[tuple[int, Any]] | OSError] = []

    def look_up() -> None:
        try:
            found.append(_resolved(host, port, 0))
        except OSError as error:
            found.append(error)

    asking = threading.Thread(target=look_up, name="resolver", daemon=True)
    try:
        asking.start()
    except RuntimeError as error:  # what Python says where clone(2) says EAGAIN
        raise OSError(errno.EAGAIN, "no thread can be had to look a name up") from error
    asking.join(None if until_s is None else _left_s(until_s))
    if not found:
        raise TimeoutError
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _resolved(host: str, port: int, flags: int) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error
    return [(family, address) for family, _, _, _, address in found]


# --- Proxies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that speaks HTTP; `login` is what it wants to be shown."""

    origin: Origin
    login: Mapping[str, str] = field(repr=False)

    def __str__(self) -> str:
        """Without its password."""
        return str(self.origin)


def _proxy_of(origin: Origin) -> Proxy | None:
    """The one that the environment names for a server; None for this machine and `NO_PROXY`.

    Raises:
        NoAnswer: it is of another kind than HTTP.
    """
    if origin.unix or is_this_machine(origin.host) or _left_out(origin, _variable("no_proxy")):
        return None
    text = _variable(f"{origin.scheme}_proxy") or _variable("all_proxy")
    if not text:
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port or PORTS["http"]
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        shown = f"{parts.scheme}://{parts.hostname or ''}"
        hint = "name one that begins with http://, or leave this server out by NO_PROXY"
        raise NoAnswer(
            DeviceErrorKind.REFUSED, f"the proxy {shown} is of a kind that is not used", hint
        )
    login = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        shown = base64.b64encode(pair.encode()).decode()
        login["Proxy-Authorization"] = f"Basic {shown}"
    return Proxy(Origin("http", parts.hostname, port), login)


def _variable(name: str) -> str:
    """In small letters or capitals. `HTTP_PROXY` may be a header where a web server runs us."""
    told = os.environ.get(name)
    if told is None and not (name == "http_proxy" and "REQUEST_METHOD" in os.environ):
        told = os.environ.get(name.upper())
    return (told or "").strip()


def is_this_machine(host: str) -> bool:
    """Whether a name or address can mean this machine alone."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _left_out(origin: Origin, no_proxy: str) -> bool:
    """Whether `NO_PROXY` names a server: by `*`, name, end of a name, address or network."""
    host = origin.host.lower().rstrip(".")
    address = _address(host)
    for entry in no_proxy.lower().replace(",", " ").split():
        if entry == "*":
            return True
        if address is not None:
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip("[]"), strict=False):
                    return True
        name, _, port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if port and port != str(origin.port):
            continue
        name = name.removeprefix("*").lstrip(".")
        if name and (host == name or host.endswith(f".{name}")):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _keep_secret(request: HttpRequest, proxy: Proxy, origin: Origin) -> None:
    shown = sorted(name for name in request.headers if name.lower() in SECRET)
    if shown:
        hint = f"use https://, or leave it out: NO_PROXY={origin.host}"
        problem = f"the proxy {proxy} would read the {shown[0].lower()} header in clear"
        raise NoAnswer(DeviceErrorKind.REFUSED, problem, hint)


def _tunnel(wire: _Wire, proxy: Proxy, origin: Origin) -> None:
    """Have the proxy pass everything on, unread."""
    there = f"{origin.name}:{origin.port}"
    head = "".join(f"{name}: {value}\r\n" for name, value in proxy.login.items())
    wire.sendall(f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n{head}\r\n".encode("latin-1"))
    answer = http.client.HTTPResponse(cast("socket.socket", wire), method="CONNECT")
    answer.begin()
    if answer.status != http.HTTPStatus.OK:
        reason = harmless(answer.reason, MOST_REASON)
        told = f"the proxy {proxy} answers {answer.status} {reason}"
        raise NoAnswer(DeviceErrorKind.REFUSED, told)


# --- What went wrong -----------------------------------------------------------------------------

_BROKEN = (ConnectionResetError, BrokenPipeError, http.client.IncompleteRead)
"""The connection was there, and broke (`RemoteDisconnected` is one of the first)."""


@contextlib.contextmanager
def as_no_answer(place: str, until_s: float | None, timeout_s: float) -> Iterator[None]:
    """What the libraries say about it, as one error."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(
            DeviceErrorKind.REFUSED, f"certificate not trusted: {error.verify_message}"
        ) from None
    except MayNotConnect as error:
        raise NoAnswer(DeviceErrorKind.REFUSED, f"{place}: {error}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = until_s is not None and time.monotonic() >= until_s
        if isinstance(error, TimeoutError) or late:
            problem = f"no complete answer within {timeout_s:g} s"
            raise NoAnswer(DeviceErrorKind.TIMEOUT, problem) from None
        if isinstance(error, ssl.SSLError):
            problem = f"{place} does not speak TLS: {error.reason}"
            raise NoAnswer(DeviceErrorKind.GARBAGE, problem) from None
        if isinstance(error, OSError | http.client.IncompleteRead):
            raise NoAnswer(DeviceErrorKind.UNREACHABLE, f"{place}: {words(error)}") from None
        problem = f"{place} does not speak HTTP: {type(error).__name__}"
        raise NoAnswer(DeviceErrorKind.GARBAGE, problem) from None
