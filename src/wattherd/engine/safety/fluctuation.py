"""How far other load moves by itself before the loop can answer.

Processors, memory and fans beside the devices wander: no ramp tells of it, and no switch. What is
believed now is right when it is read, and wrong by some standard deviations once loop and knobs
have answered. That spread is learned for every level from what other load did over just that time.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats

SPREADS = 2.5
"""Standard deviations that are kept. Measured on six days of `parts-beside` (`tests/colo.py`): 39 s
above a limit without them, 4 s with them, for less than one hundredth of what is used."""
MEMORY_S = 60.0
FARTHEST = 0.05
"""A move by more than this share of a level's draw is a switch, and is remembered as such."""


class Fluctuation:
    """Arrays over levels (F + 1,)."""

    def __init__(self, levels: int) -> None:
        """Nothing has moved yet."""
        self._past: deque[tuple[float, Floats, Floats, Floats]] = deque()
        self._variance: Floats = np.zeros(levels)

    @property
    def spread_w(self) -> Floats:
        """What is to be kept on top of the load as it was read."""
        return np.asarray(SPREADS * np.sqrt(self._variance))

    def forget(self, which: Bools) -> None:
        """Of these levels nothing is known."""
        self._variance[which] = 0.0
        for _, other_w, _, _ in self._past:
            other_w[which] = np.nan

    def shift(self, by_w: Floats) -> None:
        """Watts of levels were never other load."""
        for _, other_w, _, _ in self._past:
            np.subtract(other_w, by_w, out=other_w)

    def note(
        self, other_w: Floats, foreseen_w: Floats, devices_w: Floats, slope: Floats,
        drawn_w: Floats, *, told: Bools, ahead_s: Floats, now_s: float, step_s: float,
    ) -> None:  # fmt: skip
        """Take other load as it is believed, and devices' draw, of which it takes `slope` along.

        `foreseen_w` is by how much it is expected to rise: only what comes beyond is a surprise.
        `told` are levels whose belief is of now and whose devices were not cut since then;
        `ahead_s` is the time until an answer to what is read now is in force.
        """
        self._past.append((now_s, other_w.copy(), foreseen_w, devices_w))
        longest_s = float(ahead_s.max())
        while len(self._past) > 1 and now_s - self._past[1][0] >= longest_s:
            self._past.popleft()
        moved_w = np.full(len(other_w), np.nan)
        missing = np.ones(len(other_w), dtype=np.bool_)
        # The youngest look that is old enough, of each level: most levels share one.
        for at_s, was_w, expected_w, devices_then_w in reversed(self._past):
            old_enough = missing & (now_s - at_s >= ahead_s)
            if old_enough.any():
                # What may have come with the devices is paid for with their watts.
                by_w, with_them_w = other_w - was_w, slope * (devices_w - devices_then_w)
                low_w = np.minimum(with_them_w, 0.0)
                high_w = np.maximum(with_them_w, 0.0) + expected_w
                moved_w = np.where(old_enough, by_w - np.clip(by_w, low_w, high_w), moved_w)
                missing &= ~old_enough
        with np.errstate(invalid="ignore"):
            told = told & (np.abs(moved_w) <= FARTHEST * drawn_w)
        square = np.square(np.where(told, moved_w, np.nan))
        weight = min(step_s / MEMORY_S, 1.0)
        learned = self._variance + weight * (square - self._variance)
        self._variance = np.where(np.isnan(square), self._variance, learned)
