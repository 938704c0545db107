"""`wattherd power`: predict watts, share them out, hold the line."""

from __future__ import annotations

import click

from wattherd.cli import (
    power_allocate,
    power_bench,
    power_fit,
    power_hold,
    power_rl,
    power_signal,
    power_surface,
)


@click.group()
def power() -> None:
    """Share watts among jobs."""


for _command in (
    *power_allocate.COMMANDS,
    *power_fit.COMMANDS,
    *power_rl.COMMANDS,
    power_surface.surface,
    power_bench.bench,
    power_hold.hold,
    power_signal.signal,
):
    power.add_command(_command)
