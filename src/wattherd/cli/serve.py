"""`wattherd serve`: the service on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from wattherd.errors import UserError


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="YAML file; options override it.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder of journal and runs.")
@click.option("--store", help="Database URL instead (postgresql+psycopg://...).")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port; 0 takes any that is free.")
@click.option("--policy", help="Scheduler, see `wattherd policies`.")
@click.option("--power", help="How watts are shared.")
@click.option("--budget", help="Most watts of the site: 40kW.")
@click.option("--slots", type=int, help="Parts of the processor to give away where no GPU is.")
def serve(config: Path | None, **changes: object) -> None:
    """Manage this machine: take jobs, run them, keep its power budget."""
    try:
        import uvicorn

        from wattherd.runtime.local.orders import StatusServer
        from wattherd.service.live.api import app_of
        from wattherd.service.live.site import open_site
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    from wattherd.service.live.config import read_config

    found = read_config(config, changes)
    listener = _listen(found.host, found.port)
    host, port = listener.getsockname()[:2]
    site = open_site(found, StatusServer(url=f"http://{host}:{port}"))
    click.echo(f"wattherd serves http://{host}:{port} (state in {found.state})", err=True)
    for note in site.notes:
        click.echo(f"note: {note}", err=True)
    try:
        server = uvicorn.Server(uvicorn.Config(app_of(site), log_level="warning"))
        server.run(sockets=[listener])
    finally:
        site.close()


def _listen(host: str, port: int) -> socket.socket:
    """Taken before anything is begun, so that a second service does no harm."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        hint = "is another service running? choose another with --port"
        raise UserError(
            f"cannot listen: {error.strerror}", where=f"{host}:{port}", hint=hint
        ) from None
