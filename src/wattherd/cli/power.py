"""`wattherd power`: predict watts, share them out, hold the line."""

from __future__ import annotations

import click

from wattherd.cli import (
    power_allocate,
    power_bench,
    power_cost,
    power_defer,
    power_fit,
    power_flexibility,
    power_hold,
    power_live,
    power_rl,
    power_signal,
    power_surface,
    power_swings,
    power_tree,
)
from wattherd.cli.jobs import server_option
from wattherd.cli.output import lists


@click.group(invoke_without_command=True)
@server_option
@lists
@click.pass_context
def power(context: click.Context, *, server: str | None, output: str) -> None:
    """What the site draws of its budget; and tools for predicting, sharing and holding watts."""
    if context.invoked_subcommand is None:
        power_live.show_power(server, output)


for _command in (
    power_live.set_budget,
    *power_allocate.COMMANDS,
    *power_fit.COMMANDS,
    *power_rl.COMMANDS,
    *power_flexibility.COMMANDS,
    power_cost.cost,
    power_defer.defer,
    power_surface.surface,
    power_bench.bench,
    power_hold.hold,
    power_signal.signal,
    power_swings.swings,
    power_tree.tree,
):
    power.add_command(_command)
