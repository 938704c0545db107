"""Levels with devices that no meter shows: how much more they may draw than they do now.

Where devices have no meters a low reading of their level says nothing: they may idle, and so may
the parts beside them that no cap acts on. What the level once drew while its devices were counted
at so much it may draw again, in proportion to their count, or as far as a regression says.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats

FORGET_S = 600.0
"""A past that did not come back is half forgotten after that: other load may really be gone."""

UNSURE = 0.10
"""Of what was drawn beside the devices, so much may have been hidden by some that idled."""

STANDS, PROVEN_S = 0.01, 8.0
"""Once caps stood for so long their levels have shown what they lead to."""


# One moment is enough, and it is the highest that explains most: a level's draw when its devices
# were counted at so much. Draw of devices that nobody reads cannot be told from other load, so that
# both are believed to come back together.
class HiddenDraw:
    """One remembered moment of each level (F + 1,): its draw, and its devices' count."""

    def __init__(self, fleet: Fleet, unproven: float = 0.0) -> None:
        """Nothing was seen yet."""
        levels, self._unproven = fleet.feeds + 1, unproven
        unread = fleet.levels((~fleet.device_read).astype(np.float64)) > 0
        self._which: Bools = np.asarray(unread)
        self._drawn_w: Floats = np.zeros(levels)
        self._counted_w: Floats = np.ones(levels)
        self._slope: Floats = np.full(levels, np.inf)
        self._proven: Bools = ~self._which
        self._stood_s: Floats = np.zeros(levels)
        self._stood_at_w: Floats = np.zeros(levels)

    def note(
        self, drawn_w: Floats, counted_w: Floats, slope: Floats, *, told: Bools, step_s: float
    ) -> None:
        """Take in what levels draw while their devices may have drawn `counted_w` (F + 1,).

        `slope` (F + 1,) is what a watt of devices brings with it, infinite where nobody knows;
        `told` (F + 1,) says of which levels a meter tells.
        """
        self._slope = slope
        fade = 0.5 ** (step_s / FORGET_S)
        here_w = self.at(counted_w)
        # A moment as high as what would be expected now replaces the old one; a lower one only lets
        # it fade.
        new = told & self._which & (drawn_w >= here_w - (self._sure_w - self._drawn_w))
        gone_w = np.where(told, (1.0 - fade) * np.maximum(here_w - drawn_w, 0.0), 0.0)
        self._drawn_w = np.where(new, drawn_w, self._drawn_w - gone_w)
        self._counted_w = np.where(new, np.maximum(counted_w, 1.0), self._counted_w)
        stands = np.abs(counted_w - self._stood_at_w) <= STANDS * counted_w
        self._stood_s = np.where(stands & told, self._stood_s + step_s, 0.0)
        self._stood_at_w = np.where(stands, self._stood_at_w, counted_w)
        # What an unproven level may be counted at stays below its limit by a share: nobody knows
        # yet how far its devices' caps are from what they lead to.
        self._proven |= self._stood_s >= PROVEN_S

    def at(self, counted_w: Floats) -> Floats:
        """What levels (F + 1,) may draw with devices counted at so much."""
        # Upwards what follows the devices comes with them. Downwards only their own watts are sure
        # to go, and whatever else is drawn there may stay.
        more_w = counted_w - self._counted_w
        return self._sure_w + more_w * np.where(more_w > 0, self._rise, 1.0)

    def budget_w(self, room_w: Floats) -> Floats:
        """What devices may be counted at (F + 1,) where levels may draw `room_w` (F + 1,)."""
        more_w = room_w - self._sure_w
        found_w = self._counted_w + more_w / np.where(more_w > 0, self._rise, 1.0)
        unproven_w = np.where(self._proven, np.inf, room_w / (1.0 + self._unproven))
        return np.where(self._which, np.minimum(found_w, unproven_w), np.inf)

    @property
    def _sure_w(self) -> Floats:
        return self._drawn_w + UNSURE * np.maximum(self._drawn_w - self._counted_w, 0.0)

    @property
    def _rise(self) -> Floats:
        share = np.maximum(self._drawn_w / self._counted_w, 1.0)
        return np.minimum(1.0 + self._slope, share)
