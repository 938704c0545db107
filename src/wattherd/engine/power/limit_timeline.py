"""What the site may draw, from now on, and the events that ask it to draw less.

A base and spans of lower limits are merged into one timeline.
Where several spans hold at once the lowest counts, whoever asked for it: a limit that is kept keeps
all others as well. Times are seconds of one clock (since the Unix epoch for signals from outside);
the module reads none.

Events are announced, changed, cancelled, accepted or declined (`EventBook`). The rules are OpenADR
2.0b's (profile specification 2.0b, section 8.2 and conformance rules of EiEvent): an event is known
by its id; a higher modification number replaces it, a lower one is old news; a complete list
cancels what it leaves out. No protocol is spoken here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from wattherd.errors import UserError

# --- The timeline -----------------------------------------------------------------------------
FOREVER = math.inf


@dataclass(frozen=True, slots=True, order=True)
class LimitPeriod:
    """A limit in watts over [`start_s`, `end_s`); `source` says who asked for it.

    Raises:
        UserError: it ends before it begins, or the limit is no number of watts.
    """

    start_s: float
    end_s: float
    limit_w: float
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        if not self.start_s < self.end_s:
            raise UserError("ends before it begins", where=self.source, field="end")
        if not self.limit_w >= 0:
            raise UserError(f"{self.limit_w} W is no limit", where=self.source, field="limit")

    def holds(self, at_s: float) -> bool:
        """Whether it counts at that time."""
        return self.start_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True)
class LimitTimeline:
    """Spans without gaps from the time of the merge on, the last one without an end."""

    spans: tuple[LimitPeriod, ...]

    def at(self, at_s: float) -> LimitPeriod:
        """The span that holds then; the first one holds before the merge as well."""
        return next((span for span in self.spans if at_s < span.end_s), self.spans[-1])

    def lowest_w(self, from_s: float, until_s: float) -> float:
        """The lowest limit of a stretch of time, both ends included.

        With the time that knobs and jobs take as its length, draw is down when a fall begins.
        """
        return min(
            span.limit_w for span in self.spans if span.start_s <= until_s and from_s < span.end_s
        )


# Cut where anything begins or ends, then ask who is lowest in each piece: quadratic in the number
# of spans that hold at once, of which there are a few. Equal neighbours are joined, so that nobody
# is told of a change that is none.
def merged(base: LimitPeriod, spans: Iterable[LimitPeriod], now_s: float) -> LimitTimeline:
    """The lowest of all at any time from `now_s` on; `base` holds always.

    At equal limits the base is named; of spans the one that began first, then the one that ends
    first, then the one whose source sorts first.
    """
    # Infinite limits are no limits.
    live = sorted(span for span in spans if span.end_s > now_s and math.isfinite(span.limit_w))
    # Between two cuts nothing begins or ends, so that who holds at the first second holds
    # throughout.
    cuts = {now_s, *(span.start_s for span in live), *(span.end_s for span in live)}
    starts = sorted(cut for cut in cuts if now_s <= cut < FOREVER)
    found: list[LimitPeriod] = []
    for start_s, end_s in zip(starts, [*starts[1:], FOREVER], strict=True):
        held = [span for span in live if span.holds(start_s)]
        # `min` takes the first of equals: the base, then spans in the order in which they were
        # sorted.
        least = min([base, *held], key=lambda span: span.limit_w)
        same = found and (found[-1].limit_w, found[-1].source) == (least.limit_w, least.source)
        from_s = found.pop().start_s if same else start_s
        found.append(LimitPeriod(from_s, end_s, least.limit_w, least.source))
    return LimitTimeline(tuple(found))


# --- Events that ask for less -----------------------------------------------------------------


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
