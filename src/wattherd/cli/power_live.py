"""`wattherd power` on a live site: what is drawn, and how much may be."""

from __future__ import annotations

from typing import Any

import click

from wattherd.cli.client import Client
from wattherd.cli.jobs import server_option
from wattherd.cli.live_tables import LIVE_OUTPUT, show


def show_power(server: str | None, output: str) -> None:
    """Budget, draw and headroom of the site, and its jobs' part."""
    document = Client(server).get("power")
    show(document, output, lambda: _table(document))


def _table(document: Any) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_watts

    stated = " (estimated)" if document["stated"] == "model" else ""
    for name in ("budget_w", "draw_w", "headroom_w"):
        value = document[name]
        label = name.removesuffix("_w")
        shown = "none" if value is None else show_watts(value)
        click.echo(f"{label:<10}{shown}{stated if name == 'draw_w' else ''}")
    click.echo(f"{'over':<10}{document['over_s']:,.1f} s, {document['over_j']:,.1f} J")
    for one in document["announced"]:
        click.echo(f"{'announced':<10}{show_watts(one['budget_w'])} from {one['at'][11:19]} UTC on")
    by_job = document["samples"][-1]["by_job"] if document["samples"] else {}
    if by_job:
        print_table(["JOB", "WATTS"], [[job, f"{watts:,.1f}"] for job, watts in by_job.items()])


@click.command("set")
@click.argument("budget")
@click.option("--in", "within", metavar="TIME", help="Announce it: from then on, not at once.")
@server_option
@LIVE_OUTPUT
def set_budget(*, budget: str, within: str | None, server: str | None, output: str) -> None:
    """Set the site's BUDGET: 40kW, or none."""
    asked = None if budget == "none" else budget
    document = Client(server).put("power", {"budget": asked, "in": within})
    show(document, output, lambda: _table(document))
