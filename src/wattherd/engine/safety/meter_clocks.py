"""Meters whose clock is wrong, told from meters that are late.

A controller without a time server stamps its readings seconds or hours away from ours, second by
second all the same: what it tells is of now. A pipeline that is behind stamps them truly: what it
tells is of then. Both look alike, and to throw both away leaves a level without a meter for ever.
Nobody can read tomorrow, so a stamp of the future is a wrong clock. Of stamps of the past it is
asked which moment explains the meter's moves: what devices below it drew now, or what they drew
then. Until their moves tell, such a reading is none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Readings

NEWS = 6
"""So many stamps in a row that keep their distance make a clock."""
WANDER_S = 5.0
"""Within which they do: looks, the meter's own period, and readings that overtake each other."""
LOOKS = 128
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
        self._past_s: Floats = np.full(LOOKS, np.nan)
        self._past_w: Floats = np.full((LOOKS, count), np.nan)
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
        self._row = (self._row + 1) % LOOKS
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
