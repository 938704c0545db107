"""Levels of limits: who hangs below whom, to any depth (rack below feed below site).

Arrays over L levels name every level before the one above it, the site last. The module knows sums
and paths only, no watts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Levels:
    """The L levels above the devices; `above` (L - 1,) is the level that each but the site is in.

    Raises:
        UserError: a level does not stand before the one above it.
    """

    def __init__(self, above: Ints) -> None:
        """Nobody's watts yet."""
        self.above = np.asarray(above, dtype=np.int64)
        self.count = len(self.above) + 1
        numbers = np.arange(self.count - 1)
        if np.any(self.above <= numbers) or np.any(self.above >= self.count):
            raise UserError(
                "every level stands before the one above it, the site last", field="above"
            )
        self._deepest_first = _generations(self.above)

    def sums(self, own: Floats) -> Floats:
        """Each level's `own` (L,) and those of all levels below it."""
        total = own.copy()
        for rows in self._deepest_first:
            np.add.at(total, self.above[rows], total[rows])
        return total

    def least(self, values: Floats) -> Floats:
        """The lowest of `values` (L,) on the way from each level to the site."""
        found = values.copy()
        for rows in reversed(self._deepest_first):
            found[rows] = np.minimum(found[rows], found[self.above[rows]])
        return found

    def any_above(self, marked: Bools) -> Bools:
        """Whether a level or one above it is `marked` (L,)."""
        return np.asarray(self.least(np.where(marked, 0.0, 1.0)) == 0.0)

    def filled_in(self, known: Floats, own: Floats) -> Floats:
        """`known` (L,), and where that is NaN the `own` watts of a level and what is below it."""
        found = known.copy()
        total = own.copy()
        for rows in self._deepest_first:
            found[rows] = np.where(np.isnan(found[rows]), total[rows], found[rows])
            np.add.at(total, self.above[rows], found[rows])
        found[-1] = total[-1] if np.isnan(found[-1]) else found[-1]
        return found


def _generations(above: Ints) -> tuple[Ints, ...]:
    """The levels by their distance from the site, the farthest first; the site is left out."""
    depth = np.zeros(len(above) + 1, dtype=np.int64)
    for number in range(len(above) - 1, -1, -1):
        depth[number] = depth[above[number]] + 1
    return tuple(np.flatnonzero(depth == far) for far in range(int(depth.max()), 0, -1))
