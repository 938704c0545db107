"""`wattherd power tree`: draw a power tree, of a file or at work; import one from an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import lists, printed, prints
from wattherd.errors import UserError, harmless
from wattherd.library.client import Client
from wattherd.units import show_seconds

if TYPE_CHECKING:
    from wattherd.experiments.grid.tree_import import TreeImport

_FILE = click.Path(dir_okay=False, path_type=Path)


class _ShowsByDefault(click.Group):
    """`wattherd power tree [FILE]` is `wattherd power tree show [FILE]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As ever, but for options in front: they are those of `show`."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowsByDefault)
def tree() -> None:
    """Draw the power tree of a service, or of a file; import one from NetBox, Nautobot, CSV.

    `wattherd power tree` draws that of the running service, `wattherd power tree FILE` one of a
    file.
    """


@tree.command("show")
@click.argument("file", type=_FILE, required=False)
@server_option
@click.option(
    "--draw",
    "draws",
    type=_FILE,
    multiple=True,
    help="Watts by name of node or domain: CSV `name,watts`, or a JSON object.",
)
@click.option("--meters", type=_FILE, help="YAML, `name: URI`: meters that are read once.")
@click.option(
    "--at",
    default="0s",
    show_default=True,
    metavar="2h",
    help="Limits of that time after the steps of budgets began.",
)
@click.option("--levels", type=click.IntRange(min=1), help="Draw so many levels only.")
@lists
def show(
    *,
    file: Path | None,
    server: str | None,
    draws: tuple[Path, ...],
    meters: Path | None,
    at: str,
    levels: int | None,
    output: str,
) -> int:
    """Draw a tree: limit, draw and headroom of every domain.

    Without FILE it is the tree of the running service, down to its devices. FREE is what may be
    added there without any domain above exceeding its limit. Exits with 1 if a domain draws more
    than its limit, or a meter gave no reading.
    """
    if file is None:
        if draws or meters is not None or at != "0s":
            hint = "name the file of a tree, or leave --draw, --meters and --at out"
            raise UserError("a service reads its own meters", field="FILE", hint=hint)
        return _show_live(server, levels, output)
    from wattherd.experiments.grid import tree_view
    from wattherd.units import seconds
    from wattherd.workload.tree_file import read_tree

    readings: dict[str, float] = {}
    troubles: list[str] = []
    for one in draws:
        readings |= tree_view.read_draws(one)
    if meters is not None:
        read, troubles = tree_view.read_meters(meters)
        readings |= read
    found = tree_view.document(read_tree(file), readings, seconds(at, field="--at"))
    if not printed(found, output):
        _draw(found["rows"], levels)
    for trouble in troubles:
        click.echo(f"wattherd: {trouble}", err=True)
    return int(bool(troubles) or any(row["over"] for row in found["rows"]))


def _show_live(server: str | None, levels: int | None, output: str) -> int:
    """The tree of a running service."""
    document = Client(server).get("power/tree")
    rows = document["rows"]
    if not printed(document, output):
        stems = _stems([row["depth"] for row in rows])
        _draw([_drawable(row, stem) for row, stem in zip(rows, stems, strict=True)], levels)
    for row in rows:
        if row["problem"]:
            click.echo(f"wattherd: {harmless(row['name'])}: {harmless(row['problem'])}", err=True)
        if row["draw_w"] is None and row["age_s"] is not None:
            since = show_seconds(row["age_s"])
            said = f"wattherd: {harmless(row['name'])}: no reading for {since}, draw is unknown"
            click.echo(said, err=True)
    silent = any(row["draw_w"] is None and row["age_s"] is not None for row in rows)
    return int(silent or any(row["over"] or row["problem"] for row in rows))


def _drawable(row: dict[str, Any], stem: str) -> dict[str, Any]:
    """A row of a live tree as that of a file."""
    complete = row["draw_w"] is not None
    limit_w, least_w = row["limit_w"], row["least_w"]
    most_w = None if limit_w is None or least_w is None else limit_w - least_w
    return {
        **row,
        "stem": stem,
        "level": row["kind"],
        "draw_w": least_w,
        "complete": complete,
        "headroom_w": row["headroom_w"] if complete else most_w,
    }


def _stems(depths: list[int]) -> list[str]:
    """Branches in front of names, of rows in the order of the drawing."""
    found: list[str] = []
    more: list[bool] = []
    """Whether a branch goes on at each depth, below the row."""
    for depth in reversed(depths):
        more = [*more[: depth + 1], *[False] * (depth + 1 - len(more))]
        bars = "".join("│  " if one else "   " for one in more[1:depth])
        found.append("" if depth == 0 else bars + ("├─ " if more[depth] else "└─ "))
        more[depth] = True
    return found[::-1]


def _draw(rows: list[dict[str, Any]], levels: int | None) -> None:
    from wattherd.cli.tables import print_table

    printed_rows = [
        [
            row["stem"] + row["name"],
            row["level"],
            _watts(row["limit_w"]),
            _watts(row["draw_w"], "" if row["complete"] else ">= "),
            _watts(row["headroom_w"], "" if row["complete"] else "<= "),
            _watts(row["free_w"], "" if row["free_complete"] else "<= "),
            _share(row),
        ]
        for row in rows
        if levels is None or len(row["stem"]) // 3 < levels
    ]
    head = ["DOMAIN", "LEVEL", "LIMIT", "DRAW", "HEADROOM", "FREE", "USED"]
    print_table(head, printed_rows, right_from=2)


def _watts(value: float | None, before: str = "") -> str:
    from wattherd.units import show_watts

    return "-" if value is None else before + show_watts(value)


def _share(row: dict[str, Any]) -> str:
    if not row["limit_w"] or row["draw_w"] is None:
        return "-"
    return f"{row['draw_w'] / row['limit_w']:.0%}{' OVER' if row['over'] else ''}"


@tree.command("import")
@click.argument("system", type=click.Choice(["netbox", "nautobot", "csv"]))
@click.argument("source")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tree.yaml"),
    show_default=True,
    help="The tree's file; merged with what is there.",
)
@click.option(
    "--diff",
    "compare",
    is_flag=True,
    help="Write nothing; exit with 1 if the file and the inventory differ.",
)
@click.option("--nodes", multiple=True, metavar="'gpu-*'", help="Names of devices that are nodes.")
@click.option(
    "--role", "roles", multiple=True, help="Role (name or slug) of devices that are nodes."
)
@click.option("--tag", "tags", multiple=True, help="Tag of devices that are nodes.")
@click.option("--site", help="Only this site (name or slug).")
@click.option(
    "--continuous",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.8,
    show_default=True,
    help="Share of a rating that may be used for hours.",
)
@click.option(
    "--power-factor",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Watts for each volt-ampere.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the server's answers in a file, which can be a SOURCE.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if anything is unknown or contradictory.")
@prints
def import_(
    *,
    system: str,
    source: str,
    out: Path,
    compare: bool,
    nodes: tuple[str, ...],
    roles: tuple[str, ...],
    tags: tuple[str, ...],
    site: str | None,
    continuous: float,
    power_factor: float,
    save: Path | None,
    strict: bool,
    output: str,
) -> int:
    """Make a power tree of what an inventory knows of panels, feeds, PDUs, cables and devices.

    SOURCE is the address of the web interface, `https://netbox.example?credentials=FILE` (FILE
    is YAML with `token: ...`), a file of its REST answers, or a table. Without --nodes, --role and
    --tag every device that draws is a node. What the inventory does not say is listed, on
    stderr. A second import changes what changed there, and keeps what was edited by hand.
    """
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.experiments.grid import tree_import
    from wattherd.workload.dcim.rest import NodeChoice
    from wattherd.workload.dcim.supply import Rating

    if system == "csv" and (nodes or roles or tags or site):
        raise click.UsageError("a table says itself which rows are nodes")
    choice = NodeChoice(names=nodes, roles=roles, tags=tags, site=site)
    try:
        inventory = tree_import.inventory(system, source, choice, save)
    except DeviceError as error:
        click.echo(f"wattherd: error: {error}", err=True)
        return 1
    rating = Rating(continuous=continuous, power_factor=power_factor)
    result = tree_import.imported(system, source, inventory, rating, out)
    new = not out.exists()
    if not compare:
        tree_import.write(result, out)
    if not printed(result.document(), output):
        _tell(result, out, compare=compare, new=new)
    vague = any(one.about != "assumed" for one in result.findings)
    return int((compare and result.differs) or (strict and vague))


def _tell(result: TreeImport, out: Path, *, compare: bool, new: bool) -> None:
    """The differences on stdout, the findings on stderr."""
    for change in result.changes if compare or not new else ():
        click.echo(_line(change))
    for one in result.findings:
        click.echo(f"{one.about}: {one.where}: {one.text}", err=True)
    count = len(result.branches)
    nodes = sum(len(one.nodes) for one in result.branches)
    if not compare:
        click.echo(f"{out}: {count} domains, {nodes} nodes")
    elif not result.changes:
        click.echo(f"{out}: as the inventory says")


def _line(change: Any) -> str:
    field = f" {change.field}" if change.field else ""
    match change.kind:
        case "added":
            return f"+ {change.domain}"
        case "removed":
            return f"- {change.domain}"
        case "kept":
            return (
                f"= {change.domain}{field}: {change.before} stays, as edited;"
                f" the inventory says {change.now}"
            )
        case _:
            return f"~ {change.domain}{field}: {change.before} -> {change.now}"
