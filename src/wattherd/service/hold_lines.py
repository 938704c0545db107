"""One thread for each instrument: a slow or dead one delays nobody else.

A line does one thing at a time and keeps the newest of the orders that wait for it: an order that
was overtaken by a newer one is never carried out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What an instrument said, and when that was (steady seconds)."""

    value: T
    at_s: float


@dataclass(slots=True)
class Line(Generic[T]):
    """Asks one instrument, in a thread that ends when it is closed, or with the process."""

    ask: Callable[[], T]
    answer: Answer[T] | None = None
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _wanted: bool = False
    _order: Callable[[], None] | None = None
    _busy: bool = False
    _closed: bool = False
    _thread: threading.Thread | None = None

    def poll(self) -> None:
        """Ask once more, unless it is still at it."""
        self._start()
        with self._wake:
            self._wanted = True
            self._wake.notify_all()

    def order(self, order: Callable[[], None]) -> None:
        """Do this next, in place of an older order that has not begun; then ask."""
        self._start()
        with self._wake:
            self._order, self._wanted = order, True
            self._wake.notify_all()

    def wait(self, until_s: float) -> bool:
        """Wait until nothing is left to do; False if that takes too long."""
        with self._wake:
            left_s = until_s - time.monotonic()
            return self._wake.wait_for(lambda: not (self._busy or self._wanted), max(left_s, 0.0))

    def fresh(self, now_s: float, age_s: float) -> T | None:
        """The last answer unless it is older than that."""
        if self.answer is None or now_s - self.answer.at_s > age_s:
            return None
        return self.answer.value

    def close(self) -> None:
        """Let the thread end, once it has done what it is at."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                order, self._order = self._order, None
                self._wanted, self._busy = False, True
            if order is not None:
                order()
            self.answer = Answer(self.ask(), time.monotonic())
            with self._wake:
                self._busy = False
                self._wake.notify_all()


def ask_all(asks: Iterable[Callable[[], T]], patience_s: float) -> list[T | None]:
    """What each one answers, all asked at once; None where that takes too long."""
    lines = [Line(ask) for ask in asks]
    for line in lines:
        line.poll()
    wait_for(lines, time.monotonic() + patience_s)
    for line in lines:
        line.close()
    return [None if line.answer is None else line.answer.value for line in lines]


def wait_for(lines: Iterable[Line[Any]], until_s: float) -> None:
    """Wait until all are done, or the time is up."""
    for line in lines:
        line.wait(until_s)
