"""Fair ways to share watts among curves: Nash welfare, max-min, and tiers of priority.

Each of them serves jobs that ask for the same alike, so that a class of them is asked for as one
large job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.estimate.power_curve import PowerCurve
from wattherd.policy.power.choices import Floats
from wattherd.policy.power.contract import CapLevel, PowerAsk, bisected, columns, floors_w
from wattherd.policy.power.in_tree import in_order_of, levelled_by, segments_of, worth_of
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.water_filling import WaterFilling

_STEP_W = 1.0
"""Devices take caps in whole watts: no finer pieces are needed in a tree."""


def _as_one(ask: PowerAsk, count: int) -> PowerAsk:
    return replace(ask, devices=ask.devices * count, weight=ask.weight * count)


def _alike(caps: Sequence[float], classes: Sequence[tuple[PowerAsk, int]]) -> list[CapLevel]:
    return [
        CapLevel(full=count, high_w=cap, partial_w=cap, low_w=cap)
        for cap, (_, count) in zip(caps, classes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Nash:
    """The greatest product of rates, weights as exponents: a market with equal purses per weight.

    At a common price a job takes watts until weight x rate' / rate falls to it (the theory is in
    `policy.power.market`); the price is bisected until the watts just suffice.
    """

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Caps at the lowest common price per watt that fits."""
        if not asks:
            return []
        ends = [end for ask in asks for end in (_steepness(ask, 0), _steepness(ask, -1)) if end > 0]
        dear, cheap = math.log(2 * max(ends, default=1.0)), math.log(min(ends, default=1.0) / 2)

        def cap_of(ask: PowerAsk, level: float) -> float:
            price = math.exp(dear + level * (cheap - dear))
            return _bought(ask, price) if level < 1.0 else ask.curve.max_w

        return bisected(asks, watts, cap_of)

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """Watt by watt where the logarithm of a rate rises most; exact where branches nest."""
        steps = segments_of(asks, _log_steps)
        table = columns(asks)
        cost = table.devices[steps.job] * steps.width_w * limits.price[steps.job]
        return in_order_of(asks, limits, steps, -table.weight[steps.job] * steps.gain / cost)

    def levels(self, classes: Sequence[tuple[PowerAsk, int]], watts: float) -> list[CapLevel]:
        """The same for classes of equal asks."""
        return _alike(self.share([_as_one(*one) for one in classes], watts), classes)


def _steepness(ask: PowerAsk, end: int) -> float:
    """Weight x d log(rate) per watt of all devices at the floor (0) or the top (-1)."""
    segments = ask.curve.segments()
    if not segments:
        return 0.0
    return ask.weight * segments[end][0] / (ask.curve.rates[end] * ask.devices)


def _bought(ask: PowerAsk, price: float) -> float:
    """The cap at which one more watt is worth its price."""
    cap_w, rates = ask.curve.floor_w, ask.curve.rates
    each = ask.weight / (ask.devices * price)
    for at, (slope, width) in enumerate(ask.curve.segments()):
        # Below the kink the piece sells up to each - rate / slope; past it the next one is flatter.
        wanted = each - rates[at] / slope if slope > 0 else 0.0
        cap_w += min(max(wanted, 0.0), width)
    return min(cap_w, ask.curve.max_w)


def _log_steps(curve: PowerCurve) -> list[tuple[float, float]]:
    """(rise of log(rate), watts) of short pieces, ascending."""
    found: list[tuple[float, float]] = []
    for at, (slope, width) in enumerate(curve.segments()):
        cuts = np.linspace(0.0, width, max(math.ceil(width / _STEP_W), 1) + 1)
        logs = np.log(curve.rates[at] + slope * cuts)
        found.extend(zip(np.diff(logs).tolist(), np.diff(cuts).tolist(), strict=True))
    return found


@dataclass(frozen=True, slots=True)
class MaxMin:
    """The least relative rate as high as can be, then the next; weights do not count."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Caps at the highest common relative rate that fits."""
        return bisected(asks, watts, lambda ask, level: _cap_at(ask.curve, level))

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """The same rate for all; behind a full branch it stays, elsewhere it rises on."""

        def wanted(part: float) -> Floats:
            return np.array([_cap_at(ask.curve, part) for ask in asks])

        return levelled_by(asks, limits, wanted)

    def levels(self, classes: Sequence[tuple[PowerAsk, int]], watts: float) -> list[CapLevel]:
        """The same for classes of equal asks."""
        return _alike(self.share([_as_one(*one) for one in classes], watts), classes)


def _cap_at(curve: PowerCurve, relative: float) -> float:
    """The lowest cap that reaches a relative rate; the floor where that is faster already."""
    cap_w = np.interp(relative * curve.rates[-1], curve.rates, curve.watts)
    return float(cap_w) if relative < 1.0 else curve.max_w


@dataclass(frozen=True, slots=True)
class Tiers:
    """Water-filling for the highest priority first, floors to all others; then the next."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Caps, tier by tier."""
        caps, left = [ask.curve.floor_w for ask in asks], watts - floors_w(asks)
        for tier in _tiers(asks):
            mine = [asks[at] for at in tier]
            given = WaterFilling().share(mine, left + floors_w(mine))
            for at, cap_w in zip(tier, given, strict=True):
                left -= asks[at].devices * (cap_w - caps[at])
                caps[at] = cap_w
        return caps

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """The same under nested budgets: no piece of a lower tier is served before one above."""
        rank = {level: at for at, level in enumerate(sorted({a.priority for a in asks})[::-1])}
        tier = np.array([rank[ask.priority] for ask in asks], dtype=np.float64)
        segments = segments_of(asks, PowerCurve.segments)
        worth = worth_of(asks, limits, segments)
        key = tier[segments.job] - worth / (worth.max(initial=0.0) + 1.0)
        return in_order_of(asks, limits, segments, key)

    def levels(self, classes: Sequence[tuple[PowerAsk, int]], watts: float) -> list[CapLevel]:
        """The same for classes of equal asks."""
        asks = [ask for ask, _ in classes]
        found: dict[int, CapLevel] = {}
        left = watts - floors_w([_as_one(*one) for one in classes])
        for tier in _tiers(asks):
            mine = [classes[at] for at in tier]
            floor_w = floors_w([_as_one(*one) for one in mine])
            levels = WaterFilling().levels(mine, left + floor_w)
            found.update(zip(tier, levels, strict=True))
            left -= sum(map(_taken, mine, levels)) - floor_w
        return [found[at] for at in range(len(classes))]


def _tiers(asks: Sequence[PowerAsk]) -> list[list[int]]:
    """Asks of each priority, the highest first."""
    levels = sorted({ask.priority for ask in asks}, reverse=True)
    return [[at for at, ask in enumerate(asks) if ask.priority == level] for level in levels]


def _taken(one: tuple[PowerAsk, int], level: CapLevel) -> float:
    """Watts of a class at its level."""
    ask, count = one
    full = min(level.full, count)
    low = max(count - full - 1, 0)
    partial_w = level.partial_w if full < count else 0.0
    return ask.devices * (full * level.high_w + partial_w + low * level.low_w)
