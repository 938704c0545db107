"""What is wrong with a controller on a cluster, told in its log when it begins and when it is over.

Rights that were taken away and tokens that expired are seen by nobody else: whoever has no rights
cannot write an event either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

EVERY_S = 1.0


@contextmanager
def troubles_told(complaints: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Meanwhile what `complaints` says is written to standard error, as it comes and goes."""
    over = threading.Event()

    def tell() -> None:
        told: list[str] = []
        while not over.wait(EVERY_S):
            told = tell_changes(told, list(dict.fromkeys(complaints())))

    thread = threading.Thread(target=tell, name="wattherd-troubles", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tell_changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Write what is new and, once nothing is wrong any more, that it is over; `now` as a list."""
    for one in now:
        if one not in before:
            click.echo(f"trouble: {one}", err=True)
    if before and not now:
        click.echo("trouble: over", err=True)
    return list(now)
