"""A small web server on loopback that can be slow, wrong or gone: for the tests of meters."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest


@dataclass
class Site:
    """What the server says: JSON or bytes by path, or by a function of the path and its query."""

    pages: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[str, dict[str, str]], Any] | None = None
    user: str = ""  # `name:password` that it asks for
    drip_s: float = 0.0  # between two bytes of the body
    status: int = 200
    location: str = ""
    etag: str = ""  # the version of all pages; who names it is told 304
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    def page(self, target: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = self.answer(parts.path, query) if self.answer else self.pages.get(parts.path)
        if found is None:
            return 404, b"{}"
        return self.status, found if isinstance(found, bytes) else json.dumps(found).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        self.site.seen.append((self.path, dict(self.headers)))
        status, body = self.site.page(self.path)
        expected = "Basic " + base64.b64encode(self.site.user.encode()).decode()
        if self.site.user and self.headers.get("Authorization") != expected:
            status, body = 401, b"{}"
        if self.site.etag and self.headers.get("If-None-Match") == self.site.etag:
            status, body = 304, b""
        self.send_response(status)
        if self.site.etag:
            self.send_header("ETag", self.site.etag)
        if self.site.location:
            self.send_header("Location", self.site.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self._send(body)
        except OSError:
            self.close_connection = True

    def _send(self, body: bytes) -> None:
        if not self.site.drip_s:
            self.wfile.write(body)
            return
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(self.site.drip_s)

    def log_message(self, *_: object) -> None: ...


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, *_: object) -> None: ...  # clients that hang up are meant


@contextmanager
def serving(site: Site, *, cert: Path | None = None, port: int = 0) -> Iterator[Site]:
    """Serve `site` on a free port of 127.0.0.1, with TLS if there is a certificate (PEM)."""
    handler = type("Handler", (_Handler,), {"site": site})
    server = _Server(("127.0.0.1", port), handler)
    if cert is not None:
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(cert)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Certificates:
    """A server's certificate with its key, and the authority that signed it (PEM files)."""

    server: Path
    authority: Path


def certificates(folder: Path) -> Certificates:
    """Certificates for 127.0.0.1; the test is skipped where trustme is absent."""
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")
    authority = trustme.CA()
    made = Certificates(folder / "server.pem", folder / "authority.pem")
    authority.cert_pem.write_to_path(made.authority)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made.server)
    return made
