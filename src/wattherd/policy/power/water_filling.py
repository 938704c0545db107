"""Water-filling: every watt goes where it buys most progress.

On concave curves serving the steepest piece first is optimal for the weighted sum of relative rates
(the exchange argument of any separable concave knapsack). A job's rate counts relative to its
uncapped rate, weighted by its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.policy.power.allocation import DomainRoom
from wattherd.policy.power.contract import CapLevel, PowerAsk, floors_w
from wattherd.policy.power.in_tree import steepest_first


@dataclass(frozen=True, slots=True)
class WaterFilling:
    """Greedy on the pieces of all curves, steepest first."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Caps that maximise sum of weight x relative rate; ties in the order given."""
        caps = [ask.curve.floor_w for ask in asks]
        left = watts - floors_w(asks)
        for _, index, width in sorted(_pieces(asks)):
            if left <= 0:
                break
            devices = asks[index].devices
            taken = min(width, left / devices)
            caps[index] += taken
            left -= taken * devices
        return caps

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """The same under nested budgets."""
        return steepest_first(asks, limits)

    def levels(self, classes: Sequence[tuple[PowerAsk, int]], watts: float) -> list[CapLevel]:
        """The same for classes of equal asks; ties between classes in the order given."""
        asks = [ask for ask, _ in classes]
        caps = [ask.curve.floor_w for ask in asks]
        left = watts - sum(ask.devices * count * ask.curve.floor_w for ask, count in classes)
        split: dict[int, CapLevel] = {}
        for _, index, width in sorted(_pieces(asks)):
            ask, count = classes[index]
            each = width * ask.devices
            if each * count > left:
                split[index] = _split(caps[index], width, count, max(left, 0.0) / each)
                break
            caps[index] += width
            left -= each * count
        return [
            split.get(index, CapLevel(full=count, high_w=cap, partial_w=cap, low_w=cap))
            for index, (cap, (_, count)) in enumerate(zip(caps, classes, strict=True))
        ]


def _split(cap_w: float, width: float, count: int, pieces: float) -> CapLevel:
    """Caps where only so many (not whole) `pieces` are left for `count` jobs at `cap_w`."""
    full = min(int(pieces), count - 1)
    partial_w = cap_w + min(pieces - full, 1.0) * width
    return CapLevel(full=full, high_w=cap_w + width, partial_w=partial_w, low_w=cap_w)


def _pieces(asks: Sequence[PowerAsk]) -> list[tuple[float, int, float]]:
    """(minus worth per watt, index of the ask, watts per device)."""
    found: list[tuple[float, int, float]] = []
    for index, ask in enumerate(asks):
        scale = ask.weight / (ask.curve.rates[-1] * ask.devices)
        found.extend((-slope * scale, index, width) for slope, width in ask.curve.segments())
    return found
