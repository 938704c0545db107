"""What a keeper needs of the world around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from wattherd.model.command import Command
from wattherd.store.entry import Entry


class Journal(Protocol):
    """The log of everything that happened, in order; nothing is ever changed in it."""

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first."""
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep all of them or none; they outlive a power cut once this returns.

        Raises:
            StoreFailure: none of them is kept.
        """
        ...

    def note(self, commands: Mapping[int, Sequence[Command]]) -> None:
        """Keep what was answered to entries, by their numbers: for audit, not for recovery.

        It may be lost in a crash, and must never fail.
        """
        ...


class Clock(Protocol):
    """Time as the journal counts it."""

    def now_s(self) -> float:
        """Seconds since the journal began; never less than before, whatever the wall clock does."""
        ...
