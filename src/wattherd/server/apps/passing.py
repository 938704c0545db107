"""One request passed on to an app and its answer back, as they come, never held as a whole."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import Receive, Scope, Send

from wattherd.errors import ClusterError, words
from wattherd.local.apps import App
from wattherd.server.apps import headers
from wattherd.server.auth.caller import Caller

CHUNK = 65_536
MOST_HEAD = 65_536
CONNECT_S = 5.0


class Silent(ClusterError):
    """The app does not answer, or not in a way that can be understood."""


def target(scope: Scope, app: App) -> bytes:
    """What the app is asked for: the path that it knows, and the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0]
    if not app.keep_prefix:
        path = b"/" + path[len(app.base) :]
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


@dataclass(slots=True)
class Passing:
    """An ASGI answer: what `app` says to the request."""

    app: App
    caller: Caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        Raises:
            Silent: nothing came of it, and nothing has been answered yet.
        """
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.app.port)
        except (OSError, TimeoutError) as error:
            raise Silent(f"it does not listen: {words(error)}") from None
        try:
            await self._converse(_Upstream(connection, reader, writer), scope, receive, send)
        except (h11.ProtocolError, OSError) as error:
            raise Silent(f"its answer makes no sense: {words(error)}") from None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(
        self, upstream: _Upstream, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Ask and answer at the same time; whoever goes away ends both."""
        await upstream.ask(scope, self.app, self.caller)
        asking = asyncio.create_task(upstream.pass_body(receive))
        answering = asyncio.create_task(self._answer(upstream, scope, send))
        try:
            await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and asking.exception() is None:
                return  # the browser has left
            await answering
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _answer(self, upstream: _Upstream, scope: Scope, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        begun = False
        while True:
            match await upstream.next():
                case h11.Response(status_code=status, headers=given):
                    told = headers.answered(
                        list(given),
                        self.app,
                        scheme=scope["scheme"],
                        host=host,
                        apart=scope.get("state", {}).get("app_host") is not None,
                    )
                    await send({"type": "http.response.start", "status": status, "headers": told})
                    begun = True
                case h11.Data(data=data):
                    await send(
                        {"type": "http.response.body", "body": bytes(data), "more_body": True}
                    )
                case h11.EndOfMessage():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                case h11.ConnectionClosed() if not begun:
                    raise Silent("it closed the connection")


@dataclass(slots=True)
class _Upstream:
    """The connection to the app."""

    connection: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, scope: Scope, app: App, caller: Caller) -> None:
        """Send the head of the request."""
        given = scope["headers"]
        address = (scope.get("client") or ("",))[0]
        told = headers.asked(given, app, caller, scheme=scope["scheme"], address=address)
        names = {name for name, _ in given}
        if b"transfer-encoding" in names and b"content-length" not in names:
            told.append((b"transfer-encoding", b"chunked"))
        request = h11.Request(method=scope["method"], target=target(scope, app), headers=told)
        await self._send(request)

    async def pass_body(self, receive: Receive) -> None:
        """Send what comes; then wait until the browser goes."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message.get("body"):
                await self._send(h11.Data(data=message["body"]))
            more = message.get("more_body", False)
        await self._send(h11.EndOfMessage())
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _send(self, event: Any) -> None:
        data = self.connection.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def next(self) -> Any:
        """What comes next of the answer; notes in between are left out."""
        while True:
            event = self.connection.next_event()
            if event is h11.NEED_DATA:
                self.connection.receive_data(await self.reader.read(CHUNK))
            elif not isinstance(event, h11.InformationalResponse):
                return event
