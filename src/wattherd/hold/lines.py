"""A line to each instrument: a slow or dead one delays nobody else, and there may be thousands.

A line does one thing at a time and keeps the newest of the orders that wait for it: an order that
was overtaken by a newer one is never carried out. All lines share the few threads of
`devices.wire.cooperative_io`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from wattherd.devices.wire import cooperative_io

T = TypeVar("T")

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class InstrumentAnswer(Generic[T]):
    """What an instrument said, and when that was (steady seconds)."""

    value: T
    at_s: float


_changing = threading.Lock()
"""For the states of all lines: what is done under it takes a microsecond."""


@dataclass(slots=True, eq=False)
class InstrumentLine(Generic[T]):
    """Asks one instrument, one thing at a time; a slow or dead one delays nobody else.

    It keeps the newest of the orders that wait: one that was overtaken is never carried out.
    `concurrent` calls run in the asking thread and let others go on while they wait; all others may
    block and get a thread.
    """

    ask: Callable[[], T]
    concurrent: bool = False
    answer: InstrumentAnswer[T] | None = None
    failure: Exception | None = None
    """What an instrument's driver ended in last, where it should have told of trouble."""
    sharing: cooperative_io.RoundQuestions | None = None
    """The rest is under the lock of all lines."""
    wanted: bool = False
    next_order: Callable[[], None] | None = None
    busy: bool = False
    slow: bool = False
    awaited: list[_Awaited] = field(default_factory=list)

    def poll(self) -> None:
        """Ask once more, unless it is still at it."""
        poll_all([self])

    def order(self, order: Callable[[], None]) -> None:
        """Do this next, in place of an older order that has not begun; then ask."""
        with _changing:
            self.next_order, self.wanted, self.sharing = order, True, None
            begins = self.begins()
        _begin([self] if begins else [])

    def wait(self, until_s: float) -> bool:
        """Wait until nothing is left to do; False if that takes too long."""
        return wait_for([self], until_s)

    def fresh(self, now_s: float, age_s: float) -> T | None:
        """The last answer unless it is older than that."""
        answer = self.answer
        if answer is None or now_s - answer.at_s > age_s:
            return None
        return answer.value

    def begins(self) -> bool:
        """Whether somebody has to run it now; under the lock."""
        begins = not self.busy
        self.busy = True
        return begins

    async def serve_aside(self) -> None:
        """Do what is to be done, in the asking thread."""
        while (turn := self._turn()) is not None:
            try:
                said = await cooperative_io.run(turn, self.sharing)
            except Exception as error:  # noqa: BLE001 - a driver's fault is that of one line
                self.failure = error
            else:
                self.answer = InstrumentAnswer(said, time.monotonic())

    def serve_blocking(self) -> None:
        """The same in a thread of its own."""
        while (turn := self._turn()) is not None:
            began_s = time.monotonic()
            try:
                self.answer = InstrumentAnswer(turn(), time.monotonic())
            except Exception as error:  # noqa: BLE001 - a driver's fault is that of one line
                self.failure = error
            self.slow = time.monotonic() - began_s > cooperative_io.SLOW_S

    def _turn(self) -> Callable[[], T] | None:
        """What is to be done next; None once that is nothing, which those who wait are told."""
        with _changing:
            if self.wanted:
                order, self.next_order, self.wanted = self.next_order, None, False
                return self.ask if order is None else self._after(order)
            self.busy = False
            awaited, self.awaited = self.awaited, []
        for one in awaited:
            one.note_done()
        return None

    def _after(self, order: Callable[[], None]) -> Callable[[], T]:
        def both() -> T:
            order()
            return self.ask()

        self.sharing = None  # what others asked before the order is of no use
        return both


class _Awaited:
    """So many lines are still to finish."""

    def __init__(self, count: int) -> None:
        self._left, self._lock = count, threading.Lock()
        self.all_done = threading.Event()

    def note_done(self) -> None:
        with self._lock:
            self._left -= 1
            done = self._left <= 0
        if done:
            self.all_done.set()


def poll_all(lines: Iterable[InstrumentLine[Any]]) -> None:
    """Ask them all once more, as one round, but for those that are still at it."""
    round_, beginning = cooperative_io.RoundQuestions(), []
    with _changing:
        for line in lines:
            if line.begins():
                line.wanted, line.sharing = True, round_
                beginning.append(line)
    _begin(beginning)
    cooperative_io.tend()


def _begin(lines: Sequence[InstrumentLine[Any]]) -> None:
    concurrent = [line.serve_aside for line in lines if line.concurrent]
    if concurrent:
        cooperative_io.begin(concurrent)
    for line in lines:
        if not line.concurrent:
            cooperative_io.block(line.serve_blocking, slow=line.slow)


def wait_for(lines: Iterable[InstrumentLine[Any]], until_s: float) -> bool:
    """Wait until all are done, or the time is up; whether they are."""
    with _changing:
        busy = [line for line in lines if line.busy]
        if not busy:
            return True
        awaited = _Awaited(len(busy))
        for line in busy:
            line.awaited.append(awaited)
    return awaited.all_done.wait(max(until_s - time.monotonic(), 0.0))


def is_concurrent(driver: object) -> bool:
    """Whether a driver's waits let others go on (see the contracts of meters and knobs)."""
    return bool(getattr(driver, "concurrent", False))


def is_quick(driver: object) -> bool:
    """Whether a driver may be asked ten times a second (see the contract of meters)."""
    return bool(getattr(driver, "quick", False))


def ask_all(asks: Iterable[tuple[object, Callable[[], T]]], patience_s: float) -> list[T | None]:
    """What each driver's call answers, all asked at once.

    None where no answer at all has come for `patience_s`: many take longer than few.
    """
    lines = [InstrumentLine(ask, is_concurrent(driver)) for driver, ask in asks]
    poll_all(lines)
    left, since_s = len(lines), time.monotonic()
    while left and time.monotonic() - since_s < patience_s:
        wait_for(lines, time.monotonic() + min(LOOK_S, patience_s))
        now_left = sum(line.busy for line in lines)
        if now_left < left:
            left, since_s = now_left, time.monotonic()
    return [None if line.answer is None else line.answer.value for line in lines]
