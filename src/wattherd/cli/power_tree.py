"""`wattherd power tree`: draw a power tree, and import one from a data-centre inventory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import printed, prints

if TYPE_CHECKING:
    from wattherd.service.tree_import import Imported

_FILE = click.Path(dir_okay=False, path_type=Path)


class _ShowsByDefault(click.Group):
    """`wattherd power tree FILE` is `wattherd power tree show FILE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand, or `show` where the first word is none."""
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_ShowsByDefault)
def tree() -> None:
    """Draw a power tree (`wattherd power tree FILE`), or import one from NetBox, Nautobot, CSV."""


@tree.command("show")
@click.argument("file", type=_FILE)
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
@prints
def show(
    *,
    file: Path,
    draws: tuple[Path, ...],
    meters: Path | None,
    at: str,
    levels: int | None,
    output: str,
) -> int:
    """Draw a tree: limit, draw and headroom of every domain.

    FREE is what may be added there without any domain above exceeding its limit. Exits with 1 if
    a domain draws more than its limit, or a meter gave no reading.
    """
    from wattherd.service import tree_view
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
    from wattherd.service import tree_import
    from wattherd.wire.trouble import DeviceError
    from wattherd.workload.dcim.rest import Choice
    from wattherd.workload.dcim.supply import Rating

    if system == "csv" and (nodes or roles or tags or site):
        raise click.UsageError("a table says itself which rows are nodes")
    choice = Choice(names=nodes, roles=roles, tags=tags, site=site)
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


def _tell(result: Imported, out: Path, *, compare: bool, new: bool) -> None:
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
