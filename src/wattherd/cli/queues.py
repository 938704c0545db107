"""`wattherd queues`: shares of the cluster, looked at and changed while the service is at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import lists, prints, show
from wattherd.errors import UserError
from wattherd.library.client import Client

INDENT = "  "


@click.group(invoke_without_command=True)
@server_option
@lists
@click.pass_context
def queues(context: click.Context, *, server: str | None, output: str) -> None:
    """Queues, what each is promised and what its jobs hold; `wattherd queue` lists the jobs.

    Changes hold at once and outlive restarts. What runs goes on; nobody is begun anew.
    """
    if context.invoked_subcommand is None:
        _show(Client(server).get("queues"), output)


def _show(document: Mapping[str, Any], output: str) -> None:
    from wattherd.cli.tables import print_table

    def table() -> None:
        head = ["QUEUE", "PROMISED", "MOST", "GPUS", "RUNNING", "WAITING", "STATE"]
        depth: dict[str, int] = {}
        rows = []
        for one in document["queues"]:
            depth[one["name"]] = depth.get(one["parent"], -1) + 1
            state = f"stopped {one['stopped'][:19]}" if one["stopped"] else "open"
            name = INDENT * depth[one["name"]] + one["name"]
            shares = (f"{one[key]:.1%}" for key in ("guaranteed", "maximum"))
            counts = (str(one[key]) for key in ("gpus", "running", "waiting"))
            rows.append([name, *shares, *counts, state])
        print_table(head, rows)

    show(document, output, table)


def _fields(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        [
            click.option(
                "--guaranteed",
                "guaranteed_pct",
                type=float,
                metavar="PCT",
                help="Share of its parent that is promised to it.",
            ),
            click.option(
                "--maximum",
                "maximum_pct",
                type=float,
                metavar="PCT",
                help="Most of its parent that it may use.",
            ),
            click.option(
                "--user-limit",
                "user_limit_pct",
                type=float,
                metavar="PCT",
                help="Share of the queue that each of its users can count on.",
            ),
            click.option(
                "--user-limit-factor",
                type=float,
                metavar="FACTOR",
                help="Most of one user, as a multiple of the promised share; -1: no limit.",
            ),
            click.option("--order", help="Order of its jobs: fifo, ..."),
            click.option(
                "--half-life",
                metavar="TIME",
                help="Queues below it: who had least lately is lent to first.",
            ),
            click.option(
                "--priority",
                type=int,
                metavar="N",
                help="Among its siblings: the highest is served, and lent to, first.",
            ),
            click.option(
                "--scale-others", is_flag=True, help="Its siblings' guarantees make up for it."
            ),
        ]
    ):
        command = option(command)
    return command


@queues.command("add")
@click.argument("queue")
@click.option("--under", "parent", required=True, metavar="QUEUE", help="Its parent.")
@_fields
@server_option
@prints
def add(*, queue: str, server: str | None, output: str, **asked: Any) -> None:
    """Make QUEUE; percentages are of its parent, whose children's guarantees add up to 100."""
    client = Client(server)
    if any(one["name"] == queue for one in client.get("queues")["queues"]):
        hint = f"wattherd queues set {queue}"
        raise UserError("there is one already", where=f"queue {queue}", hint=hint)
    _show(client.put(_path(queue), asked), output)


@queues.command("set")
@click.argument("queue")
@_fields
@server_option
@prints
def set_queue(*, queue: str, server: str | None, output: str, **asked: Any) -> None:
    """Change QUEUE; percentages are of its parent."""
    _show(Client(server).put(_path(queue), asked), output)


@queues.command("remove")
@click.argument("queue")
@click.option("--scale-others", is_flag=True, help="Its siblings' guarantees take its part.")
@server_option
@prints
def remove(*, queue: str, scale_others: bool, server: str | None, output: str) -> None:
    """Do away with QUEUE, in which no job may be left, and with those below it."""
    _show(Client(server).delete(_path(queue), scale_others=scale_others), output)


def _action(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.argument("queue")
    @server_option
    @prints
    def command(*, queue: str, server: str | None, output: str) -> None:
        _show(Client(server).post(f"{_path(queue)}/{name}"), output)

    return command


queues.add_command(_action("stop", "Start nothing more from QUEUE; what runs goes on."))
queues.add_command(_action("start", "Open QUEUE again."))


@queues.command("export")
@server_option
def export(*, server: str | None) -> None:
    """Print the queues in force as YAML, for `apply` or the service's configuration."""
    import yaml

    tree = Client(server).get("queues")["tree"]
    if tree is None:
        hint = "start `serve` with --policy capacity"
        raise UserError("this site's policy has no queues", hint=hint)
    click.echo(yaml.safe_dump({"queues": tree}, sort_keys=False), nl=False)


@queues.command("apply")
@click.argument("file", type=click.Path(path_type=Path))
@server_option
@prints
def apply(*, file: Path, server: str | None, output: str) -> None:
    """Put the queues of FILE in place of those in force, all at once.

    FILE holds `queues:` as a configuration does.
    """
    from wattherd.workload.scenario import load

    document = load(file)
    tree = document.get("queues")
    if not isinstance(tree, dict):
        hint = "`wattherd queues export` writes such a file"
        raise UserError("holds no queues", where=str(file), field="queues", hint=hint)
    _show(Client(server).put("queues", tree), output)


def _path(queue: str) -> str:
    return f"queues/{quote(queue, safe='')}"
