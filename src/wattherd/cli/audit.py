"""`wattherd audit`: who did what to the site, and who asked for what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from wattherd.cli.options import server_option
from wattherd.cli.options import since as moment
from wattherd.cli.output import lists, show
from wattherd.errors import UserError
from wattherd.library.client import Client


@click.command()
@click.option("--by", "-u", "--user", help="Only what this user did; TENANT/USER of a tenant's.")
@click.option("--since", metavar="TIME", help="Of the last 2h or 7d, or since 2026-11-21T08:00Z.")
@click.option("--action", help="Only this: JobCancelled; of requests a method: PUT.")
@click.option("--about", help="Only about this job, node, queue or tenant.")
@click.option("--requests", is_flag=True, help="What was asked for and refused, not what happened.")
@click.option("--refused", is_flag=True, help="Of requests only those that were refused.")
@click.option("-n", "--limit", default=100, show_default=True, help="At most so many.")
@server_option
@lists
def audit(
    *,
    by: str | None,
    since: str | None,
    action: str | None,
    about: str | None,
    requests: bool,
    refused: bool,
    limit: int,
    server: str | None,
    output: str,
) -> None:
    """Who did what, the latest first; an admin's to see.

    What happened is told from the journal. `--requests` tells of all requests that changed
    something or were refused, from the log of the gate.
    """
    known = {"by": by, "since": moment(since), "limit": limit}
    if refused or requests:
        if about:
            raise UserError("requests are about addresses", field="--about", hint="leave it out")
        asked = {"method": action, "result": "refused" if refused else None}
        document = Client(server).get("audit/requests", **known, **asked)
        show(document, output, lambda: _requests(document))
    else:
        document = Client(server).get("audit", **known, what=action, about=about)
        show(document, output, lambda: _acts(document))


def _acts(document: Mapping[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [one["at"][:19], one["by"], one["what"], one["about"] or "-", _detail(one["detail"])]
        for one in document["acts"]
    ]
    print_table(["AT (UTC)", "BY", "ACTION", "ABOUT", "DETAIL"], rows)


def _detail(detail: Mapping[str, Any]) -> str:
    """What is not in the other columns already; whole trees are too long for a line."""
    shown = {
        name: value
        for name, value in detail.items()
        if value not in (None, "") and not isinstance(value, dict | list) and name != "at_s"
    }
    return json.dumps(shown)[1:-1].replace('"', "")


def _requests(document: Mapping[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    keys = ("by", "address", "method", "path", "status", "result")
    rows = [
        [one["at"][:19], *(str(one[key]) or "-" for key in keys)] for one in document["requests"]
    ]
    print_table(["AT (UTC)", *(key.upper() for key in keys)], rows)
