"""What the core loop needs of the world: a log that lasts, a time that never goes back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from wattherd.store.entry import JournalEntry


class JournalLog(Protocol):
    """The log of everything that happened, in order; nothing is ever changed in it."""

    def entries(self, after: int = 0) -> Iterator[JournalEntry]:
        """All entries with numbers above `after`, oldest first.

        Raises:
            StoreFailure: they cannot be read.
            UserError: one is missing or was changed.
        """
        ...

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Keep all of them or none; they outlive a power cut once this returns.

        Raises:
            StoreDoubt: whether they are kept can only be told later, by `settle`.
            StoreFailure: none of them is kept.
        """
        ...

    def settle(self) -> Sequence[JournalEntry]:
        """Entries of `append` calls that ended in doubt, and were kept after all.

        Raises:
            StoreFailure: that can still not be told.
        """
        ...

    def check_writable(self) -> None:
        """Write something of no consequence.

        Raises:
            StoreFailure: nothing is taken.
        """
        ...


class JournalTime(Protocol):
    """Time as the journal counts it."""

    def now_s(self) -> float:
        """Seconds since the journal began; never less than before, whatever the wall clock does."""
        ...


class JournalClock:
    """Follows the wall clock at the start only; from then on, jumps of it do not matter."""

    def __init__(self, epoch: float, last_s: float) -> None:
        """`epoch` is when the journal began (Unix time), `last_s` its last entry's time."""
        self.epoch = epoch
        self._ahead_s = max(time.time() - epoch, last_s) - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the journal began."""
        return time.monotonic() + self._ahead_s
