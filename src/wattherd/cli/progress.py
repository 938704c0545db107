"""Progress on stderr where the end is not known; `library/progress.py` shows the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
