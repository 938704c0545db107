"""How much more other load may draw than it does now, for three reasons that no ramp tells of.

*It wanders* (`Fluctuation`), and how far it does before the loop can answer is learned. Processors,
memory and fans beside the devices wander: no ramp tells of it, and no switch. What is believed now
is right when it is read, and wrong by some standard deviations once loop and knobs have answered.
That spread is learned for every level from what other load did over just that time.

*It hides* on levels with devices that no meter shows (`HiddenDraw`). Where devices have no meters a
low reading of their level says nothing: they may idle, and so may the parts beside them that no cap
acts on. What the level once drew while its devices were counted at so much it may draw again, in
proportion to their count, or as far as a regression says.

*It is switched* (`SwitchedLoad`): what it gave up at once it may take again at once. A compressor,
a night's backup, somebody else's job. Such a load is never met before it comes; but it was seen
when it went. So what a level's other load lost at once is kept free for its return: for most of a
minute where it went for the first time, and once it has come back for three times as long as it was
ever away. What goes away slowly comes back slowly, which its ramp shows.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats

# --- Load that wanders ------------------------------------------------------------------------
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


# --- Devices that no meter shows --------------------------------------------------------------
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


# --- Load that is switched --------------------------------------------------------------------
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
        self._climbed_w: Floats = np.zeros(levels)
        """What came slowly, and has not gone since."""
        self._jumped_w: Floats = np.zeros(levels)
        """What came at once, and has not gone since."""
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
        for one in (self._away_s, self._most_w, self._given_w, self._given_s, self._came_w,
                    self._climbed_w, self._jumped_w):  # fmt: skip
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
        line_w -= self._climbed_again(change_w, along_w, line_w - was_w > LARGE * drawn_w)
        came_w = np.nan_to_num(np.maximum(reached_w - line_w, 0.0))
        self._line_w, self._was_w = np.maximum(line_w, reached_w), reached_w
        self._wait(np.nan_to_num(self._line_w - reached_w), came_w, LARGE * drawn_w, step_s)

    # The line moves up with what comes slowly. Were that left there whenever it goes at once, as
    # fans and soft starters do, the line would rise with each turn, until nothing was left.
    def _climbed_again(self, change_w: Floats, along_w: Floats, waits: Bools) -> Floats:
        """What (L,) goes now at once, came slowly, and is not the first that is waited for."""
        change_w = np.nan_to_num(change_w)
        slowly = np.abs(change_w) <= along_w
        climbed_w = self._climbed_w + np.where(slowly, change_w, 0.0)
        jumped_w = self._jumped_w + np.where(~slowly & (change_w > 0), change_w, 0.0)
        # What goes slowly beyond all that came slowly has come at once.
        jumped_w = np.maximum(jumped_w + np.minimum(climbed_w, 0.0), 0.0)
        climbed_w = np.maximum(climbed_w, 0.0)
        gone_w = np.where(slowly, 0.0, np.maximum(-change_w, 0.0))
        jumps_w = np.minimum(gone_w, jumped_w)
        climbs_w = np.minimum(gone_w - jumps_w, climbed_w)
        self._jumped_w, self._climbed_w = jumped_w - jumps_w, climbed_w - climbs_w
        return np.where(waits, climbs_w, 0.0)

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
