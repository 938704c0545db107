"""How every command prints what it found: `-o`, `--no-headers`, and `--watch` of lists.

A command makes one document with a `schema`. `printed` prints it as JSON, YAML or names; otherwise
the command prints its table. With `prints` a command has `-o` and `--no-headers`; with `lists` also
`--watch`, which asks and prints again.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from wattherd.cli.tables import headers, interactive, terminal
from wattherd.errors import UserError, harmless

FORMS = ("table", "wide", "json", "yaml", "name")
EVERY_S = 2.0
LISTS = "lists"
"""Attribute of commands that can be watched."""
_NAMED = (
    *(("jobs", "id"), ("nodes", "name"), ("candidates", "placement"), ("queues", "name")),
    *(("tenants", "name"), ("groups", "name"), ("trials", "id"), ("tokens", "id")),
    *(("acts", "number"), ("requests", "at"), ("traces", "name"), ("clusters", "context")),
    *(("contexts", "name"), ("examples", "name"), ("knobs", "knob"), ("meters", "meter")),
    *(("place", "name"), ("schedulers", "name"), ("power", "name"), ("rows", "name")),
    *(("cells", "policy"), ("overall", "policy"), ("pages", "name")),
)
"""Lists that documents hold, and what their rows are called by; all that there are are named."""
_WHOLE = ("wattherd.array/1",)
"""Schemas of documents that are called by their own id, whatever lists they hold."""
_ALONE = ("id", "knob", "meter", "switch", "name", "store", "file", "schema")
"""What a document without such a list is called by, the first that it has."""


def _headers(context: click.Context, _: click.Parameter, without: bool) -> None:  # noqa: FBT001 - click's
    token = headers.set(not without)
    context.call_on_close(lambda: headers.reset(token))


def prints(command: Any) -> Any:
    """Options of a command that prints a document: `-o` and `--no-headers`."""
    for option in (
        click.option(
            "--no-headers",
            is_flag=True,
            expose_value=False,
            callback=_headers,
            help="Tables without the line of names.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Choice(FORMS),
            default="table",
            show_default=True,
            help="How to print the result.",
        ),
    ):
        command = option(command)
    return command


def lists(command: Callable[..., Any]) -> Any:
    """Options of a command that prints a list: those of `prints`, `--watch` and `--every`."""

    @functools.wraps(command)
    def asked(*given: Any, watch: bool, every: float, **named: Any) -> Any:
        context = click.get_current_context()
        if not watch or context.invoked_subcommand is not None:
            return command(*given, **named)
        if every <= 0:
            raise UserError(f"{every:g} is no time", field="--every", hint="write 2")
        return _watched(lambda: command(*given, **named), every, str(named.get("output")))

    found: Any = prints(asked)
    for option in (
        click.option("--every", default=EVERY_S, metavar="S", help="Seconds between looks.  [2]"),
        click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C."),
    ):
        found = option(found)
    setattr(found, LISTS, True)
    return found


def _watched(once: Callable[[], Any], every_s: float, output: str) -> None:
    """Print again and again: at a terminal in the place of what was there, else below it.

    Raises:
        UserError: the first look failed; a later one is told and tried again.
    """
    seen, fine = interactive(), False
    while True:
        shown, told = io.StringIO(), terminal.set(seen)
        try:
            with contextlib.redirect_stdout(shown):
                once()
            fine = True
        except UserError as error:
            if not fine:
                raise
            click.echo(f"wattherd: {harmless(error.line())}", err=True)
        finally:
            terminal.reset(told)
        if seen:
            click.clear()
        text = shown.getvalue()
        sys.stdout.write(f"---\n{text}" if output == "yaml" else text)
        sys.stdout.flush()
        time.sleep(every_s)


def printed(document: Mapping[str, Any], output: str) -> bool:
    """Print a document as JSON, YAML or names; whether that was asked for."""
    match output:
        case "json":
            click.echo(json.dumps(document))
        case "yaml":
            import yaml

            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            plain = json.loads(json.dumps(document))
            text = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True)
            click.echo(text, nl=False)
        case "name":
            for name in names(document):
                click.echo(name)
        case _:
            return False
    return True


def show(document: Mapping[str, Any], output: str, table: Callable[[], None]) -> None:
    """As JSON or YAML, as names, or as `table` prints it."""
    if not printed(document, output):
        table()


def names(document: Mapping[str, Any]) -> list[str]:
    """What the rows of a document are called, or the document itself."""
    if document.get("schema") in _WHOLE:
        return [str(document["id"])]
    lists = [(document[kind], key) for kind, key in _NAMED if _is_list(document.get(kind))]
    if lists:
        return [str(one[key]) for rows, key in lists for one in rows if one.get(key, "") != ""]
    return [next((str(document[key]) for key in _ALONE if document.get(key)), "")]


def _is_list(rows: object) -> bool:
    return isinstance(rows, Sequence) and not isinstance(rows, str)


def more(shown: int, total: int | None, what: str, ways: Iterable[str]) -> None:
    """Say on stderr that a list goes on, and how to see the rest."""
    of = f"{shown:,} of {total:,}" if total is not None else f"the last {shown:,}"
    click.echo(f"{of} {what}; {'; '.join(ways)}", err=True)
