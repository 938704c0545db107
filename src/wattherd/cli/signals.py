"""Signals that a command answers while it runs.

A handler is of the process, a command is not: programs that call the command line, and tests, go on
with the handlers that they had before.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


def on_signals(act: Callable[[], object], *numbers: signal.Signals) -> None:
    """Call `act` at each of these signals until the present command is through.

    Raises:
        RuntimeError: no command of click is at work.
    """
    click.get_current_context().with_resource(_answered(act, numbers))


@contextmanager
def _answered(act: Callable[[], object], numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
