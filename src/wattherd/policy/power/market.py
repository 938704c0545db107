"""A market for watts: prices at which every job, buying for itself, leaves no budget exceeded.

Every job pays from a purse as large as its weight and cares for the logarithm of its rate. The
prices of equilibrium are the Lagrange multipliers of the greatest weighted product of rates (Nash
welfare; Eisenberg and Gale, 1959; for networks of prices Kelly, Maulloo and Tan, 1998). A job below
several domains pays for all of them.

Rates are the concave hulls of what was measured, reached by spending time at either end of a piece.
On a piece of slope s that starts at rate f, a job of weight w that pays p per watt wants
w / p - f / s watts of it: no search within jobs, only for the price of each domain, from the
innermost outwards. All domains of one rank are bisected at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.tree_filling import TreeFilling, filling_of, price_steps

_HALVINGS = 64
"""From a range of many decades to the last bit."""


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """What jobs buy: `watts`, `rate`, what a watt costs them (J,); `price` (D,) per domain's watt.

    Rates are relative; `welfare` is the weighted mean of their logarithms.
    """

    watts: Floats
    rate: Floats
    job_price: Floats
    price: Floats
    welfare: float


def running(menu: PowerChoices, weight: Floats) -> tuple[PowerChoices, Ints]:
    """Relative rates of the choices that do run, and their rows."""
    rates = menu.valued(menu.value / weight[menu.job])
    return rates.only(menu.value > 0)


def log_welfare_menu(menu: PowerChoices, weight: Floats) -> tuple[PowerChoices, Ints]:
    """The choices that run, worth weight x logarithm of the relative rate; and their rows."""
    rates, rows = running(menu, weight)
    return rates.valued(weight[rates.job] * np.log(rates.value)), rows


def equilibrium(menu: PowerChoices, limits: DomainRoom, weight: Floats) -> Equilibrium:
    """The market of J jobs; `menu` holds weight x relative rate, as for water-filling.

    Raises:
        UserError: the least choices do not fit.
    """
    rates, _ = running(menu, weight)
    filling = filling_of(rates, limits)
    demand = _demand(filling, weight)
    level = _levels(limits, demand, filling.room(limits.room_w))
    bought = demand.at(limits.highest_above(level)) / limits.price[demand.job]
    pieces = filling.pieces
    gained = np.bincount(pieces.job, pieces.worth * bought / pieces.watts, len(weight))
    rate = pieces.start_value + gained
    return Equilibrium(
        watts=filling.watts(bought),
        rate=rate,
        job_price=limits.highest_above(level) * limits.price,
        price=price_steps(limits, level),
        welfare=float(weight @ np.log(rate) / weight.sum()),
    )


@dataclass(frozen=True, slots=True)
class _Demand:
    """What jobs want of each piece (P,), in watts at the outermost budget."""

    job: Ints
    weight: Floats
    offset: Floats
    most: Floats

    def at(self, price: Floats) -> Floats:
        """Watts of each piece where jobs pay `price` (J,) for one at the outermost budget."""
        with np.errstate(divide="ignore"):
            wanted = self.weight / price[self.job] - self.offset
        return np.clip(wanted, 0.0, self.most)

    @property
    def range(self) -> tuple[float, float]:
        """Prices at which all is wanted, and nothing."""
        cheapest = (self.weight / (self.offset + self.most)).min(initial=1.0)
        return cheapest / 2, 2 * (self.weight / self.offset).max(initial=1.0)


def _demand(filling: TreeFilling, weight: Floats) -> _Demand:
    pieces = filling.pieces
    # The rate where a piece starts: that of its end less its rise.
    start = filling.menu.value[pieces.target] - pieces.worth
    most = pieces.watts * filling.limits.price[pieces.job]
    return _Demand(pieces.job, weight[pieces.job], start / pieces.slope, most)


def _levels(limits: DomainRoom, demand: _Demand, room_w: Floats) -> Floats:
    """The least price per domain (D,) at which what is below it fits, inner domains given.

    Jobs pay the highest of the levels above them, per watt at the outermost budget.
    """
    room, level = room_w * limits.factor, np.zeros(len(room_w))
    ranks = limits.ranks
    for rank in range(int(ranks.max(initial=-1)) + 1):
        level = np.where(
            ranks == rank, _bisected(limits, demand, room, level, ranks == rank), level
        )
    return level


def _bisected(
    limits: DomainRoom, demand: _Demand, room: Floats, level: Floats, domains: Bools
) -> Floats:
    """The least prices of `domains` (D,) of one rank, all halved at once."""
    column = limits.above(domains)
    below = np.where(column >= 0, limits.path[np.arange(len(column)), column], -1)
    inner, owner = limits.highest_above(level), below[demand.job]
    inside = owner >= 0

    def over(price: Floats) -> Bools:
        bought = demand.at(np.maximum(inner, np.append(price, 0.0)[below]))
        return np.asarray(np.bincount(owner[inside], bought[inside], len(room)) > room)

    cheapest, dearest = demand.range
    low, high = np.full(len(room), np.log(cheapest)), np.full(len(room), np.log(dearest))
    short = over(np.zeros(len(room)))
    for _ in range(_HALVINGS if short.any() else 0):
        middle = (low + high) / 2
        dear = over(np.exp(middle))
        low, high = np.where(dear, middle, low), np.where(dear, high, middle)
    return np.where(short, np.exp(high), 0.0)
