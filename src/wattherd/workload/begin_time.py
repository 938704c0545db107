"""When a job may begin at the earliest, as people write it: a date and time, a time, or a wait.

A time may say its zone, by an offset (`18:00Z`, `18:00+02:00`) or by name (`18:00 Europe/Berlin`).
Where clocks are set forward or back, times are read as calendars read them (RFC 5545, 3.3.5): a
time that is left out counts as if clocks had not been set yet, one that comes twice is the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wattherd import units
from wattherd.errors import UserError

HINT = "write 2026-11-23T18:00, 18:00, or `in 2h`"
_WAIT = re.compile(r"(?:in\s+|now\s*\+\s*)(.+)")
_ZONE = re.compile(r"(.+?)\s*((?<=\s)UTC|(?<=\s)[A-Za-z_]+/[A-Za-z0-9_+/-]+)")


def begin_time(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The time that `text` means at `now`; where it says no zone, that of `zone`.

    `18:00` is the next time at which a clock shows that; a date alone means its first minute.
    Without a `zone` it is that of this machine, as it is on that day.

    Raises:
        UserError: it means no time.
    """
    if len(text) > units.MOST_TEXT:
        raise UserError(f"{text[:20]!r}... is no time", field="begin", hint=HINT)
    given = text.strip()
    try:
        wait = _WAIT.fullmatch(given)
        if wait is not None:
            wait_s = units.seconds(wait[1].strip(), field="begin")
            return now.astimezone(UTC) + timedelta(seconds=wait_s)  # hours that pass, not clocks
        named = _ZONE.fullmatch(given)
        if named is not None:
            given, zone = named[1], _zone(named[2])
        return _dated(given, zone) or _next(given, now, zone)
    except OverflowError:
        raise UserError("is out of range", field="begin", hint=HINT) from None


def moment(local: datetime, zone: tzinfo | None = None) -> datetime:
    """When clocks show `local`, in UTC; in the zone of this machine if neither says one.

    In UTC, since times of one zone are compared by what clocks show, whatever was set meanwhile.

    Raises:
        OverflowError: it is among the first and last days there are.
    """
    if local.tzinfo is None and zone is not None:
        local = local.replace(tzinfo=zone)
    try:
        if local.tzinfo is None:  # `astimezone` is an hour off where clocks skip an hour
            return datetime.fromtimestamp(local.timestamp(), UTC)
        return local.astimezone(UTC)
    except (ValueError, OSError):  # what this machine's clock cannot show
        raise OverflowError from None


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = "write one as in Europe/Berlin, or an offset: 18:00+02:00"
        raise UserError(
            f"{name!r} is no zone that is known here", field="begin", hint=hint
        ) from None


def _dated(given: str, zone: tzinfo | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        return None
    return moment(found, zone)


def _next(given: str, now: datetime, zone: tzinfo | None) -> datetime:
    """The first moment after `now` at which a clock shows this."""
    try:
        clock = time.fromisoformat(given)
    except ValueError:
        raise UserError(f"{given!r} is no time", field="begin", hint=HINT) from None
    zone = clock.tzinfo or zone
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=ahead) for ahead in (0, 1, 2))
    return next(at for day in days for at in _shown(day, clock, zone) if at > now)


def _shown(day: date, clock: time, zone: tzinfo | None) -> Iterator[datetime]:
    """When a clock shows this on a day: twice where it is set back."""
    local = datetime.combine(day, clock.replace(microsecond=0, tzinfo=None))
    first, again = (moment(local.replace(fold=fold), zone) for fold in (0, 1))
    yield first
    if again > first:
        yield again
