"""`wattherd power cost`: kilowatt-hours of a meter's record, what they cost and emitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wattherd.cli.output import printed, prints

_PATH = click.Path(path_type=Path)


@click.command("cost")
@click.argument("meter", type=_PATH, required=False)
@click.option("--state", type=_PATH, help="Of a service instead: its state folder.")
@click.option("--rates", required=True, metavar="FILE|URL", help="Prices, carbon intensities.")
@click.option(
    "--by",
    type=click.Choice(["hour", "day", "month", "all", "job"]),
    default="day",
    show_default=True,
    help="A row for each.",
)
@click.option("--zone", default="UTC", show_default=True, help="Whose hours and days.")
@click.option("--time", "time_column", default="", help="The column of times.")
@click.option("--column", default="", help="The column of watts.")
@prints
def cost(
    *,
    meter: Path | None,
    state: Path | None,
    rates: str,
    by: str,
    zone: str,
    time_column: str,
    column: str,
    output: str,
) -> int:
    """Work out what a meter's record, or a service, has cost and emitted.

    METER is a CSV file with times (Unix seconds or ISO 8601) and watts; with --state it is all
    that a service has measured, also by job. Exits with 1 if some of the energy was drawn at a
    time for which nothing is known.
    """
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.experiments.grid import bill
    from wattherd.experiments.grid import promise as flexibility
    from wattherd.workload.rates_file import read_rates

    whose = flexibility.zone_of(zone)
    if (meter is None) == (state is None):
        raise click.UsageError("give either METER or --state (hint: METER is a CSV file)")
    if meter is not None and by == "job":
        raise click.UsageError("only of a service is it known which job drew what (--state)")
    try:
        if meter is not None:
            readings = flexibility.read_meter(meter, time=time_column, column=column)
            found, _ = read_rates(rates, str(float(readings.begins_s[0])))
            bills = bill.bills(readings, found, by, whose)
        else:
            folder = state or Path()
            found, _ = read_rates(rates, str(bill.state_begins_s(folder)))
            bills, estimated = bill.state_bills(folder, found, by, whose)
            if estimated:
                click.echo("watts are estimated by a model, at least in part", err=True)
    except DeviceError as error:
        click.echo(f"wattherd: error: {error}", err=True)
        return 1
    document = bill.bill_document(bills, found)
    if not printed(document, output):
        _tell(document)
    total = document["total"]
    return int(min(total["unpriced_kwh"], total["unrated_kwh"]) > 1e-9 * total["kwh"])


def _tell(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:,.3f}"

    rows = [*document["periods"], {"period": "total", **document["total"]}]
    names = ("kwh", "cost", "co2e_kg")
    cells = [[one["period"], *(shown(one[name]) for name in names)] for one in rows]
    head = ["PERIOD", "kWh", f"COST {document['currency']}".strip(), "kgCO2e"]
    print_table(head, cells, right_from=1)
    for name, what in (("unpriced_kwh", "price"), ("unrated_kwh", "carbon intensity")):
        if 1e-9 < document["total"][name] < (1 - 1e-9) * document["total"]["kwh"]:
            kwh = document["total"][name]
            click.echo(f"{kwh:,.3f} kWh were drawn at a time of unknown {what}", err=True)
