"""What was asked of a site from outside, kept for as long as its draw is: events by their id.

Each span of a limit that a source tells is an event. It is known by the id that a grid operator
gave it, with `/2` for its second interval, or by the moment it begins where a source has no ids (a
schedule, a web document). An event that a source takes back ends then; one that had not begun is
forgotten. What a source that is not heard does not repeat still counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from wattherd.devices.signals.contract import SourceContact, ToldLimits
from wattherd.devices.signals.limit_sources import SiteLimitsNow
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError
from wattherd.spelling import hint_for

KEPT_S = 30 * 86_400.0
"""As long as samples of the draw."""
MOST = 2000
SAME_S = 0.5
GRID = "event "
"""How spans of a grid operator's events are named."""
TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """At most `limit_w` was asked for from `start_s` to `end_s`, in Unix seconds.

    `announced_s` is when the service first heard of it. `end_s` is infinite as long as no end is
    known. A `cancelled` one was taken back before its end.
    """

    id: str
    source: str
    announced_s: float
    start_s: float
    end_s: float
    limit_w: float
    cancelled: bool = False


class SeenEvents:
    """All events of the last 30 days and those to come, in a file that outlives the service."""

    def __init__(self, path: Path) -> None:
        """Go on from what an earlier service saw, if that can be read."""
        self._path = path
        self._events: dict[tuple[str, str], SeenEvent] = {}
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            for row in rows:
                one = SeenEvent(**{**row, "end_s": _number(row["end_s"])})
                self._events[(one.source, one.id)] = one
        except (OSError, ValueError, TypeError, KeyError):
            self._events = {}

    def all(self) -> list[SeenEvent]:
        """All of them, by when they begin."""
        return sorted(self._events.values(), key=lambda one: (one.start_s, one.id))

    def take(self, found: SiteLimitsNow) -> None:
        """What sources say now; written down if it is new.

        Raises:
            OSError: it cannot be.
        """
        before = dict(self._events)
        for told in found.told:
            if told.contact is SourceContact.HEARD:
                self._take(told, found.now_s)
        old = [key for key, one in self._events.items() if one.end_s < found.now_s - KEPT_S]
        for key in old + sorted(self._events, key=lambda key: self._events[key].start_s)[:-MOST]:
            self._events.pop(key, None)
        if self._events != before:
            self._write()

    def named(self, event: str | None, now_s: float) -> SeenEvent:
        """The event of that id, or the last that has begun; one that goes on ends now.

        Raises:
            UserError: there is none, or it has not begun.
        """
        begun = [one for one in self.all() if one.start_s < now_s]
        if event is None:
            if not begun:
                raise UserError("no event has been seen", field="event",
                                hint="name start, end and limit, or listen to signals")  # fmt: skip
            one = begun[-1]
        else:
            found = [one for one in self.all() if one.id == event]
            if not found:
                last = ", ".join(one.id for one in begun[-TOLD:])
                hint = hint_for(event, [one.id for one in self.all()]) if begun else ""
                raise UserError(f"no event {event!r} was seen", field="event",
                                hint=hint or last or "none was seen in 30 days")  # fmt: skip
            one = found[-1]
            if one.start_s >= now_s:
                raise UserError(f"event {event!r} is still to come", field="event",
                                hint="ask when it is over")  # fmt: skip
        return replace(one, end_s=min(one.end_s, now_s))

    def _take(self, told: ToldLimits, now_s: float) -> None:
        heard = set[str]()
        for name, span in _named(told.spans):
            heard.add(name)
            known = self._events.get((told.source, name))
            announced_s = now_s if known is None or known.cancelled else known.announced_s
            self._events[(told.source, name)] = SeenEvent(
                id=name, source=told.source, announced_s=min(announced_s, now_s),
                start_s=span.start_s, end_s=span.end_s, limit_w=span.limit_w,
            )  # fmt: skip
        for (source, name), one in list(self._events.items()):
            if source != told.source or name in heard or one.end_s <= now_s + SAME_S:
                continue
            if one.start_s >= now_s:
                del self._events[(source, name)]
            else:
                self._events[(source, name)] = replace(one, end_s=now_s, cancelled=True)

    def _write(self) -> None:
        rows = [asdict(one) | {"end_s": _told(one.end_s)} for one in self.all()]
        fresh = self._path.with_name(f".{self._path.name}")
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump(rows, stream)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._path)


def _named(spans: Sequence[LimitPeriod]) -> Iterator[tuple[str, LimitPeriod]]:
    """Spans that begin some time, each with the id of its event."""
    count: dict[str, int] = {}
    for span in sorted(spans):
        if span.start_s <= 0.0:  # always: a safe level, or what a document states for good
            continue
        if span.source.startswith(GRID):
            name = span.source.removeprefix(GRID)
        else:
            begins = datetime.fromtimestamp(span.start_s, UTC).isoformat(timespec="seconds")
            name = begins.replace("+00:00", "Z")
        count[name] = count.get(name, 0) + 1
        yield name if count[name] == 1 else f"{name}/{count[name]}", span


def _told(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _number(seconds: float | None) -> float:
    return float("inf") if seconds is None else float(seconds)
