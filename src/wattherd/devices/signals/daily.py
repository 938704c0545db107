"""Limits that come again every day: rows whose times are times of day, `18:00` or `18:00:30`.

A row holds until its `until` (of the next day where that is no later), or else until the next row
starts, the first row of the next day after the last. Days are those of a time zone: where its
clocks are put on or back, a row lasts an hour less or more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

from wattherd.devices.signals.limit_rows import SignalRow, level_of, row_name, rows_of
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError

AHEAD_DAYS = 8
"""So many days are laid out: a week may be announced."""
_TIME = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?")


def is_daily(content: Any) -> bool:
    """Whether these rows are meant to be daily: the first one starts at a time of day."""
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and _is_time(first.get("at"))


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value.strip()) is not None


@dataclass(frozen=True, slots=True)
class _Row:
    """From `at` to `until` (None: the next row) every day; `limit_w` None lifts the limit."""

    at: time
    limit_w: float | None
    until: time | None


@dataclass(frozen=True, slots=True)
class Daily:
    """A day's rows in order; `zone` says whose days, None: this machine's."""

    rows: Sequence[_Row]
    zone: tzinfo | None
    where: str

    def spans(self, now_s: float) -> tuple[LimitPeriod, ...]:
        """The limits from the day before `now_s` (Unix seconds) on, for a week."""
        today = datetime.fromtimestamp(now_s, UTC).astimezone(self.zone).date()
        found: list[LimitPeriod] = []
        for number in range(-1, AHEAD_DAYS):
            found += self._of(today + timedelta(days=number))
        return tuple(found)

    def _of(self, day: date) -> list[LimitPeriod]:
        found = []
        for number, row in enumerate(self.rows):
            last = number + 1 == len(self.rows)
            until = self.rows[(number + 1) % len(self.rows)].at if row.until is None else row.until
            over = until <= row.at or (row.until is None and last)
            start_s = self._moment_s(day, row.at)
            end_s = self._moment_s(day + timedelta(days=over), until)
            if row.limit_w is not None and start_s < end_s:  # an hour may be left out in spring
                found.append(LimitPeriod(start_s, end_s, row.limit_w, self.where))
        return found

    def _moment_s(self, day: date, at: time) -> float:
        local = datetime.combine(day, at)
        return (local if self.zone is None else local.replace(tzinfo=self.zone)).timestamp()


def daily(content: Any, *, where: str, base_w: float, zone: tzinfo | None) -> Daily:
    """The plan of a day.

    Raises:
        UserError: a field that makes no sense, or rows out of order.
    """
    written = rows_of(content, where)
    rows = [_row(one, row_name(where, at), base_w) for at, one in enumerate(written)]
    for number, row in enumerate(rows[1:], start=1):
        here, before = row_name(where, number), rows[number - 1]
        if row.at <= before.at:
            raise UserError("is not after the row before", where=here, field="at")
        if before.until is not None and before.at < before.until > row.at:
            earlier = row_name(where, number - 1)
            raise UserError("is after the next row's start", where=earlier, field="until")
    return Daily(rows, zone, where)


def _row(row: SignalRow, where: str, base_w: float) -> _Row:
    return _Row(
        at=_time(row.at, where, "at"),
        limit_w=level_of(row.limit, where, base_w),
        until=None if row.until in (None, "") else _time(row.until, where, "until"),
    )


def _time(value: Any, where: str, field: str) -> time:
    if not _is_time(value):
        hint = "write '18:00' (in quotes in YAML) in every row, or dates in every row"
        raise UserError(f"{value!r} is no time of day", where=where, field=field, hint=hint)
    return time.fromisoformat(f"{value.strip():0>5}" if value.count(":") == 1 else value.strip())
