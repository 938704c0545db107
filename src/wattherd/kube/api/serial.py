"""Work by turns: what many threads want done with the same objects, one at a time.

Whose turn it is works in its own thread. A thread that did the work of all others would be woken
for each piece, and would wake in turn who waits for it: on a machine whose processors are busy each
of these costs more than most of the work itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class TurnTimeout(Exception):
    """It was not our turn in time; nothing was done."""


class SerialExecutor:
    """Does one thing at a time: for whoever waits (`run`), or in a thread of its own (`submit`)."""

    def __init__(self, name: str = "") -> None:
        """`name` is what debuggers show of the thread, which is only made once it is needed."""
        self._turn = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do it in this thread, when it is our turn."""
        with self._turn:
            return work(*arguments)

    def run_soon(self, wait_s: float, work: Callable[..., T], *arguments: Any) -> T:
        """Do it in this thread, if it is our turn within `wait_s`.

        Raises:
            Busy: it is not.
        """
        if not self._turn.acquire(timeout=wait_s):
            raise TurnTimeout
        try:
            return work(*arguments)
        finally:
            self._turn.release()

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Have it done by our thread, which does what it is given in that order."""
        return self._thread.submit(self.run, partial(work, *arguments, **named))

    def close(self, *, cancel: bool = False) -> None:
        """Wait for our thread to end: once it has done all it was given, or with `cancel` soon."""
        self._thread.shutdown(wait=True, cancel_futures=cancel)
