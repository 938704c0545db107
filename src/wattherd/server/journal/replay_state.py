"""Where a service stands after an entry of its journal: what replay rebuilds, beside the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.model.command import Command
from wattherd.model.event import JobSubmitted
from wattherd.server.journal.standing_orders import StandingOrders
from wattherd.store.entry import JournalEntry

KEY = "idempotency_key"
"""Where the paper of a submission names the request, so that asking twice submits once."""
KEYS_KEPT = 10_000


@dataclass(slots=True)
class ReplayState:
    """After entry `seq`: jobs `submitted` so far, `orders` in force, answers to known requests."""

    seq: int = 0
    submitted: int = 0
    orders: StandingOrders = field(default_factory=StandingOrders)
    requests: dict[tuple[str, str], str] = field(default_factory=dict)
    """Job ids by submitter and key, the oldest forgotten first."""

    def note(self, entry: JournalEntry, commands: Sequence[Command]) -> None:
        """Follow one entry and the core's answer."""
        self.seq = entry.seq
        if isinstance(entry.event, JobSubmitted):
            self.submitted += 1
            self._remember(entry, entry.event.job.id)
        self.orders.note(entry.event, entry.paper, commands)

    def _remember(self, entry: JournalEntry, job_id: str) -> None:
        request = request_of(entry.by, entry.paper)
        if request is None:
            return
        self.requests.setdefault(request, job_id)
        if len(self.requests) > KEYS_KEPT:
            del self.requests[next(iter(self.requests))]

    def replay(
        self, core: Core, entries: Iterable[JournalEntry]
    ) -> Iterator[tuple[JournalEntry, list[Command]]]:
        """Hand entries to a core that stands here, and follow it."""
        for entry in entries:
            commands = core.handle(entry.event)
            self.note(entry, commands)
            yield entry, commands


def request_of(by: str, paper: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """What names a request, if its sender named it."""
    key = (paper or {}).get(KEY)
    return (by, str(key)) if key else None
