"""Sessions: commands that users run inside their running jobs, and input that they give them.

A session is a WebSocket on one side, a socket of the run (`local.sessions`) on the other,
and what goes between them is passed on as it is. Who sends data may be a window ahead of who takes
it; neither side is believed to keep to that. A session ends with the run, with the connection, when
it was idle for too long, and as soon as its token opens nothing any more. It ends no job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.accounts import Accounts
from wattherd.local.run_plan import user_of
from wattherd.local.sessions import (
    CHUNK,
    IN,
    INPUT,
    MOST_PACKET,
    heard,
    is_ours,
    offer,
    said,
    withdraw,
)
from wattherd.server.journal.job_history import PastJob
from wattherd.units import show_seconds

MOST_OF_JOB, MOST_OF_USER, MOST_IN_ALL = 8, 8, 64
"""Sessions at a time."""
MOST_COMMAND, MOST_WORD = 32 << 10, 1 << 10
"""Bytes of a command; of what a client says beside data."""
MOST_TEXT = 6 * MOST_COMMAND
"""Of a request, in which six letters may stand for one."""
TOO_LONG = f"a command has {MOST_COMMAND:,} bytes at most"
ASKED_S, MEET_S = 10.0, 30.0
"""For a client to say what it wants, and for the run's supervisor to begin it."""
LOOK_S, TOKEN_S = 1.0, 5.0
"""How often it is looked whether a session is idle, and whether its token still opens it."""
SHOWN = 1000
"""Characters of a command that are written down."""
NORMAL = 1000


class SessionEnded(Exception):
    """The session is over, and what its user is told."""

    def __init__(self, problem: str, **more: object) -> None:
        """`more` goes with it."""
        super().__init__(problem)
        self.told = {"problem": problem, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What a client asks for: a command, or (without one) to give the run input."""

    command: tuple[str, ...] = ()
    rank: int = 0
    input: bool = False
    terminal: dict[str, Any] | None = None

    @classmethod
    def of(cls, text: str) -> SessionRequest:
        """The first message of a client.

        Raises:
            UserError: it makes no sense.
        """
        hint = '{"command": ["nvidia-smi"]}, or {"attach": true}'
        try:
            found = dict(json.loads(text))
            terminal = found.get("terminal") or None
            wanted = cls(
                command=tuple(_word(one) for one in found.get("command", ())),
                rank=int(found.get("rank", 0)),
                input=bool(found.get("input")),
                terminal=None if terminal is None else {
                    "rows": int(terminal.get("rows", 24)),
                    "columns": int(terminal.get("columns", 80)),
                    "name": str(terminal.get("name", "")),
                },
            )  # fmt: skip
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            raise UserError("is no request for a session", hint=hint) from None
        if sum(len(one.encode()) + 1 for one in wanted.command) > MOST_COMMAND:
            raise UserError(TOO_LONG)
        if not (wanted.command or found.get("attach")):
            raise UserError("is no request for a session", hint=hint)
        return wanted

    def packet(self) -> bytes:
        """The same for who carries it out."""
        return said(command=self.command, rank=self.rank, input=self.input, terminal=self.terminal)


def _word(one: object) -> str:
    if not isinstance(one, str) or "\0" in one:
        raise TypeError
    one.encode()  # half a character is none
    return one


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A session that is under way; `since_s` is Unix time."""

    job_id: str
    by: str
    rank: int
    command: str
    since_s: float


@dataclass(slots=True)
class SessionBook:
    """All sessions of a service, and how many there may be."""

    held: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Job, user and tenant by name of the session."""
    open: dict[str, OpenSession] = field(default_factory=dict)

    @contextlib.contextmanager
    def place(self, job_id: str, by: str, *, of_input: bool, tenant: str = "") -> Iterator[str]:
        """A name for a session, as long as it lasts.

        Users of one tenant have as many together as are still free then, as of streams
        (`HeldRequests`): however many they are, those of another find room. The site's own callers
        have no `tenant`.

        Raises:
            Ended: there are enough.
        """
        taken = list(self.held.values())
        if sum(one[0] == job_id for one in taken) >= MOST_OF_JOB:
            raise SessionEnded(f"{job_id} has {MOST_OF_JOB} sessions: end one")
        if sum(one[1] == by for one in taken) >= MOST_OF_USER:
            raise SessionEnded(f"{by} has {MOST_OF_USER} sessions: end one")
        free = MOST_IN_ALL - len(taken)
        if free <= 0 or (tenant and sum(one[2] == tenant for one in taken) >= free):
            raise SessionEnded("this service has no room for another session: try again later")
        name = (INPUT if of_input else "") + secrets.token_hex(8)
        self.held[name] = job_id, by, tenant
        try:
            yield name
        finally:
            self.held.pop(name, None)
            self.open.pop(name, None)


def check_account(accounts: Accounts, past: PastJob, run: Path) -> None:
    """Whether the rules still give the job the account that its run has.

    Raises:
        UserError: they do not; also where they would let no run of the job begin now.
    """
    spec, paper = past.spec, past.paper
    name = accounts.account_of(spec.tenant, spec.user, paper.get("user"), of_site=not spec.tenant)
    accounts.check(spec.tenant, paper)
    order = run_dir.read(run / run_dir.ORDER) or {}
    user = user_of({"user": name})
    if not paper.get("container") and order.get("user") != (None if user is None else [*user]):
        hint = "its next run will have the new one, and can be entered"
        raise UserError("its tenant has another account than when it began", hint=hint)


async def request_of(client: WebSocket) -> SessionRequest:
    """What the client wants.

    Raises:
        UserError: that makes no sense, or is too long.
        Ended: it says nothing, or is gone.
    """
    try:
        async with asyncio.timeout(ASKED_S):
            message = await client.receive()
    except TimeoutError:
        raise SessionEnded("said nothing") from None
    text = message.get("text")
    if message["type"] != "websocket.receive" or text is None:
        raise SessionEnded("is gone")
    if len(text) > MOST_TEXT:
        raise UserError(TOO_LONG)
    return SessionRequest.of(text)


async def begun(run: Path, name: str, wanted: SessionRequest) -> tuple[socket.socket, str]:
    """The run's side of a session, ready to go, and the command as it may be shown.

    Raises:
        Ended: the run does not take it.
    """
    loop = asyncio.get_running_loop()
    try:
        listener = offer(run, name)
    except FileNotFoundError:
        text = "this run was begun by an earlier version: its next one can be entered"
        raise SessionEnded(text) from None
    except OSError as error:
        raise SessionEnded(f"cannot be begun: {error.strerror}") from None
    try:
        async with asyncio.timeout(MEET_S):
            wire, _ = await loop.sock_accept(listener)
    except (TimeoutError, OSError):
        raise SessionEnded("the run does not answer: it may have ended") from None
    finally:
        listener.close()
        withdraw(run, name)
    told: dict[str, Any] = {}
    try:
        async with asyncio.timeout(MEET_S):
            if is_ours(wire):
                await loop.sock_sendall(wire, wanted.packet())
                told = heard(await loop.sock_recv(wire, MOST_PACKET)) or {}
    except (TimeoutError, OSError, ValueError):
        told = {}
    finally:
        if not told.get("ready"):
            wire.close()
    if not told.get("ready"):
        silent = "the run does not answer: it may have ended"
        more = {"takes": False} if told.get("takes") is False else {}
        raise SessionEnded(str(told.get("problem") or silent), **more)
    return wire, str(told.get("command", ""))


class SessionRelay:
    """Passes on what comes, both ways, until the session is over."""

    def __init__(
        self,
        client: WebSocket,
        wire: socket.socket,
        *,
        idle_s: float,
        may: Callable[[], Awaitable[bool]],
    ) -> None:
        """`may` is asked now and then whether the session may go on."""
        self._client, self._wire = client, wire
        self._idle_s, self._may = idle_s, may
        self._used_s = time.monotonic()
        self.last: dict[str, Any] = {}
        """What the run's side said last."""

    async def carry(self) -> None:
        """All of it.

        Raises:
            Ended: otherwise than by its own end or that of the connection.
        """
        ways = [asyncio.create_task(one()) for one in (self._outwards, self._inwards, self._watch)]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with contextlib.suppress(WebSocketDisconnect, OSError):
                    task.result()
        finally:
            for task in ways:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _outwards(self) -> None:
        while packet := await self._came():
            if packet[:1] != b"{":
                self._used_s = time.monotonic()
                await self._client.send_bytes(packet)
                continue
            self.last = heard(packet) or {}
            await self._client.send_text(packet.decode())
            if self.last.keys() & {"exit_code", "problem", "input_ended"}:
                return
        raise SessionEnded("the run is over, or was sent more than it takes")

    async def _came(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._wire, MOST_PACKET)
        except OSError:
            return b""

    async def _inwards(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await self._client.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._used_s = time.monotonic()
            packet = _checked(message)
            try:
                await loop.sock_sendall(self._wire, packet)
            except OSError:
                await asyncio.Event().wait()  # the other way tells how it ended

    async def _watch(self) -> None:
        asked_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            if now_s - self._used_s >= self._idle_s:
                raise SessionEnded(f"nothing came or went for {show_seconds(self._idle_s)}")
            if now_s - asked_s >= TOKEN_S:
                asked_s = now_s
                if not await self._may():
                    raise SessionEnded("your token does not open this any more")


def _checked(message: Any) -> bytes:
    """What a client sends, if it is what a session passes on.

    Raises:
        Ended: it is something else.
    """
    text, data = message.get("text"), message.get("bytes")
    if text is not None:
        packet = text.encode(errors="replace")
        with contextlib.suppress(ValueError):
            found = heard(packet) if len(packet) <= MOST_WORD else None
            if found is not None and found.keys() <= {"taken", "size", "end"}:
                return said(**found)
    elif data and data[0] == IN and len(data) <= CHUNK + 1:
        return bytes(data)
    raise SessionEnded("that was no message of a session")


async def tell(client: WebSocket, **document: Any) -> None:
    """Say something, and nothing more; a client may be gone by then."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
        await client.send_text(json.dumps(document))


async def hang_up(client: WebSocket) -> None:
    """Close the connection, if it is not closed."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
        await client.close(NORMAL)
