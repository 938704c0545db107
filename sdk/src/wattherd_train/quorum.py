"""When ranks stop together: one of them that is asked suffices, and all stop after the same step.

Ranks that left a run at different steps would wait for each other in the next collective for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from wattherd_train import files
from wattherd_train.trouble import Trouble

AnyRank = Callable[[bool], bool]
"""Given what this rank wants, whether any rank wants it: called by all ranks at the same step."""


class Quorum(Protocol):
    """Decides at a step boundary whether this rank stops now."""

    def decide(self, step: int, *, wanted: bool) -> bool:
        """Whether to stop after `step`, where this rank is `wanted` to."""
        ...


class Alone:
    """A single process does as it is told."""

    def decide(self, step: int, *, wanted: bool) -> bool:
        """At once."""
        del step
        return wanted


class Collective:
    """By a reduction of the training framework, one a step."""

    def __init__(self, any_rank: AnyRank) -> None:
        self._any_rank = any_rank

    def decide(self, step: int, *, wanted: bool) -> bool:
        """As soon as any rank is wanted to."""
        del step
        return bool(self._any_rank(wanted))


class SharedFile:
    """By a file that all ranks see, without any communication of its own.

    The first rank that is asked after step n names n + 1. Where ranks meet in every step (as they
    do to average gradients), none can be further than in step n + 1 by then, so that all of them
    read the file before they would go on to n + 2. Ranks must count steps alike.
    """

    def __init__(self, path: Path, trouble: Trouble) -> None:
        self._path, self._trouble = path, trouble
        self._stop_at: int | None = None

    def decide(self, step: int, *, wanted: bool) -> bool:
        """At the step that was agreed on."""
        with self._trouble.swallowed("cannot agree with other ranks", TypeError, ValueError):
            if self._stop_at is None:
                self._stop_at = self._agreed()
            if self._stop_at is None and wanted:
                files.claim(self._path, {"step": step + 1})
                self._stop_at = self._agreed()
        return self._stop_at is not None and step >= self._stop_at

    def _agreed(self) -> int | None:
        found = files.document(self._path)
        return None if found is None else int(found["step"])
