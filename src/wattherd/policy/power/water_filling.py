"""Water-filling: every watt goes where it buys most progress.

On concave curves serving the steepest piece first is optimal for the weighted sum of relative rates
(the exchange argument of any separable concave knapsack). A job's rate counts relative to its
uncapped rate, weighted by its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.policy.power.contract import Ask, floors_w


@dataclass(frozen=True, slots=True)
class WaterFilling:
    """Greedy on the pieces of all curves, steepest first."""

    all_or_nothing: bool = False

    def share(self, asks: Sequence[Ask], watts: float) -> list[float]:
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


def _pieces(asks: Sequence[Ask]) -> list[tuple[float, int, float]]:
    """(minus worth per watt, index of the ask, watts per device)."""
    found: list[tuple[float, int, float]] = []
    for index, ask in enumerate(asks):
        scale = ask.weight / (ask.curve.rates[-1] * ask.devices)
        found.extend((-slope * scale, index, width) for slope, width in ask.curve.segments())
    return found
