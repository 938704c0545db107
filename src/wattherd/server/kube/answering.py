"""The HTTP server of an extender: each answer leaves in one piece.

Uvicorn writes an answer's head and its body apart. Each write is a system call, and wakes who waits
for the answer: kube-scheduler would run for the head, wait again, and run for the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from wattherd.kube.live.extender_app import ExtenderApp


class _Gathering:
    """A transport that sends together what is written in one turn of its event loop."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(part)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _InOnePiece(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two, as installed
    def connection_made(self, transport: Any) -> None:
        super().connection_made(_Gathering(transport, self.loop))


def extender_server(app: ExtenderApp, tls: Mapping[str, Any]) -> uvicorn.Server:
    """Serves `app`; `tls` are options of uvicorn that name certificates and keys."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_InOnePiece,
            log_level="warning",
            server_header=False,
            access_log=False,
            proxy_headers=False,
            **tls,
        )
    )
