"""`wattherd top`: draw against budget, jobs and devices, live in the terminal."""

from __future__ import annotations

import click

from wattherd.cli.options import server_option
from wattherd.errors import UserError


@click.command()
@click.option("--every", default=1.0, show_default=True, help="Seconds between two looks.")
@server_option
def top(*, every: float, server: str | None) -> None:
    """Watch a site: watts against the budget, jobs, devices.

    Arrows choose a job, Enter tells why it waits or what became of it, q leaves.
    """
    from wattherd.library.client import Client

    if every <= 0:
        raise UserError(f"{every:g} is no time", field="--every", hint="write 1")
    client = Client(server)
    try:
        from wattherd.cli.top_app import Top
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[tui]"') from None
    client.get("alive")  # a wrong address is one line, before the screen is taken
    Top(client, every).run()
