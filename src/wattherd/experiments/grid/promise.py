"""What a site promises and what it has delivered, from files: `power promise`, `power delivery`."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wattherd.devices.signals.openadr3 import Vtn, promise_report
from wattherd.devices.wire.uri import parse
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError
from wattherd.estimate.reduction_promise import LowerableLoad, Promise
from wattherd.experiments.grid.delivery import (
    BaselineMethod,
    DeliveredWatts,
    Delivery,
    DeliveryEvent,
    delivered,
    readings_of,
)
from wattherd.spelling import hint_for
from wattherd.units import plain, seconds, watts

PROMISE, DELIVERY = "wattherd.promise/1", "wattherd.delivery/1"
COLUMNS = ("name", "domain", "draw", "floor", "idle", "preemptible", "cap_time", "stop_time",
           "hold", "works")  # fmt: skip
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0", "")


# --- promises ------------------------------------------------------------------------------------


def read_loads(path: Path) -> list[LowerableLoad]:
    """The loads of a CSV file; only `name`, `draw` and `floor` have to be given.

    Raises:
        UserError: unreadable, an unknown column, or a value that makes no sense.
    """
    found: list[LowerableLoad] = []
    for where, row in _rows(path):
        given: dict[str, Any] = {"name": _needed(row, "name", where)}
        for field in ("draw", "floor"):
            given[f"{field}_w"] = _watts(_needed(row, field, where), where, field)
        if row.get("idle"):
            given["idle_w"] = _watts(row["idle"], where, "idle")
        for column, field in (("cap_time", "cap_s"), ("stop_time", "stop_s"), ("hold", "hold_s")):
            if row.get(column):
                given[field] = _seconds(row[column], where, column)
        given["domain"] = row.get("domain", "")
        given["preemptible"] = _yes(row.get("preemptible", ""), where)
        if row.get("works"):
            given["works"] = _share(row["works"], where)
        if any(one.name == given["name"] for one in found):
            raise UserError(f"{given['name']!r} is there twice", where=where, field="name")
        try:
            found.append(LowerableLoad(**given))
        except UserError as error:
            field = error.field.removesuffix("_w").removesuffix("_s")
            raise UserError(error.problem, where=where, field=field) from None
    if not found:
        raise UserError("has no loads", where=str(path))
    return found


def promise_document(found: Promise) -> dict[str, Any]:
    """`wattherd.promise/1`."""
    return {"schema": PROMISE, **_finite(asdict(found))}


def report_promise(uri: str, event_id: str, client: str, found: Promise, start_s: float) -> None:
    """Tell an OpenADR 3 server what is promised of an event.

    Raises:
        UserError: an address that cannot be used.
        DeviceError: no answer, or none for us.
    """
    offer = found.offer
    lasts_s = offer.for_s
    span = LimitPeriod(start_s, start_s + lasts_s, max(0.0, found.draw_w - offer.reduction_w))
    spans = [span] if offer.reduction_w > 0 else []
    Vtn(parse(uri)).report(promise_report(event_id, client, spans, found.draw_w, offer.sure))


# --- deliveries ----------------------------------------------------------------------------------


def read_meter(path: Path, *, time: str = "", column: str = "") -> DeliveredWatts:
    """Readings of a CSV file: a column of times (Unix seconds or ISO 8601), one of watts.

    Without names the first column whose name begins with `time` or `at`, and the first one that
    is `watts`, or ends with `_w`, are taken.

    Raises:
        UserError: unreadable, no such columns, or values of another form.
    """
    at_s: list[float] = []
    power_w: list[float] = []
    for where, row in _rows(path, known=()):
        names = list(row)
        time = time or next((one for one in names if one.startswith(("time", "at"))), "")
        column = column or next((one for one in names if one == "watts" or one.endswith("_w")), "")
        for field, wanted in ((time, "--time"), (column, "--column")):
            if field not in row:
                raise UserError("no such column", where=where, field=field or wanted,
                                hint=f"columns: {', '.join(names)}")  # fmt: skip
        if row[column] == "":
            continue
        at_s.append(moment(row[time], where))
        power_w.append(_watts(row[column], where, column))
    try:
        return readings_of(at_s, power_w)
    except UserError as error:
        raise UserError(error.problem, where=str(path), field=error.field) from None


def delivery_document(found: Delivery) -> dict[str, Any]:
    """`wattherd.delivery/1`."""
    slots = [{**asdict(one), "reduction_w": one.reduction_w} for one in found.slots]
    document = {**asdict(found), "performance": found.performance, "slots": slots}
    return {"schema": DELIVERY, **_finite(document)}


def proof(
    readings: DeliveredWatts,
    event: DeliveryEvent,
    method: BaselineMethod,
    zone: tzinfo,
    event_days: tuple[str, ...],
) -> Delivery:
    """The proof of an event.

    Raises:
        UserError: a day of another form, or too few readings.
    """
    try:
        days = frozenset(date.fromisoformat(one) for one in event_days)
    except ValueError as error:
        raise UserError(str(error), field="--event-day", hint="write 2030-06-01") from None
    return delivered(readings, event, method, zone=zone, event_days=days)


def moment(text: str, where: str = "", zone: tzinfo = UTC) -> float:
    """Unix seconds, or ISO 8601; without a zone of its own in `zone`.

    Raises:
        UserError: neither.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UserError(f"{text!r} is no time", where=where,
                        hint="write 2030-06-01T18:00:00Z or Unix seconds") from None  # fmt: skip
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def zone_of(name: str) -> ZoneInfo:
    """A time zone by name.

    Raises:
        UserError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise UserError(f"no time zone {name!r}", field="--zone", hint="Europe/Berlin") from None


# --- shared --------------------------------------------------------------------------------------


def _rows(path: Path, known: tuple[str, ...] = COLUMNS) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            for name in reader.fieldnames or ():
                if known and name not in known:
                    raise UserError("unknown column", where=f"{path}:1", field=name,
                                    hint=hint_for(name, known))  # fmt: skip
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise UserError("has not as many fields as the first line", where=where)
                yield where, {name: value.strip() for name, value in row.items()}
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("is no UTF-8", where=str(path)) from None
    except csv.Error as error:
        raise UserError(str(error), where=str(path)) from None


def _needed(row: Mapping[str, str], field: str, where: str) -> str:
    if not row.get(field):
        raise UserError("is missing", where=where, field=field)
    return row[field]


def _watts(text: str, where: str, field: str) -> float:
    try:
        return watts(plain(text), field=field)
    except UserError as error:
        raise UserError(error.problem, where=where, field=field, hint=error.hint) from None


def _seconds(text: str, where: str, field: str) -> float:
    try:
        return seconds(plain(text), field=field)
    except UserError as error:
        raise UserError(error.problem, where=where, field=field, hint=error.hint) from None


def _yes(text: str, where: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise UserError(f"{text!r} is neither yes nor no", where=where, field="preemptible")
    return text.lower() in _YES


def _share(text: str, where: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise UserError(f"{text!r} is no share", where=where, field="works") from None
    return value / 100.0 if text.endswith("%") else value


def share(text: str, field: str) -> float:
    """`95%` or `0.95`.

    Raises:
        UserError: neither.
    """
    try:
        return _share(text, "")
    except UserError as error:
        raise UserError(error.problem, field=field, hint="write 95% or 0.95") from None


def _finite(value: Any) -> Any:
    """NaN and the infinite as null, which JSON knows."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
