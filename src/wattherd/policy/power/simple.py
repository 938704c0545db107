"""The plain power policies: equal watts, equal shares, by priority, and all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.policy.power.allocation import DomainRoom
from wattherd.policy.power.contract import PowerAsk, bisected, floors_w
from wattherd.policy.power.in_tree import in_turn, levelled


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same watts for every device, as far as its floor and top allow."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """One level of watts for all devices."""
        highest = max((ask.curve.max_w for ask in asks), default=0.0)

        def cap_of(ask: PowerAsk, level: float) -> float:
            return min(max(level * highest, ask.curve.floor_w), ask.curve.max_w)

        return bisected(asks, watts, cap_of)

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """One level of watts, as far as each branch goes."""
        highest = max((ask.curve.max_w for ask in asks), default=0.0)
        return levelled(asks, limits, [0.0] * len(asks), [highest] * len(asks))


@dataclass(frozen=True, slots=True)
class Proportional:
    """The same fraction of each device's range from floor to top."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """One fraction for all devices."""

        def cap_of(ask: PowerAsk, level: float) -> float:
            return ask.curve.floor_w + level * (ask.curve.max_w - ask.curve.floor_w)

        return bisected(asks, watts, cap_of)

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """One fraction, as far as each branch goes."""
        curves = [ask.curve for ask in asks]
        low_w, high_w = [one.floor_w for one in curves], [one.max_w for one in curves]
        return levelled(asks, limits, low_w, high_w)


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Full power in order of priority, what is left to the next, floors to the rest.

    The lecture that began this project gives the rest nothing at all; floors keep them alive.
    """

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Highest priority first; among equals in the order given."""
        caps = [ask.curve.floor_w for ask in asks]
        left = watts - floors_w(asks)
        for index in sorted(range(len(asks)), key=lambda i: (-asks[i].priority, i)):
            ask = asks[index]
            more = min(left / ask.devices, ask.curve.max_w - ask.curve.floor_w)
            caps[index] += more
            left -= more * ask.devices
        return caps

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """The same order; a job takes what the tightest of its branches has left."""
        order = sorted(range(len(asks)), key=lambda i: (-asks[i].priority, i))
        return in_turn(asks, limits, order)


@dataclass(frozen=True, slots=True)
class Pause:
    """Jobs run at full power or not at all: what operators without caps do."""

    all_or_nothing: bool = True

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """No caps; the guard has let in only what fits uncapped."""
        del watts
        return [ask.curve.max_w for ask in asks]

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """No caps here either."""
        del limits
        return [ask.curve.max_w for ask in asks]
