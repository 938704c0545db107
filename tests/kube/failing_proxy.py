"""Stands between kube-scheduler and an extender, and fails as it is told to."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import urlsplit

from kube_server import free_ports

_PATIENCE_S = 60.0


class FailingProxy:
    """Passes questions on until told to answer 500 or late, or to take no connections.

    `target` says to whom, for each question.

    A late answer is that of the target, as good as ever: it is held until `in_time` is set.
    `failed` counts what was answered with 500, or late.
    """

    def __init__(self, target: Callable[[], str]) -> None:
        self.failed = 0
        self.failing = False
        self.in_time = Event()
        self.in_time.set()
        self._target = target
        self._port = free_ports(1)[0]
        self._server: ThreadingHTTPServer | None = None
        self._thread: Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def listen(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            # Without keep-alive, so that none survives `refuse`.
            timeout = _PATIENCE_S

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = proxy._answer(self.path, body)
                with suppress(ConnectionError):  # who asked may have given up
                    self._write(status, answer)

            def _write(self, status: int, answer: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *told: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def refuse(self) -> None:
        """Take no connections until `listen`."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.failing:
            self.failed += 1
            return 500, b"it is broken\n"
        if not self.in_time.is_set():
            self.failed += 1
        status, answer = self._passed_on(path, body)
        self.in_time.wait()
        return status, answer

    def _passed_on(self, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            urlsplit(self._target()).netloc, timeout=_PATIENCE_S
        )
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def a_proxy(target: Callable[[], str]) -> Iterator[FailingProxy]:
    made = FailingProxy(target)
    made.listen()
    try:
        yield made
    finally:
        made.in_time.set()
        made.refuse()
