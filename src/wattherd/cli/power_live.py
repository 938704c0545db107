"""`wattherd power` on a live site: what is drawn, and how much may be."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import prints, show
from wattherd.errors import UserError, words
from wattherd.library.client import Client

WINDOW = "window.csv"


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
    if len(document["budgets"]) > 1:
        for one in document["budgets"]:
            click.echo(f"{'':<10}{show_watts(one['budget_w'])} by {one['source']}")
    for one in document["announced"]:
        when = one["at"][:19].replace("T", " ")
        click.echo(f"{'announced':<10}{show_watts(one['budget_w'])} from {when} UTC on")
    for note in document.get("notes", ()):
        click.echo(f"{'note':<10}{note}")
    _rates(document)
    _instruments(document["instruments"])
    for one in document["signals"]:
        note = f" ({one['note']})" if one["note"] else ""
        click.echo(f"{'signal':<10}{one['signal']}: {one['contact']}{note}")
    by_job = document["samples"][-1]["by_job"] if document["samples"] else {}
    if by_job:
        print_table(["JOB", "WATTS"], [[job, f"{watts:,.1f}"] for job, watts in by_job.items()])


def _rates(document: Any) -> None:
    """What energy costs and emits now, and what all of it has."""
    rates, bill = document.get("rates"), document.get("bill")
    if rates is not None:
        price, carbon_g = rates["price_per_kwh"], rates["carbon_g_per_kwh"]
        per = "unknown price" if price is None else f"{price:,.4f} {rates['currency']}/kWh"
        grams = "unknown carbon" if carbon_g is None else f"{carbon_g:,.0f} gCO2e/kWh"
        problem = f" ({rates['problem']})" if rates["problem"] else ""
        click.echo(f"{'rates':<10}{per}, {grams}{problem}")
    if bill is not None:
        from wattherd.cli.live_tables import bill_cells

        cost, co2e_kg = bill_cells(bill)
        click.echo(f"{'cost':<10}{cost} {bill['currency']}, {co2e_kg} kgCO2e")
        for name, what in (("unpriced_j", "price"), ("unrated_j", "carbon intensity")):
            if bill[name]:
                click.echo(f"{'':<10}{bill[name] / 3.6e6:,.3f} kWh at a time of unknown {what}")


def _instruments(rows: Any) -> None:
    """What measures and what limits, said once for devices that are alike."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        meter, knob = (row[one].partition(":")[0] for one in ("meter", "knob"))
        watts = f"watts {row['watts']}{f' ({meter})' if meter else ''}" if row["watts"] else ""
        control = f"limited by {row['control']}{f' ({knob})' if knob else ''}"
        said = ", ".join(part for part in (watts, control if row["control"] else "") if part)
        kinds.setdefault((said, "; ".join(row["problems"])), []).append(row["device"])
    for (said, problems), devices in kinds.items():
        many = f"{devices[0]} to {devices[-1].rpartition(' ')[2]}" if devices[1:] else devices[0]
        click.echo(f"{'device':<10}{many}: {said}{f' ({problems})' if problems else ''}")


@click.command("set")
@click.argument("budget", required=False)
@click.option("--in", "within", metavar="TIME", help="Announce it: from then on, not at once.")
@click.option(
    "--from", "begins", metavar="TIME", help="Only from 18:00 on every day, or from DATE."
)
@click.option("--to", "ends", metavar="TIME", help="Until then; takes the place of a schedule.")
@click.option(
    "--schedule", type=click.Path(path_type=Path), help="Limits by date or time of day; a file."
)
@click.option("--no-schedule", is_flag=True, help="No schedule any more.")
@click.option(
    "--signal", "signals", multiple=True, metavar="URI", help="Listen to these, and no others."
)
@click.option("--no-signals", is_flag=True, help="Listen to nobody any more.")
@server_option
@prints
def set_budget(
    *,
    budget: str | None,
    within: str | None,
    begins: str | None,
    ends: str | None,
    schedule: Path | None,
    no_schedule: bool,
    signals: tuple[str, ...],
    no_signals: bool,
    server: str | None,
    output: str,
) -> None:
    """Set the site's BUDGET (40kW, or none), or where limits come from.

    The lowest of budget, schedule and signals counts at any time. What they announce is met when
    it begins.
    """
    changes: dict[str, Any] = {}
    if begins is not None or ends is not None:
        others = within or schedule or no_schedule
        changes["power/schedule"] = {"schedule": _window(budget, begins, ends, others)}
    elif budget is not None:
        changes["power"] = {"budget": None if budget == "none" else budget, "in": within}
    if schedule is not None or no_schedule:
        changes["power/schedule"] = {"schedule": None if schedule is None else _text(schedule)}
    if signals or no_signals:
        changes["power/signals"] = {"signals": list(signals)}
    if not changes:
        hint = "a BUDGET, --schedule FILE, --signal URI"
        raise UserError("nothing to set", field="BUDGET", hint=hint)
    client = Client(server)
    documents = [client.put(path, body) for path, body in changes.items()]
    show(documents[-1], output, lambda: _table(documents[-1]))


def _window(budget: str | None, begins: str | None, ends: str | None, others: object) -> Any:
    """A schedule of one line.

    Raises:
        UserError: a part of it is missing, or what does not go with it is there.
    """
    if budget in (None, "none") or begins is None or ends is None or others:
        hint = "wattherd power set 40kW --from 18:00 --to 22:00"
        raise UserError("a window is BUDGET, --from and --to alone", field="--from", hint=hint)
    text = io.StringIO()
    csv.writer(text).writerows((("at", "limit", "until"), (begins, budget, ends)))
    return {"name": WINDOW, "text": text.getvalue()}


def _text(path: Path) -> dict[str, str]:
    try:
        return {"name": path.name, "text": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {words(error)}", where=str(path)) from None
