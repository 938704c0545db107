"""OpenADR 2.0b events as the client library hands them over, turned into limits; no network here.

An interval without a start begins where the one before it ends, one without a duration (or with
zero) lasts until further notice. An event that carries several signals asks for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from wattherd.devices.signals.contract import SignalSite
from wattherd.devices.signals.payloads import SCALES, limit_w
from wattherd.engine.power.limit_timeline import FOREVER, LimitEvent, LimitPeriod


class _Interval(BaseModel):
    dtstart: datetime | None = None
    duration: timedelta | None = None
    signal_payload: float


class _Measurement(BaseModel):
    unit: str = "W"
    scale: str = "none"


class _Signal(BaseModel):
    signal_name: str
    signal_type: str
    intervals: list[_Interval] = Field(min_length=1)
    measurement: _Measurement | None = None


class _Descriptor(BaseModel):
    event_id: str
    modification_number: int = 0
    event_status: str = "none"
    test_event: bool = False


class _Period(BaseModel):
    dtstart: datetime


class _Event(BaseModel):
    event_descriptor: _Descriptor
    active_period: _Period
    event_signals: list[_Signal] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class PayloadMeaning:
    """What payloads are measured against; `simple_w` are the limits of SIMPLE levels 0, 1, ..."""

    site: SignalSite
    simple_w: Sequence[float] = ()


def limit_event(content: Mapping[str, Any], meaning: PayloadMeaning) -> LimitEvent:
    """An event in watts; one that makes no sense to us says why in `problem`."""
    try:
        event = _Event.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return LimitEvent(event_id=_id(content), problem=f"{place}: {first['msg']}")
    known = event.event_descriptor
    spans = [] if known.test_event else _spans(event, meaning)
    unclear = not spans and not known.test_event
    return LimitEvent(
        event_id=known.event_id,
        revision=known.modification_number,
        spans=tuple(sorted(spans)),
        cancelled=known.event_status == "cancelled",
        problem="no signal of it limits power in a way known here" if unclear else "",
    )


def _id(content: Mapping[str, Any]) -> str:
    descriptor = content.get("event_descriptor")
    return str(descriptor.get("event_id", "")) if isinstance(descriptor, Mapping) else ""


def _spans(event: _Event, meaning: PayloadMeaning) -> list[LimitPeriod]:
    """The intervals of all signals; none where one interval of a signal is unclear."""
    found: list[LimitPeriod] = []
    for signal in event.event_signals:
        levels = [_level_w(signal, one.signal_payload, meaning) for one in signal.intervals]
        known = [level for level in levels if level is not None]
        if len(known) == len(levels):
            found += _timed(event, signal, known)
    return found


def _level_w(signal: _Signal, payload: float, meaning: PayloadMeaning) -> float | None:
    measured = signal.measurement or _Measurement()
    if measured.unit != "W" or measured.scale not in SCALES:
        return None
    level_w = limit_w(
        signal.signal_name,
        signal.signal_type,
        payload,
        scale=SCALES[measured.scale],
        base_w=meaning.site.base_w,
        simple_w=meaning.simple_w,
    )
    return None if level_w is None else max(level_w, 0.0)


def _timed(event: _Event, signal: _Signal, levels_w: Sequence[float]) -> list[LimitPeriod]:
    source = f"event {event.event_descriptor.event_id}"
    at_s = event.active_period.dtstart.timestamp()
    found = []
    for one, level_w in zip(signal.intervals, levels_w, strict=True):
        at_s = at_s if one.dtstart is None else one.dtstart.timestamp()
        lasts_s = one.duration.total_seconds() if one.duration else FOREVER
        found.append(LimitPeriod(at_s, at_s + lasts_s, level_w, source))
        at_s += lasts_s
    return found
