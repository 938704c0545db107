"""The HTTP server of an extender: each answer leaves in one piece.

Uvicorn writes an answer's head and its body apart. Each write is a system call, and wakes who waits
for the answer: kube-scheduler would run for the head, wait again, and run for the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from pathlib import Path
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


LOOK_TICKS = 50
"""Of a tenth of a second, from one look at the files of certificates to the next."""


class _Renewing(uvicorn.Server):
    """Takes certificates that were renewed: connections from then on are made with them.

    Whoever renews them may not write all files at once. What cannot be read together, as a
    certificate and a key of another one, is left, and looked at again as long as it is so. Of
    those who sign clients' certificates a new one is trusted too; the old one goes with a restart.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._seen = self._stamps()

    def _stamps(self) -> list[tuple[int, int]]:
        """Of the files behind links: a mounted Secret is changed by changing where they lead."""
        files = (self.config.ssl_certfile, self.config.ssl_keyfile, self.config.ssl_ca_certs)
        found = []
        for file in files:
            with contextlib.suppress(OSError):
                stat = Path(str(file)).stat()
                found.append((stat.st_mtime_ns, stat.st_ino))
        return found

    async def on_tick(self, counter: int) -> bool:
        if self.config.ssl is not None and counter % LOOK_TICKS == 0:
            stamps = self._stamps()
            if stamps != self._seen and self._taken(self.config.ssl):
                self._seen = stamps
        return await super().on_tick(counter)

    def _taken(self, context: ssl.SSLContext) -> bool:
        config = self.config
        if config.ssl_certfile is None:
            return False
        try:
            for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # the first is a trial
                one.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
                if config.ssl_ca_certs is not None:
                    one.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ssl.SSLError):
            return False
        return True


def extender_server(app: ExtenderApp, tls: Mapping[str, Any]) -> uvicorn.Server:
    """Serves `app`; `tls` are options of uvicorn that name certificates and keys."""
    return _Renewing(
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
