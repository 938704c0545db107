"""What every signal is: something to ask at any time what it has said, without waiting.

Drivers listen in threads of their own. None of them raises once it has been opened: a source that
is lost, slow or talks nonsense shows in `contact` and `note`, and what it said last keeps counting
as far as its own rules allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from wattherd.engine.power.limit_timeline import LimitPeriod


class SourceContact(StrEnum):
    """How we stand with a source."""

    WAITING = "waiting"  # it has not said anything yet
    HEARD = "heard"
    LOST = "lost"  # silent or unusable for longer than it should be; its last word counts
    EXPIRED = "expired"  # its last word no longer counts; the safe level does


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLimits:
    """What a source says, as far as it counts now: `spans` in seconds since the Unix epoch."""

    source: str
    contact: SourceContact
    spans: tuple[LimitPeriod, ...] = ()
    heard_at_s: float | None = None
    note: str = ""
    events: tuple[tuple[str, str, str], ...] = ()
    """Id, answer (optIn, optOut, cancelled) and reason of events, where there are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSite:
    """Whom the limits are for: `base_w` is what it may draw at most, `least_w` what it must."""

    base_w: float
    least_w: float = 0.0


class LimitSignal(Protocol):
    """One source of limits."""

    def told(self) -> ToldLimits:
        """What counts now; never waits, never raises."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...
