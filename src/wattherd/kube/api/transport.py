"""Requests to an API server, within time limits and a rate, by aiohttp.

What came back is either an `ApiAnswer` or one of two errors: the server said no (`RefusedByApi`,
with its status), or we do not know what it did (`ApiUnreachable`). A request that was turned away
unread (429, with Retry-After) is sent again; one whose outcome is unknown never is: whoever made it
must look first.
"""

from __future__ import annotations

import asyncio
import http
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import aiohttp
import msgspec
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractStreamWriter

from wattherd import __version__
from wattherd.errors import MOST_WORDS, ClusterError, UserError, harmless
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import Status
from wattherd.kube.api.pacing import TokenBucket

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"

TIMEOUT_S = 10.0
"""For one answer. While etcd is down a write hangs 34 s in the server (measured on 1.36)."""

CONNECT_S = 5.0
CONNECTIONS = 96
_ROUND_S, _ROUNDS = 0.005, 200
"""Of the loop, until connections that were cut off are really closed (TLS over TCP needs three)."""
TOKEN_S = 1.0
"""How long a token is taken for good without asking: it costs a change of threads."""

MOST_RETRIES = 8
MOST_LINE_BYTES = 16 << 20
"""Of one watch event; etcd takes objects of 1.5 MB."""

_STATUS = msgspec.json.Decoder(Status, strict=False)


class RefusedByApi(ClusterError):
    """The API server answered, and not with success.

    `status` is HTTP's, `reason` the API's word for it (`Conflict`, `Expired`...), `after_s` how
    long it asks us to wait.
    """

    def __init__(
        self, status: int, reason: str, message: str, *, after_s: float | None = None
    ) -> None:
        """Keep the parts; the message is the server's own."""
        self.status, self.after_s = status, after_s
        self.reason, self.message = harmless(reason, MOST_WORDS), harmless(message, MOST_WORDS)
        super().__init__(f"{status} {self.reason}: {self.message}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return RefusedByApi, (self.status, self.reason, self.message)


class ApiUnreachable(ClusterError):
    """No complete answer: what was asked for may have happened, or may happen yet."""


class Withheld(ApiUnreachable):
    """Never sent, as it was no longer ours to send: nothing happened, nor will."""


class _Socket(socket.socket):
    """Closed with its object: one that is given up on in TLS's first words is nobody's (uvloop)."""

    def __del__(self) -> None:
        self.close()


class _Body(aiohttp.BytesPayload):
    """A body that is written only if it may be at that very moment.

    A process may be stopped for long between any two of its steps: whoever asked before making
    a connection would send what was right half a minute ago. Without its body a request is void.
    """

    def __init__(self, body: bytes, may_go: Callable[[], bool]) -> None:
        super().__init__(body)
        self.withheld = False
        self._may_go = may_go

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Into the connection's buffer, right before the system call."""
        self.withheld = not self._may_go()
        if self.withheld:
            raise ConnectionAbortedError("withheld")
        await super().write_with_length(writer, content_length)


def always() -> bool:
    """What may go at any time."""
    return True


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A successful answer."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How fast a client may ask: `rate_per_s` on average, `burst` at once."""

    rate_per_s: float = 2000.0
    burst: int = 2000
    timeout_s: float = TIMEOUT_S


@dataclass(slots=True)
class Transport:
    """A client of one API server, used within one event loop as an async context manager.

    Raises, in every method:
        Refused: the server's answer is no success.
        Unreachable: there was no complete answer in time.
    """

    access: Access
    limits: RequestLimits = RequestLimits()
    _bucket: TokenBucket = field(init=False)
    _session: aiohttp.ClientSession | None = field(init=False, default=None)
    _token: str | None = field(init=False, default=None, repr=False)
    _token_s: float = field(init=False, default=-TOKEN_S)
    _sockets: WeakSet[socket.socket] = field(init=False, default_factory=WeakSet)

    def __post_init__(self) -> None:
        """A bucket of its own."""
        self._bucket = TokenBucket(self.limits.rate_per_s, self.limits.burst)

    async def __aenter__(self) -> Self:
        """Open; connections are made when they are needed."""
        connector = aiohttp.TCPConnector(
            limit=CONNECTIONS, keepalive_timeout=60, socket_factory=self._socket
        )
        # Neither proxies nor .netrc of the environment: an identity goes to its own server only.
        self._session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding",),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        del kind, error, trace
        if self._session is not None:
            await self._session.close()
            self._session = None
            await self._cut_off()

    def _socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = _Socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    # A connection that was given up on still waits for the farewell that TLS asks for, and aiohttp
    # knows it no more: below a loop that is closed it would stay half open (uvloop: EBUSY).
    async def _cut_off(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_ROUNDS):
            await asyncio.sleep(_ROUND_S)
            if all(one.fileno() < 0 for one in self._sockets):
                return

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        kind: str = JSON,
        timeout_s: float | None = None,
        may_go: Callable[[], bool] = always,
    ) -> ApiAnswer:
        """One answer.

        `timeout_s` bounds everything: waiting for our turn, the answer, and sending again what the
        server turned away. `may_go` is asked when a body is about to be written.

        Raises:
            Withheld: `may_go` said no.
        """
        limit_s = self.limits.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._until_taken(method, path, query, body, kind, may_go)
        except TimeoutError:
            raise ApiUnreachable(f"{method} {path}: no answer within {limit_s:g} s") from None

    async def _until_taken(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        kind: str,
        may_go: Callable[[], bool],
    ) -> ApiAnswer:
        renewed = False
        for _ in range(MOST_RETRIES):
            if (wait_s := self._bucket.wait_s(time.monotonic())) > 0:
                await asyncio.sleep(wait_s)
            try:
                sent = self._sent(method, path, query, body, kind, may_go, renewed=renewed)
                async with sent as answer:
                    return ApiAnswer(answer.status, await answer.read())
            except RefusedByApi as refused:
                if refused.status == http.HTTPStatus.UNAUTHORIZED and not renewed:
                    renewed = True  # a token may have expired a moment ago
                elif refused.status == http.HTTPStatus.TOO_MANY_REQUESTS and not _says_no(refused):
                    await asyncio.sleep(1.0 if refused.after_s is None else refused.after_s)
                else:
                    raise
        raise ApiUnreachable(f"{method} {path}: turned away {MOST_RETRIES} times")

    @asynccontextmanager
    async def lines(
        self, path: str, *, query: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on, until the server ends it.

        `silence_s` is how long it may say nothing before we take it for dead (`ApiUnreachable`).
        """
        await asyncio.sleep(self._bucket.wait_s(time.monotonic()))
        async with self._sent("GET", path, query, None, JSON, silence_s=silence_s) as answer:
            yield _lines(answer.content)

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        kind: str,
        may_go: Callable[[], bool] = always,
        *,
        renewed: bool = False,
        silence_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("a transport is used within `async with`")
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=silence_s)
        headers = await self._headers(kind if body is not None else None, renewed=renewed)
        guarded = None if body is None else _Body(body, may_go)
        try:
            async with self._session.request(
                method,
                f"{self.access.server}{path}",
                params=query,
                data=guarded,
                headers=headers,
                timeout=timeout,
                ssl=self.access.tls or True,
                server_hostname=self.access.tls_name or None,
                proxy=self.access.proxy or None,
                allow_redirects=False,
            ) as answer:
                if answer.status >= http.HTTPStatus.MULTIPLE_CHOICES:
                    raise _refused(answer, await answer.read())
                try:
                    yield answer
                except BaseException:
                    _hang_up(answer)
                    raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if guarded is not None and guarded.withheld:
                raise Withheld(f"{method} {path}: not ours to send any more") from None
            said = str(error) or type(error).__name__
            if isinstance(error, aiohttp.ClientConnectorError):  # its own words name our objects
                said = f"cannot connect: {error.os_error.strerror or error.os_error}"
            raise ApiUnreachable(f"{method} {path}: {said}") from None

    async def _headers(self, kind: str | None, *, renewed: bool) -> list[tuple[str, str]]:
        if renewed or time.monotonic() - self._token_s >= TOKEN_S:
            await self._ask_token(renewed=renewed)
        return [
            ("Accept", JSON),
            ("User-Agent", f"wattherd/{__version__}"),
            *self.access.headers,
            *((("Content-Type", kind),) if kind else ()),
            *((("Authorization", f"Bearer {self._token}"),) if self._token else ()),
        ]

    async def _ask_token(self, *, renewed: bool) -> None:
        try:  # it may read a file or run a program, which must not hold up other requests
            self._token = await asyncio.to_thread(self.access.identity.token, renewed=renewed)
        except UserError as error:
            raise ApiUnreachable(f"no identity: {error}") from None
        self._token_s = time.monotonic()


def _hang_up(answer: aiohttp.ClientResponse) -> None:
    """Close at once: a farewell by TLS would wait for a server that may be frozen."""
    transport = answer.connection.transport if answer.connection else None
    if transport is not None:
        transport.abort()


def _says_no(refused: RefusedByApi) -> bool:
    """A 429 of the eviction API means a disruption budget, not too many requests."""
    return refused.after_s is None or "disruption budget" in refused.message


def _refused(answer: aiohttp.ClientResponse, body: bytes) -> RefusedByApi:
    try:
        status: Any = _STATUS.decode(body)
        reason, message = status.reason, status.message
    except msgspec.MsgspecError:
        reason, message = "", body[:300].decode(errors="replace")
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        message += "; our token or certificate is not taken: it may have expired or been revoked"
    after = answer.headers.get("Retry-After", "")
    after_s = float(after) if after.isdecimal() else None
    return RefusedByApi(answer.status, reason or str(answer.reason), message, after_s=after_s)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines; what is left without an end of line when the stream ends was cut off."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        *whole, last = chunk.split(b"\n")
        for line in whole:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > MOST_LINE_BYTES:
            raise ApiUnreachable(f"a line of a watch is longer than {MOST_LINE_BYTES} bytes")
