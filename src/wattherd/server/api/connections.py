"""Connections: how many there may be, and how long each may keep the service waiting.

Uvicorn limits neither. Whoever sends half a request held a connection for as long as he liked, and
with enough of them every file descriptor of the process; its `limit_concurrency` then refuses
everybody alike. Here connections are taken in one by one (`LimitedServer`), so that

* a head (the first, and each one after an answer) comes within `head_s`, TLS handshake included,
  and a body at no less than `body_bytes_per_s` after `body_s`;
* there are at most `connections` of them, some of which are kept for this machine itself, and
  `per_address` from one address elsewhere;
* where there is no room, the oldest one goes that nobody is known to use: of the address that has
  most. A connection is known to be used while it asks as a caller whom the gate has let in; but
  for a body that takes longer than `body_s`. So a thousand half requests push out each other, and
  an operator's command gets its answer;
* where the system has no descriptors left, taking in pauses.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wattherd.devices.wire.threads import begun_pool

MOST = 2048
"""Connections, however many descriptors there are."""
LEAST = 16
BACKLOG = 1024
SWEEP_S = 0.5
LINGER_S = 5.0
"""For what was written last, once a connection is to be closed."""
PAUSE_S = 0.5
TOGETHER = 16
"""Connections taken in before others have their turn."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger("wattherd.connections")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may take up."""

    connections: int = MOST
    reserve: int = MOST // 8
    """Of these, for this machine itself."""
    per_address: int = MOST // 2
    streams: int = MOST // 2
    """Of these, answers without an end."""
    passed_on: int = MOST // 4
    """Requests passed on to jobs, each of which takes a second connection."""
    head_s: float = 5.0
    body_s: float = 10.0
    body_bytes_per_s: float = 1000.0
    head_bytes: int = 65_536
    stalled_s: float = 300.0
    """For a reader who takes nothing of what is written."""


def limits_of(descriptors: int) -> ConnectionLimits:
    """Half of the descriptors at most: runs, stores and logs need theirs."""
    connections = max(LEAST, min(MOST, descriptors * 3 // 8))
    return ConnectionLimits(
        connections=connections,
        reserve=connections // 8,
        per_address=connections // 2,
        streams=connections // 2,
        passed_on=max(4, min(MOST // 4, descriptors // 8)),
    )


def limits_here() -> ConnectionLimits:
    """For as many descriptors as this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_of(1 << 20 if soft == resource.RLIM_INFINITY else soft)


def server_of(
    app: Any,
    limits: ConnectionLimits | None = None,
    *,
    trusted_proxies: Sequence[str] = (),
    **options: Any,
) -> LimitedServer:
    """A server of `app`; `options` are uvicorn's.

    What a request says of the address it comes from is believed of `trusted_proxies` alone.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        access_log=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        **options,
    )
    return LimitedServer(config, limits or limits_here(), trusted_proxies)


# --- Who is there --------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Visitor:
    """One connection, from the moment it was taken in; without `talk` its TLS is still to begin."""

    address: str
    here: bool
    """Whether it is of this machine, or of a proxy that is trusted."""
    talk: Talk | None = None
    entering: asyncio.Task[None] | None = None

    @property
    def used(self) -> bool:
        """Whether somebody who was let in is asking by it."""
        return self.talk is not None and self.talk.used

    def drop(self) -> None:
        """Cut it off."""
        if self.talk is not None and self.talk.transport is not None:
            self.talk.transport.abort()
        elif self.entering is not None:
            self.entering.cancel()


@dataclass(slots=True)
class Hall:
    """Everybody who is connected; a visitor's place is free once it is out."""

    limits: ConnectionLimits
    trusted: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()
    _inside: dict[str, dict[Visitor, None]] = field(default_factory=dict)
    """By address, the oldest first."""
    _count: int = 0

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def __iter__(self) -> Any:
        """All of them."""
        return iter([one for group in self._inside.values() for one in group])

    def admit(self, host: str) -> Visitor | None:
        """A place for a connection from `host`; None if all are taken by others who use theirs."""
        address, here = self._place(host)
        room = self.limits.connections - (0 if here else self.limits.reserve)
        group = self._inside.get(address, {})
        if not here and len(group) >= self.limits.per_address and not self._make_room([group]):
            return None
        if self._count >= room:
            crowds = sorted(self._inside.values(), key=len, reverse=True)
            if not self._make_room(crowds):
                return None
        visitor = Visitor(address, here)
        self._inside.setdefault(address, {})[visitor] = None
        self._count += 1
        return visitor

    def leave(self, visitor: Visitor) -> None:
        """It is gone; may be said twice."""
        group = self._inside.get(visitor.address)
        if group is None or visitor not in group:
            return
        del group[visitor]
        self._count -= 1
        if not group:
            del self._inside[visitor.address]

    def _make_room(self, groups: Iterable[dict[Visitor, None]]) -> bool:
        for group in groups:
            oldest = next((one for one in group if not one.used), None)
            if oldest is not None:
                oldest.drop()
                self.leave(oldest)
                return True
        return False

    def _place(self, host: str) -> tuple[str, bool]:
        """What counts as one address: of IPv6 a network, of which everybody has many numbers."""
        try:
            found = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return host, not host  # a socket on this machine has no address
        plain = getattr(found, "ipv4_mapped", None) or found
        here = plain.is_loopback or any(plain in network for network in self.trusted)
        if plain.version == 6 and not here:
            return str(ipaddress.ip_network((plain, 64), strict=False)), False
        return str(plain), here


# --- One connection ------------------------------------------------------------------------------


class Talk(HttpToolsProtocol):
    """HTTP on one connection, which knows since when it waits for what."""

    def __init__(self, visitor: Visitor, hall: Hall, **options: Any) -> None:
        """Nothing was said yet."""
        super().__init__(**options)
        self._visitor, self._hall, self._limits = visitor, hall, hall.limits
        now_s = time.monotonic()
        self._since_s = now_s
        """The begin of what is waited for: a head, or the body behind it."""
        self._in_head = self._in_body = self._is_socket = False
        self._head_bytes = self._body_bytes = self._tail_bytes = 0
        self._closing_s: float | None = None
        self._stalled: tuple[float, int] | None = None

    @property
    def used(self) -> bool:
        """Whether a request of somebody who was let in is being answered.

        A body that takes its time keeps no place: whoever has a token could have them all.
        """
        if self._is_socket:
            return True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        if self._in_body and time.monotonic() - self._since_s > self._limits.body_s:
            return False
        return cycle.scope["state"].get("caller") is not None

    # What uvicorn tells -------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Heard by the event loop."""
        super().connection_made(transport)
        self._visitor.talk = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Heard by the event loop."""
        super().connection_lost(exc)
        self._hall.leave(self._visitor)

    def data_received(self, data: bytes) -> None:
        """Heard by the event loop."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._turn_away(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Heard by the parser: the first byte of a head."""
        super().on_message_begin()
        self._in_head, self._since_s = True, time.monotonic()
        self._head_bytes = self._body_bytes = self._tail_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Heard by the parser; behind a body, too."""
        if not self._in_head:
            self._tail_bytes += len(name) + len(value)
            if self._tail_bytes > self._limits.head_bytes:
                self._turn_away(b"431 Request Header Fields Too Large")
                return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Heard by the parser."""
        self._in_head, self._in_body, self._since_s = False, True, time.monotonic()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Heard by the parser."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Heard by the parser."""
        self._in_body, self._since_s = False, time.monotonic()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Heard of who answers; of a body that nobody reads the rest is to come soon."""
        self._since_s = time.monotonic()
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """From now on others hear what comes; messages and pings have limits of their own."""
        self._is_socket = True
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Heard by the event loop."""
        super().pause_writing()
        self._stalled = time.monotonic(), self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Heard by the event loop."""
        super().resume_writing()
        self._stalled = None

    # What we look at every half second ----------------------------------------------------------

    def look(self, now_s: float, passed_s: float) -> None:
        """Cut off what keeps us waiting for longer than it may."""
        if self.transport.is_closing():
            self._look_out(now_s)
        elif self._late(now_s, passed_s):
            self._turn_away(b"408 Request Timeout")
        self._look_at_reader(now_s)

    def _late(self, now_s: float, passed_s: float) -> bool:
        """Whether what is waited for should have come."""
        if self._is_socket:
            return False
        idle = self.cycle is None or self.cycle.response_complete
        if self._in_body and not idle:
            if self.flow.read_paused:  # it is we who do not read
                self._since_s += passed_s
            rate = self._body_bytes / self._limits.body_bytes_per_s
            return now_s - self._since_s > self._limits.body_s + rate
        return (self._in_head or idle) and now_s - self._since_s > self._limits.head_s

    def _look_out(self, now_s: float) -> None:
        if self._is_socket:
            self._hall.leave(self._visitor)
        self._closing_s = self._closing_s or now_s
        if now_s - self._closing_s > LINGER_S:
            self.transport.abort()

    def _look_at_reader(self, now_s: float) -> None:
        if self._stalled is None:
            return
        since_s, waiting = self._stalled
        left = self.transport.get_write_buffer_size()
        if left < waiting:
            self._stalled = now_s, left
        elif now_s - since_s > self._limits.stalled_s:
            self.transport.abort()

    def _turn_away(self, status: bytes) -> None:
        """Say why, unless an answer is under way or nothing was asked, and hang up."""
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        asked = self._in_head or self._in_body
        if asked and not (answering and self.cycle.response_started):
            self.transport.write(_refusal(status))
        self.transport.close()


def _refusal(status: bytes) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


# --- The server ----------------------------------------------------------------------------------


class LimitedServer(uvicorn.Server):
    """Uvicorn, which takes in connections one by one and looks after them."""

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits, trusted_proxies: Sequence[str] = ()
    ) -> None:
        """Serve as `config` says, on the sockets that `run` is given."""
        super().__init__(config)
        networks = [ipaddress.ip_network(one, strict=False) for one in trusted_proxies]
        self.hall = Hall(limits, networks)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told_s = -60.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take in."""
        threads = begun_pool(min(32, (os.cpu_count() or 1) + 4), "answers")  # as many as asyncio's
        asyncio.get_running_loop().set_default_executor(threads)
        await super().startup(sockets=[])  # no servers of its own
        self._keep(self._look_after())
        for listener in sockets or ():
            listener.listen(BACKLOG)
            listener.settimeout(0)
            self._keep(self._take_in(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in no more, and let those go who are there."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets)

    def _keep(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_in(self, listener: socket.socket) -> None:
        loop, count = asyncio.get_running_loop(), 0
        while True:
            try:
                taken, address = await loop.sock_accept(listener)
            except OSError as error:
                self._tell(f"no connection can be taken in: {error.strerror}")
                # Others than these are of one connection that was gone before it was taken in.
                await asyncio.sleep(PAUSE_S if error.errno in NO_ROOM else 0.01)
                continue
            visitor = self.hall.admit(address[0] if isinstance(address, tuple) else "")
            if visitor is None:
                self._tell("a connection was refused: all are in use")
                _refuse(taken, plain=self.config.ssl is None)
            else:
                visitor.entering = self._keep(self._let_in(taken, visitor))
            count += 1
            if count % TOGETHER == 0:  # or else a flood would have all the time there is
                await asyncio.sleep(0)

    async def _let_in(self, taken: socket.socket, visitor: Visitor) -> None:
        def talk() -> Talk:
            return Talk(
                visitor,
                self.hall,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        loop, tls = asyncio.get_running_loop(), self.config.ssl
        patience: dict[str, float] = {}
        if tls is not None:
            patience = {
                "ssl_handshake_timeout": self.hall.limits.head_s,
                "ssl_shutdown_timeout": LINGER_S,
            }
        entered = False
        try:
            await loop.connect_accepted_socket(talk, taken, ssl=tls, **patience)
            entered = True
        except (OSError, ssl.SSLError):
            return  # it left, or spoke no TLS
        finally:
            if not entered:
                taken.close()
                self.hall.leave(visitor)

    async def _look_after(self) -> None:
        before_s = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for visitor in self.hall:
                if visitor.talk is not None:
                    visitor.talk.look(now_s, now_s - before_s)
            before_s = now_s

    def _tell(self, problem: str) -> None:
        """Once a minute."""
        now_s = time.monotonic()
        if now_s - self._told_s >= 60.0:
            self._told_s = now_s
            _log.warning("%s (%d are there)", problem, len(self.hall))


def _refuse(taken: socket.socket, *, plain: bool) -> None:
    with taken:
        if plain:
            try:
                taken.settimeout(0)
                taken.send(_refusal(b"503 Service Unavailable"))
            except OSError:
                return
