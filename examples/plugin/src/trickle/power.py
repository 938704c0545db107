"""Watts above the floors by the square root of what a device could take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattherd.policy.power.contract import PowerAsk, bisected


class SquareRoot:
    """More for those with more range, but less than in proportion."""

    all_or_nothing = False

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """One level for all; at level 1 everybody has what it can take."""
        widest = max((math.sqrt(one.curve.max_w - one.curve.floor_w) for one in asks), default=0.0)

        def cap_of(ask: PowerAsk, level: float) -> float:
            span_w = ask.curve.max_w - ask.curve.floor_w
            if span_w <= 0:
                return ask.curve.floor_w
            # Those with a narrow range are there sooner.
            return ask.curve.floor_w + min(level * widest * math.sqrt(span_w), span_w)

        return bisected(asks, watts, cap_of)
