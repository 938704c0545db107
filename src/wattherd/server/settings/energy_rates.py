"""What energy costs and emits now, of the rates that a service is configured with; bills of jobs.

Rates are read in a thread of their own, at the start and every quarter of an hour, so that a
server that hangs holds up nothing. What was read last goes on counting as far as it reaches.
Energy drawn while no rate is known is told apart and never taken for free.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from wattherd.devices.wire.device_errors import DeviceError
from wattherd.errors import UserError
from wattherd.estimate.rates import Bill, EnergyRates, RateRow
from wattherd.server.periodic import PeriodicThread
from wattherd.workload.rates_file import EPOCH_AFTER_S, read_rates

AGAIN_S = 900.0
RETRY_S = 60.0
_LOG = logging.getLogger(__name__)


class RatesWatch(PeriodicThread):
    """The rates of `source`, a file or an address, as they were read last.

    Raises:
        UserError: a file that cannot be used; an address is first asked when it has begun.
    """

    def __init__(self, source: str) -> None:
        """A file is read at once: what is wrong with it is said at the start."""
        super().__init__("rates", RETRY_S)
        self.source, self.problem = source, "not read yet"
        self.rates: EnergyRates | None = None
        self._due_s = 0.0
        self._remote = source.startswith(("http://", "https://"))
        if not self._remote:
            self._take()

    def _run(self) -> None:
        if self._remote:
            self.look()
        super()._run()

    def look(self) -> None:
        """Read again if it is time to, or the last reading failed."""
        if not self.problem and time.monotonic() < self._due_s:
            return
        try:
            self._take()
        except (UserError, DeviceError) as error:
            said = error.line() if isinstance(error, UserError) else str(error)
            if said != self.problem:
                _LOG.warning("rates: %s", said)
            self.problem = said

    def _take(self) -> None:
        """Raises UserError, DeviceError."""
        now = datetime.now(UTC).isoformat()
        rates, _ = read_rates(self.source, now)
        if rates.start_s < EPOCH_AFTER_S:
            hint = "write dates with a zone, or times of day such as 07:00"
            raise UserError("counts from the beginning of a run, which a service has not",
                            where=self.source, field="rates", hint=hint)  # fmt: skip
        self.rates, self.problem, self._due_s = rates, "", time.monotonic() + AGAIN_S

    def of_one_watt(self, from_s: float, until_s: float) -> tuple[Bill, str | None]:
        """What a watt costs from one Unix time to another, and the currency; None: not known."""
        rates = self.rates
        if rates is None:
            energy_j = until_s - from_s
            return Bill(energy_j=energy_j, unpriced_j=energy_j, unrated_j=energy_j), None
        return rates.bill(1.0, from_s, until_s), rates.currency

    def now(self, now_s: float) -> RateRow | None:
        """The row that counts at a Unix time."""
        return None if self.rates is None else self.rates.at(now_s)

    def document(self, now_s: float) -> dict[str, Any]:
        """Part of a document: what counts now; what is not known is null."""
        row = self.now(now_s)
        return {
            "source": self.source.partition("?")[0],
            "currency": "" if self.rates is None else self.rates.currency,
            "price_per_kwh": None if row is None else row.price,
            "carbon_g_per_kwh": None if row is None else row.carbon_g,
            "problem": self.problem or ("no row is of this time" if row is None else ""),
        }


def times(bill: Bill, factor: float) -> Bill:
    """So many watts, of the bill of one."""
    return Bill(*(factor * one for one in bill))


def without_cost(bill: Bill) -> Bill:
    """The same in a currency in which nothing of it is known."""
    return bill._replace(cost=0.0, unpriced_j=bill.energy_j)


def bill_text(bill: Bill, currency: str) -> str:
    """As a store keeps it."""
    return json.dumps([currency, *bill])


def bill_of(text: str | None) -> tuple[Bill, str] | None:
    """What `bill_text` made a text of; None of nothing."""
    if not text:
        return None
    currency, *numbers = json.loads(text)
    return Bill(*numbers), currency


def bill_row(found: tuple[Bill, str] | None, energy_j: float) -> dict[str, Any] | None:
    """Cost and emissions of some energy, of which a part may have been drawn before any rates."""
    if found is None:
        return None
    bill, currency = found
    before_j = max(energy_j - bill.energy_j, 0.0)
    whole_j = bill.energy_j + before_j
    unpriced_j, unrated_j = bill.unpriced_j + before_j, bill.unrated_j + before_j
    least_j = 1e-9 * whole_j
    return {
        "currency": currency,
        "cost": bill.cost if unpriced_j < whole_j - least_j else None,
        "co2e_kg": bill.co2e_kg if unrated_j < whole_j - least_j else None,
        "unpriced_j": unpriced_j if unpriced_j > least_j else 0.0,
        "unrated_j": unrated_j if unrated_j > least_j else 0.0,
    }


def why_deferred(
    paper: Mapping[str, Any], watch: RatesWatch | None, begin_at: float, now: float
) -> str:
    """Why a job begins at a Unix time and not now, with both rates; empty where it is not so."""
    what = (paper.get("defer") or {}).get("by")
    if not what or watch is None or watch.rates is None:
        return ""
    then, today = watch.rates.at(begin_at), watch.rates.at(now)
    currency = watch.rates.currency
    price = f"{currency}/kWh" if currency else "a kWh"
    unit = price if what == "cost" else "gCO2e/kWh"
    if then is None or today is None:
        return f"energy: lowest {what} that is known"
    values = [row.price if what == "cost" else row.carbon_g for row in (then, today)]
    if None in values:
        return f"energy: lowest {what} that is known"
    return f"energy: {values[0]:g} {unit} then, {values[1]:g} now"
