"""Proof of delivery: what would have been drawn without an event, what was drawn, how late.

A baseline is a convention, and its method is part of the answer. `hour-before`: the mean of the
hour that ends a quarter of an hour before the event (or where it was announced, if that is
earlier). `ten-in-ten`: for each quarter of an hour the mean of the same times of the ten days
before that are alike (weekdays for weekdays, weekends for weekends) and had no event, times the
ratio of the four hours before the event to the same hours of those days, kept within 0.8 to 1.2
(CAISO's tariff 4.13.4 has the same outline). A reading counts until the next one; gaps are not
filled but told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from wattherd.errors import UserError

Floats = npt.NDArray[np.float64]
Baseline = Callable[[float, float], float]
"""Watts that would have been drawn from one moment to another."""
SLOT_S = 900.0
BUFFER_S = 900.0
HOUR_S = 3600.0
DAYS = 10
MOST_BACK_DAYS = 45
ADJUST_S = 4 * HOUR_S
ADJUST = (0.8, 1.2)
LEAST_SEEN = 0.5
"""Of a slot has to be covered by readings for it to count."""
SETTLED_S = 60.0
"""For so long draw has to stay at or below the target for it to count as reached."""


class BaselineMethod(StrEnum):
    """How the baseline is made."""

    HOUR_BEFORE = "hour-before"
    TEN_IN_TEN = "ten-in-ten"


@dataclass(frozen=True, slots=True)
class DeliveredWatts:
    """Watts `watts` (n,), each the mean from `begins_s` to `ends_s` (n,) in Unix seconds."""

    begins_s: Floats
    ends_s: Floats
    watts: Floats

    def mean_w(self, from_s: float, until_s: float) -> tuple[float, float]:
        """The mean over a time, and the share of that time that readings cover (0: NaN)."""
        first = int(np.searchsorted(self.ends_s, from_s, side="right"))
        last = int(np.searchsorted(self.begins_s, until_s, side="left"))
        overlap_s = np.minimum(self.ends_s[first:last], until_s) - np.maximum(
            self.begins_s[first:last], from_s
        )
        overlap_s = np.clip(overlap_s, 0.0, None)
        seen_s = float(overlap_s.sum())
        if seen_s <= 0:
            return math.nan, 0.0
        mean_w = float((overlap_s * self.watts[first:last]).sum()) / seen_s
        return mean_w, min(1.0, seen_s / (until_s - from_s))


def readings_of(at_s: Sequence[float], watts: Sequence[float]) -> DeliveredWatts:
    """Readings at moments: each counts until the next one, the last for as long as the one before.

    A pause of more than ten usual distances is a gap: what was read before it counts for one.

    Raises:
        UserError: fewer than two, or times that do not ascend.
    """
    begins_s = np.asarray(at_s, dtype=np.float64)
    if len(begins_s) < 2:
        raise UserError("fewer than two readings")
    distances_s = np.diff(begins_s)
    if not (distances_s > 0).all():
        raise UserError("times do not ascend", field="time")
    usual_s = float(np.median(distances_s))
    lasting_s = np.append(np.where(distances_s > 10 * usual_s, usual_s, distances_s), usual_s)
    return DeliveredWatts(begins_s, begins_s + lasting_s, np.asarray(watts, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryEvent:
    """What was asked for: at most `limit_w`, or `reduction_w` less than the baseline."""

    start_s: float
    end_s: float
    limit_w: float | None = None
    reduction_w: float | None = None
    announced_s: float | None = None

    def __post_init__(self) -> None:
        """Check that one thing is asked for, over some time.

        Raises:
            UserError: it is not.
        """
        if not self.start_s < self.end_s:
            raise UserError("ends before it begins", field="end")
        if (self.limit_w is None) == (self.reduction_w is None):
            raise UserError("name either a limit or a reduction", field="limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarterHour:
    """A quarter of an hour (the last one may be shorter); NaN where too little was read."""

    start_s: float
    end_s: float
    baseline_w: float
    draw_w: float
    seen: float
    target_w: float

    @property
    def reduction_w(self) -> float:
        """Below the baseline."""
        return self.baseline_w - self.draw_w


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The proof. `late_s` is from the start until draw stayed at or below the target (inf: never).

    `above_s` is all time above it, `unseen_s` time without a reading, which proves nothing.
    """

    method: BaselineMethod
    basis: str
    slots: tuple[QuarterHour, ...]
    reduction_w: float
    asked_w: float
    energy_j: float
    late_s: float
    above_s: float
    unseen_s: float
    worst_w: float

    @property
    def performance(self) -> float:
        """What was delivered of what was asked for; NaN where nothing was asked for."""
        return self.reduction_w / self.asked_w if self.asked_w > 0 else math.nan


def delivered(
    readings: DeliveredWatts,
    event: DeliveryEvent,
    method: BaselineMethod,
    *,
    zone: tzinfo = UTC,
    event_days: frozenset[date] = frozenset(),
) -> Delivery:
    """The proof of one event; `event_days` are days with events, which make no baseline.

    Raises:
        UserError: the readings do not reach back far enough for the method, or miss the event.
    """
    baseline, basis = (
        _hour_before(readings, event)
        if method is BaselineMethod.HOUR_BEFORE
        else _ten_in_ten(readings, event, zone, event_days)
    )
    slots = []
    for start_s, end_s in _cut(event.start_s, event.end_s):
        draw_w, seen = readings.mean_w(start_s, end_s)
        base_w = baseline(start_s, end_s)
        slots.append(
            QuarterHour(
                start_s=start_s,
                end_s=end_s,
                baseline_w=base_w,
                draw_w=draw_w if seen >= LEAST_SEEN else math.nan,
                seen=seen,
                target_w=_target_w(event, base_w),
            )
        )
    told = [one for one in slots if not math.isnan(one.reduction_w)]
    if not told:
        raise UserError("no readings during the event", field="start")
    lengths = [one.end_s - one.start_s for one in told]
    energy_j = math.fsum(one.reduction_w * s for one, s in zip(told, lengths, strict=True))
    asked_j = math.fsum(
        (one.baseline_w - one.target_w) * s for one, s in zip(told, lengths, strict=True)
    )
    late_s, above_s, worst_w = _lateness(readings, event, slots)
    whole_s = event.end_s - event.start_s
    return Delivery(
        method=method,
        basis=basis,
        slots=tuple(slots),
        reduction_w=energy_j / math.fsum(lengths),
        asked_w=asked_j / math.fsum(lengths),
        energy_j=energy_j,
        late_s=late_s,
        above_s=above_s,
        unseen_s=whole_s * (1.0 - readings.mean_w(event.start_s, event.end_s)[1]),
        worst_w=worst_w,
    )


def _target_w(event: DeliveryEvent, baseline_w: float) -> float:
    if event.limit_w is not None:
        return event.limit_w
    return baseline_w - (event.reduction_w or 0.0)


def _cut(start_s: float, end_s: float) -> list[tuple[float, float]]:
    count = max(1, math.ceil((end_s - start_s) / SLOT_S - 1e-9))
    return [
        (start_s + number * SLOT_S, min(end_s, start_s + (number + 1) * SLOT_S))
        for number in range(count)
    ]


def _hour_before(readings: DeliveredWatts, event: DeliveryEvent) -> tuple[Baseline, str]:
    until_s = event.start_s - BUFFER_S
    if event.announced_s is not None:
        until_s = min(until_s, event.announced_s)
    mean_w, seen = readings.mean_w(until_s - HOUR_S, until_s)
    if seen < LEAST_SEEN:
        raise UserError("too few readings in the hour before", hint="take --baseline ten-in-ten")
    stamp = datetime.fromtimestamp(until_s, UTC).isoformat(timespec="seconds")
    return (lambda _a, _b: mean_w), f"mean of the hour that ended at {stamp}"


def _ten_in_ten(
    readings: DeliveredWatts, event: DeliveryEvent, zone: tzinfo, event_days: frozenset[date]
) -> tuple[Baseline, str]:
    day = datetime.fromtimestamp(event.start_s, UTC).astimezone(zone).date()
    shifts: list[tuple[date, float]] = []
    for back in range(1, MOST_BACK_DAYS + 1):
        other = day - timedelta(days=back)
        if other in event_days or (other.weekday() >= 5) != (day.weekday() >= 5):
            continue
        shift_s = _moment(other, zone) - _moment(day, zone)
        if readings.mean_w(event.start_s + shift_s, event.end_s + shift_s)[1] >= LEAST_SEEN:
            shifts.append((other, shift_s))
        if len(shifts) == DAYS:
            break
    if len(shifts) < DAYS:
        problem = f"only {len(shifts)} of {DAYS} days before it were read"
        raise UserError(problem, field="baseline", hint="take --baseline hour-before")

    def mean_w(start_s: float, end_s: float) -> float:
        values = [readings.mean_w(start_s + s, end_s + s) for _, s in shifts]
        known = [value for value, seen in values if seen >= LEAST_SEEN]
        return math.fsum(known) / len(known) if known else math.nan

    until_s = event.start_s - BUFFER_S
    if event.announced_s is not None:
        until_s = min(until_s, event.announced_s)
    today_w, seen = readings.mean_w(until_s - ADJUST_S, until_s)
    usual_w = mean_w(until_s - ADJUST_S, until_s)
    ratio = today_w / usual_w if seen >= LEAST_SEEN and usual_w > 0 else 1.0
    ratio = min(max(ratio, ADJUST[0]), ADJUST[1])
    basis = f"{DAYS} days from {shifts[-1][0]} to {shifts[0][0]}, times {ratio:.3f}"
    return (lambda a, b: ratio * mean_w(a, b)), basis


def _moment(day: date, zone: tzinfo) -> float:
    """Noon of a day: days of 23 and 25 hours are the same time of day apart."""
    return datetime(day.year, day.month, day.day, 12, tzinfo=zone).timestamp()


def _lateness(
    readings: DeliveredWatts, event: DeliveryEvent, slots: Sequence[QuarterHour]
) -> tuple[float, float, float]:
    """When draw stayed at or below its target, time above it, and the worst excess in watts."""
    first = int(np.searchsorted(readings.ends_s, event.start_s, side="right"))
    last = int(np.searchsorted(readings.begins_s, event.end_s, side="left"))
    begins_s = np.maximum(readings.begins_s[first:last], event.start_s)
    ends_s = np.minimum(readings.ends_s[first:last], event.end_s)
    at = ((begins_s - event.start_s) // SLOT_S).astype(int).clip(0, len(slots) - 1)
    targets_w = np.array([one.target_w for one in slots])[at]
    excess_w = readings.watts[first:last] - targets_w
    above = excess_w > 0
    above_s = float((ends_s - begins_s)[above].sum())
    worst_w = max(0.0, float(np.nanmax(excess_w, initial=0.0)))
    since: float | None = None
    for start_s, end_s, over in zip(begins_s, ends_s, above, strict=True):
        since = None if over else (start_s if since is None else since)
        if since is not None and (end_s - since >= SETTLED_S or end_s >= event.end_s):
            return since - event.start_s, above_s, worst_w
    return math.inf, above_s, worst_w
