"""Events that ask the site to draw less: announced, changed, cancelled, accepted or declined.

The rules are OpenADR 2.0b's (profile specification 2.0b, section 8.2 and conformance rules of
EiEvent): an event is known by its id; a higher modification number replaces it, a lower one is old
news; a complete list cancels what it leaves out. No protocol is spoken here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod


class OptState(StrEnum):
    """The answer to an event, in OpenADR's words."""

    IN = "optIn"
    OUT = "optOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvent:
    """One event; `spans` are its intervals in watts, none where it makes no sense to us.

    `problem` says why it cannot be followed, empty if it can.
    """

    event_id: str
    revision: int = 0
    spans: tuple[LimitPeriod, ...] = ()
    cancelled: bool = False
    problem: str = ""

    @property
    def end_s(self) -> float:
        """When its last interval ends; never, as far as we know, if it has none."""
        return max((span.end_s for span in self.spans), default=FOREVER)


# All or nothing: the grid counts on an event that was accepted. Accepting half of one, silently, is
# worse for it than a refusal, which is answered by asking somebody else.
@dataclass(slots=True)
class EventBook:
    """All events known; `least_w` is the lowest draw the site can reach, all caps at their floors.

    An event that asks for less is declined as a whole: half a promise helps no grid.
    """

    least_w: float = 0.0
    _events: dict[str, LimitEvent] = field(default_factory=dict)

    @property
    def events(self) -> Mapping[str, LimitEvent]:
        """What is known, by id."""
        return MappingProxyType(self._events)

    def take(self, event: LimitEvent) -> OptState:
        """Take in news of an event and answer it; old news gets the answer of what is known."""
        known = self._events.get(event.event_id)
        # Equal numbers pass: the same event is told again and again, perhaps with another status.
        if known is not None and known.revision > event.revision:
            return self.opt(known)
        self._events[event.event_id] = event
        return self.opt(event)

    def opt(self, event: LimitEvent) -> OptState:
        """Whether the site follows an event."""
        return OptState.OUT if self.problem(event) else OptState.IN

    def problem(self, event: LimitEvent) -> str:
        """Why an event is declined; empty if it is not."""
        # A cancelled event asks for nothing, so that there is nothing to decline.
        if event.problem or event.cancelled:
            return event.problem
        asked_w = min((span.limit_w for span in event.spans), default=self.least_w)
        # Judged by the lowest of its intervals, since it is accepted or declined as one.
        if asked_w < self.least_w:
            return f"asks for {asked_w:,.0f} W, and {self.least_w:,.0f} W is the least possible"
        return ""

    def only(self, event_ids: Collection[str]) -> None:
        """A complete list came: what is not on it is cancelled."""
        self._events = {key: one for key, one in self._events.items() if key in event_ids}

    def forget(self, now_s: float) -> None:
        """Drop events that are over."""
        # Not before: old news of an event that was forgotten would come in as a new one.
        self._events = {key: one for key, one in self._events.items() if one.end_s > now_s}

    def spans(self) -> tuple[LimitPeriod, ...]:
        """The limits of all events that hold."""
        return tuple(
            span
            for event in self._events.values()
            if not event.cancelled and self.opt(event) is OptState.IN
            for span in event.spans
        )
