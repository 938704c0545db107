"""What each device may draw at worst: caps ordered, read back, ignored, reset or unanswered.

A lower cap counts once it has been read back, a higher one from its order on (POLCA's and Emerald's
caps take up to 40 s). A device that does not answer, or draws more than its cap, counts at its
maximum. Orders of one device arrive in their order, so reading the newest one back means that no
earlier one is still under way; therefore no order carries the number of one of the last few.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_terms import (
    Bools,
    Fleet,
    Floats,
    Ints,
    Readings,
    SafetyConfig,
    no_streak,
)

SAME_W = 0.5
"""Read-backs this close are the ordered cap (drivers round to whole watts)."""
REMEMBERED = 8
"""Orders of a device that may still be under way together."""
AT_REST = 1.1
"""A device without a job counts at this multiple of its draw."""
OVER_CAP = 1.05
"""Draw above this multiple of a cap for a while shows that the cap is not in force."""


class CapBook:
    """Caps by device, all arrays (N,)."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Nothing is known: every device counts at its maximum."""
        self._fleet, self._config = fleet, config
        self.held_w: Floats = fleet.max_w.copy()
        """The highest cap that may be in force."""
        self.ordered_w: Floats = np.full(fleet.size, np.nan)
        self._read_w: Floats = np.full(fleet.size, np.nan)
        self._sent_w: Floats = np.full((REMEMBERED, fleet.size), np.nan)
        self.silent: Bools = np.ones(fleet.size, dtype=np.bool_)
        self.late: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.defiant: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.off: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.waking: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self.jobless: Bools = np.zeros(fleet.size, dtype=np.bool_)
        """Devices whose jobs have been stopped; the backstop says which."""
        self._draw_w: Floats = np.full(fleet.size, np.nan)
        self._unanswered = no_streak(fleet.size)
        self._pending = no_streak(fleet.size)
        self._above = no_streak(fleet.size)
        self._below = no_streak(fleet.size)

    def read_back(self, readings: Readings, watched: Bools) -> None:
        """Take in the caps in force as the knobs report them.

        A knob's word for a lower cap counts on `watched` devices (N,), whose own meter or feed's
        would tell if it were not kept.
        """
        read_w, config = readings.cap_w, self._config
        answered = np.isfinite(read_w)
        first = answered & np.isnan(self.ordered_w)
        done = answered & (np.abs(read_w - self.ordered_w) <= SAME_W)
        believed = done & (watched | (self.ordered_w >= self.held_w))
        self.held_w = np.where(first | believed, read_w, np.fmax(self.held_w, read_w))
        self.ordered_w = np.where(first, read_w, self.ordered_w)
        self._read_w = np.where(answered, read_w, self._read_w)
        unanswered_s = self._unanswered.note(~answered, readings.now_s)
        never = np.isnan(self.ordered_w)
        self.silent = ~answered & ((unanswered_s >= config.silent_s) | never)
        pending_s = self._pending.note(answered & ~believed & ~first, readings.now_s)
        self.late = pending_s >= config.settle_s
        self.waking &= readings.off
        self.off = readings.off & ~self.waking

    def compare(self, draw_w: Floats, now_s: float) -> None:
        """Find devices that draw more than the cap they claim to hold, and those that mend."""
        self._draw_w = draw_w
        claimed_w = np.fmin(self.held_w, self._read_w)
        with np.errstate(invalid="ignore"):
            above = draw_w > claimed_w * OVER_CAP
            below = draw_w <= claimed_w * OVER_CAP
        defies = self._above.note(above, now_s) >= self._config.defiant_after_s
        mends = self._below.note(below, now_s) >= self._config.obedient_after_s
        self.defiant = (self.defiant | defies) & ~mends

    @property
    def counted_w(self) -> Floats:
        """What each device may draw at worst; without a job no more than it was seen to."""
        seen_w = np.where(self.jobless, AT_REST * self._draw_w, np.nan)
        return np.asarray(np.fmin(self.running_w, seen_w))

    @property
    def running_w(self) -> Floats:
        """The same if no job had been stopped."""
        unknown = self.silent | self.defiant | self.waking
        counted = np.where(unknown, np.maximum(self._fleet.max_w, self.held_w), self.held_w)
        return np.asarray(np.where(self.off, 0.0, counted))

    @property
    def fixed(self) -> Bools:
        """Devices whose draw no order can be relied on to change soon."""
        return self.silent | self.defiant | self.waking | self.late | self.off

    @property
    def settled(self) -> Bools:
        """Devices whose last order was read back."""
        return np.asarray(~self.fixed & (np.abs(self.held_w - self.ordered_w) <= SAME_W))

    def order(self, cap_w: Floats) -> Floats:
        """Note new caps and return them as they are to be sent."""
        known = np.where(np.isnan(self.ordered_w), self._fleet.floor_w, self.ordered_w)
        changed = np.abs(cap_w - known) > SAME_W
        sent_w = np.where(changed, cap_w, known)
        rows = np.flatnonzero(changed)
        sent_w[rows] = self._unlike(cap_w[rows], known[rows], rows)
        news = sent_w != known
        older_w = np.vstack((self._sent_w[1:], sent_w))
        self._sent_w = np.where(news, older_w, self._sent_w)
        self.held_w = np.maximum(self.held_w, sent_w)
        self.ordered_w = sent_w
        return sent_w.copy()

    def _unlike(self, cap_w: Floats, known: Floats, rows: Ints) -> Floats:
        """Caps near `cap_w` (n,), unlike what was ordered or read lately; else those `known`.

        Alike, their read-back could not tell "done" from "not yet". Lower ones come first; higher
        ones, for devices at their floor, end at what was ordered before.
        """
        taken_w = np.vstack((self._sent_w, self._read_w))[:, rows]
        floor_w = self._fleet.floor_w[rows]
        unlike_w, open_ = known.copy(), np.ones(len(rows), dtype=np.bool_)
        for step in _STEPS:
            tried_w = cap_w + step * 2 * SAME_W
            good = open_ & (tried_w >= floor_w) & ((step <= 0) | (tried_w <= known))
            good &= ~(np.abs(tried_w - taken_w) <= 2 * SAME_W).any(axis=0)
            unlike_w = np.where(good, tried_w, unlike_w)
            open_ &= ~good
            if not open_.any():
                break
        return unlike_w


_FAR = 2 * (REMEMBERED + 2)
_STEPS = (*range(0, -_FAR, -1), *range(1, _FAR))
"""Each number taken rules out two steps around it, so that one of these is free."""
