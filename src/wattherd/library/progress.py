"""Progress on stderr: shown to people, silent for pipes and where `WATTHERD_NO_PROGRESS` is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Pass `items` on while a bar counts them to `total`; in a notebook it is a line."""
    if os.environ.get("WATTHERD_NO_PROGRESS"):
        yield from items
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        yield from track(items, total=total, description=what, console=console, transient=True)
    elif _in_notebook():
        yield from _in_a_line(items, total, what)
    else:
        yield from items


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this, whose stderr is no terminal but is looked at."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _in_a_line(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    for number, item in enumerate(items, start=1):
        sys.stderr.write(f"\r{what}: {number:,} of {total:,}")
        sys.stderr.flush()
        yield item
    sys.stderr.write("\n")
