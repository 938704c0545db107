"""Time as a journal counts it: seconds since it was begun, that never go back."""

from __future__ import annotations

import time


class JournalClock:
    """Follows the wall clock at the start only; from then on, jumps of it do not matter."""

    def __init__(self, epoch: float, last_s: float) -> None:
        """`epoch` is when the journal began (Unix time), `last_s` its last entry's time."""
        self.epoch = epoch
        self._ahead_s = max(time.time() - epoch, last_s) - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the journal began."""
        return time.monotonic() + self._ahead_s
