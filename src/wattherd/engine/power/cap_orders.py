"""Orders for caps that are under way, and when each job's cap last changed.

A cap that was read back may already be followed by a higher one on its way: what a device may draw
is the highest of what was read back last and of everything ordered after it.
"""

from __future__ import annotations

import math
from collections.abc import Container

from wattherd.engine.jobs.record import JobRecord
from wattherd.model.command import SetCap, set_cap

MOST_GONE = 1000
"""Jobs of which changes are remembered before those that are over are forgotten."""


class CapOrders:
    """By job: orders are carried out in the order in which they were given, or not at all."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._sent: dict[str, tuple[int, list[float]]] = {}
        """Attempt, and caps (W) that were ordered and not read back; inf lifts the cap."""
        self._changed: dict[str, tuple[float, float | None]] = {}
        """When the last change was ordered, and to what."""

    def give(self, job: JobRecord, cap_w: float | None, now_s: float) -> SetCap:
        """The order to cap a running job."""
        attempt, sent = self._sent.get(job.id, (job.attempt, []))
        sent = [*(sent if attempt == job.attempt else ()), as_number(cap_w)]
        self._sent[job.id] = job.attempt, sent
        if self._changed.get(job.id, (0.0, -1.0))[1] != cap_w:
            self._changed[job.id] = now_s, cap_w
        return set_cap(job_id=job.id, attempt=job.attempt, cap_w=cap_w)

    def promised_w(self, job: JobRecord) -> float:
        """The lowest cap under way to a job; inf if there is none."""
        attempt, sent = self._sent.get(job.id, (0, []))
        return min(sent, default=math.inf) if attempt == job.attempt else math.inf

    def read_back(self, job: JobRecord, cap_w: float | None) -> float | None:
        """The highest cap that may be in force, once `cap_w` was read back."""
        attempt, sent = self._sent.get(job.id, (0, []))
        read_w = as_number(cap_w)
        if attempt != job.attempt or read_w not in sent:
            return cap_w
        left = sent[sent.index(read_w) + 1 :]
        if not left:
            del self._sent[job.id]
            return cap_w
        self._sent[job.id] = attempt, left
        most_w = max(read_w, *left)
        return None if math.isinf(most_w) else most_w

    def changed_s(self, job_id: str) -> float:
        """When a change of its cap was last ordered; long ago if never."""
        return self._changed.get(job_id, (-math.inf, None))[0]

    def forget(self, live: Container[str]) -> None:
        """Jobs that are over have no caps."""
        if self._sent:
            self._sent = {one: sent for one, sent in self._sent.items() if one in live}
        if len(self._changed) > MOST_GONE:
            self._changed = {one: at for one, at in self._changed.items() if one in live}


def as_number(cap_w: float | None) -> float:
    """A cap to compare with others: without one there is no end."""
    return math.inf if cap_w is None else cap_w
