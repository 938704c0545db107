"""Progress on stderr: shown to people, silent for pipes and where `WATTHERD_NO_PROGRESS` is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Pass `items` on while a bar counts them to `total`."""
    if not sys.stderr.isatty() or os.environ.get("WATTHERD_NO_PROGRESS"):
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, total=total, description=what, console=console, transient=True)


def counted(items: Iterable[T], what: str) -> Iterator[T]:
    """Pass `items` on while a line on stderr counts them, where their number is not known."""
    if not sys.stderr.isatty() or os.environ.get("WATTHERD_NO_PROGRESS"):
        yield from items
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        for number, item in enumerate(items, start=1):
            status.update(f"{what}: {number} figures")
            yield item
