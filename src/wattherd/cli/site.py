"""Commands that look at the whole site: queue, history, nodes, devices."""

from __future__ import annotations

from typing import Any

import click

from wattherd.cli.client import Client
from wattherd.cli.job_names import FINAL, STATES
from wattherd.cli.jobs import server_option
from wattherd.cli.live_tables import LIVE_OUTPUT, SORT, ordered, show, show_jobs
from wattherd.cli.since import since as moment

_state_option = click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only jobs that are {', '.join(STATES[:-1])} or {STATES[-1]}.",
)


@click.command()
@_state_option
@click.option("-m", "--mine", is_flag=True, help="Only my own.")
@click.option("-A", "--all", "over", is_flag=True, help="Those that ended, too.")
@SORT
@server_option
@LIVE_OUTPUT
def queue(
    *, state: str | None, mine: bool, over: bool, by: str, server: str | None, output: str
) -> None:
    """Jobs that run or wait, and why they wait."""
    _list(server, output, by, mine=mine, state=state, over=over or state in FINAL)


@click.command()
@click.option("-m", "--mine", is_flag=True, help="Only my own.")
@_state_option
@click.option("--since", metavar="TIME", help="Not over 2h or 7d ago, or at 2026-11-21T08:00Z.")
@click.option("-n", "--limit", default=100, show_default=True, help="At most so many.")
@SORT
@server_option
@LIVE_OUTPUT
def history(
    *,
    mine: bool,
    state: str | None,
    since: str | None,
    limit: int,
    by: str,
    server: str | None,
    output: str,
) -> None:
    """The last jobs, ended ones too."""
    known = {"since": moment(since), "limit": limit}
    _list(server, output, by, mine=mine, state=state, over=True, **known)


def _list(
    server: str | None, output: str, by: str, *, mine: bool, state: str | None, **query: Any
) -> None:
    import getpass

    user = getpass.getuser() if mine else None
    document = Client(server).get("jobs", state=state, user=user, **query)
    document["jobs"] = ordered(document["jobs"], by)
    show(document, output, lambda: show_jobs(document["jobs"], wide=output == "wide"))


@click.command()
@click.option("--drain", metavar="NODE", help="Stop its jobs and start none there.")
@click.option("--return", "back", metavar="NODE", help="Use it again.")
@SORT
@server_option
@LIVE_OUTPUT
def nodes(*, drain: str | None, back: str | None, by: str, server: str | None, output: str) -> None:
    """Nodes and how many of their devices are in use.

    A drained node's jobs write a checkpoint and wait for their turn again.
    """
    from wattherd.cli.tables import print_table

    client = Client(server)
    for node, action in ((drain, "drain"), (back, "return")):
        if node is not None:
            client.post(f"nodes/{node}/{action}")
    document = client.get("nodes")
    document["nodes"] = ordered(document["nodes"], by)

    def table() -> None:
        rows = [
            [
                node["name"],
                node["state"],
                node["gpus"][0]["model"] if node["gpus"] else "-",
                f"{sum(bool(gpu['jobs']) for gpu in node['gpus'])}/{len(node['gpus'])}",
                str(sum(gpu["state"] == "Drained" for gpu in node["gpus"])),
                _sum(node["gpus"]),
            ]
            for node in document["nodes"]
        ]
        print_table(["NODE", "STATE", "MODEL", "IN USE", "DRAINED", "WATTS"], rows)

    show(document, output, table)


@click.group(invoke_without_command=True)
@SORT
@server_option
@LIVE_OUTPUT
@click.pass_context
def gpus(context: click.Context, *, by: str, server: str | None, output: str) -> None:
    """Every device: who is on it, what it draws, whether it is in use. Sorted within nodes."""
    if context.invoked_subcommand is None:
        document = Client(server).get("nodes")
        for node in document["nodes"]:
            node["gpus"] = ordered(node["gpus"], by)
        _show_gpus(document, output)


@gpus.command()
@click.argument("gpu")
@click.option("--reason", default="", help="Why, for those who see it later.")
@server_option
@LIVE_OUTPUT
def drain(*, gpu: str, reason: str, server: str | None, output: str) -> None:
    """Stop what runs on GPU (a UUID or a number) and start nothing there; others stay."""
    _show_gpus(Client(server).post(f"gpus/{gpu}/drain", {"reason": reason}), output)


@gpus.command()
@click.argument("gpu")
@server_option
@LIVE_OUTPUT
def undrain(*, gpu: str, server: str | None, output: str) -> None:
    """Use a drained GPU again."""
    _show_gpus(Client(server).post(f"gpus/{gpu}/return"), output)


def _show_gpus(document: Any, output: str) -> None:
    from wattherd.cli.tables import print_table

    def table() -> None:
        rows = [
            [
                node["name"],
                str(gpu["number"]),
                gpu["model"],
                gpu["state"],
                _watts(gpu),
                "-" if gpu["cap_w"] is None else f"{gpu['cap_w']:,.1f}",
                " ".join(gpu["jobs"]) or gpu["cause"] or "-",
                *([gpu["uuid"] or "-"] if output == "wide" else []),
            ]
            for node in document["nodes"]
            for gpu in node["gpus"]
        ]
        names = ["NODE", "GPU", "MODEL", "STATE", "WATTS", "CAP", "JOBS/WHY"]
        print_table([*names, *(["UUID"] if output == "wide" else [])], rows)

    show(document, output, table)


def _sum(gpus: Any) -> str:
    known = [gpu for gpu in gpus if gpu["draw_w"] is not None]
    if not known:
        return "-"
    return _watts({**known[0], "draw_w": sum(gpu["draw_w"] for gpu in known)})


def _watts(gpu: Any) -> str:
    """An estimate is marked as one: no instrument has said it."""
    if gpu["draw_w"] is None:
        return "-"
    return f"{'~' if gpu['stated'] == 'model' else ''}{gpu['draw_w']:,.1f}"
