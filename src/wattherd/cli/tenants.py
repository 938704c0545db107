"""`wattherd tenants`: who shares the site, what they hold, and how much they may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import lists, prints, show
from wattherd.errors import UserError
from wattherd.library.client import Client


@click.group(invoke_without_command=True)
@server_option
@lists
@click.pass_context
def tenants(context: click.Context, *, server: str | None, output: str) -> None:
    """Tenants and what their jobs hold; a token says whose tenant its user is."""
    if context.invoked_subcommand is None:
        _show(Client(server).get("tenants"), output)


def _show(document: Mapping[str, Any], output: str) -> None:
    from wattherd.cli.tables import print_table

    def table() -> None:
        rows = [
            [
                one["name"] or "(none)",
                *(str(one[key]) for key in ("gpus", "running", "waiting")),
                "-" if one["most_gpus"] is None else str(one["most_gpus"]),
            ]
            for one in document["tenants"]
        ]
        print_table(["TENANT", "GPUS", "RUNNING", "WAITING", "MOST GPUS"], rows)

    show(document, output, table)


@tenants.command("set")
@click.argument("tenant")
@click.option("--gpus", required=True, metavar="N|none", help="Most GPUs of its jobs together.")
@server_option
@prints
def set_tenant(*, tenant: str, gpus: str, server: str | None, output: str) -> None:
    """Limit what TENANT's jobs may hold together: 0 starts nothing more, none lifts the limit.

    What runs goes on.
    """
    if gpus != "none" and not gpus.isdecimal():
        raise UserError(f"{gpus!r} is no number of GPUs", field="--gpus", hint="8, 0, or none")
    most = None if gpus == "none" else int(gpus)
    path = f"tenants/{quote(tenant, safe='')}"
    _show(Client(server).put(path, {"most_gpus": most}), output)
