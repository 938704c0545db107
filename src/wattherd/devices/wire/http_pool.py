"""HTTP in the asking thread (`devices.wire.cooperative_io`): kept connections that wait together.

The rules are those of `devices.wire.http_client`: one time limit for the whole answer, an end at a
number of bytes, verified certificates, no redirects and no proxies, as devices have neither. Only
questions use a connection that was kept, as a server may hang up on it at any moment; an order goes
out once, on a fresh one.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattherd import __version__
from wattherd.devices.wire.device_errors import DeviceErrorKind
from wattherd.devices.wire.http_client import (
    HARMLESS,
    HttpAnswer,
    HttpRequest,
    HttpRules,
    NoAnswer,
    Origin,
    as_no_answer,
)

MOST_AT_ONCE = 4
"""Connections to one server: boards have few, and are slow."""
KEPT_S = 20.0
"""Servers hang up on connections that were idle for longer."""
TIDY_S = 5.0
"""How often connections are looked at that nobody may ask for again: of devices that are gone."""
MOST_HEADERS = 100
NO_BODY = (204, 304)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(slots=True)
class Connection:
    """One connection; whoever uses it has it alone."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since_s: float = 0.0
    heard: bool = False

    @classmethod
    async def to(cls, origin: Origin, rules: HttpRules) -> Connection:
        """A fresh one."""
        if origin.unix:
            return cls(*await asyncio.open_unix_connection(origin.unix))
        secure = origin.scheme == "https"
        tls = (rules.tls or ssl.create_default_context()) if secure else None
        name = origin.host if secure else None
        opened = asyncio.open_connection(origin.host, origin.port, ssl=tls, server_hostname=name)
        return cls(*await opened)

    @property
    def usable(self) -> bool:
        """Whether the server has not hung up, as far as that is known."""
        fresh = time.monotonic() - self.idle_since_s <= KEPT_S
        return fresh and not self.reader.at_eof() and not self.writer.is_closing()

    async def exchange(
        self, origin: Origin, rules: HttpRules, request: HttpRequest
    ) -> tuple[HttpAnswer, bool]:
        """The whole answer, and whether the connection may be used again."""
        self.heard = False
        self.writer.write(_coded(origin, request))
        version, status, reason = await self._status()
        headers = await self._headers()
        while 100 <= status < 200:  # go on: the answer is still to come
            version, status, reason = await self._status()
            headers = await self._headers()
        stays = headers.get("connection", "" if version == "HTTP/1.1" else "close").lower()
        body, ended = await self._body(request, status, headers, rules.most_bytes)
        return HttpAnswer(status, reason, headers, body), not ended and stays != "close"

    def close(self) -> None:
        """Hang up."""
        self.writer.close()

    async def _line(self) -> str:
        try:
            line = await self.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.heard = True
            raise http.client.IncompleteRead(error.partial) from None
        except asyncio.LimitOverrunError:
            raise http.client.LineTooLong("header line") from None
        self.heard = True
        return line.decode("latin-1").rstrip("\r\n")

    async def _status(self) -> tuple[str, int, str]:
        line = await self._line()
        version, _, rest = line.partition(" ")
        code, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/") or not (code.isdecimal() and len(code) == 3):
            raise http.client.BadStatusLine(line)
        return version, int(code), reason.strip()

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := await self._line():
            name, colon, value = line.partition(":")
            if not colon or len(headers) >= MOST_HEADERS:
                raise http.client.HTTPException("no header")
            headers[name.strip().lower()] = value.strip()
        return headers

    async def _body(
        self, request: HttpRequest, status: int, headers: Mapping[str, str], most: int
    ) -> tuple[bytes, bool]:
        """The body, and whether the connection ended with it."""
        if request.method == "HEAD" or status in NO_BODY:
            return b"", False
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks(most), False
        if "content-length" in headers:
            return await self._exactly(int(headers["content-length"]), most), False
        body = b""
        while piece := await self.reader.read(65_536):
            body += piece
            _allow(len(body), most)
        return body, True

    async def _chunks(self, most: int) -> bytes:
        body = b""
        while size := int((await self._line()).partition(";")[0], 16):
            body += await self._exactly(size, most - len(body))
            await self._line()
        await self._headers()
        return body

    async def _exactly(self, size: int, most: int) -> bytes:
        if size < 0:
            raise http.client.HTTPException("a negative length")
        _allow(size, most)
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise http.client.IncompleteRead(error.partial, error.expected) from None


@dataclass(slots=True)
class KeptConnections:
    """Connections that wait for the next question, by server; questions wait for their turn."""

    _idle: dict[tuple[Origin, int], list[Connection]] = field(default_factory=dict)
    _turns: dict[Origin, asyncio.Semaphore] = field(default_factory=dict)
    _tidying: bool = False

    async def ask(self, origin: Origin, rules: HttpRules, request: HttpRequest) -> HttpAnswer:
        """The whole answer, whatever its status.

        Raises:
            NoAnswer: none in time, too long a one, or none that is HTTP.
        """
        until_s = time.monotonic() + rules.timeout_s
        with as_no_answer(f"{origin.host}:{origin.port}", until_s, rules.timeout_s):
            turn = self._turns.setdefault(origin, asyncio.Semaphore(MOST_AT_ONCE))
            async with asyncio.timeout(rules.timeout_s), turn:
                return await self._asked(origin, rules, request)

    async def _asked(self, origin: Origin, rules: HttpRules, request: HttpRequest) -> HttpAnswer:
        key = (origin, id(rules.tls))
        idle = self._idle.setdefault(key, [])
        while request.method in HARMLESS and idle:
            connection = idle.pop()
            if not connection.usable:
                connection.close()
                continue
            try:
                return await self._on(connection, idle, origin, rules, request)
            except (OSError, http.client.IncompleteRead) as error:
                if connection.heard or isinstance(error, TimeoutError):
                    raise  # it did not hang up before it heard us
        connection = await Connection.to(origin, rules)
        return await self._on(connection, idle, origin, rules, request)

    async def _on(
        self, connection: Connection, idle: list[Connection],
        origin: Origin, rules: HttpRules, request: HttpRequest,
    ) -> HttpAnswer:  # fmt: skip
        stays = False
        try:
            answer, stays = await connection.exchange(origin, rules, request)
        finally:
            if stays and len(idle) < MOST_AT_ONCE:
                connection.idle_since_s = time.monotonic()
                idle.append(connection)
                self._tidy_later()
            else:
                connection.close()
        return answer

    def _tidy_later(self) -> None:
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        """Hang up where the server did, or where nobody asked for long."""
        self._tidying = False
        left = 0
        for idle in self._idle.values():
            for connection in [one for one in idle if not one.usable]:
                idle.remove(connection)
                connection.close()
            left += len(idle)
        if left:
            self._tidy_later()


def _coded(origin: Origin, request: HttpRequest) -> bytes:
    headers = {"Host": origin.authority, "User-Agent": f"wattherd/{__version__}", **request.headers}
    body = request.body or b""
    if body or request.method not in HARMLESS:
        headers["Content-Length"] = str(len(body))
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any(map(CONTROL.search, lines)):
        raise ValueError("a control character in a request")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def _allow(size: int, most: int) -> None:
    if size > most:
        raise NoAnswer(DeviceErrorKind.GARBAGE, f"the answer is longer than {most} bytes")
