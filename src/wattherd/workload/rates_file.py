"""Prices and carbon intensities from files and web servers, as they are published.

CSV: a column of times (`at`, `time`, `datetime`, `timestamp`) and any of a price (`price`, per
kilowatt-hour; `price_eur_per_mwh` and the like name currency and unit) and a carbon intensity
(`carbon`, `carbon_g_per_kwh`, Electricity Maps' `carbon_intensity_avg`), in g/kWh. YAML and JSON
have the same rows under `rates`, beside `currency` and `zone`. Rows whose times are times of day
(`07:00`) come again every day. A row holds until its `until`, or else until the next one; in a
series of even steps it holds for one step, so that hours that are missing stay unknown.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

from wattherd.errors import UserError
from wattherd.estimate.rates import EnergyRates, RateRow
from wattherd.units import plain, seconds
from wattherd.yaml_fields import fields_of

TIMES = ("at", "time", "datetime", "datetime (utc)", "timestamp")
CARBON = ("carbon", "carbon_g_per_kwh", "carbon_intensity_avg", "carbon_intensity",
          "carbonintensity")  # fmt: skip
_PRICE = re.compile(r"price(?:_([a-z]{3}))?(?:_per_([km]wh))?")
_DAY_TIME = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?")
FIRST_DAY = date(2024, 1, 1)
"""A Monday: where a run begins whose rates are of every day, and that states no start."""
DAYS = 400
"""So many days are laid out of rates that come again every day."""
EPOCH_AFTER_S = 1e9
EVEN, EVEN_ROWS = 0.8, 5
"""So many of at least so many steps are equal in a series that has one step."""
HINT = "see docs/guides/cost-and-carbon.md"


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows as written: time, price per kWh, g/kWh, end."""

    rows: Sequence[tuple[str, float | None, float | None, str]]
    currency: str
    zone: tzinfo
    where: str


def read_rates(source: str, start: str | None = None) -> tuple[EnergyRates, float]:
    """Rates of a file or an address, and the moment at which a run begins (Unix seconds).

    A run begins at `start`, or else with the first row; where rows are of every day, on a Monday.
    Rows whose times are durations (`1h`) count from the beginning of the run, which is then 0.

    Raises:
        UserError: a source that cannot be used.
        DeviceError: a server without an answer.
    """
    read = _read(source)
    if not read.rows:
        raise UserError("has no rows", where=source, hint=HINT)
    first = read.rows[0][0].strip()
    if _DAY_TIME.fullmatch(first):
        monday_s = _of_day(FIRST_DAY, time(), read.zone)
        begins_s = monday_s if start is None else _given(start, read.zone)
        day = datetime.fromtimestamp(begins_s, UTC).astimezone(read.zone).date()
        return _daily(read, day), begins_s
    moments = [_moment(at, read, number) for number, (at, _, _, _) in enumerate(read.rows)]
    rates = _laid_out(read, moments)
    return rates, (rates.start_s if start is None else _given(start, read.zone))


def _laid_out(read: _Read, moments: Sequence[float]) -> EnergyRates:
    found = []
    step_s = _even_step_s(moments)
    for number, (_, price, carbon_g, until) in enumerate(read.rows):
        following = moments[number + 1 : number + 2]
        end_s = min([*following, moments[number] + step_s])
        if not following and len(moments) > 1:  # the last row lasts as long as the one before it
            end_s = moments[number] + min(step_s, moments[-1] - moments[-2])
        if until:
            end_s = min(end_s, _text_moment(until, read.zone, read.where))
        if not moments[number] < end_s:
            raise UserError("is not before the next row", where=f"{read.where}: row {number + 1}")
        found.append(RateRow(moments[number], end_s, price, carbon_g))
    return EnergyRates(tuple(found), read.currency)


def _even_step_s(moments: Sequence[float]) -> float:
    """The step of a series that has one nearly everywhere; endless for any other."""
    steps_s = [later - sooner for sooner, later in pairwise(moments)]
    if len(steps_s) < EVEN_ROWS:
        return float("inf")
    step_s, times = Counter(steps_s).most_common(1)[0]
    return step_s if step_s > 0 and times >= EVEN * len(steps_s) else float("inf")


def _daily(read: _Read, first: date) -> EnergyRates:
    """Rows of every day, from the day before the first one on."""
    times = []
    for number, (at, _, _, _) in enumerate(read.rows):
        if not _DAY_TIME.fullmatch(at.strip()):
            raise UserError(f"{at!r} is no time of day", where=f"{read.where}: row {number + 1}")
        text = at.strip()
        times.append(time.fromisoformat(f"{text:0>5}" if text.count(":") == 1 else text))
    if times != sorted(set(times)):
        raise UserError("times of day do not ascend", where=read.where, field="at")
    edges = [
        (_of_day(first + timedelta(days=day), at, read.zone), number)
        for day in range(-1, DAYS)
        for number, at in enumerate(times)
    ]
    found = []
    for (start_s, number), (end_s, _) in pairwise(edges):
        if start_s < end_s:  # an hour may be left out in spring
            found.append(RateRow(start_s, end_s, *read.rows[number][1:3]))
    return EnergyRates(tuple(found), read.currency)


def _of_day(day: date, at: time, zone: tzinfo) -> float:
    return datetime.combine(day, at, tzinfo=zone).timestamp()


def _given(start: str, zone: tzinfo) -> float:
    return _text_moment(start, zone, "--start")


def _moment(text: str, read: _Read, number: int) -> float:
    return _text_moment(text, read.zone, f"{read.where}: row {number + 1}")


def _text_moment(text: str, zone: tzinfo, where: str) -> float:
    """ISO 8601, Unix seconds, or a duration."""
    text = text.strip()
    try:
        value = float(text)
        return value / 1e3 if value > 100 * EPOCH_AFTER_S else value
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()
    except ValueError:
        pass
    try:
        return seconds(plain(text))
    except UserError:
        hint = "2030-01-01T17:00:00Z, 17:00, 1h or Unix seconds"
        raise UserError(f"{text!r} is no time", where=where, field="at", hint=hint) from None


# --- reading -------------------------------------------------------------------------------------


def _read(source: str) -> _Read:
    if source.startswith(("http://", "https://")):
        from wattherd.devices.wire import web
        from wattherd.devices.wire.uri import parse

        uri = parse(source)
        uri.allow(web.OPTIONS | {"timeout"})
        return _document(web.server(uri, web.bearer).get(uri.path or "/"), source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=source) from None
    except UnicodeDecodeError:
        raise UserError("is no UTF-8", where=source) from None
    if path.suffix.lower() == ".csv":
        return _table(text, source)
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else fields_of(text)
    except yaml.constructor.ConstructorError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"no YAML: {error.problem}"
        raise UserError(problem, where=f"{source}:{line}", hint=HINT) from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise UserError("is neither YAML nor JSON", where=source, hint=HINT) from None
    return _document(content, source)


def _table(text: str, where: str) -> _Read:
    try:
        reader = csv.DictReader(text.splitlines(), strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise UserError(str(error), where=where) from None
    return _rows(rows, where, currency="", zone=UTC)


def _document(content: Any, where: str) -> _Read:
    if not isinstance(content, Mapping) or not isinstance(content.get("rates"), list):
        raise UserError("has no list `rates`", where=where, hint=HINT)
    unknown = set(content) - {"rates", "currency", "zone", "schema"}
    if unknown:
        raise UserError("unknown field", where=where, field=min(map(str, unknown)), hint=HINT)
    try:
        zone = ZoneInfo(str(content.get("zone", "UTC")))
    except (ZoneInfoNotFoundError, ValueError):
        raise UserError(f"no time zone {content['zone']!r}", where=where, field="zone") from None
    rows = content["rates"]
    if not all(isinstance(one, Mapping) for one in rows):
        raise UserError("is no mapping", where=where, field="rates", hint=HINT)
    return _rows(rows, where, currency=str(content.get("currency", "")), zone=zone)


def _rows(rows: Sequence[Mapping[str, Any]], where: str, *, currency: str, zone: tzinfo) -> _Read:
    names = {str(name).strip().lower(): name for one in rows[:1] for name in one if name}
    at = next((names[one] for one in TIMES if one in names), None)
    prices = [(name, match) for name in names if (match := _PRICE.fullmatch(name))]
    carbon = next((names[one] for one in CARBON if one in names), None)
    if rows and (at is None or (not prices and carbon is None)):
        wanted = "a time" if at is None else "a price or a carbon intensity"
        raise UserError(f"has no column for {wanted}", where=where, hint=HINT)
    price, match = (names[prices[0][0]], prices[0][1]) if prices else (None, None)
    per = 1000.0 if match is not None and match[2] == "mwh" else 1.0
    if match is not None and match[1] and not currency:
        currency = match[1].upper()
    found = []
    for number, row in enumerate(rows):
        place = f"{where}: row {number + 1}"
        value = _number(row.get(price), place, str(price)) if price is not None else None
        grams = _number(row.get(carbon), place, str(carbon)) if carbon is not None else None
        if grams is not None and grams < 0:
            raise UserError(f"{grams:g} g/kWh is below zero", where=place, field=str(carbon))
        moment = row.get(at or "")
        text = moment.isoformat() if isinstance(moment, datetime) else str(moment)
        until = str(row.get("until") or "")
        found.append((text, None if value is None else value / per, grams, until))
    return _Read(found, currency, zone, where)


def _number(value: Any, where: str, field: str) -> float | None:
    """A number, or unknown; prices may be below zero."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not abs(number) < 1e9:
        raise UserError(f"{value!r} is no usable number", where=where, field=field)
    return number
