"""Feeds' meters that tell a mean of many seconds: found out, and brought up to now.

An IPMI sensor tells the mean of 10 or 30 s, a billing meter that of the minute which is over. Read
as if it were of now, such a meter shows watts that devices gave up long ago as other load, and
hides those that they took since. What devices drew is known second by second from their own meters.
So of a few windows the one is taken over which they explain best how the reading moves; and what
they draw now beyond their own mean over that window is added to the reading.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Readings
from wattherd.engine.safety.meters import TrustedReadings

WINDOWS_S = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
"""What makers state; 0 is a meter that tells of now, and is what every meter is taken for first."""
BETTER = 0.25
"""Another window is taken when it leaves less than that of the squared changes unexplained."""
WORTH = 0.01
"""As a share of the reading: less that is unexplained is not worth another window."""
TIMES, SELDOM_S = 3, 20.0
"""It must have explained more at so many news: at one, meters that are a moment apart look like
means. Who has news that seldom shows all it will in one of them."""
MEMORY_S = 180.0
"""Changes of the past count less and less, by 1/e in that time."""
ROWS, SPACING_S = 192, 0.95
"""Of the devices' past so many moments are kept, no closer than that: more than two minutes."""


class MeanMeters:
    """Arrays over the levels (F + 1,), of which those are looked at whose devices are all read."""

    def __init__(self, fleet: Fleet) -> None:
        """All meters are taken to tell of now."""
        levels = fleet.feeds + 1
        self._fleet = fleet
        unread = fleet.levels((~fleet.device_read).astype(np.float64)) > 0
        # What moves a level's reading may be a device that nobody reads. A window that explained it
        # by the others would do so by accident.
        self._which: Bools = np.asarray(fleet.level_read & ~unread)
        self._own_w: Floats = np.full(fleet.size, np.nan)
        self._heard: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels all of whose devices have told at least once what they draw."""
        # Joules are remembered and not watts: a mean over any window is then one difference of two
        # of them.
        self._energy_j: Floats = np.zeros(levels)
        self._past_s: Floats = np.full(2 * ROWS, np.inf)
        self._past_j: Floats = np.zeros((2 * ROWS, levels))
        self._rows = 0
        self._first_w: Floats = np.zeros(levels)
        self._looked_s = np.nan
        self._stamp_s: Floats = np.full(levels, np.nan)
        # By window what it leaves of the readings; the last row is what devices explain nothing of.
        self._left_w: Floats = np.full((len(WINDOWS_S) + 1, levels), np.nan)
        self._missed: Floats = np.zeros((len(WINDOWS_S) + 1, levels))
        self._wins: Floats = np.zeros((len(WINDOWS_S), levels))
        """At how many news of late each window explained much more than the one taken."""
        self._chosen: Ints = np.zeros(levels, dtype=np.int64)
        self.changed: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels that the last look took another window for."""
        self.own_then_w: Floats = np.full(levels, np.nan)
        """What devices drew in the mean that a level's meter tells; NaN where it tells of now."""
        self.late_s: Floats = np.zeros(levels)
        """How old what a level's meter tells of other load is in the mean; 0 where it is of now."""

    @property
    def found(self) -> Bools:
        """Levels (F + 1,) whose meter was found to tell means."""
        return np.asarray(self._chosen > 0)

    @property
    def window_s(self) -> Floats:
        """Over how long each level's meter (F + 1,) takes its mean."""
        return np.array(WINDOWS_S)[self._chosen]

    def up_to_now(
        self, readings: Readings, seen: TrustedReadings, disagree: float
    ) -> TrustedReadings:
        """The same readings, where they are means with what devices draw now beyond theirs."""
        self.changed = np.zeros(len(self.late_s), dtype=np.bool_)
        if not self._which.any():
            return seen
        fleet, now_s = self._fleet, readings.now_s
        told_w = np.where(readings.off, 0.0, seen.now_w)
        # A device that says nothing for a look goes on as before: a hole in the sum would be a fall
        # that never was, and no window explains it.
        self._own_w = np.where(np.isnan(told_w), self._own_w, told_w)
        own_w = fleet.levels(np.nan_to_num(self._own_w))
        self._keep(own_w, now_s)
        self._meet(own_w, now_s)
        stamp_s = np.append(readings.feed_at_s, readings.site_at_s)
        read_w = np.append(readings.feed_w, readings.site_w)
        with np.errstate(invalid="ignore"):
            # The second news of a meter is the first that has a change to be explained.
            news = self._which & self._heard & np.isfinite(read_w) & ~(stamp_s <= self._stamp_s)
        if news.any():
            self._learn(read_w, stamp_s, news)
            self._stamp_s = np.where(news, stamp_s, self._stamp_s)
        if not self._chosen.any():
            return seen
        window_s = self.window_s
        means = self.found & np.isfinite(self._stamp_s)
        self.own_then_w = np.where(means, self._mean_w(self._stamp_s, window_s), np.nan)
        since_w = np.where(means, own_w - self.own_then_w, 0.0)
        # A mean is as old as the middle of its window.
        self.late_s = np.where(means, window_s / 2 + now_s - self._stamp_s, 0.0)
        level_w = np.maximum(seen.level_w + since_w, 0.0)
        with np.errstate(invalid="ignore"):
            # Judged anew, by the reading as it is now: a mean that lags behind devices which rise
            # seems to contradict them, and below such a level nothing is learned.
            agreed = ~(level_w < own_w * (1.0 - disagree))
        return replace(
            seen, level_w=level_w, feed_w=level_w[:-1],
            level_now_w=np.maximum(seen.level_now_w + since_w, 0.0),
            agreed=np.where(means, agreed, np.append(seen.agreed, np.True_))[:-1],
        )  # fmt: skip

    # One device that never answers used to end the search on all levels of a site.
    def _meet(self, own_w: Floats, now_s: float) -> None:
        """A level all of whose devices are heard at last is taken to have drawn so all along."""
        heard = self._fleet.levels(np.isnan(self._own_w).astype(np.float64)) == 0
        new = heard & ~self._heard
        if not new.any():
            return
        past_s = self._past_s[: self._rows, None]
        # Joules without the newcomer's would show a rise that never was.
        drawn_j = self._energy_j + own_w * (past_s - now_s)
        self._past_j[: self._rows] = np.where(new, drawn_j, self._past_j[: self._rows])
        self._first_w = np.where(new, own_w, self._first_w)
        self._heard = heard

    def _keep(self, own_w: Floats, now_s: float) -> None:
        """Remember what devices have drawn together until now, in joules."""
        if np.isnan(self._looked_s):
            self._first_w = own_w
        else:
            self._energy_j = self._energy_j + own_w * max(now_s - self._looked_s, 0.0)
        self._looked_s = now_s
        # The newest row is always of now; it stays once the one before is old enough.
        if self._rows < 2 or now_s - self._past_s[self._rows - 2] >= SPACING_S:
            # Twice the rows that are needed, so that the older half goes at once and not a row at
            # each look.
            if self._rows == 2 * ROWS:
                for past in (self._past_s, self._past_j):
                    past[:ROWS] = past[ROWS:]
                self._past_s[ROWS:], self._rows = np.inf, ROWS
            self._rows += 1
        self._past_s[self._rows - 1] = now_s
        self._past_j[self._rows - 1] = self._energy_j

    def _learn(self, read_w: Floats, stamp_s: Floats, news: Bools) -> None:
        """How far each window fails to explain how readings move."""
        stamp_s = np.where(news, stamp_s, self._looked_s)
        # A window is judged by how what it leaves of the readings changes. Other load that stands
        # still is in all of these alike, and drops out whatever its size.
        means_w = [self._mean_w(stamp_s, np.full(len(stamp_s), one)) for one in WINDOWS_S]
        left_w = np.array([*(read_w - mean_w for mean_w in means_w), read_w])
        moved = np.square(np.nan_to_num(left_w - self._left_w))
        gap_s = np.nan_to_num(stamp_s - self._stamp_s)
        fade = np.exp(-gap_s / MEMORY_S)
        self._missed = np.where(news, fade * self._missed + moved, self._missed)
        self._left_w = np.where(news, left_w, self._left_w)
        every = np.arange(len(read_w))
        best = np.argmin(self._missed[:-1], axis=0)
        mine = self._missed[self._chosen, every]
        with np.errstate(invalid="ignore"):
            least = np.square(WORTH * read_w)
            wins = (moved[:-1] < BETTER * moved[self._chosen, every]) & (
                moved[self._chosen, every] > np.square(WORTH / 2) * np.square(read_w)
            )
            worth = news & (mine > least)
        self._wins = np.where(news, fade * self._wins + wins, self._wins)
        # With a window taken at the first of its wins, a room drawn by chance was above its limit
        # for a second, by 6.2 %.
        worth &= self._wins[best, every] > np.where(gap_s >= SELDOM_S, 0, TIMES - 1)
        # Noise of devices' meters shows least in their longest mean: only what explains more than
        # nothing does is an explanation.
        unexplained = np.minimum(mine, self._missed[-1])
        better = worth & (self._missed[best, every] < BETTER * unexplained)
        self.changed = better & (best != self._chosen)
        self._chosen = np.where(better, best, self._chosen)
        # They were won against the window that has gone.
        self._wins[:, self.changed] = 0.0

    def _mean_w(self, end_s: Floats, window_s: Floats) -> Floats:
        """What devices drew (F + 1,) in the mean over windows that end then; 0 s is that second."""
        over_s = np.maximum(window_s, 1.0)
        return np.asarray((self._drawn_j(end_s) - self._drawn_j(end_s - over_s)) / over_s)

    def _drawn_j(self, at_s: Floats) -> Floats:
        """Joules of each level (F + 1,) until its own time; before the first look as at it."""
        past_s, every = self._past_s[: self._rows], np.arange(len(at_s))
        after = np.clip(np.searchsorted(past_s, at_s), 1, max(self._rows - 1, 1))
        before = after - 1
        if self._rows < 2:
            return np.asarray(self._past_j[0] + self._first_w * (at_s - past_s[0]))
        span_s = np.maximum(past_s[after] - past_s[before], 1e-9)
        part = np.clip((at_s - past_s[before]) / span_s, 0.0, 1.0)
        low_j, high_j = self._past_j[before, every], self._past_j[after, every]
        found_j = low_j + part * (high_j - low_j)
        early_s = np.minimum(at_s - past_s[0], 0.0)
        return np.asarray(found_j + self._first_w * early_s)
