"""OpenADR 3 events as limits: what one event asks for, and which of several counts. No network.

By the definition and user guide of 3.0 and 3.1: intervals follow one another unless they have a
period of their own; no duration, zero and P9999Y have no end; a start in the year 1 means now; an
event's own `duration` repeats its intervals; several values in a payload divide its interval;
`randomizeStart` delays by a part of it that every site chooses for itself; of instructions at the
same time the one of higher priority (a lower number) counts. A capacity limit is no instruction but
the most that may be drawn: it counts whatever its priority.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from wattherd.devices.signals.contract import SignalSite
from wattherd.devices.signals.payloads import UNITS_3, limit_w_3
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod
from wattherd.errors import UserError

FIRM = "IMPORT_CAPACITY_LIMIT"
LOWEST_PRIORITY = math.inf
"""Of events that state none."""
MOST_INTERVALS = 10_000
"""Of one event, repeated ones included."""
_DURATION = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_UNIT_S = (604_800.0, 86_400.0, 3_600.0, 60.0, 1.0)
_ENDLESS = ("", "P9999Y")


class _Period(BaseModel):
    start: str
    duration: str | None = None
    randomizeStart: str | None = None  # noqa: N815  # OpenADR's spelling


class _Payload(BaseModel):
    type: str
    values: list[Any] = Field(min_length=1)


class _Interval(BaseModel):
    payloads: list[_Payload] = []
    intervalPeriod: _Period | None = None  # noqa: N815


class _Descriptor(BaseModel):
    payloadType: str = ""  # noqa: N815
    units: str | None = None


class _Event(BaseModel):
    id: str
    intervals: list[_Interval] | None = None
    intervalPeriod: _Period | None = None  # noqa: N815
    payloadDescriptors: list[_Descriptor] | None = None  # noqa: N815
    reportDescriptors: list[dict[str, Any]] | None = None  # noqa: N815
    priority: int | None = None
    targets: list[Any] | None = None
    duration: str | None = None
    modificationDateTime: datetime | None = None  # noqa: N815
    createdDateTime: datetime | None = None  # noqa: N815
    programID: str = ""  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpans:
    """One event: `firm` spans are capacity limits, `told` spans instructions of its priority.

    `problem` says why it cannot be followed. `revision` is when it was last modified, in seconds.
    """

    event_id: str
    firm: tuple[LimitPeriod, ...] = ()
    told: tuple[LimitPeriod, ...] = ()
    priority: float = LOWEST_PRIORITY
    revision: float = 0.0
    problem: str = ""
    unreadable: bool = False
    wants_reports: tuple[str, ...] = ()
    program: str = ""

    @property
    def spans(self) -> tuple[LimitPeriod, ...]:
        """All limits of the event, whatever others say."""
        return (*self.firm, *self.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReader:
    """Whom events are read for: `name` chooses random delays, `targets` are names of ours."""

    site: SignalSite
    name: str = ""
    targets: frozenset[str] = frozenset()
    simple_w: tuple[float, ...] = ()

    def read(self, rows: Iterable[Any], heard_at_s: float) -> Iterator[EventSpans]:
        """Each event of a list; one that makes no sense loses itself only.

        `heard_at_s` is now for events that begin now and do not say when they were written.
        """
        for number, row in enumerate(rows):
            key = row.get("id") if isinstance(row, Mapping) else None
            name = key if isinstance(key, str) and key else f"(event {number} without an id)"
            try:
                event = _Event.model_validate(row)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"]))
                problem = f"{place}: {first['msg']}"
                yield EventSpans(event_id=name, problem=problem, unreadable=True)
                continue
            if self.targets and not _is_for(event.targets, self.targets):
                continue
            yield self._asked(event, heard_at_s)

    def _asked(self, event: _Event, heard_at_s: float) -> EventSpans:
        written = event.modificationDateTime or event.createdDateTime
        empty = EventSpans(
            event_id=event.id,
            priority=LOWEST_PRIORITY if event.priority is None else float(event.priority),
            revision=0.0 if written is None else _moment_s(written),
            wants_reports=tuple(
                str(one.get("payloadType")) for one in event.reportDescriptors or ()
            ),
            program=event.programID,
        )
        try:
            firm, told = self._limits(event, empty.revision or heard_at_s)
        except UserError as error:
            return replace(empty, problem=error.line(), unreadable=True)
        problem = "" if firm or told else "no payload of it limits power in a way known here"
        return replace(empty, firm=firm, told=told, problem=problem)

    def _limits(
        self, event: _Event, now_s: float
    ) -> tuple[tuple[LimitPeriod, ...], tuple[LimitPeriod, ...]]:
        units = {one.payloadType: one.units for one in event.payloadDescriptors or ()}
        firm: list[LimitPeriod] = []
        told: list[LimitPeriod] = []
        source = f"event {event.id}"
        for start_s, end_s, payloads in _laid_out(event, now_s, self.name):
            for payload in payloads:
                for from_s, until_s, value in _divided(payload, start_s, end_s):
                    level_w = self._level_w(payload.type, value, units.get(payload.type))
                    if level_w is not None:
                        span = LimitPeriod(from_s, until_s, max(level_w, 0.0), source)
                        (firm if payload.type == FIRM else told).append(span)
        return tuple(firm), tuple(told)

    def _level_w(self, kind: str, given: Any, unit: str | None) -> float | None:
        try:
            value = float(given)
        except (TypeError, ValueError):
            return None
        if isinstance(given, bool) or not math.isfinite(value):
            return None
        if kind == "SIMPLE":
            level = int(value)
            known = self.simple_w and level == value and level >= 0
            return self.simple_w[min(level, len(self.simple_w) - 1)] if known else None
        scale = UNITS_3.get(unit or "KW")
        if scale is None:
            return None
        return limit_w_3(kind, value, scale=scale, base_w=self.site.base_w)


# --- time ----------------------------------------------------------------------------------------


def _laid_out(
    event: _Event, now_s: float, name: str
) -> Iterator[tuple[float, float, Sequence[_Payload]]]:
    """Intervals with their beginnings and ends, repeated as the event says."""
    once = list(_once(event, now_s, name))
    if not once or event.duration is None:
        yield from once
        return
    first_s, last_s = once[0][0], once[-1][1]
    until_s = first_s + _seconds(event.duration)
    round_s = last_s - first_s
    if math.isinf(round_s) or round_s <= 0:
        yield from ((a, min(b, until_s), payloads) for a, b, payloads in once if a < until_s)
        return
    # Rounds that are over are left out, so that an event which has looped for years stays small.
    begun = max(0, int((now_s - first_s) // round_s) - 1) if now_s > first_s else 0
    count = 0
    while first_s + begun * round_s < until_s and count < MOST_INTERVALS:
        for start_s, end_s, payloads in once:
            from_s, to_s = start_s + begun * round_s, min(end_s + begun * round_s, until_s)
            if from_s < to_s:
                yield from_s, to_s, payloads
            count += 1
        begun += 1


def _once(
    event: _Event, now_s: float, name: str
) -> Iterator[tuple[float, float, Sequence[_Payload]]]:
    """Each interval; one without an end is over when the next one begins at a time of its own."""
    intervals = (event.intervals or [])[:MOST_INTERVALS]
    period, at_s = event.intervalPeriod, math.nan
    found: list[tuple[float, float, Sequence[_Payload]]] = []
    for one in intervals:
        own = one.intervalPeriod
        period = own or period
        if period is None:
            raise UserError("an interval has no period", field="intervalPeriod")
        if own is not None or math.isnan(at_s):
            at_s = _start_s(period.start, now_s) + _delay_s(period, event.id, name)
            if found and math.isinf(found[-1][1]) and at_s > found[-1][0]:
                found[-1] = (found[-1][0], at_s, found[-1][2])
        if math.isinf(at_s):
            raise UserError("follows an interval without an end", field="intervals")
        end_s = at_s + _seconds(period.duration)
        found.append((at_s, end_s, one.payloads))
        at_s = end_s
    yield from found


def _divided(payload: _Payload, start_s: float, end_s: float) -> Iterator[tuple[float, float, Any]]:
    """Several values divide their interval into equal parts; without an end the first counts."""
    count = len(payload.values)
    if count == 1 or math.isinf(end_s):
        yield start_s, end_s, payload.values[0]
        return
    step_s = (end_s - start_s) / count
    for number, value in enumerate(payload.values):
        last = number + 1 == count
        yield start_s + number * step_s, end_s if last else start_s + (number + 1) * step_s, value


def _delay_s(period: _Period, event_id: str, name: str) -> float:
    """The same at every reading, other for every site: a part of `randomizeStart` by its name."""
    if not period.randomizeStart:
        return 0.0
    most_s = _seconds(period.randomizeStart, endless=False)
    digest = hashlib.sha256(f"{name}\n{event_id}".encode()).digest()
    return most_s * int.from_bytes(digest[:8], "big") / 2**64


def _start_s(text: str, now_s: float) -> float:
    """A moment in Unix seconds; the year 1 stands for now."""
    if text.startswith("0001-01-01"):
        return now_s
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is no time", field="start") from None
    if moment.tzinfo is None:
        raise UserError(f"{text} has no time zone", field="start")
    return _moment_s(moment)


def _moment_s(moment: datetime) -> float:
    try:
        return moment.timestamp()
    except (OverflowError, ValueError, OSError):
        raise UserError(f"{moment} is no time that can be used", field="start") from None


def _seconds(duration: str | None, *, endless: bool = True) -> float:
    """An ISO 8601 duration; none, zero and P9999Y (OpenADR's "for ever") have no end."""
    if duration is None or duration in _ENDLESS:
        return FOREVER
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise UserError(f"{duration!r} is no duration", field="duration")
    years, months, *rest = match.groups()
    if int(years or 0) or int(months or 0):  # OpenLEADR writes P0Y0M0DT1H0M0S
        hint = "write it in days"
        raise UserError(f"{duration!r} has no fixed length", field="duration", hint=hint)
    seconds = sum(float(part) * unit for part, unit in zip(rest, _UNIT_S, strict=True) if part)
    return seconds or (FOREVER if endless else 0.0)


# --- whom it is for, and which counts ------------------------------------------------------------


def _is_for(targets: Sequence[Any] | None, ours: Collection[str]) -> bool:
    """Whether an event names nobody or one of ours; 3.0: `{type, values}`, 3.1: plain names."""
    if not targets:
        return True
    named: set[str] = set()
    for one in targets:
        if isinstance(one, Mapping):
            named.update(str(value) for value in one.get("values") or ())
        else:
            named.add(str(one))
    return bool(named & set(ours))


def counting(events: Iterable[EventSpans]) -> tuple[LimitPeriod, ...]:
    """The limits that count: all firm ones, and of instructions those of the highest priority.

    A lower one counts again where a higher one is silent. What is declined is not to be given here.
    """
    found: list[LimitPeriod] = []
    ranked = sorted((one for one in events if one.spans), key=lambda one: one.priority)
    above: list[LimitPeriod] = []
    at = 0
    while at < len(ranked):
        same = [one for one in ranked[at:] if one.priority == ranked[at].priority]
        for one in same:
            found += one.firm
            for span in one.told:
                found += _outside(span, above)
        above += [span for one in same for span in one.told]
        at += len(same)
    return tuple(found)


def _outside(span: LimitPeriod, others: Iterable[LimitPeriod]) -> list[LimitPeriod]:
    """What is left of a span outside of others."""
    left = [(span.start_s, span.end_s)]
    for other in others:
        parts = []
        for start_s, end_s in left:
            parts += [(start_s, min(end_s, other.start_s)), (max(start_s, other.end_s), end_s)]
        left = [(start_s, end_s) for start_s, end_s in parts if start_s < end_s]
    return [LimitPeriod(start_s, end_s, span.limit_w, span.source) for start_s, end_s in left]
