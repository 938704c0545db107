"""Limits written down by people or programs: rows of `at`, `limit` and, if it ends, `until`.

A time is ISO 8601 with its zone, or seconds since the Unix epoch, or (where the address names a
start) a duration after it. A limit is watts (`9000`, `9kW`), a share of the base (`75%`), or
nothing, which lifts the limit before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from wattherd import units
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod
from wattherd.errors import UserError

EPOCH_AFTER_S = 1e9
"""Smaller numbers are durations: nobody plans for 2001."""
NOTHING = ("", "none", "null")


class SignalRow(BaseModel):
    """One row as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: str | float | datetime
    limit: str | float | None = None
    until: str | float | datetime | None = None


_ROWS = TypeAdapter(list[SignalRow])


def spans(
    content: Any, *, where: str, base_w: float, start_s: float | None
) -> tuple[LimitPeriod, ...]:
    """The limits in `content`, a list of rows; each holds until its end or the next row's start.

    Raises:
        UserError: no such list, a field that makes no sense, or rows out of order.
    """
    rows = rows_of(content, where)
    starts = [
        moment_s(row.at, where=row_name(where, at), field="at", start_s=start_s)
        for at, row in enumerate(rows)
    ]
    found: list[LimitPeriod] = []
    for number, row in enumerate(rows):
        here = row_name(where, number)
        following_s = starts[number + 1] if number + 1 < len(rows) else FOREVER
        if following_s <= starts[number]:
            later = row_name(where, number + 1)
            raise UserError("is not after the row before", where=later, field="at")
        end_s = _end(row, here, starts[number], following_s, start_s)
        limit_w = level_of(row.limit, here, base_w)
        if limit_w is not None:
            found.append(LimitPeriod(starts[number], end_s, limit_w, where))
    return tuple(found)


def rows_of(content: Any, where: str) -> list[SignalRow]:
    """The rows as they are written.

    Raises:
        UserError: no such list, or an unknown field.
    """
    try:
        return _ROWS.validate_python(content)
    except ValidationError as error:
        raise _bad(error, where) from None


def _end(
    row: SignalRow, where: str, start_of_row_s: float, following_s: float, start_s: float | None
) -> float:
    if row.until in (None, ""):
        return following_s
    end_s = moment_s(row.until, where=where, field="until", start_s=start_s)
    if end_s > following_s:
        raise UserError("is after the next row's start", where=where, field="until")
    if end_s <= start_of_row_s:
        raise UserError("ends before it begins", where=where, field="until", hint="put it after at")
    return end_s


def moment_s(value: Any, *, where: str, field: str, start_s: float | None = None) -> float:
    """A time in seconds since the Unix epoch.

    Raises:
        UserError: it is none, has no zone, or is a duration and there is no start.
    """
    if isinstance(value, str):
        value = _parsed(value.strip(), where, field)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UserError(f"{value} has no time zone", where=where, field=field,
                            hint="write 2026-11-21T18:00:00+01:00, or Z for UTC")  # fmt: skip
        return value.timestamp()
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{value} is no time", where=where, field=field)
    if value >= EPOCH_AFTER_S:
        return float(value)
    if start_s is None:
        hint = "write a date with a zone, or add ?start=DATE to the address"
        raise UserError(
            f"{value:g} s has no start to count from", where=where, field=field, hint=hint
        )
    return start_s + float(value)


def _parsed(text: str, where: str, field: str) -> float | datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return units.seconds(units.plain(text))
    except UserError:
        hint = "write 2026-11-21T18:00:00Z, or a duration such as 2h30m"
        raise UserError(f"{text!r} is no time", where=where, field=field, hint=hint) from None


def level_of(value: str | float | None, where: str, base_w: float) -> float | None:
    """A limit as a row has it, in watts; None where it lifts the limit before it.

    Raises:
        UserError: it is none.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in NOTHING):
        return None
    try:
        limit_w = level_w(value, base_w) if isinstance(value, str) else float(value)
    except UserError as error:
        raise UserError(error.problem, where=where, field="limit", hint=error.hint) from None
    if not (math.isfinite(limit_w) and limit_w >= 0):
        raise UserError(f"{value} is no limit", where=where, field="limit")
    return limit_w


def level_w(text: str, base_w: float, *, field: str = "") -> float:
    """`9kW`, or `75%` of the base, in watts.

    Raises:
        UserError: neither.
    """
    share = text.strip()
    if not share.endswith("%"):
        return units.watts(units.plain(share), field=field)
    try:
        return base_w * float(share[:-1]) / 100.0
    except ValueError:
        raise UserError(f"{text!r} is no share", field=field, hint="write 75%") from None


def row_name(where: str, number: int) -> str:
    """A row in messages, counted from 1."""
    return f"{where}: row {number + 1}"


def _bad(error: ValidationError, where: str) -> UserError:
    first = error.errors()[0]
    place: Sequence[Any] = first["loc"]
    here = row_name(where, place[0]) if place and isinstance(place[0], int) else where
    field = str(place[1]) if len(place) > 1 else "limits"
    return UserError(first["msg"], where=here, field=field, hint="fields are at, limit, until")
