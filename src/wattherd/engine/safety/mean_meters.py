"""Feeds' meters that tell a mean of many seconds: found out, and brought up to now.

An IPMI sensor tells the mean of 10 or 30 s, a billing meter that of the minute which is over, a
PDU's display what a low-pass leaves. Read as if it were of now, such a meter shows watts that
devices gave up long ago as other load, and hides those that they took since. What devices drew is
known second by second from their own meters. So of a few kinds of means the one is taken by which
they explain best how the reading moves; and what they draw now beyond their own mean of that kind
is added to the reading.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Readings
from wattherd.engine.safety.meters import TrustedReadings

WINDOWS_S = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
"""What makers state; 0 is a meter that tells of now, and is what every meter is taken for first."""
BEGUN_S = (60.0, 30.0)
"""Windows in which is only what was drawn since the first look: a query over the last minute of a
target that is new (Prometheus), a logger that started with the loop. Until the shorter one is over
the two tell the same, and the first is taken."""
DECAYS_S = (5.0, 8.0, 12.0, 20.0, 30.0, 45.0)
"""Time constants of meters that forget by 1/e in that time."""
LENGTHS_S = np.array((*WINDOWS_S, *BEGUN_S, *DECAYS_S))
"""By kind of mean (K,): its window, or its time constant."""
AGES_S = np.array((*(one / 2 for one in (*WINDOWS_S, *BEGUN_S)), *DECAYS_S))
"""By kind of mean (K,): how old what it tells is in the mean."""
BETTER = 0.25
"""Another window is taken when it leaves less than that of the squared changes unexplained."""
WORTH = 0.01
"""As a share of the reading: less that is unexplained is not worth another window."""
TIMES, SELDOM_S = 3, 20.0
"""It must have explained more at so many news: at one, meters that are a moment apart look like
means. Who has news that seldom shows all it will in one of them."""
ALIKE = 0.02
"""So little of the squared changes is left by the shape in which a mean forgets: what fades so was
not switched off."""
BEYOND, PASSES = 1.3, 2
"""A device that shows more than so many times what it is counted at, for no more than so many
looks, has a meter that spikes: no mean below it did that."""
SLOW_S = 5.0
"""A meter that has news so seldom has had one reading for long enough to be believed."""
RISE_LOOKS = 5
"""Over so many looks, of a second or more, it is seen how fast what decays rises."""
STEADY = 0.0025
"""Of a reading: a rise by less than that in that time is noise of meters."""
FADED = 1e-6
"""Of the squared share in a mean: what was before the first look is not in it any more."""
MEMORY_S = 180.0
"""Changes of the past count less and less, by 1/e in that time."""
ROWS, SPACING_S = 192, 0.95
"""Of the devices' past so many moments are kept, no closer than that: more than two minutes."""


# What devices drew before the first look is in means that reach back to it, and nobody knows how
# much: a loop that cuts all caps in its first second sees it fade for a minute. In a mean of a kind
# it fades in a shape of its own, and by how much is one unknown of a regression. A meter of now
# with other load that fades in the same shape has the same unknown: so only what devices were seen
# to do since tells the two apart, and what fades still counts as other load.
class _BeforeFirstLook:
    """How far each kind of mean (K,) explains levels' readings but for what was before."""

    def __init__(self, levels: int) -> None:
        """Nothing was read yet."""
        kinds = len(LENGTHS_S)
        # Sums over news that forget, for three regressions on the shape of each kind: of what the
        # kind leaves of the reading, of what a meter of now leaves of it, and of all of it.
        self._squares: Floats = np.zeros((kinds, levels))
        self._products: Floats = np.zeros((3, kinds, levels))
        self._missed: Floats = np.zeros((kinds, levels))
        # A meter of now leaves the same whatever shape it is compared with.
        self._missed_of_now: Floats = np.zeros(levels)
        self._missed_of_all: Floats = np.zeros(levels)
        self._told: Floats = np.zeros(levels)
        self.wins: Floats = np.zeros((kinds, levels))
        self.faded_w: Floats = np.zeros(levels)
        """See `MeanMeters.faded_w`."""

    def note(
        self, moved_w: Floats, since_s: Floats, gap_s: Floats, chosen: Ints, read_w: Floats,
        news: Bools,
    ) -> tuple[Ints, Bools]:  # fmt: skip
        """The kind (F + 1,) that explains most, and where it does so much better than `chosen`.

        `moved_w` (K + 1, F + 1) is how what each kind leaves has changed, the last row the reading;
        `since_s` (F + 1,) is the time since the first look, `gap_s` that since the news before,
        and `news` (F + 1,) says who has any.
        """
        # Of a time when nobody told of devices nothing is to be learned.
        known = news & (gap_s > 0) & (since_s >= gap_s)
        by = np.where(known, _shapes(since_s) - _shapes(since_s - gap_s), 0.0)
        moved, of_now_w, all_w = moved_w[:-1] * known, moved_w[0] * known, moved_w[-1] * known
        kept = np.where(known, np.exp(-gap_s / MEMORY_S), 1.0)
        self._squares = kept * self._squares + by * by
        self._products *= kept
        for row, one_w in enumerate((moved, of_now_w, all_w)):
            self._products[row] += one_w * by
        self._missed = kept * self._missed + moved * moved
        self._missed_of_now = kept * self._missed_of_now + of_now_w * of_now_w
        self._missed_of_all = kept * self._missed_of_all + all_w * all_w
        some = self._squares > FADED
        squares = np.where(some, self._squares, 1.0)
        size_w = np.where(some, self._products[0] / squares, 0.0)
        of_now_size_w = np.where(some, self._products[1] / squares, 0.0)
        missed = self._missed - size_w * self._products[0]
        left, of_now_left = np.square(moved - size_w * by), np.square(of_now_w - of_now_size_w * by)
        every = np.arange(by.shape[1])
        mine, last = missed[chosen, every], left[chosen, every]
        with np.errstate(invalid="ignore"):
            tells = last > np.square(WORTH / 2 * read_w)
            wins = (left < BETTER * np.minimum(last, of_now_left)) & tells & known
            worth = mine > np.square(WORTH * read_w)
        self.wins = kept * self.wins + wins
        best = np.argmin(missed, axis=0)
        # Two unknowns fit two news, whatever these are of.
        self._told = kept * self._told + known
        its = (best, every)
        alike = (self._told >= TIMES) & (missed[its] < ALIKE * self._missed_of_now)
        self.faded_w = np.where(alike & known, np.abs(size_w[its] * by[its]), 0.0)
        # Who tells of now has no shape of its own to be compared with.
        of_now = self._missed_of_now - of_now_size_w[its] * self._products[1][its]
        of_all_size_w = np.where(some[its], self._products[2][its] / squares[its], 0.0)
        of_all = self._missed_of_all - of_all_size_w * self._products[2][its]
        rest = np.minimum(np.where(best > 0, of_now, np.inf), of_all)
        better = known & worth & (self.wins[its] > TIMES - 1)
        return best, better & (missed[its] < BETTER * np.minimum(mine, rest))


def _shapes(since_s: Floats) -> Floats:
    """Which part (K, F + 1) of what was drawn before a first look is in a mean so long after it."""
    since_s = np.maximum(np.where(np.isfinite(since_s), since_s, 0.0), 0.0)
    whole = [np.maximum(1.0 - since_s / max(one, 1.0), 0.0) for one in WINDOWS_S]
    begun = [np.where(since_s < one, 1.0 / np.maximum(since_s, 1.0), 0.0) for one in BEGUN_S]
    return np.array([*whole, *begun, *(np.exp(-since_s / one) for one in DECAYS_S)])


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
        self._beyond: Floats = np.zeros(fleet.size)
        """For how many looks each device has shown more than it can draw."""
        self._heard: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels all of whose devices have told at least once what they draw."""
        # Joules are remembered and not watts: a mean over any window is then one difference of two
        # of them.
        self._energy_j: Floats = np.zeros(levels)
        self._past_s: Floats = np.full(2 * ROWS, np.inf)
        self._past_j: Floats = np.zeros((2 * ROWS, levels))
        self._decayed_w: Floats = np.zeros((len(DECAYS_S), levels))
        self._past_decayed_w: Floats = np.zeros((2 * ROWS, len(DECAYS_S), levels))
        self._began_s: Floats = np.full(levels, np.inf)
        """Since when all devices of a level are heard."""
        self._before = _BeforeFirstLook(levels)
        self._rows = 0
        self._first_w: Floats = np.zeros(levels)
        self._looked_s = np.nan
        self._read_w: Floats = np.full(levels, np.nan)
        # What is left of readings by the kinds found, of the last looks.
        self._late_s: Floats = np.full(RISE_LOOKS, np.nan)
        self._late_w: Floats = np.full((RISE_LOOKS, levels), np.nan)
        self._stamp_s: Floats = np.full(levels, np.nan)
        self._told: Ints = np.zeros(levels, dtype=np.int64)
        """How often each level's meter had news."""
        # By kind of mean what it leaves of the readings; the last row is what devices explain
        # nothing of.
        self._left_w: Floats = np.full((len(LENGTHS_S) + 1, levels), np.nan)
        self._missed: Floats = np.zeros((len(LENGTHS_S) + 1, levels))
        self._wins: Floats = np.zeros((len(LENGTHS_S), levels))
        """At how many news of late each kind explained much more than the one taken."""
        self._chosen: Ints = np.zeros(levels, dtype=np.int64)
        self.changed: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels of which what was told so far is to be forgotten: their meters are of another kind
        than thought, or have told of the time before the first look."""
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
        """Over how long each level's meter (F + 1,) takes its mean, or its time constant."""
        return np.asarray(LENGTHS_S[self._chosen])

    @property
    def faded_w(self) -> Floats:
        """By how much less than before meters of levels (F + 1,) tell of before the first look."""
        return self._before.faded_w

    def up_to_now(
        self, readings: Readings, seen: TrustedReadings, disagree: float, counted_w: Floats
    ) -> TrustedReadings:
        """The same readings, where they are means with what devices draw now beyond theirs.

        `counted_w` (N,) is what each device may draw at most.
        """
        self.changed = np.zeros(len(self.late_s), dtype=np.bool_)
        self._before.faded_w = np.zeros(len(self.late_s))
        if not self._which.any():
            return seen
        fleet, now_s = self._fleet, readings.now_s
        told_w = np.where(readings.off, 0.0, seen.now_w)
        with np.errstate(invalid="ignore"):
            beyond = told_w > BEYOND * counted_w
        self._beyond = np.where(beyond, self._beyond + 1, 0.0)
        told_w = np.where(beyond & (self._beyond <= PASSES), np.nan, told_w)
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
        # What a frozen meter told since its last digits is of no mean. To its devices' moves it
        # looks like one of the longest.
        frozen = news & seen.frozen_levels
        self._forget_told(frozen, stamp_s)
        news &= ~frozen
        if news.any():
            self._learn(read_w, stamp_s, news)
            # A first reading of the time before any device was heard tells of their draw then, that
            # the first cut has ended since, and would pass for other load that may come back. Of
            # meters with news at every look what was found so far is worth more.
            early = (self._told == 1) & (self._stamp_s < self._began_s)
            early &= stamp_s - self._stamp_s >= SLOW_S
            self.changed |= news & early & (stamp_s >= self._began_s)
            self._told += news
            self._stamp_s = np.where(news, stamp_s, self._stamp_s)
        if not self._chosen.any():
            return seen
        self._read_w = read_w
        means = self.found & np.isfinite(self._stamp_s)
        told_w = self._means_w(np.where(means, self._stamp_s, now_s))
        told_w = told_w[self._chosen, np.arange(len(means))]
        self.own_then_w = np.where(means, told_w, np.nan)
        since_w = np.where(means, own_w - self.own_then_w, 0.0)
        # A mean is as old as the middle of its window.
        self.late_s = np.where(means, AGES_S[self._chosen] + now_s - self._stamp_s, 0.0)
        since_w = since_w + self._rising_w(seen.level_now_w - told_w, now_s)
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

    def _forget_told(self, which: Bools, stamp_s: Floats) -> None:
        """What meters of these levels (F + 1,) told of late explains nothing."""
        if not which.any():
            return
        self._left_w[:, which] = np.nan
        self._missed[:, which] = self._wins[:, which] = 0.0
        self._stamp_s[which] = stamp_s[which]

    # What decays tells of a step by the share that its time constant has let through, and of how
    # large it is by how fast that grows. Only upwards: a fall is believed when it is told.
    def _rising_w(self, left_w: Floats, now_s: float) -> Floats:
        """How much more other load (F + 1,) there is than meters that decay tell so far."""
        self._late_w[:, self.changed] = np.nan
        span_s = now_s - self._late_s[0]
        with np.errstate(invalid="ignore"):
            rise_w = left_w - self._late_w[0] - STEADY * self._read_w
            more_w = np.where(self._decays, LENGTHS_S[self._chosen] * rise_w / span_s, 0.0)
        if not now_s - self._late_s[-1] < SPACING_S:
            self._late_s = np.append(self._late_s[1:], now_s)
            self._late_w = np.vstack((self._late_w[1:], left_w))
        return np.fmax(more_w, 0.0)

    @property
    def _decays(self) -> Bools:
        """Levels (F + 1,) whose meter was found to decay."""
        return self._chosen >= len(LENGTHS_S) - len(DECAYS_S)

    # One device that never answers used to end the search on all levels of a site.
    def _meet(self, own_w: Floats, now_s: float) -> None:
        """A level all of whose devices are heard at last is taken to have drawn so all along."""
        if self._heard.all():  # and whoever was heard once has a last word
            return
        heard = self._fleet.levels(np.isnan(self._own_w).astype(np.float64)) == 0
        new = heard & ~self._heard
        if not new.any():
            return
        past_s = self._past_s[: self._rows, None]
        # Joules without the newcomer's would show a rise that never was.
        drawn_j = self._energy_j + own_w * (past_s - now_s)
        self._past_j[: self._rows] = np.where(new, drawn_j, self._past_j[: self._rows])
        self._past_decayed_w[: self._rows, :, new] = self._decayed_w[:, new] = own_w[new]
        self._first_w = np.where(new, own_w, self._first_w)
        self._began_s = np.where(new, now_s, self._began_s)
        self._heard = heard

    def _keep(self, own_w: Floats, now_s: float) -> None:
        """Remember what devices have drawn together until now, in joules."""
        if np.isnan(self._looked_s):
            self._first_w = own_w
            self._decayed_w[:] = own_w
        else:
            passed_s = max(now_s - self._looked_s, 0.0)
            self._energy_j = self._energy_j + own_w * passed_s
            taken = 1.0 - np.exp(-passed_s / np.array(DECAYS_S))[:, None]
            self._decayed_w += taken * (own_w - self._decayed_w)
        self._looked_s = now_s
        # The newest row is always of now; it stays once the one before is old enough.
        if self._rows < 2 or now_s - self._past_s[self._rows - 2] >= SPACING_S:
            # Twice the rows that are needed, so that the older half goes at once and not a row at
            # each look.
            if self._rows == 2 * ROWS:
                for past in (self._past_s, self._past_j, self._past_decayed_w):
                    past[:ROWS] = past[ROWS:]
                self._past_s[ROWS:], self._rows = np.inf, ROWS
            self._rows += 1
        self._past_s[self._rows - 1] = now_s
        self._past_j[self._rows - 1] = self._energy_j
        self._past_decayed_w[self._rows - 1] = self._decayed_w

    def _learn(self, read_w: Floats, stamp_s: Floats, news: Bools) -> None:
        """How far each kind of mean fails to explain how readings move."""
        stamp_s = np.where(news, stamp_s, self._looked_s)
        # A kind is judged by how what it leaves of the readings changes. Other load that stands
        # still is in all of these alike, and drops out whatever its size.
        left_w = np.vstack((read_w - self._means_w(stamp_s), read_w))
        moved_w = np.nan_to_num(left_w - self._left_w)
        moved = np.square(moved_w)
        gap_s = np.nan_to_num(stamp_s - self._stamp_s)
        fade = np.exp(-gap_s / MEMORY_S)
        self._missed = np.where(news, fade * self._missed + moved, self._missed)
        with np.errstate(invalid="ignore"):
            # Digits that stand still may be a frozen meter's: no other kind is taken until they go.
            other_digits = ~(left_w[-1] == self._left_w[-1])
        self._left_w = np.where(news, left_w, self._left_w)
        every = np.arange(len(read_w))
        best = np.argmin(self._missed[:-1], axis=0)
        mine = self._missed[self._chosen, every]
        with np.errstate(invalid="ignore"):
            least = np.square(WORTH * read_w)
            wins = (moved[:-1] < BETTER * moved[self._chosen, every]) & (
                moved[self._chosen, every] > np.square(WORTH / 2) * np.square(read_w)
            )
            worth = news & other_digits & (mine > least)
        self._wins = np.where(news, fade * self._wins + wins, self._wins)
        # With a window taken at the first of its wins, a room drawn by chance was above its limit
        # for a second, by 6.2 %.
        enough = np.where(gap_s >= SELDOM_S, 0, TIMES - 1)
        worth &= self._wins[best, every] > enough
        # Noise of devices' meters shows least in their longest mean: only what explains more than
        # nothing does is an explanation.
        unexplained = np.minimum(mine, self._missed[-1])
        better = worth & (self._missed[best, every] < BETTER * unexplained)
        since_s = stamp_s - self._began_s
        other, surely = self._before.note(moved_w, since_s, gap_s, self._chosen, read_w, news)
        surely &= ~better
        best, better = np.where(surely, other, best), better | (surely & other_digits)
        self.changed = better & (best != self._chosen)
        self._chosen = np.where(better, best, self._chosen)
        # They were won against the window that has gone.
        self._wins[:, self.changed] = 0.0
        self._before.wins[:, self.changed] = 0.0

    def _means_w(self, end_s: Floats) -> Floats:
        """What devices drew in the means (K, F + 1) of all kinds, each level's until then."""
        until_j = self._drawn_j(end_s)

        def over(span_s: Floats) -> Floats:
            span_s = np.maximum(span_s, 1.0)  # a meter of now tells of its last second
            return np.asarray((until_j - self._drawn_j(end_s - span_s)) / span_s)

        whole = {one: over(np.full(len(end_s), one)) for one in WINDOWS_S}
        since_s = np.maximum(end_s - self._began_s, 0.0)
        begun = [over(np.minimum(one, since_s)) if (since_s < one).any() else whole[one]
                 for one in BEGUN_S]  # fmt: skip
        before, after, part = self._around(end_s)
        if len(part) == 1:
            low_w, high_w = self._past_decayed_w[before[0]], self._past_decayed_w[after[0]]
        else:
            every = np.arange(len(end_s))
            low_w = self._past_decayed_w[before, :, every].T
            high_w = self._past_decayed_w[after, :, every].T
        return np.vstack((*whole.values(), *begun, low_w + part * (high_w - low_w)))

    def _around(self, at_s: Floats) -> tuple[Ints, Ints, Floats]:
        """For each level's time the rows before and after it, and how far it is from the first."""
        past_s = self._past_s[: self._rows]
        # Most sites' meters tell of one time, and then all levels' rows are the same.
        if at_s.min() == at_s.max():
            at_s = at_s[:1]
        after = np.searchsorted(past_s, at_s)
        after = np.minimum(np.maximum(after, min(1, self._rows - 1)), self._rows - 1)
        before = np.maximum(after - 1, 0)
        span_s = np.maximum(past_s[after] - past_s[before], 1e-9)
        part = np.minimum(np.maximum((at_s - past_s[before]) / span_s, 0.0), 1.0)
        return before, after, part

    def _drawn_j(self, at_s: Floats) -> Floats:
        """Joules of each level (F + 1,) until its own time; before the first look as at it."""
        first_s = self._past_s[0]
        if self._rows < 2:
            return np.asarray(self._past_j[0] + self._first_w * (at_s - first_s))
        before, after, part = self._around(at_s)
        if len(part) == 1:
            low_j, high_j = self._past_j[before[0]], self._past_j[after[0]]
        else:
            every = np.arange(len(at_s))
            low_j, high_j = self._past_j[before, every], self._past_j[after, every]
        early_s = np.minimum(at_s - first_s, 0.0)
        return np.asarray(low_j + part * (high_j - low_j) + self._first_w * early_s)
