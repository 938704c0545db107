"""Commands that look at the whole site: queue, history, nodes, devices."""

from __future__ import annotations

import getpass
from typing import Any

import click

from wattherd.cli.job_names import FINAL, STATES
from wattherd.cli.live_tables import SORT, ordered, show_jobs
from wattherd.cli.options import server_option
from wattherd.cli.options import since as moment
from wattherd.cli.output import lists, more, prints, show
from wattherd.cli.tables import interactive
from wattherd.errors import UserError
from wattherd.library.client import Client

SCREEN = 100
"""Jobs that are shown at once at a terminal."""
PAGE = 2_500
"""Jobs that are asked for at once."""

_state_option = click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only jobs that are {', '.join(STATES[:-1])} or {STATES[-1]}.",
)


_limit_option = click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most so many; 0 is all.  [default: {SCREEN} at a terminal, else all]",
)


def _whose(command: Any) -> Any:
    """Options by which a list of jobs is filtered."""
    for option in reversed(
        [
            click.option("-m", "--mine", is_flag=True, help="Only my own."),
            click.option("-u", "--user", metavar="USER", help="Only this user's."),
            click.option("--name", metavar="TEXT", help="Only jobs with this in their names."),
            click.option(
                "-l", "--label", multiple=True, metavar="NAME[=VALUE]", help="Only with this label."
            ),
        ]
    ):
        command = option(command)
    return command


def _asked_of(
    *, mine: bool, user: str | None, name: str | None, label: tuple[str, ...]
) -> dict[str, Any]:
    if mine and user is not None:
        raise UserError("says whose jobs, as --mine does", field="--user", hint="leave one out")
    return {"user": getpass.getuser() if mine else user, "name": name, "label": list(label) or None}


@click.command()
@_state_option
@_whose
@click.option("-A", "--all", "over", is_flag=True, help="Those that ended, too.")
@_limit_option
@click.option("--after", metavar="JOB", help="Only those submitted after this one: the next page.")
@click.option("--array", metavar="ARRAY", help="Only tasks of this array: a-7.")
@click.option("--tasks", is_flag=True, help="Tasks of arrays that wait each in a row of its own.")
@SORT
@server_option
@lists
def queue(
    *,
    state: str | None,
    over: bool,
    array: str | None,
    tasks: bool,
    limit: int | None,
    after: str | None,
    by: str,
    server: str | None,
    output: str,
    **whose: Any,
) -> None:
    """Jobs that run or wait, and why they wait.

    In tables the waiting tasks of an array are one row: a-7[3-9]. With --array each has its own.
    """
    asked = {"state": state, "array": array, **_asked_of(**whose)}
    if over or state in FINAL:
        if after is not None:
            hint = "wattherd history --before JOB goes back page by page"
            raise UserError("pages of live jobs only", field="--after", hint=hint)
        _show_list(Client(server), output, by, limit, over=True, **asked)
    else:
        asked["grouped"] = not tasks and array is None and output in ("table", "wide")
        _show_list(Client(server), output, by, limit, after=_number(after, "--after"), **asked)


@click.command()
@_whose
@_state_option
@click.option("--since", metavar="TIME", help="Not over 2h or 7d ago, or at 2026-11-21T08:00Z.")
@_limit_option
@click.option("--before", metavar="JOB", help="Only those submitted before this one.")
@SORT
@server_option
@lists
def history(
    *,
    state: str | None,
    since: str | None,
    limit: int | None,
    before: str | None,
    by: str,
    server: str | None,
    output: str,
    **whose: Any,
) -> None:
    """The last jobs, ended ones too."""
    asked = {"state": state, **_asked_of(**whose), "since": moment(since)}
    behind = _number(before, "--before")
    _show_list(Client(server), output, by, limit, over=True, before=behind, **asked)


def _number(job: str | None, field: str) -> int | None:
    """By which a job stands in the order of submission."""
    if job is None:
        return None
    digits = job.removeprefix("j-")
    if not digits.isdecimal():
        raise UserError(f"{job!r} is no job's id", field=field, hint="write j-12")
    return int(digits)


def _show_list(client: Client, output: str, by: str, limit: int | None, **asked: Any) -> None:
    """A page of jobs where somebody looks at it, all of them where a program reads."""
    if limit is None:
        limit = SCREEN if interactive() and output in ("table", "wide") else 0
    document = _jobs(client, 0 if by else limit, **asked)
    rows = ordered(document["jobs"], by)
    total = document.get("total") or len(rows)
    if limit and len(rows) > limit:
        rows, cut = rows[:limit], True
        document["before"] = document["after"] = None
    else:
        cut = False
    document["jobs"] = rows
    show(document, output, lambda: show_jobs(rows, wide=output == "wide"))
    going_on = [
        f"the next: --after j-{document['after']}" if document.get("after") else "",
        f"those before: --before {rows[0]['id']}" if document["before"] else "",
    ]
    if cut or any(going_on):
        more(len(rows), total, "jobs", [*filter(None, going_on), "all: --limit 0"])


def _jobs(client: Client, limit: int, **asked: Any) -> Any:
    """One document of `limit` jobs, or of all if that is 0, asked for page by page."""
    cursor = "before" if asked.get("over") else "after"
    whole = client.get("jobs", limit=min(limit or PAGE, PAGE), count=bool(limit) or None, **asked)
    while whole.get(cursor) is not None and (not limit or len(whole["jobs"]) < limit):
        left = min(limit - len(whole["jobs"]) if limit else PAGE, PAGE)
        page = client.get("jobs", limit=left, **{**asked, cursor: whole[cursor]})
        new, old = page["jobs"], whole["jobs"]
        whole["jobs"] = [*new, *old] if cursor == "before" else [*old, *new]
        whole[cursor] = page.get(cursor)
    return whole


@click.command()
@click.option("--drain", metavar="NODE", help="Stop its jobs and start none there.")
@click.option("--return", "back", metavar="NODE", help="Use it again.")
@SORT
@server_option
@lists
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
@lists
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
@prints
def drain(*, gpu: str, reason: str, server: str | None, output: str) -> None:
    """Stop what runs on GPU (a UUID or a number) and start nothing there; others stay."""
    _show_gpus(Client(server).post(f"gpus/{gpu}/drain", {"reason": reason}), output)


@gpus.command()
@click.argument("gpu")
@server_option
@prints
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

    if output == "name":  # as `drain` takes them
        for gpu in (gpu for node in document["nodes"] for gpu in node["gpus"]):
            click.echo(gpu["uuid"] or gpu["number"])
    else:
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
