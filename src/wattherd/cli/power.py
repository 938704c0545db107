"""`wattherd power`: predict watts, share them out, hold the line."""

from __future__ import annotations

from typing import Any

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
from wattherd.cli.options import server_option
from wattherd.cli.output import lists
from wattherd.errors import UserError

GUIDES = {
    "allocate": "docs/concepts/power-allocation.md",
    "cost": "docs/guides/cost-and-carbon.md",
    "defer": "docs/guides/cost-and-carbon.md",
    "delivery": "docs/guides/demand-response.md",
    "fit": "docs/concepts/power-prediction.md",
    "hold": "docs/guides/hold.md",
    "predict": "docs/concepts/power-prediction.md",
    "promise": "docs/guides/demand-response.md",
    "signal": "docs/guides/demand-response.md",
    "swings": "docs/guides/swings.md",
    "tree": "docs/guides/power-tree.md",
}
"""Where forms and words of a command's input are described."""


class _Guided(click.Group):
    """Every refusal says what to do next: where no better hint is known, where to read about it."""

    def invoke(self, ctx: click.Context) -> Any:
        """As ever.

        Raises:
            UserError: with a hint.
        """
        try:
            return super().invoke(ctx)
        except UserError as error:
            name = ctx.invoked_subcommand or ""
            shown = f"`wattherd power {name}".rstrip() + " --help` shows how to call it"
            error.hint = error.hint or (f"see {GUIDES[name]}" if name in GUIDES else shown)
            raise


@click.group(cls=_Guided, invoke_without_command=True)
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
