"""When a job may begin at the earliest, as people write it: a date and time, a time, or a wait."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from wattherd import units
from wattherd.errors import UserError

HINT = "write 2026-11-23T18:00, 18:00, or `in 2h`"
_WAIT = re.compile(r"(?:in\s+|now\s*\+\s*)(.+)")


def begin_time(text: str, now: datetime) -> datetime:
    """The time that `text` means at `now`; without a zone it is that of `now`.

    `18:00` is the next time at which a clock shows that; a date alone means its first minute.

    Raises:
        UserError: it means no time.
    """
    given = text.strip()
    wait = _WAIT.fullmatch(given)
    if wait is not None:
        return _later(now, units.seconds(wait[1].strip(), field="begin"))
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        return _next(given, now)
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)


def _later(now: datetime, wait_s: float) -> datetime:
    try:
        return now + timedelta(seconds=wait_s)
    except OverflowError:
        raise UserError("is out of range", field="begin", hint=HINT) from None


def _next(given: str, now: datetime) -> datetime:
    try:
        clock = time.fromisoformat(given)
    except ValueError:
        raise UserError(f"{given!r} is no time", field="begin", hint=HINT) from None
    found = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
    return found if found > now else found + timedelta(days=1)
