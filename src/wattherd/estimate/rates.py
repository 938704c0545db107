"""What a kilowatt-hour costs and emits at which time: steps of price and carbon intensity.

Prices are in any currency per kilowatt-hour, intensities in grams of CO2 equivalent per
kilowatt-hour. Time that no row covers is unknown, never free: energy drawn then is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattherd.errors import UserError

Floats = npt.NDArray[np.float64]
KWH_J = 3.6e6


class RateRow(NamedTuple):
    """From `start_s` to `end_s`; None is unknown."""

    start_s: float
    end_s: float
    price: float | None
    carbon_g: float | None


class Bill(NamedTuple):
    """Of some energy: its cost, its emissions, and the joules for which either is unknown."""

    energy_j: float = 0.0
    cost: float = 0.0
    co2e_kg: float = 0.0
    unpriced_j: float = 0.0
    unrated_j: float = 0.0

    def plus(self, other: Bill) -> Bill:
        """Both together."""
        return Bill(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class EnergyRates:
    """Steps in order of time; `currency` is a name, empty where none is stated.

    Raises:
        UserError: rows that overlap or end before they begin.
    """

    rows: tuple[RateRow, ...]
    currency: str = ""
    _edges_s: Floats = field(init=False, repr=False, compare=False)
    _sums: Floats = field(init=False, repr=False, compare=False)
    _rates: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sum up once, so that any stretch of time is answered by two looks."""
        edges: list[float] = []
        rates: list[tuple[float, float, float, float]] = []
        for row in self.rows:
            if not row.start_s < row.end_s:
                raise UserError("a row of rates ends before it begins", field="until")
            if edges and row.start_s < edges[-1]:
                raise UserError("rows of rates overlap or are out of order", field="at")
            if not edges or row.start_s > edges[-1]:
                rates += [(0.0, 0.0, 0.0, 0.0)] if edges else []
                edges.append(row.start_s)
            edges.append(row.end_s)
            price, carbon_g = row.price, row.carbon_g
            known = (float(price is not None), float(carbon_g is not None))
            rates.append((price or 0.0, carbon_g or 0.0, *known))
        table = np.array(rates, dtype=np.float64).reshape(len(rates), 4)
        lengths_s = np.diff(np.array(edges, dtype=np.float64))
        # An endless last row has no sum; it is never summed beyond what is asked for.
        finite_s = np.where(np.isfinite(lengths_s), lengths_s, 0.0)
        sums = np.vstack([np.zeros((1, 4)), np.cumsum(table * finite_s[:, None], axis=0)])
        object.__setattr__(self, "_edges_s", np.array(edges, dtype=np.float64))
        object.__setattr__(self, "_rates", table)
        object.__setattr__(self, "_sums", sums)

    @property
    def start_s(self) -> float:
        """When they begin."""
        return float(self._edges_s[0])

    def at(self, moment_s: float) -> RateRow | None:
        """The row that counts at a moment."""
        return next((one for one in self.rows if one.start_s <= moment_s < one.end_s), None)

    def bill(self, watts: float, from_s: float, until_s: float) -> Bill:
        """What a constant draw costs over a time."""
        seconds = until_s - from_s
        if seconds <= 0 or not watts:
            return Bill()
        price_s, carbon_s, priced_s, rated_s = self._until(until_s) - self._until(from_s)
        return Bill(
            energy_j=watts * seconds,
            cost=float(watts * price_s / KWH_J),
            co2e_kg=float(watts * carbon_s / KWH_J / 1e3),
            unpriced_j=max(0.0, float(watts * (seconds - priced_s))),
            unrated_j=max(0.0, float(watts * (seconds - rated_s))),
        )

    def _until(self, moment_s: float) -> Floats:
        """Rates times seconds from the beginning to a moment: price, carbon, and what is known."""
        at = int(np.searchsorted(self._edges_s, moment_s, side="right")) - 1
        if at < 0:
            return np.zeros(4)
        if at >= len(self._rates):
            return np.asarray(self._sums[-1])
        return np.asarray(self._sums[at] + self._rates[at] * (moment_s - self._edges_s[at]))

    def moved(self, by_s: float) -> EnergyRates:
        """The same at times that are so much later."""
        rows = (one._replace(start_s=one.start_s + by_s, end_s=one.end_s + by_s)
                for one in self.rows)  # fmt: skip
        return EnergyRates(tuple(rows), self.currency)


def hourly(values: Sequence[float], *, start_s: float = 0.0, carbon: bool = True) -> EnergyRates:
    """Rates that change every hour, of carbon or of price alone."""
    return EnergyRates(
        tuple(
            RateRow(
                start_s + 3600.0 * hour,
                start_s + 3600.0 * (hour + 1),
                None if carbon else value,
                value if carbon else None,
            )
            for hour, value in enumerate(values)
        )
    )
