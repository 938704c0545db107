"""What metered energy has cost and emitted: `wattherd power cost`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

from wattherd.estimate.rates import Bill, Rates
from wattherd.service.delivery import Readings

SCHEMA = "wattherd.bill/1"
PERIODS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "all": "all"}


def bills(readings: Readings, rates: Rates, by: str, zone: tzinfo) -> dict[str, Bill]:
    """Bills by period, whose names are those of `zone`."""
    found: dict[str, Bill] = {}
    for start_s, end_s, watts in _pieces(readings):
        moment = datetime.fromtimestamp(start_s, UTC).astimezone(zone)
        name = moment.strftime(PERIODS[by])
        found[name] = found.get(name, Bill()).plus(rates.bill(watts, start_s, end_s))
    return found


def _pieces(readings: Readings) -> Iterator[tuple[float, float, float]]:
    """Readings cut at quarters of an hour, where hours and days of all zones begin."""
    for start_s, end_s, watts in zip(
        readings.begins_s.tolist(), readings.ends_s.tolist(), readings.watts.tolist(), strict=True
    ):
        at_s = start_s
        while at_s < end_s:
            until_s = min(end_s, (at_s // 900.0 + 1.0) * 900.0)
            yield at_s, until_s, watts
            at_s = until_s


def bill_document(found: dict[str, Bill], rates: Rates) -> dict[str, Any]:
    """`wattherd.bill/1`; what is unknown is null."""
    return {
        "schema": SCHEMA,
        "currency": rates.currency,
        "periods": [{"period": name, **_row(one)} for name, one in found.items()],
        "total": _row(_sum(found)),
    }


def _sum(found: dict[str, Bill]) -> Bill:
    total = Bill()
    for one in found.values():
        total = total.plus(one)
    return total


def _row(one: Bill) -> dict[str, Any]:
    """A figure that is not known for any of the energy is null."""
    least_j = 1e-9 * one.energy_j
    return {
        "kwh": one.energy_j / 3.6e6,
        "cost": one.cost if one.unpriced_j < one.energy_j - least_j else None,
        "co2e_kg": one.co2e_kg if one.unrated_j < one.energy_j - least_j else None,
        "unpriced_kwh": one.unpriced_j / 3.6e6,
        "unrated_kwh": one.unrated_j / 3.6e6,
    }
