"""`wattherd completion`: names of commands and options by the Tab key."""

from __future__ import annotations

import os
from pathlib import Path

import click

from wattherd.errors import UserError

VARIABLE = "_WATTHERD_COMPLETE"
PLACES = {
    "bash": ".local/share/bash-completion/completions/wattherd",
    "zsh": ".zfunc/_wattherd",
    "fish": ".config/fish/completions/wattherd.fish",
}
NOTES = {"zsh": "put `fpath+=~/.zfunc` before `compinit` in ~/.zshrc"}
shell_argument = click.argument("shell", type=click.Choice(sorted(PLACES)), required=False)


@click.group()
def completion() -> None:
    """Completion of commands and options in bash, zsh and fish."""


@completion.command()
@shell_argument
def show(shell: str | None) -> None:
    """Print the script for SHELL (default: the one in use)."""
    click.echo(_script(shell or _shell()))


@completion.command()
@shell_argument
def install(shell: str | None) -> None:
    """Write the script where SHELL (default: the one in use) looks for it."""
    chosen = shell or _shell()
    path = Path.home() / PLACES[chosen]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_script(chosen), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None
    click.echo(path)
    click.echo(NOTES.get(chosen, "") or "new shells have it", err=True)


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in PLACES:
        hint = f"one of {', '.join(sorted(PLACES))}"
        raise UserError(f"no completion for {name or 'this shell'}", field="SHELL", hint=hint)
    return name


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    from wattherd.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click has all of PLACES
    return found(cli, {}, "wattherd", VARIABLE).source()
