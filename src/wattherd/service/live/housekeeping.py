"""When a service looks for garbage: while nothing happens, not amid submissions.

A full collection walks over every object of ten thousand jobs and stops the process for a quarter
of a second. What is no part of a cycle is freed at once anyway; cycles can wait.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

LOOK_S = 5.0
MOST_S = 600.0
"""How long a service that is never idle goes without a full collection."""
YOUNG, MIDDLE, NEVER = 20_000, 50, 1_000_000


class Housekeeping:
    """Collects garbage by a thread of its own; `count` tells how much has happened so far."""

    def __init__(self, count: Callable[[], int]) -> None:
        """Nothing is changed before `begin`."""
        self.collections = 0
        """Full ones so far."""
        self._count = count
        self._over = threading.Event()
        self._before = gc.get_threshold()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def begin(self) -> None:
        """From now on, full collections are ours to start; what is there now will stay."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._thread.start()

    def end(self) -> None:
        """Everything as before."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _run(self) -> None:
        seen, last_s = self._count(), time.monotonic()
        collected = seen
        while not self._over.wait(LOOK_S):
            now = self._count()
            idle, late = now == seen, time.monotonic() >= last_s + MOST_S
            if now != collected and (idle or late):
                gc.collect()
                self.collections += 1
                collected, last_s = now, time.monotonic()
            seen = now
