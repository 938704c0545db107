"""Other load that is switched: what it gave up at once it may take again at once.

A compressor, a night's backup, somebody else's job. Such a load is never met before it comes; but
it was seen when it went. So what a level's other load lost at once is kept free for its return: for
most of a minute where it went for the first time, and once it has come back for three times as long
as it was ever away. What goes away slowly comes back slowly, which its ramp shows.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Floats

# What once was drawn used to be kept free for two days: after a single step of others on a rack
# nothing was ever given back.
ONCE_S = 45.0
"""For so long the return is waited for of what was never seen to come back: then caps may rise, so
that the limit is in use again within a minute."""
TIMES = 3.0
"""And so many times as long as it was once away of what did: compressors' pauses vary."""
KEEP_S = 2 * 86_400.0
"""Learned pauses fade by 1/e in this time: the same hour of tomorrow finds most of them."""
SLOW = 0.005
"""Of a level's draw, a second: what moves no faster is a ramp, and met as one."""
LOOKS = 5
"""What was reached twice within so many looks was reached: one odd reading is no load."""
LARGE = 0.01
"""Of a level's draw: what is switched is more than that, or noise."""
HALF = 0.5
"""That part of what went must come for it to be the same again."""


# The one idea: a line that moves along with the other load where that moves slowly, that stays
# where it was when the load falls at once, and that is never below the load. What lies between the
# two went at once and may come at once. A line through the past's highest would be wrong both ways:
# too high once a ramp has gone down, too low for what comes back on top of one that went up.
class SwitchedLoad:
    """By level (L,): the line, how long the load has been below it, and how long that may last."""

    def __init__(self, levels: int) -> None:
        """Nothing was seen yet."""
        self.wait_s: Floats = np.full(levels, ONCE_S)
        """How long what went is waited for."""
        self._line_w: Floats = np.full(levels, np.nan)
        self._past_w: Floats = np.full((LOOKS, levels), np.nan)
        self._was_w: Floats = np.full(levels, np.nan)
        self._away_s: Floats = np.zeros(levels)
        self._most_w: Floats = np.zeros(levels)
        """The most that was away at once since it went."""
        self._given_w: Floats = np.zeros(levels)
        """What was waited for in vain, and for how long it has been away."""
        self._given_s: Floats = np.zeros(levels)
        self._came_w: Floats = np.zeros(levels)
        self._restored_w: Floats = np.zeros(levels)

    def restore(self, away_w: Floats, wait_s: Floats) -> None:
        """Take over what a predecessor waited for; NaN is nothing."""
        # Kept as a distance: where the line is, the first reading of this life says.
        self._restored_w = np.maximum(np.nan_to_num(away_w), 0.0)
        self.wait_s = np.fmax(wait_s, ONCE_S)

    def away_w(self, now_w: Floats) -> Floats:
        """What may come back at once (L,) to a load that is now at `now_w` (L,)."""
        return np.asarray(np.nan_to_num(np.maximum(self._line_w - now_w, 0.0)))

    def shift(self, by_w: Floats) -> None:
        """So many watts (L,) are no other load any more."""
        self._line_w -= by_w
        self._past_w -= by_w
        self._was_w -= by_w

    def forget(self, which: Bools) -> None:
        """Of these (L,) what was told was wrong: nothing was seen of them yet."""
        for one in (self._line_w, self._was_w):
            one[which] = np.nan
        self._past_w[:, which] = np.nan
        for one in (self._away_s, self._most_w, self._given_w, self._given_s, self._came_w):
            one[which] = 0.0
        self._restored_w[which] = 0.0
        self.wait_s[which] = ONCE_S

    def note(
        self, read_w: Floats, moved_w: Floats, drawn_w: Floats, *, told: Bools, step_s: float
    ) -> None:
        """Take in what other load (L,) is read to be; only levels that a meter has `told` (L,) of.

        `moved_w` (L,) is how far devices that moved may have taken it along, either way, and
        `drawn_w` (L,) what the levels draw.
        """
        read_w = np.where(told, read_w, self._past_w[-1])
        self._past_w = np.vstack((self._past_w[1:], read_w))
        first = np.isnan(self._past_w).any(axis=0) & ~np.isnan(read_w)
        self._past_w[:, first] = read_w[first]
        reached_w = np.sort(self._past_w, axis=0)[-2]
        was_w = np.where(np.isnan(self._was_w), reached_w, self._was_w)
        line_w = np.where(np.isnan(self._line_w), reached_w + self._restored_w, self._line_w)
        self._restored_w = np.where(np.isnan(line_w), self._restored_w, 0.0)
        # What moves like a ramp, or no farther than devices may have taken it along, was not
        # switched.
        along_w = SLOW * step_s * drawn_w + moved_w
        change_w = reached_w - was_w
        line_w = line_w + np.where(np.abs(change_w) <= along_w, change_w, 0.0)
        came_w = np.nan_to_num(np.maximum(reached_w - line_w, 0.0))
        self._line_w, self._was_w = np.maximum(line_w, reached_w), reached_w
        self._wait(np.nan_to_num(self._line_w - reached_w), came_w, LARGE * drawn_w, step_s)

    def _wait(self, away_w: Floats, came_w: Floats, large_w: Floats, step_s: float) -> None:
        """Learn how long it stays away, and wait no longer than what it did so far is reason to."""
        self.wait_s = ONCE_S + (self.wait_s - ONCE_S) * np.exp(-step_s / KEEP_S)
        away = away_w > large_w
        back = (self._most_w > large_w) & (away_w <= (1.0 - HALF) * self._most_w)
        self._learn(back, self._away_s)
        # One load went, and now another: both are waited for from now on.
        deeper = away_w > self._most_w + large_w
        self._away_s = np.where(away & ~back & ~deeper, self._away_s + step_s, 0.0)
        self._most_w = np.where(back | ~away, away_w, np.maximum(self._most_w, away_w))
        # What was given up on and comes all the same was away for that long.
        self._given_s = self._given_s + step_s
        # What comes back may need some looks to do so, and each sees a part of it only.
        self._came_w = 0.8 * self._came_w + came_w
        again = (self._given_w > 0) & (self._came_w >= HALF * self._given_w)
        self._learn(again, self._given_s)
        self._given_w = np.where(again, 0.0, self._given_w)
        # The line comes down to the load, and its watts are free again. What was given up on is
        # remembered all the same: if it comes after all, that tells how long such pauses last.
        over = self._away_s > self.wait_s
        self._given_w = np.where(over, self._most_w, self._given_w)
        self._given_s = np.where(over, self._away_s, self._given_s)
        self._line_w = np.where(over, self._was_w, self._line_w)
        self._away_s = np.where(over, 0.0, self._away_s)
        self._most_w = np.where(over, 0.0, self._most_w)

    def _learn(self, which: Bools, away_s: Floats) -> None:
        self.wait_s = np.where(which, np.maximum(self.wait_s, TIMES * away_s), self.wait_s)
