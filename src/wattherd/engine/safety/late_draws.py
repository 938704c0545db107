"""Devices' meters that tell of a while ago, brought up to now.

An exporter renews its numbers every 10 or 30 s (DCGM's default is 30 s), while caps and levels move
every second. Read as if they were of now, such numbers show what devices took since as other load
of their level, which is remembered for hours; and who was given more seems to rest. What a device
did since is expected from its cap: who pressed against it follows it, up and down, and nobody draws
beyond a lower one. It is believed as far as the levels above show it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints, Readings
from wattherd.engine.safety.meters import TrustedReadings
from wattherd.engine.safety.response import DRIFT, PRESSING, SAME, DrawResponse

LATE_S = 2.5
"""Meters that have news more often than that tell of now, as far as knobs take a second."""
LOOKS = 96
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
        self._past_s: Floats = np.full(LOOKS, -np.inf)
        self._past_w: Floats = np.full((LOOKS, size), np.nan)
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
        self._row = (self._row + 1) % LOOKS
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
        """The lowest and highest caps of devices `rows` (n,) at looks `when` (LOOKS, n), or NaN."""
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
