"""When a service looks for garbage: while nothing happens, not amid submissions.

A full collection walks over every object of ten thousand jobs and stops the process for a quarter
of a second. What is no part of a cycle is freed at once anyway; cycles can wait.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from wattherd.server.periodic import PeriodicThread

LOOK_S = 5.0
MOST_S = 600.0
"""How long a service that is never idle goes without a full collection."""
_LATE = 1.5
"""Times `LOOK_S`: a process that was stopped, or waited for a processor, missed what happened."""
YOUNG, MIDDLE, NEVER = 20_000, 50, 1_000_000


class Housekeeping(PeriodicThread):
    """Collects garbage by a thread of its own; `count` tells how much has happened so far."""

    def __init__(self, count: Callable[[], int]) -> None:
        """Nothing is changed before `begin`."""
        super().__init__("housekeeping", LOOK_S)
        self.collections = 0
        """Full ones so far."""
        self._count = count
        self._before = gc.get_threshold()
        self._seen = self._collected = 0
        self._last_s = self._looked_s = 0.0

    def begin(self) -> None:
        """From now on, full collections are ours to start; what is there now will stay."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._seen = self._collected = self._count()
        self._last_s = self._looked_s = time.monotonic()
        super().begin()

    def end(self) -> None:
        """Everything as before."""
        super().end()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def look(self) -> None:
        """Collect, if something happened since the last time and nothing happens now.

        Who comes late was kept from looking, and may have been kept from what happens.
        """
        count, now_s = self._count(), time.monotonic()
        in_time = now_s - self._looked_s < _LATE * LOOK_S
        idle, overdue = count == self._seen and in_time, now_s >= self._last_s + MOST_S
        if count != self._collected and (idle or overdue):
            gc.collect()
            self.collections += 1
            self._collected, self._last_s = count, time.monotonic()
        self._seen, self._looked_s = count, time.monotonic()
