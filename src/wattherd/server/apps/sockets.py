"""A WebSocket passed on to an app: messages both ways, until either side closes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from urllib.parse import quote

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Origin, Subprotocol

from wattherd.errors import words
from wattherd.local.apps import App
from wattherd.server.apps import headers
from wattherd.server.apps.passing import CONNECT_S, Silent, target
from wattherd.server.auth.caller import Caller

MOST_BYTES = 64 << 20
"""Of one message: an output of a notebook may hold pictures."""
NORMAL, GONE, BROKEN = 1000, 1001, 1011
RESERVED = (1005, 1006, 1015)
"""Codes that stand for what was not said (RFC 6455, section 7.4.1)."""
_SET_BY_US = (b"host", b"origin", b"user-agent")


async def pass_on(socket: WebSocket, app: App, caller: Caller, used: Callable[[], None]) -> None:
    """Open the app's socket, then the browser's, and carry messages; `used` hears of each.

    Raises:
        Silent: the app does not take it; the browser's is not open yet.
    """
    given = socket.scope["headers"]
    known = {name: value.decode("latin-1") for name, value in given}
    address = (socket.scope.get("client") or ("",))[0]
    told = headers.asked(given, app, caller, scheme=socket.url.scheme, address=address)
    wanted = socket.scope.get("subprotocols", [])
    host = known.get(b"host", "127.0.0.1")
    path = quote(target(socket.scope, app), safe="/?&=%:;,+@!$'()*~[]#")
    try:
        async with connect(
            f"ws://{host}{path}",
            host="127.0.0.1",
            port=app.port,
            proxy=None,
            origin=Origin(known[b"origin"]) if b"origin" in known else None,
            subprotocols=[Subprotocol(one) for one in wanted] or None,
            additional_headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in told
                if name not in _SET_BY_US
            ],
            user_agent_header=known.get(b"user-agent"),
            compression=None,
            open_timeout=CONNECT_S,
            ping_interval=None,
            max_size=MOST_BYTES,
        ) as upstream:
            await socket.accept(subprotocol=upstream.subprotocol)
            await _carry(socket, upstream, used)
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise Silent(f"it does not take the socket: {words(error)}") from None


async def _carry(socket: WebSocket, upstream: ClientConnection, used: Callable[[], None]) -> None:
    """Both ways at once; the end of one is the end of the other."""
    ways = {
        asyncio.create_task(_inwards(socket, upstream, used)),
        asyncio.create_task(_outwards(socket, upstream, used)),
    }
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in ways:
            task.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _inwards(socket: WebSocket, upstream: ClientConnection, used: Callable[[], None]) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code") or NORMAL
            await upstream.close(NORMAL if code in RESERVED else code)
            return
        used()
        text = message.get("text")
        try:
            await upstream.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            return


async def _outwards(
    socket: WebSocket, upstream: ClientConnection, used: Callable[[], None]
) -> None:
    # The browser may leave while something is on its way: then there is nobody to tell.
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        with contextlib.suppress(ConnectionClosed):
            async for message in upstream:
                used()
                if isinstance(message, str):
                    await socket.send_text(message)
                else:
                    await socket.send_bytes(message)
        code = upstream.close_code
        said = BROKEN if code is None or code in RESERVED else code
        await socket.close(said, upstream.close_reason)
