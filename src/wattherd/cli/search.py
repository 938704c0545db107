"""`wattherd search`: groups of trials, such as one search for hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from wattherd.cli.live_tables import show_jobs
from wattherd.cli.options import server_option
from wattherd.cli.output import lists, prints, show
from wattherd.library.client import Client


@click.group(invoke_without_command=True)
@server_option
@lists
@click.pass_context
def search(context: click.Context, *, server: str | None, output: str) -> None:
    """Search groups: how many trials run and wait, and the best so far.

    A job file's `group:` makes a job a trial of the group of that name.
    """
    if context.invoked_subcommand is None:
        document = Client(server).get("groups")
        show(document, output, lambda: _table(document))


def _table(document: Mapping[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    keys = ("name", "trials", "running", "waiting", "over", "best")
    rows = [
        [
            *("-" if one[key] is None else str(one[key]) for key in keys),
            "-" if one["loss"] is None else f"{one['loss']:g}",
        ]
        for one in document["groups"]
    ]
    print_table(["GROUP", "TRIALS", "RUNNING", "WAITING", "OVER", "BEST", "LOSS"], rows)


def _show_group(document: Mapping[str, Any], output: str) -> None:
    def table() -> None:
        show_jobs(document["trials"], wide=output == "wide")
        if document["best"]:
            click.echo(f"best so far: {document['best']}")

    show(document, output, table)


@search.command("show")
@click.argument("group")
@server_option
@lists
def show_group(*, group: str, server: str | None, output: str) -> None:
    """The trials of GROUP, and which is best."""
    _show_group(Client(server).get(_path(group)), output)


def _action(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.argument("group")
    @server_option
    @prints
    def command(*, group: str, server: str | None, output: str) -> None:
        _show_group(Client(server).post(f"{_path(group)}/{name}"), output)

    return command


search.add_command(_action("cancel", "End all trials of GROUP that are yours to end."))
search.add_command(_action("pause", "Stop them after a checkpoint, until resumed."))
search.add_command(_action("resume", "Let paused ones go on."))


def _path(group: str) -> str:
    return f"groups/{quote(group, safe='')}"
