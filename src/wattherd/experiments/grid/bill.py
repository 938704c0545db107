"""What metered energy has cost and emitted: `wattherd power cost`, of a record or of a service."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.rates import Bill, EnergyRates
from wattherd.experiments.grid.delivery import DeliveredWatts

SCHEMA = "wattherd.bill/1"
IDLE = "(idle)"
PERIODS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "all": "all"}


def bills(readings: DeliveredWatts, rates: EnergyRates, by: str, zone: tzinfo) -> dict[str, Bill]:
    """Bills by period, whose names are those of `zone`."""
    found: dict[str, Bill] = {}
    for start_s, end_s, watts in _pieces(readings):
        moment = datetime.fromtimestamp(start_s, UTC).astimezone(zone)
        name = moment.strftime(PERIODS[by])
        found[name] = found.get(name, Bill()).plus(rates.bill(watts, start_s, end_s))
    return found


def _pieces(readings: DeliveredWatts) -> Iterator[tuple[float, float, float]]:
    """Readings cut at quarters of an hour, where hours and days of all zones begin."""
    for start_s, end_s, watts in zip(
        readings.begins_s.tolist(), readings.ends_s.tolist(), readings.watts.tolist(), strict=True
    ):
        for from_s, until_s in _quarters(start_s, end_s):
            yield from_s, until_s, watts


def _quarters(start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    at_s = start_s
    while at_s < end_s:
        until_s = min(end_s, (at_s // 900.0 + 1.0) * 900.0)
        yield at_s, until_s
        at_s = until_s


def state_bills(
    folder: Path, rates: EnergyRates, by: str, zone: tzinfo
) -> tuple[dict[str, Bill], bool]:
    """Bills of all that a service has measured, by period or by job; and whether it is estimated.

    A service may be at work on the store meanwhile. What jobs do not draw is `(idle)`.

    Raises:
        UserError: there is no store.
        StoreFailure: it cannot be read.
    """
    found: dict[str, Bill] = {}
    estimated = False
    for at_s, span_s, draw_w, by_job, stated in _state_samples(folder):
        estimated |= stated == "model"
        shares = {**by_job, IDLE: max(0.0, draw_w - sum(by_job.values()))}
        for start_s, end_s in _quarters(at_s - span_s, at_s):
            if by == "job":
                for job, watts in shares.items():
                    one = rates.bill(watts, start_s, end_s)
                    found[job] = found.get(job, Bill()).plus(one)
                continue
            name = datetime.fromtimestamp(start_s, UTC).astimezone(zone).strftime(PERIODS[by])
            found[name] = found.get(name, Bill()).plus(rates.bill(draw_w, start_s, end_s))
    return found, estimated


def state_begins_s(folder: Path) -> float:
    """The Unix time of a store's beginning.

    Raises:
        UserError: there is no store.
    """
    from wattherd.store.store import ClusterStore

    store = ClusterStore.open(_url(folder), sole=False)
    try:
        return float(store.journal.known_fact("epoch") or 0.0)
    finally:
        store.close()


def _state_samples(folder: Path) -> Iterator[tuple[float, float, float, dict[str, float], str]]:
    """(End in Unix seconds, length, watts, watts by job, how they were stated) of all samples."""
    import json

    from wattherd.store.store import ClusterStore

    store = ClusterStore.open(_url(folder), sole=False)
    try:
        epoch_s = float(store.journal.known_fact("epoch") or 0.0)
        after_s = -1.0
        while rows := store.projection.samples(after_s):
            for row in rows:
                by_job = {
                    str(job): float(watts) for job, watts in json.loads(row["by_job"]).items()
                }
                yield epoch_s + row["at_s"], row["span_s"], row["draw_w"], by_job, row["stated"]
            after_s = rows[-1]["at_s"]
    finally:
        store.close()


def _url(folder: Path) -> str:
    from wattherd.store.database import in_folder

    url = in_folder(folder)
    if not Path(url.removeprefix("sqlite:///")).is_file():
        raise UserError("holds no store", where=str(folder), hint="name what `serve --state` names")
    return url


def bill_document(found: dict[str, Bill], rates: EnergyRates) -> dict[str, Any]:
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
