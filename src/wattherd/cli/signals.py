"""Signals that a command answers while it runs.

A handler is of the process, a command is not: programs that call the command line, and tests, go on
with the handlers that they had before.

Python runs handlers in the main thread alone, between two of its steps. Who waits there for an
event without end takes none: the kernel may hand the signal to another thread, and nothing wakes
the main one. And a handler that sets the very event that it interrupted would wait for ever for the
lock of that event, which is held below it. So events are set by a thread of their own (`set_on`),
which the C level wakes through a socket, whoever got the signal.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import click


class Settable(Protocol):
    """An event, as of threading."""

    def set(self) -> None:
        """It has come about."""
        ...


def on_signals(act: Callable[[], object], *numbers: signal.Signals) -> None:
    """Call `act` in the main thread at each of these signals until the present command is through.

    For what raises. Who waits for an event uses `set_on`.

    Raises:
        RuntimeError: no command of click is at work.
    """
    click.get_current_context().with_resource(_answered(lambda *_: act(), numbers))


def set_on(events: Mapping[signal.Signals, Settable]) -> None:
    """Set the event of each of these signals when it comes, until the present command is through.

    Raises:
        RuntimeError: no command of click is at work.
        ValueError: this is not the main thread.
    """
    click.get_current_context().with_resource(_set_on(events))


@contextmanager
def _answered(
    handler: Callable[[int, object], object], numbers: tuple[signal.Signals, ...]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, signal.SIG_DFL if found is None else found)


@contextmanager
def _set_on(events: Mapping[signal.Signals, Settable]) -> Iterator[None]:
    woken, waker = socket.socketpair()
    with woken, waker:
        waker.settimeout(0)
        listener = threading.Thread(
            target=_listen, args=(woken, events), name="wattherd-signals", daemon=True
        )
        listener.start()

        def again(number: int, _: object) -> None:
            """In the main thread, at last: where a loop took the wakeup for itself, this is all."""
            with suppress(BlockingIOError):  # full of signals that were not looked at: enough
                os.write(waker.fileno(), bytes([number]))

        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            with _answered(again, tuple(events)):
                yield
        finally:
            signal.set_wakeup_fd(before)
            waker.shutdown(socket.SHUT_WR)
            listener.join()


def _listen(woken: socket.socket, events: Mapping[signal.Signals, Settable]) -> None:
    by_number = {int(number): event for number, event in events.items()}
    while numbers := woken.recv(256):
        for number in numbers:
            if number in by_number:
                by_number[number].set()
