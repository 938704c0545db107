"""`wattherd serve`: the service on this machine."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.listening import listen_on, say
from wattherd.cli.signals import on_signals
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.server.settings.config import ServeConfig

SWITCH_S = 0.0005
"""How long one thread computes while others wait. A commit gives way several times, and would wait
for Python's usual 5 ms each time while requests are being parsed."""


LEAVE_S = 3
"""For answers under way when the service ends; some of them have no end."""


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="YAML file; options override it.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder of journal and runs.")
@click.option("--store", help="Database URL instead (postgresql+psycopg://...).")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port; 0 takes any that is free.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM).")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key (PEM).")
@click.option("--policy", help="Scheduler, see `wattherd policies`.")
@click.option("--power", help="How watts are shared.")
@click.option("--budget", help="Most watts of the site: 40kW.")
@click.option("--schedule", type=click.Path(path_type=Path), help="Limits by time: CSV or YAML.")
@click.option("--signal", "signals", multiple=True, metavar="URI", help="Limits from outside.")
@click.option("--rates", metavar="FILE|URL", help="Prices and carbon intensities of energy.")
@click.option(
    "--slots", metavar="N|TYPE=N,...", help="Parts of the processor to give away where no GPU is."
)
@click.option("--powercap", type=click.Path(path_type=Path), help="Meters of the processor.")
@click.option("--zeusd", type=click.Path(path_type=Path), help="Socket of a zeusd for GPU limits.")
@click.option(
    "--measure-only", is_flag=True, default=None, help="Set no limit of any device; only read."
)
@click.option("--job-metrics", is_flag=True, default=None, help="Series by job on /metrics, too.")
@click.option(
    "--otlp", metavar="URL", help="OpenTelemetry collector, such as http://127.0.0.1:4318."
)
@click.option(
    "--accept-store",
    is_flag=True,
    help="Go on with a restored or a new store; set runs aside that it does not know.",
)
@click.option("--default-account", help="System account of jobs (root's service only).")
@click.option("--allow-root-jobs", is_flag=True, default=None, help="Jobs may run as root.")
@click.option(
    "--require-limits", is_flag=True, default=None, help="Refuse jobs whose limits do not hold."
)
@click.option(
    "--exec/--no-exec", "exec", default=None, help="Whether users may run commands inside jobs."
)
@click.option("--log", type=click.Choice(["none", "text", "json"]), help="Decisions, line by line.")
def serve(
    config: Path | None, signals: tuple[str, ...], *, accept_store: bool, **changes: object
) -> None:
    """Manage this machine: take jobs, run them, keep its power budget."""
    try:
        from wattherd.local.cgroups import find
        from wattherd.local.enforcement import start_notes
        from wattherd.local.run_plan import StatusServer
        from wattherd.server.api.connections import server_of
        from wattherd.server.app import app_of, desk_of
        from wattherd.server.apps.sockets import MOST_BYTES
        from wattherd.server.auth.app_origin import AppOrigins
        from wattherd.server.settings.tenant_accounts import check_accounts
        from wattherd.server.site.site import open_site
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    from wattherd.server.api.listening import check_listening, tls_of
    from wattherd.server.settings.config import read_config
    from wattherd.server.site.housekeeping import Housekeeping
    from wattherd.server.structured_log import logging_to

    sys.setswitchinterval(SWITCH_S)
    os.umask(0o077)  # journal, tokens and logs are nobody else's
    found = read_config(config, {**changes, "signals": signals or None})
    desk = desk_of(found)
    check_listening(found, asks=not desk.open)
    account_notes = check_accounts(found, asks=not desk.open)
    limit_notes = start_notes(
        find(settle=True), require=found.require_limits, argv=["wattherd", *sys.argv[1:]]
    )
    tls = tls_of(found)
    listener = listener_of(found)
    twin = twin_of(found, listener)
    app_port = AppOrigins(found.app_url, "").port
    sockets = [listener, *([twin] if twin else [])]
    if app_port not in (None, found.port):
        sockets.append(listener_of(found.model_copy(update={"port": app_port})))
    host, port = listener.getsockname()[:2]
    url = f"{'https' if tls else 'http'}://{_shown(host)}:{port}"
    logs = ExitStack()
    logs.enter_context(logging_to(sys.stderr, found.log))
    status = StatusServer(url=url, ca_file=str(found.tls_cert or ""))
    site = open_site(found, status, accept_store=accept_store)
    say(f"wattherd serves {url} (state in {found.state})")
    for note in (
        *site.notes,
        *account_notes,
        *limit_notes,
        *_door_notes(found, asks=not desk.open),
    ):
        say(f"note: {note}")
    housekeeping = Housekeeping(lambda: site.keeper.standing.seq)
    housekeeping.begin()
    try:
        app = app_of(site, desk)
        server = server_of(
            app,
            trusted_proxies=found.trusted_proxies,
            ws_max_size=MOST_BYTES,
            timeout_graceful_shutdown=LEAVE_S,
            **tls,
        )
        # Uvicorn passes the signal on when it is done: that must not keep us from tidying up.
        on_signals(sys.exit, signal.SIGTERM)
        server.run(sockets=sockets)
    finally:
        housekeeping.end()
        site.close()
        logs.close()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _door_notes(found: ServeConfig, *, asks: bool) -> list[str]:
    if asks:
        return []
    first = f"`wattherd token create --state {found.state}` makes the first"
    return [f"no token is asked for: whoever is on this machine is admin here ({first})"]


def twin_of(found: ServeConfig, listener: socket.socket) -> socket.socket | None:
    """The same port of `::1`, where browsers look for names below `localhost` first.

    Another program there would be handed the tickets of apps. None where apps have other names, or
    this machine has no IPv6, so that nobody else can be there either.

    Raises:
        UserError: somebody else listens there.
    """
    host, port = listener.getsockname()[:2]
    if found.app_url is not None or not host.startswith("127."):
        return None
    try:
        return listen_on("::1", port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return None
        hint = "browsers would take it for this service: choose another port, or set app_url"
        problem = "another program listens there, where names of apps (*.localhost) lead to"
        raise UserError(problem, where=f"[::1]:{port}", hint=hint) from None


def listener_of(found: ServeConfig) -> socket.socket:
    """The port, taken before anything is begun, so that a second service does no harm.

    Raises:
        UserError: it cannot be had.
    """
    try:
        return listen_on(found.host, found.port)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        hint = "is another service running? choose another with --port"
        raise UserError(
            f"cannot listen: {why}", where=f"{found.host}:{found.port}", hint=hint
        ) from None
