"""The order in which the published Gavel simulation goes through worker types, round by round.

Policies that don't look at throughputs go through the types in an order that Python's generator
shuffles anew each round. Published results follow from it, so it is drawn here the same way: a
Mersenne Twister seeded by array, and a shuffle from the end by rejection of random bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SEED_OFFSET = 5
"""The published scheduler's generator for this purpose is seeded by the run's seed plus this."""


class Shuffle:
    """Draws one order after another."""

    def __init__(self, seed: int) -> None:
        """`seed` is that of the published run."""
        key = [seed + SEED_OFFSET]  # a list, because a number would be seeded in another way
        self._words = np.random.RandomState(key)

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """The items in the next order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self._below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def _below(self, limit: int) -> int:
        bits = limit.bit_length()
        while True:
            drawn = int(self._words.randint(1 << 32, dtype=np.uint32)) >> (32 - bits)
            if drawn < limit:
                return drawn
