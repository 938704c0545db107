"""`wattherd view`: the pages of a service that is not running, or of a simulated run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.listening import listen_on
from wattherd.errors import ClusterError, UserError

if TYPE_CHECKING:
    from wattherd.store.store import ClusterStore

HOST = "127.0.0.1"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--port", type=int, default=8701, show_default=True, help="0 takes any that is free.")
@click.option("--runs", type=click.Path(path_type=Path), help="Simulated runs to compare.")
def view(*, directory: Path, port: int, runs: Path | None) -> None:
    """Show DIRECTORY in a browser on this machine: a service's state, or one of `sim run --out`.

    It is read, never changed; a service may go on working in it meanwhile.
    """
    from wattherd.report.schedule_runs import holds_sim

    if holds_sim(directory):
        _serve_page(directory, port)
        return
    store = _store(directory)
    try:
        _serve(store, directory, port, runs or directory.parent / "runs")
    except ClusterError as failure:
        raise UserError(str(failure), where=store.database.url) from None
    finally:
        store.close()


def _store(directory: Path) -> ClusterStore:
    try:
        import uvicorn  # noqa: F401 - what is missing is told before anything is read

        from wattherd.store.database import in_folder
        from wattherd.store.store import ClusterStore
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    if not (directory / "journal.sqlite").is_file():
        hint = "name a folder of `wattherd serve --state`, or of `wattherd sim run --out`"
        raise UserError("there is nothing to show", where=str(directory), hint=hint)
    return ClusterStore.open(in_folder(directory), sole=False)


def _serve(store: ClusterStore, directory: Path, port: int, runs: Path) -> None:
    from wattherd.server.api.connections import server_of
    from wattherd.server.web.page_reader import view_of

    app = view_of(store, directory, runs)
    listener = _listen(port)
    click.echo(f"wattherd shows {directory} at {_address(listener)}", err=True)
    server_of(app).run(sockets=[listener])


def _serve_page(directory: Path, port: int) -> None:
    """One page needs no more than the standard library."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from wattherd.report.schedule_page import render_sim
    from wattherd.report.schedule_runs import load_sim

    page = render_sim(load_sim(directory)).encode()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page if self.path == "/" else b"not here")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
            del format, args

    listener = _listen(port)
    click.echo(f"wattherd shows {directory} at {_address(listener)}", err=True)
    with ThreadingHTTPServer((HOST, port), Answer, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        server.serve_forever()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _listen(port: int) -> socket.socket:
    try:
        return listen_on(HOST, port)
    except OSError as error:
        raise UserError(
            f"cannot listen: {error.strerror}", where=f"{HOST}:{port}", hint="choose --port"
        ) from None
