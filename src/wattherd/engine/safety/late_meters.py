"""Meters that tell of another time than now: wrong clocks, and devices' readings of a while ago.

*A wrong clock* is told from a reading that is late. A controller without a time server stamps its
readings seconds or hours away from ours, second by second all the same: what it tells is of now. A
pipeline that is behind stamps them truly: what it tells is of then. Both look alike, and to throw
both away leaves a level without a meter for ever. Nobody can read tomorrow, so a stamp of the
future is a wrong clock. Of stamps of the past it is asked which moment explains the meter's moves:
what devices below it drew now, or what they drew then. Until their moves tell, such a reading is
none.

*Late readings* of devices are brought up to now. An exporter renews its numbers every 10 or 30 s
(DCGM's default is 30 s), while caps and levels move every second. Read as if they were of now, such
numbers show what devices took since as other load of their level, which is remembered for hours;
and who was given more seems to rest. What a device did since is expected from its cap: who pressed
against it follows it, up and down, and nobody draws beyond a lower one. It is believed as far as
the levels above show it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Readings
from wattherd.engine.safety.meters import TrustedReadings
from wattherd.engine.safety.response import DRIFT, PRESSING, SAME, DrawResponse

# --- Wrong clocks -----------------------------------------------------------------------------
NEWS = 6
"""So many stamps in a row that keep their distance make a clock."""
WANDER_S = 5.0
"""Within which they do: looks, the meter's own period, and readings that overtake each other."""
CLOCK_LOOKS = 128
SLOWER = 2.5
"""A reading so many periods old is old by right, as in `meters`."""
EXPLAINED = 0.25
"""Share of the squares of a meter's moves that the right moment leaves unexplained at most."""
MOVES = 0.05
"""Share of a reading that it must have moved by altogether."""
WILD = 2.0
"""Times what is below a meter: a larger move tells nothing of that."""
FADES = 0.97
NEAR_S = 1.5
"""Stamps within that are right, as far as anybody looks."""
UNKNOWN, NOW, THEN = 0, 1, 2
"""What a meter whose stamps are of another time tells of."""


# Differences from one news to the next are compared, not readings: other load that stands still
# falls out of them, whatever it is.
class MeterClocks:
    """Puts stamps right, and late readings of levels forward to now. Over N + F + 1 meters."""

    def __init__(self, fleet: Fleet, max_age_s: float) -> None:
        """Nothing is known yet; readings of up to `max_age_s` ago are believed as they are."""
        self._fleet, self._max_age_s = fleet, max_age_s
        count = fleet.size + fleet.feeds + 1
        self._past_s: Floats = np.full(CLOCK_LOOKS, np.nan)
        self._past_w: Floats = np.full((CLOCK_LOOKS, count), np.nan)
        """By look, caps of devices and what devices below each level draw."""
        self._row = -1
        self._below_w: Floats = np.full(fleet.size, np.nan)
        self._cap_w: Floats = np.full(fleet.size, np.nan)
        # Of the last news of each meter: what it told, when that was seen, and how old it was said
        # to be.
        self._told_w: Floats = np.full(count, np.nan)
        self._stamp_s: Floats = np.full(count, np.nan)
        self._seen_s: Floats = np.full((NEWS, count), np.nan)
        self._old_s: Floats = np.full((NEWS, count), np.nan)
        self._before_w: Floats = np.full((2, count), np.nan)
        """What would explain what it told then: of that moment, and of its stamp's."""
        self._missed: Floats = np.zeros((2, count))
        self._moved: Floats = np.zeros(count)
        self._tells: Ints = np.zeros(count, dtype=np.int64)

    def put_right(self, readings: Readings) -> Readings:
        """The same readings, with stamps by our clock where it is known what they are of."""
        now_s, size = readings.now_s, self._fleet.size
        self._remember(readings)
        at_s = np.concatenate((readings.draw_at_s, readings.feed_at_s, [readings.site_at_s]))
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(np.abs(now_s - at_s) > NEAR_S)
        if not len(rows):
            return readings
        told_w = np.concatenate((readings.draw_w, readings.feed_w, [readings.site_w]))
        self._hear(rows, at_s[rows], told_w[rows], now_s)
        ahead_s, fresh, late = self._judged(rows)
        at_s[rows] = np.where(fresh | late, at_s[rows] + ahead_s, at_s[rows])
        behind = rows[late & (rows >= size)]
        if len(behind):
            then_w = self._at(behind, self._stamp_s[behind])
            since_w = np.nan_to_num(self._past_w[self._row, behind] - then_w)
            told_w[behind] = np.maximum(told_w[behind] + since_w, 0.0)
        return replace(
            readings, draw_at_s=at_s[:size], feed_at_s=at_s[size:-1], site_at_s=float(at_s[-1]),
            feed_w=told_w[size:-1], site_w=float(told_w[-1]),
        )  # fmt: skip

    def _remember(self, readings: Readings) -> None:
        """What would show on each meter by itself."""
        self._cap_w = np.where(np.isnan(readings.cap_w), self._cap_w, readings.cap_w)
        draw_w = np.where(np.isnan(readings.draw_w), self._below_w, readings.draw_w)
        self._below_w = np.where(readings.off, 0.0, draw_w)
        shows_w = np.where(np.isnan(self._below_w), self._cap_w, self._below_w)
        self._row = (self._row + 1) % CLOCK_LOOKS
        self._past_s[self._row] = readings.now_s
        levels_w = self._fleet.levels(np.nan_to_num(shows_w))
        self._past_w[self._row] = np.concatenate((self._cap_w, levels_w))

    def _at(self, rows: Ints, at_s: Floats) -> Floats:
        """What would have shown on meters `rows` (n,) then (n,); NaN outside of our looks."""
        with np.errstate(invalid="ignore"):
            since_s = at_s - self._past_s[:, None]
            look = np.argmin(np.where(since_s >= 0, since_s, np.inf), axis=0)
            known = (since_s[look, np.arange(len(rows))] >= 0) & (at_s <= self._past_s[self._row])
        return np.where(known, self._past_w[look, rows], np.nan)

    def _hear(self, rows: Ints, at_s: Floats, told_w: Floats, now_s: float) -> None:
        """News of meters `rows` (n,), and what explains how they moved."""
        news = np.isfinite(told_w) & (at_s != self._stamp_s[rows])
        rows, at_s, told_w = rows[news], at_s[news], told_w[news]
        if not len(rows):
            return
        shows_w = np.vstack((self._past_w[self._row, rows], self._at(rows, at_s)))
        moved_w = told_w - self._told_w[rows]
        missed = np.square(moved_w - (shows_w - self._before_w[:, rows]))
        # Of a time before our first look nothing is known, and nothing explained.
        missed = np.where(np.isnan(missed), np.square(moved_w), missed)
        with np.errstate(invalid="ignore"):  # garbage would outweigh all that is true for an hour
            known = np.isfinite(moved_w) & ~(np.abs(moved_w) > WILD * shows_w[0])
        self._missed[:, rows] = FADES * self._missed[:, rows] + np.where(known, missed, 0.0)
        self._moved[rows] = FADES * self._moved[rows] + np.where(known, np.square(moved_w), 0.0)
        self._told_w[rows], self._stamp_s[rows] = told_w, at_s
        self._before_w[:, rows] = shows_w
        self._seen_s[:, rows] = np.vstack((self._seen_s[1:, rows], np.full(len(rows), now_s)))
        self._old_s[:, rows] = np.vstack((self._old_s[1:, rows], now_s - at_s))

    # The verdict stays while stamps keep their distance: a neighbour's step says nothing of clocks.
    def _judged(self, rows: Ints) -> tuple[Floats, Bools, Bools]:
        """By how much stamps of meters `rows` (n,) lie behind; who tells of now, who of then."""
        seen_s, old_s = self._seen_s[:, rows], self._old_s[:, rows]
        by_now, by_then = self._missed[:, rows]
        moved = self._moved[rows]
        with np.errstate(invalid="ignore"):
            passed_s = seen_s[-1] - seen_s[0]
            stamped_s = passed_s - (old_s[-1] - old_s[0])
            least_s, most_s = old_s.min(axis=0), old_s.max(axis=0)
            runs = (most_s - least_s <= WANDER_S) & (stamped_s >= 0.5 * passed_s) & (passed_s > 0)
            # A meter that has news seldom is old by right.
            due_s = np.maximum(NEAR_S, SLOWER * stamped_s / (NEWS - 1))
            past = runs & (least_s > due_s)
            enough = moved >= np.square(MOVES * self._told_w[rows])
        tells = np.where(runs, self._tells[rows], UNKNOWN)
        # Of a device it must be seen to move with its cap, all the same: what it tells takes a cap.
        future = runs & (least_s < -NEAR_S)
        past |= future
        tells = np.where(future & (rows >= self._fleet.size), NOW, tells)
        now = by_now < EXPLAINED * np.minimum(moved, by_then)
        then = by_then < EXPLAINED * np.minimum(moved, by_now)
        tells = np.where(past & enough & now, NOW, np.where(past & enough & then, THEN, tells))
        self._tells[rows] = tells
        # One that is a little late is believed as it is.
        return least_s, tells == NOW, (tells == THEN) & (least_s > self._max_age_s)


# --- Readings of a while ago ------------------------------------------------------------------
LATE_S = 2.5
"""Meters that have news more often than that tell of now, as far as knobs take a second."""
CAP_LOOKS = 96
"""So many looks at caps are remembered: a number of 40 s may be asked for as late again."""
SELDOMER = 2.0
"""And so many times as seldom as those of all levels above."""
AROUND_S = 1.5
"""Clocks of boards and of knobs' agents agree as far as that."""
STOOD_S = 5.0
"""Draw of the moment tells how a cap is kept that had stood for so long."""


# A device that pressed is the only one whose rise is expected: our own order raised its cap. What a
# level shows beyond all that is expected may be anybody's, a job that came back or a neighbour, and
# counts as other load until the devices' news tell whose it was. Then it is handed over to them
# (`explained_w`), as if it had been theirs all along.
class LateDraws:
    """Arrays over devices (N,)."""

    def __init__(self, fleet: Fleet) -> None:
        """Nothing was read yet."""
        self._fleet = fleet
        size = fleet.size
        self._told_w: Floats = np.full(size, np.nan)
        self._stamp_s: Floats = np.full(size, np.nan)
        self._then_w: Floats = np.full((2, size), np.nan)
        """The lowest and the highest cap in force at the moment that each meter tells of."""
        self._stood: Bools = np.zeros(size, dtype=np.bool_)
        """Whether that was all the same for a while."""
        self._past_s: Floats = np.full(CAP_LOOKS, -np.inf)
        self._past_w: Floats = np.full((CAP_LOOKS, size), np.nan)
        self._row = 0
        self._drawn_w: Floats = np.full(size, np.nan)
        """What each device was taken to draw at the last look."""
        self.late: Bools = np.zeros(size, dtype=np.bool_)
        """Devices whose meters tell of a while ago."""
        self.telling: Bools = np.zeros(size, dtype=np.bool_)
        """Those of them that tell of a cap which had stood, and is about the same now."""
        self.more_w: Floats = np.zeros(size)
        """By how much more than it was taken to a device turns out to draw."""

    def up_to_now(
        self, readings: Readings, seen: TrustedReadings, *, renews_s: Floats,
        response: DrawResponse, counted_w: Floats, other_w: Floats,
    ) -> TrustedReadings:  # fmt: skip
        """The same readings, with what devices of late meters draw now.

        `renews_s` (N + F + 1,) is how often each meter has news, `counted_w` (N,) what each device
        may draw at most, and `other_w` (F + 1,) what each level draws beside its devices, NaN if
        unknown.
        """
        # A level whose own meter has news as seldom shows nothing of what was drawn since.
        size = self._fleet.size
        levels_s = -self._fleet.least(-np.where(self._fleet.level_read, renews_s[size:], 0.0))
        late = renews_s[:size] > np.maximum(LATE_S, SELDOMER * levels_s)
        self._remember(readings, late)
        self.late = late & np.isfinite(seen.draw_w) & ~seen.still
        if not self.late.any():
            self.telling, self.more_w = self.late, np.zeros(size)
            self._drawn_w = seen.draw_w
            return seen
        with np.errstate(invalid="ignore"):
            alike = np.abs(readings.cap_w - self._then_w[1]) <= DRIFT * self._then_w[1]
        self.telling = self.late & self._stood & alike
        expected_w = self._expected_w(readings.cap_w, seen.draw_w, response)
        moved_w = np.where(self.late, np.nan_to_num(expected_w - seen.draw_w), 0.0)
        moved_w = self._shown(moved_w, seen, readings.off, counted_w, other_w)
        draw_w = seen.draw_w + moved_w
        # A lower cap that was once seen to be kept is kept: what its level draws beyond that since
        # is somebody else's.
        kept = self.late & (moved_w <= 0) & (draw_w > counted_w)
        draw_w = np.where(kept, np.fmin(draw_w, np.fmax(expected_w, counted_w)), draw_w)
        moved_w = draw_w - seen.draw_w
        self.more_w = np.where(self.late, np.fmax(draw_w - self._drawn_w, 0.0), 0.0)
        self._drawn_w = draw_w
        return replace(seen, draw_w=draw_w, now_w=seen.now_w + moved_w)

    def _remember(self, readings: Readings, late: Bools) -> None:
        """Whose meter has news, and under which cap that was drawn."""
        now_s = readings.now_s
        self._past_s[self._row], self._past_w[self._row] = now_s, readings.cap_w
        self._row = (self._row + 1) % CAP_LOOKS
        stamp_s, told_w = readings.draw_at_s, readings.draw_w
        with np.errstate(invalid="ignore"):
            # Of a meter that is stamped whenever it is asked only other digits are news.
            jumped = ~(stamp_s - self._stamp_s <= LATE_S)
            news = np.isfinite(told_w) & (jumped | (told_w != self._told_w))
        self._stamp_s = np.where(np.isfinite(stamp_s), stamp_s, self._stamp_s)
        self._told_w = np.where(np.isfinite(told_w), told_w, self._told_w)
        rows = np.flatnonzero(news & late)
        if not len(rows):
            return
        since_s = self._past_s[:, None] - np.minimum(stamp_s[rows], now_s)
        self._then_w[:, rows] = self._caps(rows, np.abs(since_s) <= AROUND_S)
        low_w, high_w = self._caps(rows, (since_s >= -STOOD_S) & (since_s <= AROUND_S))
        with np.errstate(invalid="ignore"):
            self._stood[rows] = high_w - low_w <= SAME * high_w

    def _caps(self, rows: Ints, when: Bools) -> Floats:
        """The lowest and highest caps of devices `rows` (n,) at looks `when` (looks, n), or NaN."""
        past_w = self._past_w[:, rows]
        when = when & np.isfinite(past_w)
        low_w = np.where(when, past_w, np.inf).min(axis=0)
        high_w = np.where(when, past_w, -np.inf).max(axis=0)
        return np.where(np.isfinite(low_w), (low_w, high_w), np.nan)

    def _expected_w(self, cap_w: Floats, told_w: Floats, response: DrawResponse) -> Floats:
        """What devices (N,) draw now if they follow their caps."""
        low_w, high_w = self._then_w
        then_w, now_w = response.at(high_w), response.at(cap_w)
        with np.errstate(invalid="ignore", divide="ignore"):
            pressed = told_w >= PRESSING * low_w
            share = np.minimum(told_w / then_w, 1.0)
            follows_w = told_w + share * (now_w - then_w)
            return np.where(pressed, follows_w, np.minimum(told_w, now_w))

    def _shown(
        self, moved_w: Floats, seen: TrustedReadings, off: Bools, counted_w: Floats,
        other_w: Floats,
    ) -> Floats:  # fmt: skip
        """As much of `moved_w` (N,) as the meters above show."""
        fleet = self._fleet
        own_w = np.where(np.isnan(seen.now_w) | seen.still, counted_w, seen.now_w)
        own_w = np.where(off, 0.0, own_w)
        rise_w, fall_w = np.maximum(moved_w, 0.0), np.maximum(-moved_w, 0.0)
        up_w, down_w = fleet.levels(rise_w), fleet.levels(fall_w)
        # What each level shows beyond what was told and what is drawn beside its devices.
        beyond_w = seen.level_now_w - fleet.levels(own_w) - other_w
        with np.errstate(invalid="ignore", divide="ignore"):
            more = beyond_w >= up_w - down_w
            up = np.where(more, 1.0, np.clip((beyond_w + down_w) / up_w, 0.0, 1.0))
            down = np.where(more, np.clip((up_w - beyond_w) / down_w, 0.0, 1.0), 1.0)
        unread = np.isnan(beyond_w)
        # Nobody contradicts a rise where nothing is read, and nobody proves a fall.
        up = fleet.least(np.where(unread | (up_w <= 0), 1.0, up))
        down = fleet.least(np.where(unread | (down_w <= 0), 1.0, down))
        proven = fleet.any_above(~unread)
        return rise_w * up - np.where(proven, fall_w * down, 0.0)
