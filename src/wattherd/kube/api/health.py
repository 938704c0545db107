"""What kubelets and Prometheus ask: does it live, is it ready, how is it doing.

A listener of its own and in plain HTTP, since neither has a client certificate; all it can do is
tell. A copy without the lease is ready: it stands by, and an update that waited for it to lead
would wait for ever. One whose threads ended is dead, and starts again by being restarted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from wattherd.plugin_watch import not_returning

if TYPE_CHECKING:  # a new container answers before it has imported what it decides with
    from wattherd.kube.api.feed import ApiFeed

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE_S = 10.0
"""A client that says nothing for so long is sent away."""


class Looked(Protocol):
    """What can be asked how it does."""

    def look(self, path: str) -> tuple[int, str]:
        """Status and text."""
        ...


class Beginning:
    """Before there is anything to look at: it lives, and decides nothing yet."""

    def look(self, path: str) -> tuple[int, str]:
        """Status and text, as of `Checkup`."""
        if path == "/healthz":
            return 200, "ok\n"
        if path == "/readyz":
            return 503, "decisions are being compiled\n"
        return (200, "wattherd_kube_sees 0\n") if path == "/metrics" else (404, "not found\n")


@dataclass(frozen=True, slots=True)
class Checkup:
    """What is looked at: the feed, whether this copy leads, and `more` metrics of what it feeds.

    Without `leads` nothing is told of that: agents work side by side, and none of them decides.
    """

    feed: ApiFeed
    leads: Callable[[], bool] | None = None
    more: Callable[[], str] = str

    def look(self, path: str) -> tuple[int, str]:
        """Status and text for one of `/healthz`, `/readyz` and `/metrics`; 404 for others."""
        if path == "/healthz":
            return (200, "ok\n") if self.feed.alive() else (503, "a thread has ended\n")
        if path == "/readyz":
            if not self.feed.sees():
                return 503, self._blind()
            refused = self.feed.refusals.trouble(time.monotonic())
            if refused:
                return 503, f"all that is decided is refused: {refused}\n"
            stuck = not_returning()
            return (503, f"{stuck}\n") if stuck else (200, "ok\n")
        if path == "/metrics":
            return 200, self._metrics()
        return 404, "not found\n"

    def _blind(self) -> str:
        return "\n".join(["the cluster is not seen", *self.feed.troubles]) + "\n"

    def _metrics(self) -> str:
        lines = [
            "# HELP wattherd_kube_sees Whether nodes and pods were listed and heard of lately.",
            "# TYPE wattherd_kube_sees gauge",
            f"wattherd_kube_sees {int(self.feed.sees())}",
            *self._leading(),
            "# HELP wattherd_kube_troubles What is wrong now, each as a line in the log.",
            "# TYPE wattherd_kube_troubles gauge",
            f"wattherd_kube_troubles {len(self.feed.complaints) + bool(not_returning())}",
        ]
        return "\n".join(lines) + "\n" + self._more()

    def _leading(self) -> list[str]:
        if self.leads is None:
            return []
        return [
            "# HELP wattherd_kube_leads Whether this copy may decide and bind.",
            "# TYPE wattherd_kube_leads gauge",
            f"wattherd_kube_leads {int(self.leads())}",
        ]

    def _more(self) -> str:
        if not_returning():  # what is told is asked for in turn, and would wait for ever
            return ""
        try:
            return self.more()
        except (RuntimeError, CancelledError):  # it is being closed: nobody decides any more
            return ""


class HealthServer:
    """Serves a checkup on a listening socket from `begin` to `close`."""

    def __init__(self, checkup: Looked, listener: socket.socket) -> None:
        self._checkup = checkup
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                status, text = server._checkup.look(self.path.partition("?")[0])
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: object) -> None:
                """Nothing: a line for each probe would bury what is worth reading."""

        address = listener.getsockname()
        self._server = ThreadingHTTPServer(address[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="wattherd-health")

    def tell(self, checkup: Looked) -> None:
        """Look at this from now on."""
        self._checkup = checkup

    def begin(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; the socket is closed."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
