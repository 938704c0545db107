"""A small JSON web server on loopback, for simulated boards: one function answers everything."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit


class BoardReply(NamedTuple):
    """Status and JSON; status 0 is no answer at all."""

    status: int
    content: Any


Answer = Callable[[str, str, Any, str], BoardReply]
"""Method, path, body and the version in If-Match to a reply."""


class _Handler(BaseHTTPRequestHandler):
    answer: ClassVar[Answer]

    def do_GET(self) -> None:
        self._reply(None)

    def do_PATCH(self) -> None:
        self._reply(self._body())

    def do_POST(self) -> None:
        self._reply(self._body())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")

    def _reply(self, body: Any) -> None:
        path = urlsplit(self.path).path
        version = self.headers.get("If-Match") or ""
        reply = type(self).answer(self.command, path, body, version)
        if not reply.status:
            self.close_connection = True
            return
        coded = b"" if reply.content is None else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        if coded:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(coded)))
        self.end_headers()
        self.wfile.write(coded)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are their own business."""


@contextmanager
def serving(answer: Answer, port: int = 0) -> Iterator[int]:
    """Serve on 127.0.0.1; gives the port."""
    handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
