"""Options that several commands share: the service, seeds, policies, moments, command lines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from wattherd.errors import UserError
from wattherd.units import seconds

MAX_SEEDS = 10_000

server_option: Callable[[Any], Any] = click.option(
    "--server",
    metavar="URL|CONTEXT",
    help="The service.  [default: $WATTHERD_SERVER, the context in use, or this machine]",
)


def parse_seeds(text: str) -> list[int]:
    """Seeds as `7`, `42..51` (both ends included) or `1,5,9`.

    Raises:
        UserError: not of that form, negative, or more than `MAX_SEEDS`.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            low, high = int(first), int(last) if dots else int(first)
        except ValueError:
            raise _bad_seeds(f"{part!r} is no seed") from None
        if low < 0 or high < low:
            raise _bad_seeds(f"{part!r} is empty or negative")
        if len(seeds) + high - low >= MAX_SEEDS:
            raise _bad_seeds(f"more than {MAX_SEEDS} seeds")
        seeds.extend(range(low, high + 1))
    return list(dict.fromkeys(seeds))


def _bad_seeds(problem: str) -> UserError:
    return UserError(problem, field="--seed", hint="write 42, 42..51 or 1,5,9")


def parse_policies(text: str) -> list[str]:
    """Policy names separated by commas, each once.

    Raises:
        UserError: none is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("no policy named", field="--policy", hint="see `wattherd policies`")
    return list(dict.fromkeys(names))


def command_line() -> str:
    """The command as typed, for provenance."""
    return shlex.join(["wattherd", *sys.argv[1:]])


def check_parent(path: Path, field: str = "--out") -> None:
    """Say before the work, not after it, that a file cannot be written.

    Raises:
        UserError: there is no such folder, or a folder of that name.
    """
    if path.is_dir():
        raise UserError("is a directory", where=str(path), field=field, hint="name a file in it")
    if not path.parent.is_dir():
        problem = f"no folder {path.parent}"
        raise UserError(problem, where=str(path), field=field, hint="make it first")


def check_folder(path: Path, field: str = "--out") -> None:
    """Say before the work, not after it, that a folder cannot be made.

    Raises:
        UserError: a file stands where it or one above it should be.
    """
    for one in (path, *path.parents):
        if one.is_dir():
            return
        if one.exists():
            hint = "name a folder"
            raise UserError(f"{one} is a file", where=str(path), field=field, hint=hint)


def since(text: str | None) -> str | None:
    """`7d`, `2h` (ago) or `2026-11-21T08:00Z` as ISO 8601; without zone it is local time.

    Raises:
        UserError: neither.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.now(UTC) - _ago(text)
    return (found if found.tzinfo else found.astimezone()).isoformat()


def _ago(text: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(text, field="--since"))
    except (OverflowError, UserError):
        hint = "write 2h, 7d or 2026-11-21T08:00"
        raise UserError(f"{text!r} is no time", field="--since", hint=hint) from None
