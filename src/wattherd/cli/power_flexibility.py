"""`wattherd power promise` and `power delivery`: what a site can give the grid, what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import server_option
from wattherd.cli.output import printed, prints

_PATH = click.Path(path_type=Path)


@click.command("promise")
@click.argument("loads", type=_PATH, required=False)
@server_option
@click.option("--reduce", "reduce_", metavar="10kW", help="So much less than now is asked for.")
@click.option("--limit", metavar="30kW", help="At most so much is asked for.")
@click.option("--in", "lead", default="10min", show_default=True, help="From then on, from now.")
@click.option("--for", "lasts", default="1h", show_default=True, help="For so long.")
@click.option("--sure", default="95%", show_default=True, help="How sure it is to be.")
@click.option("--other", default="0W", show_default=True, help="Drawn beside the loads.")
@click.option("--tree", type=_PATH, help="A power tree: losses, and where loads are.")
@click.option("--at", "domain", default="", help="The domain of the tree that asks; the root.")
@click.option("--report", metavar="URI", help="Tell an OpenADR 3 server, openadr3+https://...")
@click.option("--event", metavar="ID", help="The event that the report is about.")
@click.option("--name", default="wattherd", show_default=True, help="Our name in the report.")
@prints
def promise(
    *,
    loads: Path | None,
    server: str | None,
    reduce_: str | None,
    limit: str | None,
    lead: str,
    lasts: str,
    sure: str,
    other: str,
    tree: Path | None,
    domain: str,
    report: str | None,
    event: str | None,
    name: str,
    output: str,
) -> int:
    """Answer a request for less power: how many watts, from when, for how long, how sure.

    Without LOADS the running service answers, by what its jobs draw now. LOADS is a CSV file with
    `name,draw,floor` and, as far as known, `domain, idle, preemptible, cap_time, stop_time, hold,
    works`. Exits with 1 if less can be promised than is asked for.
    """
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.errors import UserError
    from wattherd.estimate.reduction_promise import promise as promised
    from wattherd.estimate.reduction_promise import weights_of
    from wattherd.experiments.grid import promise as flexibility
    from wattherd.library.client import Client
    from wattherd.units import seconds, watts
    from wattherd.workload.tree_file import read_tree

    if (reduce_ is None) == (limit is None):
        raise click.UsageError(
            "name either --reduce or --limit (hint: --reduce 10kW, or --limit 30kW)"
        )
    if (report is None) != (event is None):
        raise click.UsageError("--report and --event go together")
    if loads is None:
        if tree is not None or domain or other != "0W" or report is not None:
            hint = "name the file of the loads, or leave --tree, --at, --other and --report out"
            raise UserError("a service knows its own loads", field="LOADS", hint=hint)
        asked = {"reduce": reduce_} if limit is None else {"limit": limit}
        answer = Client(server).get(
            "power/promise", **asked, **{"in": lead, "for": lasts, "sure": sure}
        )
        if not printed(answer, output):
            _tell(answer)
        return int(not answer["met"])
    given = flexibility.read_loads(loads)
    weight = weights_of(read_tree(tree) if tree else None, domain)
    other_w = watts(other, field="--other")
    draw_w = other_w + sum(one.draw_w * weight(one.domain) for one in given)
    asked_w = (
        watts(reduce_, field="--reduce")
        if reduce_ is not None
        else max(0.0, draw_w - watts(limit or 0.0, field="--limit"))
    )
    found = promised(
        given,
        asked_w=asked_w,
        lead_s=seconds(lead, field="--in"),
        for_s=seconds(lasts, field="--for"),
        sure=flexibility.share(sure, "--sure"),
        other_w=other_w,
        weight=weight,
    )
    document = flexibility.promise_document(found)
    if not printed(document, output):
        _tell(document)
    if report is not None and event is not None:
        import time

        try:
            start_s = time.time() + found.offer.from_s
            flexibility.report_promise(report, event, name, found, start_s)
        except DeviceError as error:
            click.echo(f"wattherd: error: {error}", err=True)
            return 1
    return int(not found.met)


def _tell(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_seconds, show_watts

    offer = document["offer"]
    click.echo(f"asked     {show_watts(document['asked_w'])} of {show_watts(document['draw_w'])}")
    met = "" if document["met"] else ", which is all that can be"
    click.echo(
        f"promised  {show_watts(offer['reduction_w'])} from {show_seconds(offer['from_s'])} after"
        f" the order, for {show_seconds(offer['for_s'])}, with {offer['sure']:.3g} certainty{met}"
    )
    for what in ("capped", "stopped"):
        if offer[what]:
            click.echo(f"{what:<10}{', '.join(offer[what])}")
    rows = [
        [show_seconds(one["from_s"]), show_watts(one["reduction_w"]), str(len(one["stopped"]))]
        for one in document["steps"]
    ]
    print_table(["AFTER", "AT MOST", "STOPPED"], rows, right_from=0)


@click.command("delivery")
@click.argument("meter", type=_PATH, required=False)
@server_option
@click.option("--event", metavar="ID", help="One that the service has seen; else the last.")
@click.option("--start", help="Of the event: 2030-06-01T18:00:00Z.")
@click.option("--end", help="Of the event.")
@click.option("--limit", metavar="30kW", help="At most so much was asked for.")
@click.option("--reduce", "reduce_", metavar="10kW", help="So much below the baseline was.")
@click.option("--announced", help="When the event was announced; the baseline ends before it.")
@click.option(
    "--baseline",
    type=click.Choice(["hour-before", "ten-in-ten"]),
    default="hour-before",
    show_default=True,
    help="What would have been drawn.",
)
@click.option("--event-day", "days", multiple=True, metavar="DATE", help="Not for a baseline.")
@click.option("--zone", default="UTC", show_default=True, help="Whose days, for ten-in-ten.")
@click.option("--time", "time_column", default="", help="The column of times.")
@click.option("--column", default="", help="The column of watts.")
@prints
def delivery(
    *,
    meter: Path | None,
    server: str | None,
    event: str | None,
    start: str | None,
    end: str | None,
    limit: str | None,
    reduce_: str | None,
    announced: str | None,
    baseline: str,
    days: tuple[str, ...],
    zone: str,
    time_column: str,
    column: str,
    output: str,
) -> int:
    """Prove what was delivered in an event: baseline, reduction, minutes late.

    Without METER the running service answers, by its own record of the last 30 days: for the last
    event that its signals asked for, for --event, or for what --start, --end and --limit tell.
    METER is a CSV file with times (Unix seconds or ISO 8601) and watts. Exits with 1 if the target
    was exceeded at any time, or was not read.
    """
    from wattherd.errors import UserError
    from wattherd.experiments.grid import promise as flexibility
    from wattherd.experiments.grid.delivery import BaselineMethod, DeliveryEvent
    from wattherd.library.client import Client
    from wattherd.units import watts

    whose = flexibility.zone_of(zone)
    if meter is None:
        if time_column or column:
            hint = "name the meter's file, or leave --time and --column out"
            raise UserError("a service knows its own record", field="METER", hint=hint)
        asked = {"event": event, "start": start, "end": end, "limit": limit, "reduce": reduce_,
                 "announced": announced}  # fmt: skip
        try:
            answer = Client(server).get(
                "power/delivery", baseline=baseline, zone=zone,
                **{name: value for name, value in asked.items() if value is not None},
                **({"event_day": list(days)} if days else {}),
            )  # fmt: skip
        except UserError as error:  # in the words of options, not of an address
            error.hint = error.hint.replace("baseline=", "--baseline ")
            raise
        if not printed(answer, output):
            _tell_delivery(answer, whose)
        return int(answer["above_s"] > 0 or answer["unseen_s"] > 1.0)
    if event is not None:
        raise UserError("only a service has seen events", field="--event", hint="leave METER out")
    if start is None or end is None:
        raise UserError("is needed beside a meter's record", field="--start" if start is None
                        else "--end", hint="2030-06-01T18:00:00Z")  # fmt: skip
    period = DeliveryEvent(
        start_s=flexibility.moment(start, "--start", whose),
        end_s=flexibility.moment(end, "--end", whose),
        limit_w=None if limit is None else watts(limit, field="--limit"),
        reduction_w=None if reduce_ is None else watts(reduce_, field="--reduce"),
        announced_s=None if announced is None else flexibility.moment(announced, "--announced"),
    )
    readings = flexibility.read_meter(meter, time=time_column, column=column)
    found = flexibility.proof(readings, period, BaselineMethod(baseline), whose, days)
    document = flexibility.delivery_document(found)
    if not printed(document, output):
        _tell_delivery(document, whose)
    return int(found.above_s > 0 or found.unseen_s > 1.0)


def _tell_delivery(document: dict[str, Any], zone: Any) -> None:
    from datetime import UTC, datetime

    from wattherd.cli.tables import print_table
    from wattherd.units import show_seconds, show_watts

    share = document["performance"]
    event = document.get("event")
    if event is not None:
        ended = " (taken back)" if event["cancelled"] else ""
        begins, ends = (
            datetime.fromtimestamp(event[name], UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M")
            for name in ("start_s", "end_s")
        )
        click.echo(f"event     {event['id']} of {event['source']}: at most"
                   f" {show_watts(event['limit_w'])} from {begins} to {ends}{ended}")  # fmt: skip
    of = (
        "" if share is None else f", {share:.0%} of the {show_watts(document['asked_w'])} asked for"
    )
    late = document["late_s"]
    click.echo(f"baseline  {document['method']}: {document['basis']}")
    click.echo(f"delivered {show_watts(document['reduction_w'])} on average{of};"
               f" {document['energy_j'] / 3.6e6:,.2f} kWh")  # fmt: skip
    click.echo(f"late      {'the target was never kept' if late is None else show_seconds(late)}")
    click.echo(f"above     {show_seconds(document['above_s'])}, at worst by"
               f" {show_watts(document['worst_w'])}")  # fmt: skip
    if document["unseen_s"] > 1.0:
        click.echo(f"unread    {show_seconds(document['unseen_s'])}, which proves nothing")

    def shown(value: float | None) -> str:
        return "-" if value is None else show_watts(value)

    rows = [
        [
            datetime.fromtimestamp(one["start_s"], UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M"),
            *(shown(one[name]) for name in ("baseline_w", "target_w", "draw_w", "reduction_w")),
            f"{one['seen']:.0%}",
        ]
        for one in document["slots"]
    ]
    head = ["FROM", "BASELINE", "TARGET", "DRAW", "REDUCTION", "READ"]
    print_table(head, rows, right_from=1)


COMMANDS = (promise, delivery)
