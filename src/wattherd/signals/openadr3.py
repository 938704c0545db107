"""`openadr3+https://VTN/PATH?program=ID&credentials=FILE`: OpenADR 3 events, plain REST and JSON.

A server's (VTN's) `GET /events?programID=ID` is read again and again with a bearer token; the list
is complete, so that an event that is gone from it is cancelled. Where the server is lost, what it
said last keeps counting. OpenADR 3 knows no answers to events.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from wattherd.engine.limit_events import EventBook, LimitEvent
from wattherd.engine.limit_timeline import FOREVER, Span
from wattherd.errors import UserError
from wattherd.signals.contract import Contact, Site, Told
from wattherd.signals.payloads import UNITS_3, limit_w_3
from wattherd.signals.polled import Poller
from wattherd.wire import web
from wattherd.wire.clock import SYSTEM, Clock
from wattherd.wire.uri import Uri

OPTIONS = web.OPTIONS | {"program", "every", "timeout"}
_DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNIT_S = (604_800.0, 86_400.0, 3_600.0, 60.0, 1.0)


class _Period(BaseModel):
    start: datetime
    duration: str | None = None


class _Payload(BaseModel):
    type: str
    values: list[Any] = Field(min_length=1)


class _Interval(BaseModel):
    payloads: list[_Payload]
    intervalPeriod: _Period | None = None  # noqa: N815  # OpenADR's spelling


class _Descriptor(BaseModel):
    payloadType: str  # noqa: N815
    units: str | None = None


class _Event(BaseModel):
    id: str
    intervals: list[_Interval]
    intervalPeriod: _Period | None = None  # noqa: N815
    payloadDescriptors: list[_Descriptor] | None = None  # noqa: N815


_EVENTS = TypeAdapter(list[_Event])


class OpenAdr3:
    """The events of one program.

    Raises:
        UserError: (on opening) the address names no program or has a bad option.
    """

    def __init__(self, uri: Uri, site: Site, clock: Clock = SYSTEM) -> None:
        """Begin to listen."""
        self._uri, self._site, self._clock = uri, site, clock
        self._server = web.server(uri, web.bearer)
        self._target = f"{uri.path.rstrip('/')}/events?programID={quote(uri.text_of('program'))}"
        self._poller: Poller[tuple[LimitEvent, ...]] = Poller(
            self._ask, uri.seconds("every", 10.0), clock
        )

    def told(self) -> Told:
        """All events that are followed, whether or not the server still answers."""
        heard = self._poller.heard
        book = EventBook(self._site.least_w)
        for event in heard.content or ():
            book.take(event)
        book.forget(self._clock.unix_s())
        waiting = heard.content is None
        return Told(
            source=self._uri.text,
            contact=Contact.WAITING if waiting else Contact.LOST if heard.note else Contact.HEARD,
            spans=book.spans(),
            heard_at_s=heard.at_s,
            note=heard.note,
            events=tuple(
                (key, str(book.opt(one)), book.problem(one)) for key, one in book.events.items()
            ),
        )

    def close(self) -> None:
        """Stop listening."""
        self._poller.close()

    def _ask(self) -> tuple[LimitEvent, ...]:
        content = self._server.get(self._target)
        try:
            events = _EVENTS.validate_python(content)
            return tuple(_limit_event(event, self._site) for event in events)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise UserError(first["msg"], where=self._target, field=place) from None


def _limit_event(event: _Event, site: Site) -> LimitEvent:
    units = {one.payloadType: one.units for one in event.payloadDescriptors or ()}
    try:
        spans = tuple(_spans(event, units, site))
    except UserError as error:
        return LimitEvent(event_id=event.id, problem=str(error))
    problem = "" if spans else "no payload of it limits power in a way known here"
    return LimitEvent(event_id=event.id, spans=spans, problem=problem)


def _spans(event: _Event, units: Mapping[str, str | None], site: Site) -> list[Span]:
    """Its intervals; one without a period of its own follows the one before it."""
    found: list[Span] = []
    period, at_s = event.intervalPeriod, math.nan
    for one in event.intervals:
        period = one.intervalPeriod or period
        if period is None:
            raise UserError("an interval has no period", field="intervalPeriod")
        begins = math.isnan(at_s) or one.intervalPeriod is not None
        at_s = _epoch_s(period.start) if begins else at_s
        end_s = at_s + _seconds(period.duration)
        for payload in one.payloads:
            level_w = _level_w(payload, units.get(payload.type), site)
            if level_w is not None:
                found.append(Span(at_s, end_s, level_w, f"event {event.id}"))
        at_s = end_s
    return found


def _level_w(payload: _Payload, unit: str | None, site: Site) -> float | None:
    scale = UNITS_3.get(unit or "KW")
    try:
        value = float(payload.values[0])
    except (TypeError, ValueError):
        return None
    if scale is None or not math.isfinite(value):
        return None
    level_w = limit_w_3(payload.type, value, scale=scale, base_w=site.base_w)
    return None if level_w is None else max(level_w, 0.0)


def _epoch_s(moment: datetime) -> float:
    if moment.tzinfo is None:
        raise UserError(f"{moment} has no time zone", field="start")
    return moment.timestamp()


def _seconds(duration: str | None) -> float:
    """An ISO 8601 duration; none, zero and P9999Y (OpenADR's "for ever") have no end."""
    if duration in (None, "", "P9999Y"):
        return FOREVER
    match = _DURATION.fullmatch(str(duration))
    if match is None:
        raise UserError(f"{duration!r} is no duration", field="duration")
    seconds = sum(float(part) * unit for part, unit in zip(match.groups(), _UNIT_S, strict=True)
                  if part)  # fmt: skip
    return seconds or FOREVER
