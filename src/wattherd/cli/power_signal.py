"""`wattherd power signal`: the limits that a schedule, a web server or a grid operator asks for."""

from __future__ import annotations

import math
from typing import Any

import click

from wattherd.cli.output import printed, prints


@click.command("signal")
@click.argument("uris", metavar="URI...", nargs=-1, required=True)
@click.option("--base", required=True, metavar="40kW", help="What the site may draw at most.")
@click.option("--least", default="0W", metavar="12kW", help="The lowest draw it can reach.")
@click.option("--watch", is_flag=True, help="Go on, and print again whenever something changes.")
@click.option("--for", "for_", metavar="60s", help="With --watch: stop after that time.")
@click.option("--wait", default="5s", show_default=True, help="How long to wait for first news.")
@prints
def signal(
    *,
    uris: tuple[str, ...],
    base: str,
    least: str,
    watch: bool,
    for_: str | None,
    wait: str,
    output: str,
) -> int:
    """Listen to limits from outside and print the timeline that follows from them.

    The lowest of all limits counts at any time; OpenADR events that ask
    for less than --least are declined.
    With `-o json`, one object a line. Exits with 1 if
    a signal could not be heard in the end.
    """
    from wattherd.devices.signals.contract import SignalSite, SourceContact
    from wattherd.devices.signals.limit_sources import document, listening
    from wattherd.units import seconds, watts

    site = SignalSite(base_w=watts(base, field="--base"), least_w=watts(least, field="--least"))
    for_s = seconds(for_, field="--for") if for_ else math.inf
    with listening(uris, site) as listener:
        found = listener.first(seconds(wait, field="--wait"))
        _tell(document(found, site), output)
        if watch:
            for number, found in enumerate(listener.changes(0.2, for_s)):
                if number:
                    _tell(document(found, site), output)
    return int(any(one.contact is not SourceContact.HEARD for one in found.told))


def _tell(found: dict[str, Any], output: str) -> None:
    if printed(found, output):
        return
    from wattherd.cli.tables import print_table
    from wattherd.units import show_watts

    rows = [
        [one["from"], one["until"] or "further notice", show_watts(one["limit_w"]), one["source"]]
        for one in found["timeline"]
    ]
    print_table(["FROM", "UNTIL", "LIMIT", "ASKED FOR BY"], rows, right_from=4)
    for one in found["signals"]:
        note = f" ({one['note']})" if one["note"] else ""
        click.echo(f"{one['signal']}: {one['contact']}{note}", err=True)
        for event in one["events"]:
            reason = f": {event['reason']}" if event["reason"] else ""
            click.echo(f"  {event['event']} {event['answer']}{reason}", err=True)
