"""What each device draws under a cap: as much, or more. Learned, never assumed.

Caps regulate some percent high; a node's knob caps its GPUs, while its meter also shows processors
and fans (1.82 times as much on eight H100); below some point caps are not met at all (an A40 draws
120.7 W at 100 W). So a device has one point that was seen, and two slopes that are on the safe side
of it: above, draw grows in proportion; below, it only falls as the cap does. And it has a reach:
what it draws at the least.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Reckoned, no_streak

SAME = 0.01
"""Draw within this share of what was expected is as expected."""
NEAR_FLOOR = 1.5
"""A device that cannot get lower than this multiple of its lowest cap is no wonder."""
PRESSING = 0.9
"""Above this share of its cap a device may be held back by it."""
AS_EXPECTED = 0.95
"""And above this share of what is expected under that cap it surely is: beside parts that no cap
acts on, a device that rests may still draw more than its cap."""
RISEN = 0.05
"""A cap that rose by so much has risen for sure: by less, draw that stands still within the noise
of its load says nothing of what the device can reach."""
DRIFT = 0.03
LASTS_S = 3.0
"""A higher draw of that length is the device's own and no spike."""
WINDOW_S = 6.0
"""Lower draw counts after one to two of these, as the highest that was read meanwhile."""
AT_CAP, FAR_BENEATH = 1.15, 0.7
"""Who draws about its cap, and no more than this share of its reach, can get lower. A device at
rest seldom meets its cap so closely; if it did, its reach is learned again."""
TWO_LOOKS_S = 0.9
IDLE_FORGET_S = 600.0
"""While a device does not press against its cap, an excess fades this slowly."""


# Why learned and not taken from a data sheet. What a cap of 200 W means in watts is a property of
# the device, its firmware and what the cap does not cover (processors and fans of a node). Counted
# at the number alone, a feed of nodes is over its limit by the part that no cap acts on; counted at
# a stated maximum, most of the feed stands empty.
class DrawResponse:
    """Arrays (N,): the draw to be expected at most under any cap."""

    def __init__(self, fleet: Fleet, unproven: float = 0.0) -> None:
        """Every device is taken to keep its cap but for a share, where its meter will tell."""
        size = fleet.size
        self._fleet, self._unproven = fleet, unproven
        self._cap_w: Floats = np.ones(size)
        self._draw_w: Floats = np.where(fleet.device_read, 1.0 + unproven, 1.0)
        self._rise, self._beyond, self._expected = Reckoned(), Reckoned(), Reckoned()
        self.reach_w: Floats = np.zeros(size)
        """What the device still draws where its cap is lower."""
        self._kept_w: Floats = np.full(size, np.nan)
        """A cap that it was seen to keep."""
        self._above = no_streak(size)
        self._stable = no_streak(size)
        self._rising = no_streak(size)
        self._drifts = no_streak(size)
        self._drift_w: Floats = np.full(size, np.nan)
        self._fresh: Bools = fleet.device_read.copy()
        """Devices whose excess is an assumption still."""
        self._beneath = no_streak(size)
        self._high: Bools = np.zeros(size, dtype=np.bool_)
        """Devices that were seen to draw beyond a cap in force."""
        self._before_w: Floats = np.full(size, np.nan)
        self._held_w: Floats = np.full(size, np.nan)
        self._peak_w: Floats = np.zeros((2, size))
        self._least_w: Floats = np.zeros((2, size))
        self._turned_s = np.full(size, -np.inf)

    @property
    def beyond_w(self) -> Floats:
        """The excess (N,) over the cap where it was seen last."""
        return self._beyond.of(self.point, lambda: self._draw_w - self._cap_w)

    @property
    def point(self) -> tuple[Floats, Floats]:
        """A cap of each device (N,), and the draw that was seen under it."""
        return self._cap_w, self._draw_w

    # Only what was seen counts as a device's own excess; an assumption that was handed on must stay
    # one, or it would never be learned away.
    def restore(self, reach_w: Floats, beyond_w: Floats, held_w: Floats) -> None:
        """Take over what a predecessor learned; NaN is nothing."""
        self.reach_w = np.nan_to_num(reach_w)
        known = np.isfinite(beyond_w) & np.isfinite(held_w) & (held_w > 0)
        self._cap_w = np.where(known, held_w, self._cap_w)
        self._draw_w = np.where(known, held_w + np.maximum(beyond_w, 0.0), self._draw_w)
        with np.errstate(invalid="ignore"):
            assumed = np.abs(beyond_w - self._unproven * held_w) < SAME / 2 * held_w
            self._high = known & ~assumed & (beyond_w > SAME * held_w)

    # Both slopes err on the safe side of the one point that was seen. Above it draw may grow in
    # proportion to the cap; below it the excess may be of parts that no cap acts on, which stay.
    def at(self, cap_w: Floats) -> Floats:
        """Draw (N,) to be expected at most under `cap_w` (N,)."""
        above = cap_w * self._rise.of(self.point, lambda: self._draw_w / self._cap_w)
        below = cap_w + self.beyond_w
        draw_w = np.where(cap_w >= self._cap_w, above, below)
        return np.maximum(draw_w, self.reach_w, out=draw_w)

    def _under(self, held_w: Floats) -> Floats:
        """The same for caps that are asked about again and again."""
        known = (held_w, *self.point, self.reach_w)
        return self._expected.of(known, lambda: self.at(held_w))

    # The inverse of `at`, without the reach: below what a device can get down to any cap is as good
    # as the lowest.
    def cap_for(self, draw_w: Floats) -> Floats:
        """The highest caps (N,) under which no more than `draw_w` (N,) is to be expected."""
        above = draw_w * (self._cap_w / self._draw_w)
        return np.where(draw_w >= self._draw_w, above, draw_w - self.beyond_w)

    def keeps(self, cap_w: Floats) -> Bools:
        """Devices (N,) that were not seen to draw beyond such a cap; assumptions do not count."""
        return np.asarray(~self._high | (self.at(cap_w) <= cap_w * (1.0 + SAME)))

    def _note_high(self, slow: Bools, held_w: Floats, draw_w: Floats) -> None:
        """Whether devices draw beyond a cap that hardly moves; at rest they tell nothing of it."""
        with np.errstate(invalid="ignore"):
            high = slow & (draw_w > held_w * (1.0 + SAME))
            kept = slow & ~high & (draw_w >= AS_EXPECTED * held_w)
        self._high = (self._high | high) & ~kept

    def learn(
        self, held_w: Floats, draw_w: Floats, *, may: Bools, told: Bools, now_s: float,
        settle_s: Floats, step_s: float,
    ) -> Floats:  # fmt: skip
        """Take in a draw (N,) under caps in force; how much more (N,) it explains, or less.

        `may` (N,) says where meter and knob are to be trusted, `told` (N,) where the meter alone
        is; `settle_s` (N,) for how long a cap must have stood before its draw means anything. Draw
        beyond a cap that is only on its way up says as much as beyond one that stands.
        """
        before_w = self._under(held_w)
        with np.errstate(invalid="ignore"):
            same = np.abs(held_w - self._held_w) <= SAME * held_w
            stable_s = self._stable.note(same & may, now_s)
            self._held_w = np.where(same, self._held_w, held_w)
            usable = may & same & (stable_s >= settle_s)
            # For a while after a cap fell the draw is that of the higher one. After it rose, draw
            # beyond what was expected is news whether or not it has arrived.
            fell = held_w < self._before_w * (1.0 - SAME)
            rising_s = self._rising.note(told & ~fell, now_s)
            above = told & ~fell & (rising_s >= settle_s) & (draw_w > before_w * (1.0 + SAME))
        self._before_w = np.where(fell | ~(self._before_w > held_w), held_w, self._before_w)
        with np.errstate(invalid="ignore"):
            # Caps that creep count as well. Where only those that stand were compared with their
            # draw, a cap that moved in every cycle never was, and a ramp ended above its limit.
            drifts = may & (np.abs(held_w - self._drift_w) <= DRIFT * held_w)
        drifts_s = self._drifts.note(drifts, now_s)
        self._drift_w = np.where(drifts, self._drift_w, held_w)
        slow = drifts & (drifts_s >= settle_s + LASTS_S)
        lasts = self._above.note(above, now_s) >= LASTS_S
        # While caps rise fast draw lags behind: so much is the least that it will be.
        sure = usable | slow
        # Seen on the way up only: it stays an assumption until a cap that stands has proved it.
        self._fresh |= lasts & ~sure
        most_w = np.where(sure, 1.0, 1.0 + self._unproven) * draw_w
        self._see_more(lasts, held_w, most_w, stands=usable)
        # Not by a draw that has not followed the last step yet: one of 5 W is 3 % of a low cap.
        self._prove(slow & usable, held_w, draw_w)
        self._note_high(slow, held_w, draw_w)
        self._see_less(usable, held_w, draw_w, now_s, step_s)
        self._see_beneath(may & same, held_w, draw_w, now_s)
        return np.asarray(self._under(held_w) - before_w)

    # A cap that is lowered for seconds only never stands long enough to be judged by. Believed to
    # reach no less, its device was sent to the floor each time that a level was over, and came
    # back each time: a swing of our own making.
    def _see_beneath(self, may: Bools, held_w: Floats, draw_w: Floats, now_s: float) -> None:
        """A reach is wrong where two looks show far less, and just what a lower cap allows."""
        with np.errstate(invalid="ignore"):
            held_there = (draw_w >= PRESSING * held_w) & (draw_w <= AT_CAP * held_w)
            beneath = may & held_there & (draw_w < FAR_BENEATH * self.reach_w)
        wrong = (self._beneath.note(beneath, now_s) >= TWO_LOOKS_S) & beneath
        self.reach_w = np.where(wrong, 0.0, self.reach_w)

    def _prove(self, slow: Bools, held_w: Floats, draw_w: Floats) -> None:
        """What was only assumed goes once a cap that hardly moves was seen to be kept."""
        expected_w = self._under(held_w)
        with np.errstate(invalid="ignore"):
            kept = slow & self._fresh & (draw_w >= AS_EXPECTED * expected_w)
            kept &= draw_w <= expected_w * (1.0 - SAME)
        self._set_point(kept, held_w, np.maximum(draw_w, held_w) * (1.0 + SAME / 2))
        self._fresh &= ~kept

    def _see_more(self, lasts: Bools, held_w: Floats, draw_w: Floats, *, stands: Bools) -> None:
        """A point with more draw: the cap's own reach if higher caps were kept, else an excess."""
        with np.errstate(invalid="ignore"):
            # Whoever kept a higher cap regulates well, and has come to its own lowest draw here:
            # that says nothing of higher caps, as an excess would.
            reach = lasts & stands & (self._kept_w > held_w * (1.0 + SAME))
            excess = lasts & ~reach
        self.reach_w = np.where(reach, draw_w, self.reach_w)
        self._set_point(excess, held_w, draw_w)
        with np.errstate(invalid="ignore"):
            self._kept_w = np.where(excess & (self._kept_w <= held_w), np.nan, self._kept_w)

    # Less than expected counts only while a device presses against its cap: at rest it draws little
    # whatever its response is.
    def _see_less(
        self, usable: Bools, held_w: Floats, draw_w: Floats, now_s: float, step_s: float
    ) -> None:
        """What was expected and does not come, though the device presses, is taken back."""
        turn = usable & (now_s - self._turned_s >= WINDOW_S)
        fresh = ~usable
        self._turned_s = np.where(turn | fresh, now_s, self._turned_s)
        self._peak_w[0] = np.where(turn, self._peak_w[1], np.where(fresh, np.inf, self._peak_w[0]))
        self._least_w[0] = np.where(turn, self._least_w[1], np.where(fresh, 0.0, self._least_w[0]))
        begun = turn | fresh
        self._peak_w[1] = np.where(begun, 0.0, self._peak_w[1])
        self._least_w[1] = np.where(begun, np.inf, self._least_w[1])
        self._peak_w[1] = np.fmax(self._peak_w[1], draw_w)
        self._least_w[1] = np.fmin(self._least_w[1], draw_w)
        # Over two windows, so that a pause at the turn of one does not pass for a better regulator.
        peak_w, least_w = self._peak_w.max(axis=0), self._least_w.min(axis=0)
        proven = usable & np.isfinite(peak_w)
        # A draw near its cap may be a coincidence where parts of a node are beyond any cap. It is
        # held back for sure where it is all that was expected, where the cap is kept, or where it
        # stands at the point that was seen before.
        expected_w = self._under(held_w)
        near = (least_w >= AS_EXPECTED * expected_w) | (peak_w <= held_w * (1.0 + SAME))
        near |= np.abs(peak_w - self._draw_w) <= 2 * SAME * self._draw_w
        pressing = proven & (least_w >= PRESSING * held_w) & near
        less = pressing & (peak_w < expected_w * (1.0 - SAME))
        # Draw that stood still while the cap rose was the device's reach.
        stood = ~self._fresh & (np.abs(peak_w - self._draw_w) <= 2 * SAME * self._draw_w)
        was_reach = less & stood & (held_w > self._cap_w * (1.0 + RISEN))
        was_reach &= self.beyond_w > SAME * self._cap_w
        self.reach_w = np.where(was_reach, np.maximum(self.reach_w, self._draw_w), self.reach_w)
        self.reach_w = np.where(less & (self.reach_w > peak_w),
                                np.where(peak_w > held_w, peak_w, 0.0), self.reach_w)  # fmt: skip
        # Never below the cap itself: that a device draws less than its cap today is no promise.
        self._set_point(less, held_w, np.maximum(peak_w, held_w))
        self._fresh &= ~less
        kept = pressing & (peak_w <= held_w * (1.0 + SAME))
        self._kept_w = np.where(kept, held_w, self._kept_w)
        idle = proven & ~pressing & (self.beyond_w > 0)
        if idle.any():
            fade = np.exp(-step_s / IDLE_FORGET_S)
            self._draw_w = np.where(idle, self._cap_w + fade * self.beyond_w, self._draw_w)

    def _set_point(self, which: Bools, cap_w: Floats, draw_w: Floats) -> None:
        if not which.any():
            return
        positive = which & (cap_w > 0)
        self._cap_w = np.where(positive, cap_w, self._cap_w)
        self._draw_w = np.where(positive, np.maximum(draw_w, cap_w), self._draw_w)
