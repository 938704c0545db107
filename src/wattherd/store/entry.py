"""One line of the journal: what happened, and on whose word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattherd.errors import ClusterError
from wattherd.model.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """Event number `seq` (from 1, without gaps); `by` names the user or part that brought it.

    `paper` is what a submission carries beside the job itself (commands, environment, images):
    plain data of which the core knows nothing. Values of secrets never stand in it.
    """

    seq: int
    event: Event
    by: str = ""
    paper: Mapping[str, Any] | None = None


class StoreFailure(ClusterError):
    """The journal took nothing: disk full, read-only, locked, unreachable. May be tried again.

    It is `certain` where no commit was asked for.
    """

    def __init__(self, problem: str = "", *, certain: bool = False) -> None:
        """Say what is wrong."""
        super().__init__(problem)
        self.certain = certain


class StoreDoubt(StoreFailure):
    """The connection was lost while it was to be kept: whether it is can only be told later."""
