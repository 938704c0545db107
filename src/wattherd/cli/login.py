"""`wattherd login` and `wattherd context`: services by name, with their tokens."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from wattherd.cli.output import lists, prints, show
from wattherd.cli.tables import print_table
from wattherd.errors import UserError
from wattherd.library import contexts
from wattherd.library.client import Client, RefusedByService
from wattherd.library.contexts import ChosenService, Context, Contexts

SCHEMA = "wattherd.contexts/1"
MOST_TOKEN = 65_536
"""Characters; more on standard input is no token."""


@click.command()
@click.argument("address", required=False)
@click.option("--context", "name", help="What to call it.  [default: its host]")
@click.option(
    "--ca", type=click.Path(path_type=Path), help="Certificate that vouches for it (PEM)."
)
def login(*, address: str | None, name: str | None, ca: Path | None) -> None:
    """Keep the ADDRESS of a service and a token, and use them from now on.

    The token is asked for, or read from standard input; where the service asks for none, none is
    needed. It is tried before anything is kept, in a file that only you may read.
    """
    known = contexts.read()
    server, name = _addressed(known, address, name)
    authority = str(ca.resolve()) if ca else known.contexts.get(name, Context(server="")).ca
    token, whoami = _let_in(ChosenService(server=server, server_from="login", ca=authority))
    kept = contexts.keep_token(name, token) if token else ""
    made = Context(server=server, token_file=kept, ca=authority)
    contexts.write(Contexts(use=name, contexts={**known.contexts, name: made}))
    who = f"as {whoami['user'] or 'nobody'}, {whoami['role']}" if token else "without a token"
    click.echo(f"context {name}: {server} {who}")


def _addressed(known: Contexts, address: str | None, name: str | None) -> tuple[str, str]:
    """Address and name of the context to log in to."""
    if address is None:
        again = name or known.use
        if again not in known.contexts:
            hint = "wattherd login https://gpus.example.org:8700"
            raise UserError("no address", field="ADDRESS", hint=hint)
        return known.contexts[again].server, again
    if "://" not in address and address in known.contexts:
        return known.contexts[address].server, name or address
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        hint = f"write {contexts.DEFAULT_SERVER}"
        raise UserError(f"{address!r} is no address", field="ADDRESS", hint=hint)
    if parts.username or parts.password or parts.query:
        hint = "the token is asked for, or read from standard input"
        raise UserError("holds more than an address", field="ADDRESS", hint=hint)
    name = name or _short(parts.hostname)
    if not contexts.NAME.fullmatch(name):
        hint = "letters, digits, `_` and `-`"
        raise UserError(f"{name!r} is no name", field="--context", hint=hint)
    return address.rstrip("/"), name


def _short(host: str) -> str:
    """`gpus` of gpus.example.org; numbers stay together."""
    first = host.partition(".")[0]
    whole = first.isdecimal() or ":" in host
    return re.sub(r"[.:]", "-", host).strip("-") if whole else first


def _let_in(service: ChosenService) -> tuple[str, Any]:
    """A token with which the service answers, and who it says that is.

    Raises:
        UserError: it does not let this token in, or nobody answers.
    """
    try:
        return "", Client(found=service).get("whoami")
    except RefusedByService:
        if sys.stdin.isatty():
            typed = click.prompt("Token", hide_input=True, err=True).strip()
        else:
            typed = sys.stdin.read(MOST_TOKEN).strip()
    if not typed:
        hint = "wattherd login ADDRESS < FILE, or at a terminal"
        raise UserError("no token on standard input", hint=hint)
    if not typed.isascii() or not typed.isprintable() or " " in typed:
        raise UserError("that is no token", hint="`wattherd token create` prints one")
    return typed, Client(found=replace(service, token=typed)).get("whoami")


@click.group(invoke_without_command=True)
@click.option("--server", metavar="URL|CONTEXT", help="As of other commands.")
@prints
@click.pass_context
def context(at: click.Context, *, server: str | None, output: str) -> None:
    """Which service commands talk to, and what says so.

    An option (--server) comes before the environment (WATTHERD_SERVER), that before the context in
    use, and that before this machine. WATTHERD_TOKEN goes to the service that WATTHERD_SERVER names
    and to no other; where that names none, to a service of which no token is known.
    """
    if at.invoked_subcommand is not None:
        return
    found = contexts.chosen(server)
    document = {
        "schema": "wattherd.context/1",
        "name": found.context or None,
        "server": found.server,
        "server_from": found.server_from,
        "token_from": found.token_from or None,
        "ca": found.ca or None,
        "file": str(contexts.path()),
    }

    def table() -> None:
        click.echo(f"server   {found.server} (by {found.server_from})")
        click.echo(f"token    {f'by {found.token_from}' if found.token else 'none'}")
        click.echo(f"context  {found.context or 'none'}")

    show(document, output, table)


@context.command("list")
@lists
def list_command(output: str) -> None:
    """All contexts; the one in use is marked."""
    known = contexts.read()
    rows = [
        {
            "name": name,
            "server": one.server,
            "used": name == known.use,
            "token_file": one.token_file or None,
            "ca": one.ca or None,
        }
        for name, one in known.contexts.items()
    ]
    cells = [
        [name, "*" if name == known.use else "", one.server, "yes" if one.token_file else "no"]
        for name, one in known.contexts.items()
    ]
    document = {"schema": SCHEMA, "contexts": rows}
    show(document, output, lambda: print_table(["CONTEXT", "USED", "SERVER", "TOKEN"], cells))


@context.command("use")
@click.argument("name")
def use(name: str) -> None:
    """Talk to the service NAME from now on."""
    known = contexts.read()
    found = known.called(name, "NAME")
    contexts.write(replace(known, use=name))
    click.echo(f"context {name}: {found.server}")


@context.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Forget NAME and its token here; the service still knows the token."""
    known = contexts.read()
    contexts.forget_token(known.called(name, "NAME"))
    left = {one: of for one, of in known.contexts.items() if one != name}
    contexts.write(Contexts(use="" if known.use == name else known.use, contexts=left))
    click.echo(f"{name} removed; `wattherd token revoke` makes a token worthless")
