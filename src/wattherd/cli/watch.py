"""`wattherd watch`: what happens at a site, line by line, as it happens."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from wattherd.cli.options import server_option
from wattherd.library.client import Client, ServiceUnreachable, parsed

KINDS = ("job", "power", "budget", "decision")
AGAIN_S = 2.0
"""Before a connection that was cut off is made again."""


@click.command()
@click.argument("job", required=False, default="")
@click.option("--kind", multiple=True, type=click.Choice(KINDS), help="Only these; repeatable.")
@click.option("--after", default="", help="Id of an event (as in JSON): begin behind it.")
@click.option("--past", is_flag=True, help="Tell what is still known, and end.")
@server_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="A line for people, or one JSON document a line.",
)
def watch(
    *, job: str, kind: tuple[str, ...], after: str, past: bool, server: str | None, output: str
) -> None:
    """What happens at the site (to JOB), until Ctrl-C.

    A connection that is cut off is made again, and goes on where it was.
    """
    client = Client(server)
    client.get("whoami")  # who is not let in, or finds nobody, is told so at once
    place = after or ("0" if past else "")
    while True:
        with contextlib.suppress(ServiceUnreachable):
            for event in _events(client, job, kind, place, follow=not past):
                place = event["event_id"] or place
                click.echo(json.dumps(event) if output == "json" else line(event))
        if past:
            return
        time.sleep(AGAIN_S)


def _events(
    client: Client, job: str, kinds: tuple[str, ...], after: str, *, follow: bool
) -> Iterator[dict[str, Any]]:
    query: dict[str, object] = {"job": job or None, "after": after or None, "follow": follow}
    return parsed(client.stream("events", kind=kinds, **query))


def line(event: Mapping[str, Any]) -> str:
    """An event as people read it."""
    at = str(event.get("at", ""))
    match event["event"]:
        case "job":
            code = "" if event["exit_code"] is None else f", exit code {event['exit_code']}"
            what = f"{event['id']} {event['from'] or 'new'} -> {event['state']}{code}"
        case "power":
            what = f"{event['draw_w']:.1f} W of {_limit(event['budget_w'])} ({event['stated']})"
        case "budget":
            what = f"{_limit(event['budget_w'])} from {event['begins']} on ({event['source']})"
        case "decision":
            what = f"{event['number']} {event['cause']}: {'; '.join(event['orders'])}"
        case _:
            what = str(event.get("why", ""))
    return f"{at:29}  {event['event']:8}  {what}".strip()


def _limit(watts: float | None) -> str:
    return "no limit" if watts is None else f"{watts:.1f} W"
