"""`wattherd token`: who may use a service."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import lists, prints, show
from wattherd.errors import UserError
from wattherd.library.client import Client

SCHEMA = "wattherd.tokens/1"
ROLES = ("viewer", "user", "operator", "admin")
state_option: Callable[[Any], Any] = click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder of a service on this machine, running or not, instead of asking it.",
)


@click.group()
def token() -> None:
    """Make, list and revoke tokens; the first one closes the service to all without."""


@token.command()
@click.option("--user", default=getpass.getuser, help="Whose it is.  [default: you]")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="user",
    show_default=True,
    help="What its holder may do.",
)
@click.option("--tenant", default="", help="Whose jobs alone are seen; none for operators, admins.")
@click.option("--name", default="", help="What it is for.")
@click.option("--expires", metavar="TIME", help="Until when: 90d.  [default: for ever]")
@state_option
@server_option
@prints
def create(*, state: Path | None, server: str | None, output: str, **asked: Any) -> None:
    """Make a token and print it, this once."""
    made = _made(state, asked) if state else Client(server).post("tokens", asked)
    show(made, output, lambda: click.echo(made["token"]))


def _made(state: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """As the service makes it, in its folder."""
    from wattherd.server.auth.caller import Role
    from wattherd.units import seconds

    expires, role = asked.pop("expires"), Role(asked.pop("role"))
    ttl_s = None if expires is None else seconds(expires, field="--expires")
    made, text = _file(state).create(role=role, ttl_s=ttl_s, **asked)
    return {"schema": SCHEMA, **made.row(), "token": text}


def _file(state: Path) -> Any:
    from wattherd.server.auth.tokens import FILE, TokenFile

    return TokenFile(state / FILE)


@token.command("list")
@state_option
@server_option
@lists
def list_command(*, state: Path | None, server: str | None, output: str) -> None:
    """All tokens, without what opens."""
    from wattherd.cli.tables import print_table

    if state:
        document = {"schema": SCHEMA, "tokens": [one.row() for one in _file(state).all()]}
    else:
        document = Client(server).get("tokens")
    keys = ("id", "user", "role", "tenant", "name", "created", "expires")
    rows = [[str(one[key] or "-") for key in keys] for one in document["tokens"]]
    show(document, output, lambda: print_table([key.upper() for key in keys], rows))


@token.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@state_option
@server_option
def revoke(*, ids: tuple[str, ...], state: Path | None, server: str | None) -> None:
    """Make tokens worthless at once."""
    for token_id in ids:
        if state is None:
            Client(server).delete(f"tokens/{token_id}")
        elif _file(state).revoke(token_id) is None:
            raise UserError(f"no token {token_id!r}", hint="`wattherd token list` shows all")
        click.echo(f"{token_id} revoked")
