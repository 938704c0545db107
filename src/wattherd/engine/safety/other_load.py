"""Other load: what a level draws beside its devices, or beyond what they were counted at.

Cooling, switches, processors, losses of power supplies, tenants without knobs; and bursts of many
devices at once. It is an unknown of its own for every level, in three parts:

* *Now.* At least what is read less what the devices can at most draw: that is believed at once. At
  most what is read less what their own meters show: believed when it has lasted (meters tell of the
  same watts at different times), and only as far as the level's own draw rose. Devices that read
  lower while the level does not prove nothing.
* *Soon.* Its own ramp goes on for as long as loop and knobs take to answer, and it wanders, see
  `Fluctuation`.
* *Again.* What it gave up at once it may take again at once, see `SwitchedLoad`.

And it may grow with the devices' draw (fans, losses): how fast is a regression on its own past; as
long as that says nothing, in proportion.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from wattherd.engine.safety.cap_bursts import CapBursts
from wattherd.engine.safety.contract import NEVER_HELD, Bools, Fleet, Floats, Ints, no_streak
from wattherd.engine.safety.medians import Extremes, median
from wattherd.engine.safety.meters import SECOND_S, MeterSpikes, TrustedReadings
from wattherd.engine.safety.other_load_rises import Fluctuation, HiddenDraw, SwitchedLoad

TAKEN = 5
"""Looks of which the median counts: two odd ones among them change nothing."""
RECENT_S = 3.0
"""Draw follows a cap that is in force within that time."""
MEANS = 2.5
"""Slow meters show means: so many of their periods pass until all is told."""
MOMENT_S = 5.0
"""Other load that was read within one to two of these is still counted."""
WINDOW_S = 20.0
UNPROVEN_S = 120.0
"""How slowly a rise is believed that only the devices' meters tell of, by reading lower."""
FIRST_S = 15.0
KEPT_S = 15.0
KEEP_S = 2 * 86_400.0
"""Ramps and peaks fade by 1/e in this time: the same hour of tomorrow finds most of them."""
UNREAD_FORGET_S = 600.0
"""Where no meter tells whether devices idle or other load has gone, the latter slowly counts."""
NOISE = 0.005
"""Changes below this share of a level's draw are noise of meters."""
FARTHEST = 0.10
"""A ramp is never drawn out by more than this share of the level's draw."""
DOUBT = 0.05
"""Devices that read lower by this share of their level's draw, without it, are not believed."""
SHORT_S = 10.0
"""A meter that shows less than its devices for so long, and for longer than its slow news explain,
counts a part of them only."""
SWING_LOOKS = 32
SWING = 0.15
"""Peak to peak, as a share of the mean."""
TURNS = 6
"""From one third of the span to the other and back: what may be a few dips turns less often."""
ODD_LOOKS = 2
"""A start or a single dip makes no swing, nor hides one."""
ALARM_S = 8.0
SWING_KEPT_S = 1_800.0
BETWEEN_LOOKS, UNSEEN = 1.4, 0.7
BETWEEN_MEANS = 1.25
"""Means of a second are told at moments, and may have been higher in between."""
HIGHEST_PEAK = 0.43
"""The most that was seen above a cap: B300, 500 ms."""
OWN_PAST, LATE = 64, 1.5
"""A slow meter shows what was so within that many of its periods."""
FAR_S = 4.0
SLOPE_S = 3.0
FOLLOWS_MOST = 1.2
"""Watts that come with a watt of devices, as long as their own past says nothing: a node of eight
H100 draws 1.82 of its GPUs, and cooling a sixth of that. Beside a small machine all else on its
rack may be many times its draw, and hardly any of it follows."""
CONVEX = 1.5
"""The next watt brings more than the ones before did in the mean: losses of supplies grow with the
square of what they carry, fans take the cube of their speed."""
# Applied once a mark, and marks are `SLOPE_S` apart: it forgets by 1/e in two and a half minutes.
SLOPE_MEMORY = 0.98
BURSTS_GROW = 2.0
"""So much faster than in proportion bursts grow with the caps that let them through."""

PART_OF_BURST = 0.6
"""Of what a burst is assumed to be: less was seen of one that lay across two seconds."""


# Three beliefs, each for another use. `steady_w` is what has been proven, and what further rises
# are measured from. `now_w` is what counts against limits: never below `steady_w`, nor below what
# is stated, and never lower than it was a moment ago. `reserve_w` is kept on top for what comes
# before the loop can answer.
class BaseLoad:
    """Arrays over levels (F + 1,), each with what is below it."""

    def __init__(self, fleet: Fleet, unproven: float = 0.0) -> None:
        """Nothing is known but what is stated."""
        levels = fleet.feeds + 1
        self._fleet = fleet
        self.stated_w: Floats = fleet.tree.sums(fleet.stated_base_w)
        self.now_w: Floats = self.stated_w.copy()
        """Other load as it is believed to be."""
        self.steady_w: Floats = np.full(levels, np.nan)
        """The same without what only this cycle showed; NaN before the first."""
        self.reserve_w: Floats = np.zeros(levels)
        """What is kept for its rise before the loop could answer."""
        self.for_rises_w: Floats = np.zeros(levels)
        """The part of that which devices need no more once they have risen."""
        self.away_w: Floats = np.zeros(levels)
        """What of it went at once and may come back at once."""
        self.slope: Floats = np.zeros(levels)
        """Watts of other load that come with a watt of the devices', at most."""
        self.drawn_w: Floats = np.zeros(levels)
        """What each level draws, by its own meter or by those below."""
        self.explained_w: Floats = np.zeros(levels)
        """How much of that is the devices'."""
        self._beyond_w: Floats = np.zeros(levels)
        """What means of a second show of devices beyond what these were counted at."""
        self._quick_w: Floats = np.zeros(levels)
        """The part of it that is of devices which did not come from rest."""
        self.doubted: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels whose devices read lower while the level itself did not."""
        self.rise_w: Floats = np.zeros(levels)
        self.peak_w: Floats = np.zeros(levels)
        self._soft_w = np.full((TAKEN, levels), np.nan)
        self._own_w = np.full((TAKEN, levels), np.nan)
        self._falls_w = np.full((TAKEN, levels), np.nan)
        """Other load (TAKEN, F + 1) if a level's meter told of the look before."""
        self._own_late_w = np.zeros((2 * TAKEN, levels))
        self._faded_w = np.zeros((2 * TAKEN, levels))
        self._hard_w = np.full((TAKEN, levels), np.nan)
        self._level_w = np.full((TAKEN, levels), np.nan)
        self._recent_w = np.full((2, fleet.size), -np.inf)
        self._recent_s = -np.inf
        self._counted_w: Floats = np.zeros(fleet.size)
        self._known: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self._met: Bools = np.zeros(fleet.size, dtype=np.bool_)
        """Devices whose own meter has told of them at least once."""
        self._read_w: Floats = np.zeros(levels)
        self._quiet = no_streak(levels)
        self._trend = Extremes(levels, WINDOW_S / 2)
        self._moments = Extremes(levels, MOMENT_S)
        self._bursts = Extremes(levels, SWING_LOOKS)
        self._burst_counts = Extremes(levels, SWING_LOOKS)
        self._just_now = Extremes(levels, SECOND_S)
        self._of_second: Bools = np.zeros(levels, dtype=np.bool_)
        self._hard_low = Extremes(levels, WINDOW_S / 2)
        self._level_low = Extremes(levels, WINDOW_S / 2)
        self._rises = Extremes(levels, 2 * WINDOW_S)
        self._lows = Extremes(levels, WINDOW_S / 2)
        self._peaks = Extremes(levels, WINDOW_S)
        self._sure_slope = np.zeros(levels)
        self.swing_w: Floats = np.zeros(levels)
        """Peak to peak of levels whose devices rise and fall together; 0 for the others."""
        self._swing_part: Floats = np.zeros(levels)
        self._past_looks: deque[Floats] = deque(maxlen=SWING_LOOKS)
        self._alarmed_s = -np.inf
        self._swing_at_s = -np.inf
        self._began_s: float | None = None
        self._past_s = np.full(6, np.nan)
        self._past_w = np.full((6, levels), np.nan)
        self._far_s = np.full(6, np.nan)
        self._far_w = np.full((6, levels), np.nan)
        self._sums = np.zeros((4, levels))
        self._mark: tuple[float, Floats, Floats] | None = None
        self._alike: Ints = np.zeros(levels, dtype=np.int64)
        """Looks in a row at which the same devices were read below each level."""
        self._alike_then: Ints = np.zeros(levels, dtype=np.int64)
        self.short: Bools = np.zeros(levels, dtype=np.bool_)
        """Levels whose meter has shown less than their devices' for long."""
        self._short = no_streak(levels)
        self._unproven: Bools = np.zeros(levels, dtype=np.bool_)
        self._learned_slope: Floats = np.full(levels, np.inf)
        self._hidden = HiddenDraw(fleet, unproven)
        self._spikes = MeterSpikes(levels)
        self._cap_bursts = CapBursts(fleet)
        self.switched = SwitchedLoad(levels)
        self.fluctuation = Fluctuation(levels)
        self._kept_w = np.full((2, 3, levels), np.nan)
        """Steady, rise and peak, as they were lately and some time before."""
        self._kept_at_s = -np.inf
        self._blind: Bools = np.zeros((TAKEN, levels), dtype=np.bool_)
        """By look, levels of which no meter told."""
        self._shown_w: Floats = np.full(levels, np.nan)
        self._own_then_w: Floats = np.full(levels, np.nan)
        """The least that devices drew when a slow meter measured what it shows."""
        self._own_past: deque[tuple[float, Floats]] = deque(maxlen=OWN_PAST)

    def restore(self, base_w: Floats, rise_w: Floats, peak_w: Floats) -> None:
        """Take over what a predecessor learned; NaN is nothing."""
        self.steady_w = base_w.copy()
        self.now_w = np.fmax(base_w, self.stated_w)
        self.rise_w, self.peak_w = np.nan_to_num(rise_w), np.nan_to_num(peak_w)

    # What a meter told while it was going mad must not be waited for by nobody knows how long; and
    # what it told before that is the best that is known of a level which nobody reads now.
    def keep(self, sound: Bools, now_s: float) -> None:
        """Remember now and then what is known of levels (F + 1,) whose meters tell no nonsense."""
        if now_s - self._kept_at_s < KEPT_S:
            return
        self._kept_at_s = now_s
        known_w = np.array([self.steady_w, self.rise_w, self.peak_w])
        late_w, early_w = self._kept_w
        self._kept_w = np.array(
            [np.where(sound, known_w, late_w), np.where(sound, late_w, early_w)]
        )

    def go_back(self, which: Bools) -> None:
        """Of these levels (F + 1,) what is known is what was known half a minute ago."""
        if not which.any():
            return
        steady_w, rise_w, peak_w = self._kept_w[1]
        self.forget(which)
        self.steady_w = np.where(which, np.fmax(steady_w, self.stated_w), self.steady_w)
        self.now_w = np.where(which, np.nan_to_num(self.steady_w), self.now_w)
        self.rise_w = np.where(which, np.nan_to_num(rise_w), self.rise_w)
        self.peak_w = np.where(which, np.nan_to_num(peak_w), self.peak_w)

    # A meter that was taken for one of now and tells means has told of loads that never were.
    def forget(self, which: Bools) -> None:
        """Of these levels (F + 1,) nothing is known but what is stated."""
        if not which.any():
            return
        for past in (self._soft_w, self._falls_w, self._hard_w, self._past_w, self._far_w):
            past[:, which] = np.nan
        for known in (self.steady_w, self._shown_w, self._own_then_w):
            known[which] = np.nan
        self.now_w[which] = self.stated_w[which]
        for learned in (self.rise_w, self.peak_w, self._sure_slope):
            learned[which] = 0.0
        self._sums[:, which] = 0.0
        self._alike[which] = 0
        for one in (
            self._trend,
            self._moments,
            self._bursts,
            self._burst_counts,
            self._just_now,
            self._hard_low,
            self._level_low,
            self._rises,
            self._lows,
            self._peaks,
        ):
            one.forget(which)
        self.switched.forget(which)
        self.fluctuation.forget(which)

    @property
    def highest_w(self) -> Floats:
        """The highest that it was or may be next."""
        with_devices_w = self._sure_slope * self.explained_w
        return np.maximum(np.nan_to_num(self.steady_w), self.peak_w + with_devices_w)

    def look(
        self, seen: TrustedReadings, counted_w: Floats, off: Bools, *, now_s: float, step_s: float,
        ahead_s: float, news_s: float = 0.0, level_news_s: Floats | None = None,
        late_s: Floats | float = 0.0, own_then_w: Floats | None = None,
        faded_w: Floats | float = 0.0, told_more_w: Floats | None = None,
    ) -> None:  # fmt: skip
        """Take in a cycle; `counted_w` (N,) is what every device may draw at most.

        `ahead_s` is how long the loop takes to answer, `news_s` how seldom meters have news, and
        `level_news_s` (F + 1,) how seldom each level's. `late_s` (F + 1,) is how old what they tell
        of other load is, and `own_then_w` (F + 1,) what devices drew then, NaN where that is now.
        `faded_w` (F + 1,) is by how much less than at the last look they tell of the time before
        the first one. `told_more_w` (N,) is by how much more than was believed till now devices of
        late meters turn out to have drawn.
        """
        fleet = self._fleet
        self._of_second = np.zeros(fleet.feeds + 1, dtype=np.bool_) | seen.of_second
        recent_w = self._recently(counted_w, now_s, max(RECENT_S, MEANS * news_s))
        known = np.isfinite(seen.now_w) & ~seen.still
        # A device explains no more than it was counted at. If it draws more, the rest is other load
        # until `DrawResponse` has learned it and `transfer` moves it over: in between it is counted
        # once, on this side.
        own_w = np.where(off, 0.0, np.where(known, np.fmin(seen.now_w, recent_w), recent_w))
        # This stands for the draw of levels without a meter, so that readings count in full here,
        # also beyond the count.
        more_w = np.where(known, seen.now_w, np.fmax(seen.now_w, recent_w))
        more_w = np.where(off, 0.0, more_w)
        self.explained_w = fleet.levels(own_w)
        self._beyond_w = self._quick_w = np.zeros(fleet.feeds + 1)
        if self._of_second.any():
            self._beyond_w = np.where(self._of_second, fleet.levels(more_w - own_w), 0.0)
            # Of devices that rose from rest that is kept for when they rest again (`CapBursts`).
            quick_w = np.where(self._cap_bursts.risen_from_long_rest, 0.0, more_w - own_w)
            self._quick_w = np.where(self._of_second, fleet.levels(quick_w), 0.0)
        # A meter that shows less than its devices draw, of which all else is told, shows nothing.
        # Where means of a second are told it is not low for the median's sake, which is behind when
        # all rise together.
        with np.errstate(invalid="ignore"):
            now_w = np.where(self._of_second, seen.level_now_w, np.nan)
            shown_w = np.fmax(seen.level_w, now_w)
            low = shown_w < (1.0 - DOUBT) * fleet.levels(np.where(known, own_w, 0.0))
        read_w = np.where(low, np.nan, seen.level_now_w)
        late_news_s = np.zeros(len(low)) if level_news_s is None else MEANS * level_news_s
        self.short = low & (self._short.note(low, now_s) >= np.maximum(SHORT_S, late_news_s))
        read_w = np.where(self.short, self._from_above(read_w, own_w), read_w)
        self.drawn_w = self._drawn(read_w, own_w, more_w)
        most_w = fleet.levels(np.where(off, 0.0, recent_w))
        # The truth is between these two. Devices draw no more than they are counted at: what is
        # drawn beyond that (hard) is other load for sure. What is drawn beyond their readings
        # (soft) is the most that it may be, and too much where these read low or lag behind a rise.
        hard_w = self.drawn_w - most_w
        soft_w = self.drawn_w - self.explained_w
        if told_more_w is not None and told_more_w.any():
            # It passed for other load as long as nobody had told whose it was. Where the level's
            # own draw fell as well it is other load that went.
            fell_w = np.maximum(self._level_w.max(axis=0) - self.drawn_w, 0.0)
            was_w = np.nan_to_num(self.steady_w - soft_w - fell_w)
            self._give_over(np.clip(was_w, 0.0, fleet.levels(told_more_w)))
        told_w = np.full(len(soft_w), np.nan) if own_then_w is None else own_then_w
        of_now = np.isnan(told_w)
        then_w = np.where(of_now, self.explained_w, told_w)
        # A level's meter may tell of the moment before: devices that rise since hide what it shows.
        least_own_w = np.fmin(np.minimum(self.explained_w, self._own_w[-1]), self._own_then_w)
        least_own_w = np.where(of_now, least_own_w, self.explained_w)
        self._falls_w = np.vstack((self._falls_w[1:], self.drawn_w - least_own_w))
        self._disturb(counted_w, known, now_s)
        complete = fleet.levels((~known & ~off).astype(np.float64)) == 0
        unread = fleet.level_read & np.isnan(read_w)
        spikes = self._spikes.note(soft_w, self.drawn_w, told=complete & ~unread, step_s=step_s)
        # As an alarm, a spike concerns all levels above.
        spiking = fleet.tree.sums(spikes.astype(np.float64)) > 0
        passing = seen.alarmed | spiking
        # A level without a meter stands on what is read below it.
        blind = unread | (~fleet.level_read & (fleet.tree.sums(unread.astype(np.float64)) > 0))
        self._blind = np.vstack((self._blind[1:], blind))
        # What is believed is a median of looks: most of them must have been told.
        untold = blind | passing | (self._blind.sum(axis=0) > TAKEN // 2)
        self._meet(known, now_s)
        # Three spikes among five looks would be their median.
        self._take(np.where(spiking, np.fmin(soft_w, self._soft_w[-1]), soft_w), then_w)
        self._settle(hard_w, complete, unread, passing, now_s, step_s)
        self._remember(untold, now_s=now_s, step_s=step_s, ahead_s=ahead_s)
        self._regress(now_s, unread)
        self._hidden.note(
            # The lower of the two, since a spike must not be remembered for minutes as what the
            # level may draw.
            np.minimum(median(self._level_w), self.drawn_w), most_w, self._learned_slope,
            told=~unread & ~passing, step_s=step_s,
        )  # fmt: skip
        # A device that nobody reads swings in its level's draw only.
        devices_w = np.where(complete, self.explained_w, self.drawn_w)
        self._note_swing(devices_w, seen.alarmed, now_s, step_s)
        self._faded_w = np.vstack((self._faded_w[1:], np.zeros(len(read_w)) + faded_w))
        self._note_switched(untold, step_s)
        self._foresee(unread, now_s, ahead_s + late_s)
        self._note_fluctuation(untold, ahead_s + late_s, now_s, step_s)
        self.reserve_w = np.maximum(self.reserve_w, self._for_swing_w(most_w))
        if level_news_s is not None:
            risen_w = self._risen_unread_w(read_w, level_news_s, now_s, step_s)
            self.reserve_w = np.maximum(self.reserve_w, risen_w)
        self._keep_for_rises(np.where(off | ~known, np.nan, seen.now_w), counted_w, now_s, news_s)

    def _keep_for_rises(
        self, read_w: Floats, counted_w: Floats, now_s: float, news_s: float
    ) -> None:
        """Keep free what devices that rest may burst."""
        # Who reads low while its level does not is not at rest.
        read_w = np.where(self._fleet.any_above(self.doubted), np.nan, read_w)
        means = self._of_second[self._fleet.feed]
        rises_w = self._cap_bursts.look(read_w, counted_w, means, now_s, news_s)
        # Bursts that were seen of late say it better, unless they were parts of some.
        seen_w = np.where(self._burst_counts.highest > 0, self._bursts.highest, 0.0)
        rises_w = np.where(seen_w >= PART_OF_BURST * rises_w, 0.0, rises_w)
        self.for_rises_w = np.maximum(rises_w - self.reserve_w, 0.0)
        self.reserve_w = self.reserve_w + self.for_rises_w

    def transfer(self, watts: Floats) -> None:
        """Watts (N,) that devices now answer for themselves are no other load any more."""
        if watts.any():
            self._give_over(self._fleet.levels(watts))

    def _give_over(self, by_w: Floats) -> None:
        """Watts of levels (F + 1,) were never other load."""
        # All that is remembered moves by the same watts. A past that still had them in it would
        # show as a fall of other load now, and be kept free for its return.
        self._quiet.seconds = np.where(by_w > 0, NEVER_HELD, self._quiet.seconds)
        self.now_w = np.maximum(self.now_w - by_w, self.stated_w)
        self.steady_w = np.maximum(self.steady_w - by_w, self.stated_w)
        self._soft_w -= by_w
        self.peak_w = np.maximum(self.peak_w - by_w, 0.0)
        self.rise_w = np.maximum(self.rise_w - by_w, 0.0)
        for one in (self._trend, self._moments, self._lows, self._peaks, self._rises):
            one.shift(by_w)
        self.switched.shift(by_w)
        self.fluctuation.shift(by_w)
        self._past_w -= by_w
        self._far_w -= by_w

    def take_back(self, watts: Floats) -> None:
        """Watts (N,) that devices do not answer for any more are other load, as far as it is read.

        Else it would be found only after others had been given the same watts.
        """
        if not watts.any():
            return
        soft_w = np.nan_to_num(median(self._soft_w))
        # Not all of it: the device may draw less than was believed, and then nobody draws those
        # watts.
        more_w = np.clip(soft_w - self.steady_w, 0.0, self._fleet.levels(watts))
        more_w = np.nan_to_num(more_w)
        self.steady_w = self.steady_w + more_w
        self.now_w = np.maximum(self.now_w, np.nan_to_num(self.steady_w))

    def budget_w(self, room_w: Floats) -> Floats:
        """What devices may be counted at (F + 1,) where levels may draw `room_w` (F + 1,).

        Other load that grows with the devices takes its part of every further watt.
        """
        # What is believed is some looks old, the devices' draw is not: what came with it since.
        since_w = np.maximum(self.explained_w - median(self._own_w), 0.0)
        with_them_w = np.nan_to_num(self.steady_w) + self.slope * since_w
        left_w = room_w - np.maximum(self.now_w, with_them_w) - self.reserve_w
        # The slope is a price of further watts only. What came with the watts that devices draw
        # already was read, and is in `now_w`.
        more_w = np.maximum(left_w - self.explained_w, 0.0)
        found_w = np.where(more_w > 0, self.explained_w + more_w / (1.0 + self.slope), left_w)
        # So does what bursts through caps that hold a mean: it is the time until they bite at full
        # draw, and grows faster than the caps.
        at_w = self._burst_counts.highest
        seen = at_w > 0
        if seen.any():
            with np.errstate(invalid="ignore"):
                grows = np.where(seen, BURSTS_GROW * self._bursts.highest / at_w, 0.0)
                beyond_w = np.where(seen, np.maximum(found_w - at_w, 0.0), 0.0)
            found_w = found_w - beyond_w * grows / (1.0 + grows)
        return np.asarray(np.minimum(found_w, self._hidden.budget_w(room_w)))

    def _risen_unread_w(
        self, read_w: Floats, news_s: Floats, now_s: float, step_s: float
    ) -> Floats:
        """How much more (F + 1,) is drawn now than slow meters told, beyond what is believed.

        Until a meter has news its level is what it was then, but for the devices, which have news
        of their own; and when it has, it tells of a moment within its last period.
        """
        slow = news_s > 1.5 * max(step_s, 0.1)
        if not slow.any():
            return np.zeros_like(read_w)
        self._own_past.append((now_s, self.explained_w))
        known = np.isfinite(read_w)
        news = slow & known & (read_w != self._shown_w)
        if news.any():
            # Which moment of its last period a slow meter shows is not known. The least that
            # devices drew in that time makes their rise since then, and with it what may have come
            # with them, the largest.
            then_w = np.full(len(read_w), np.inf)
            for at_s, own_w in self._own_past:
                within = now_s - at_s <= LATE * news_s + 1e-9
                then_w = np.where(within, np.minimum(then_w, own_w), then_w)
            self._own_then_w = np.where(news, then_w, self._own_then_w)
            self._shown_w = np.where(news, read_w, self._shown_w)
        risen_w = np.fmax(self.explained_w - self._own_then_w, 0.0)
        beside_w = read_w + (1.0 + self.slope) * risen_w - self.explained_w
        rises = slow & known & (risen_w > 2 * NOISE * self.drawn_w)
        return np.where(rises, np.maximum(beside_w - self.now_w, 0.0), 0.0)

    # What hangs beside the devices of such a level is on no meter of its own: its loss and fans are
    # in what the level above draws and nobody below it shows. All of that may be here.
    def _from_above(self, read_w: Floats, own_w: Floats) -> Floats:
        """The most (F + 1,) that levels draw by the meter above them; NaN where it is silent."""
        fleet = self._fleet
        least_w = np.fmax(read_w, self.explained_w)
        below_w = np.bincount(fleet.tree.above, least_w[:-1], len(read_w)) + fleet.own(own_w)
        beside_w = (read_w - below_w)[fleet.tree.above]
        # No more than may come with its devices: the rest hangs on the level above itself.
        beside_w = np.append(np.clip(beside_w, 0.0, FOLLOWS_MOST * self.explained_w[:-1]), np.nan)
        return np.asarray(self.explained_w + beside_w)

    def _recently(self, counted_w: Floats, now_s: float, over_s: float) -> Floats:
        """The highest count of the time that draw and meters take to follow, or half of it."""
        if now_s - self._recent_s >= over_s / 2:
            self._recent_s = now_s
            self._recent_w[1] = self._recent_w[0]
            self._recent_w[0] = counted_w
        self._recent_w[0] = np.maximum(self._recent_w[0], counted_w)
        return np.asarray(self._recent_w.max(axis=0))

    def _drawn(self, read_w: Floats, own_w: Floats, more_w: Floats) -> Floats:
        """What levels draw: as read, and never less than what is below them."""
        fleet = self._fleet
        # A broken meter's level keeps the other load that it had.
        blind = fleet.level_read & np.isnan(read_w) & np.isfinite(self.steady_w)
        read_w = np.where(blind, self.explained_w + self.steady_w, read_w)
        return fleet.tree.believed(
            read_w, least=fleet.own(own_w), unread=fleet.own(more_w) + fleet.stated_base_w
        )

    def _disturb(self, counted_w: Floats, known: Bools, now_s: float) -> None:
        """Levels are quiet again a while after caps fell or meters came and went below them."""
        # Only counts that fell disturb. Devices may still draw what they were counted at before,
        # and the difference would pass for other load that rose.
        moved_w = np.where(known != self._known, counted_w, self._counted_w - counted_w)
        much = self._fleet.levels(np.maximum(moved_w, 0.0)) > 2 * NOISE * self.drawn_w
        self._quiet.note(~much, now_s)
        other = known != self._known
        self._alike = self._alike + 1
        if other.any():
            self._alike[self._fleet.levels(other.astype(np.float64)) > 0] = 0
        self._counted_w, self._known = counted_w.copy(), known

    # Until a meter has had its second news it may be a broken one, and its device counts as capped:
    # so all other load hides behind it. It would then come out as an unproven rise, in minutes.
    def _meet(self, known: Bools, now_s: float) -> None:
        """At first sight of devices' own meters, the other load of their levels is found anew."""
        new = known & ~self._met
        if not new.any():
            return
        met = self._fleet.levels(new.astype(np.float64)) > 0
        self._met |= known
        if self._began_s is not None and now_s - self._began_s < FIRST_S:
            self._soft_w[:, met] = np.nan
            self.steady_w[met] = np.nan

    def _settle(
        self, hard_w: Floats, complete: Bools, unread: Bools, passing: Bools,
        now_s: float, step_s: float,
    ) -> None:  # fmt: skip
        """What the other load is now."""
        self._hard_w = np.where(np.isnan(self._hard_w), hard_w, self._hard_w)
        self._hard_w = np.vstack((self._hard_w[1:], hard_w))
        soft_w, level_w = median(self._soft_w), median(self._level_w)
        beyond_w = median(self._hard_w)
        was_w = np.where(np.isnan(self.steady_w), soft_w, self.steady_w)
        self._level_low.note(level_w, now_s)
        self._trend.note(was_w, now_s)
        self._hard_low.note(beyond_w, now_s)
        # Its own draw rose; or caps fell and it did not.
        rise_w = np.fmax(level_w - self._level_low.lowest, beyond_w - self._hard_low.lowest)
        # From the lowest of the window on, which is where the rise is measured from: what is
        # believed by now has a part of that rise in it already.
        proven_w = self._trend.lowest + np.maximum(rise_w, 0.0)
        proven_w += 2 * NOISE * self.drawn_w
        # Devices' meters that read low must not be able to take the whole limit from their own
        # devices, and a true rise that nothing else shows must be believed some day: so it is
        # believed slowly.
        slow_w = was_w + (soft_w - was_w) * min(step_s / UNPROVEN_S, 1.0)
        rising_w = np.minimum(soft_w, np.maximum(np.maximum(was_w, proven_w), slow_w))
        # What nobody reads proves no fall: the other load may be all that is drawn beyond it.
        fell_w = np.clip(median(self._falls_w), soft_w, np.maximum(was_w, soft_w))
        fell_w = np.where(np.isnan(fell_w), soft_w, fell_w)
        fade_w = was_w + (fell_w - was_w) * min(step_s / UNREAD_FORGET_S, 1.0)
        falling_w = np.where(complete, fell_w, fade_w)
        steady_w = np.where(soft_w > was_w, rising_w, falling_w)
        steady_w = np.where(unread, was_w, steady_w)
        self.steady_w = np.maximum(steady_w, self.stated_w)
        # Either devices read low or other load rose unseen. Until that is known, no device below
        # loses its cap by a low reading (`Wants.caps`).
        self.doubted = soft_w - self.steady_w > DOUBT * self.drawn_w
        self._unproven = soft_w - self.steady_w > NOISE * self.drawn_w
        # What devices' own meters and their level's show beyond the counts is a burst, and may have
        # been more. What is always beyond is no burst, nor what the level did not rise by.
        rose_w = self.drawn_w - np.fmin(self._just_now.lowest, self.drawn_w)
        self._just_now.note(self.drawn_w, now_s)
        above_w = np.minimum(hard_w - np.maximum(self._hard_low.lowest, 0.0), rose_w)
        burst_w = np.maximum(np.where(complete, np.minimum(above_w, self._beyond_w), 0.0), 0.0)
        most_w = self.drawn_w - hard_w
        hard_w = hard_w + (BETWEEN_MEANS - 1.0) * burst_w
        surely = (hard_w > NOISE * self.drawn_w) & ~unread
        # One look is enough here: no device can have drawn it.
        now_w = np.where(surely, np.maximum(self.steady_w, hard_w), self.steady_w)
        # What was there a moment ago is not gone because caps that were cut hide it now.
        # Alarms and spikes are not remembered: if they prove false, their watts are free at once.
        self._moments.note(np.where(passing, np.nan, now_w), now_s)
        quick_w = np.minimum(burst_w, self._quick_w)
        told = (quick_w > NOISE * self.drawn_w) & ~passing & ~unread
        self._bursts.note(np.where(passing | unread, np.nan, quick_w), now_s)
        self._burst_counts.note(np.where(told, most_w, np.nan), now_s)
        self._read_w = now_w
        self.now_w = np.maximum(now_w, self._moments.highest)

    def _take(self, soft_w: Floats, own_w: Floats) -> None:
        """Remember a look: other load, and what devices drew when it was so much."""
        new = np.isnan(self._soft_w)
        self._soft_w = np.where(new, soft_w, self._soft_w)
        self._own_w = np.where(new, own_w, self._own_w)
        self._level_w = np.where(new, self.drawn_w, self._level_w)
        self._soft_w = np.vstack((self._soft_w[1:], soft_w))
        self._own_w = np.vstack((self._own_w[1:], own_w))
        self._level_w = np.vstack((self._level_w[1:], self.drawn_w))

    def _remember(self, untold: Bools, *, now_s: float, step_s: float, ahead_s: float) -> None:
        """Learn its rises and peaks, each only when it came twice: a spike is no load."""
        fade = np.exp(-step_s / KEEP_S)
        self.rise_w, self.peak_w = self.rise_w * fade, self.peak_w * fade
        self._began_s = now_s if self._began_s is None else self._began_s
        quiet = self._undisturbed() & ~untold
        quiet &= now_s - self._began_s >= FIRST_S  # until then devices are got to know
        noise_w = NOISE * self.drawn_w
        # Of the same looks as what is believed now: the devices' draw of this moment is ahead.
        with_devices_w = self._sure_slope * median(self._own_w)
        free_w = np.where(quiet, self._read_w - with_devices_w, np.nan)
        self._peaks.note(free_w, now_s)
        # A rise counts as far as it comes within the time that the loop takes to answer. What takes
        # longer is met by cuts, and watts kept for it would be kept for nothing.
        self._lows.window_s = 0.5 * ahead_s
        self._lows.note(np.where(untold, np.nan, self.steady_w - with_devices_w), now_s)
        low_w = np.where(np.isfinite(self._lows.lowest), self._lows.lowest, np.nan)
        rise_w = free_w - low_w
        # Of a small rise a part is surely noise. A large one is kept whole, since too little kept
        # is paid with the limit and too much with watts only.
        self._rises.note(np.where(rise_w > 2 * noise_w, rise_w, rise_w - noise_w), now_s)
        self.peak_w = np.maximum(self.peak_w, self._peaks.second)
        self.rise_w = np.maximum(self.rise_w, self._rises.second)

    def _regress(self, now_s: float, unread: Bools) -> None:
        """How the other load moves with the devices' draw: a regression of changes, forgetting.

        Where meters come and go, from what was counted to what is read, nothing has changed.
        """
        self._alike = np.where(unread, 0, self._alike)
        if self._mark is not None and now_s - self._mark[0] < SLOPE_S:
            return
        # Changes are regressed and not levels. The part of other load that stands still drops out,
        # and the step from what was counted to what is read never becomes a point: as one, it once
        # gave a slope of -0.16 for minutes where 0.35 was true.
        base_w, own_w = median(self._soft_w), median(self._own_w)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num(CONVEX * np.maximum(self.now_w, 0.0) / own_w, posinf=0.0)
        # In proportion alone it was up to 44 W a watt beside a small machine on a large rack: no
        # job could start there, and a board that follows no cap was never found out.
        unknown = np.minimum(share, FOLLOWS_MOST)
        if self._mark is not None:
            by, rise = own_w - self._mark[2], base_w - self._mark[1]
            # Both medians are of looks at the same devices, and so are all looks between them.
            real = (self._alike_then >= TAKEN) & (self._alike > self._alike_then)
            self._sums *= SLOPE_MEMORY
            self._sums += np.where(real, (by * by, by * rise, rise * rise, np.ones(len(by))), 0.0)
        xx, xy, yy, count = self._sums
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = xy / xx
            spread = np.sqrt(np.maximum(yy - slope * xy, 0.0) / np.maximum(count - 1, 1) / xx)
            # Two standard errors either way. Up to the upper end watts are kept free for what
            # follows the devices; from the past of other load nothing is taken out unless the lower
            # end, too, says that something followed them.
            most = slope + 2 * spread
            least = slope - 2 * spread
        # Devices must have moved, else this is noise divided by noise.
        moved = (count >= 3) & (xx > np.square(0.05 * np.maximum(own_w, 1.0)))
        self.slope = np.where(moved & np.isfinite(most), np.clip(most, 0.0, share), unknown)
        self._learned_slope = np.where(moved & np.isfinite(most), np.maximum(most, 0.0), np.inf)
        sure = np.where(moved & (least > 0.02), np.clip(slope, 0.0, share), 0.0)
        # What was learned as rises of its own came with the devices: learn it anew without them.
        found = (sure > 0) & (self._sure_slope == 0)
        self.rise_w, self.peak_w = (
            np.where(found, 0.0, self.rise_w),
            np.where(found, 0.0, self.peak_w),
        )
        for one in (self._peaks, self._lows, self._rises):
            one.forget(found)
        self.switched.shift((sure - self._sure_slope) * own_w)
        self._sure_slope = sure
        self._mark, self._alike_then = (now_s, base_w, own_w), self._alike

    def _note_swing(self, devices_w: Floats, alarmed: Bools, now_s: float, step_s: float) -> None:
        """Levels whose devices rise and fall together, and how far."""
        if alarmed.any():
            self._alarmed_s = now_s
        # A look a second, however often the loop looks: these are means of the last second.
        due = now_s - self._swing_at_s >= SECOND_S
        if due and now_s - self._alarmed_s > ALARM_S:  # until then it is our own doing
            self._past_looks.append(devices_w)
            self._swing_at_s = now_s
        if not self._past_looks:
            return
        past_w = np.array(self._past_looks)
        mean_w, sorted_w = past_w.mean(axis=0), np.sort(past_w, axis=0)
        odd = min(ODD_LOOKS, len(past_w) // 4)
        low_w, span_w = sorted_w[odd], sorted_w[-1 - odd] - sorted_w[odd]
        now = span_w > SWING * mean_w
        rows = np.flatnonzero(now)
        now[rows] = _turns(past_w[:, rows], low_w[rows], span_w[rows]) >= TURNS
        fading = self._swing_part * np.exp(-step_s / SWING_KEPT_S)
        part = span_w / np.maximum(mean_w, 1.0)
        self._swing_part = np.where(now, np.maximum(part, fading), fading)
        self.swing_w = np.where(self._swing_part > SWING, self._swing_part * mean_w, 0.0)

    def _note_switched(self, untold: Bools, step_s: float) -> None:
        """What came and went at once, beside what follows the devices for all that is known."""
        with_devices_w = self._sure_slope * median(self._own_w)
        # What is told of both is some looks old, of each another number of them.
        self._own_late_w = np.vstack((self._own_late_w[1:], self.explained_w))
        moved_w = np.ptp(self._own_late_w, axis=0) * self.slope + self._faded_w.max(axis=0)
        # Devices that burst above their counts are no load that is switched.
        other_w = self._read_w - np.minimum(self._beyond_w, np.maximum(self._read_w, 0.0))
        self.switched.note(
            other_w - with_devices_w, moved_w, self.drawn_w, told=~untold, step_s=step_s
        )

    def _note_fluctuation(
        self, untold: Bools, ahead_s: Floats | float, now_s: float, step_s: float
    ) -> None:
        """How far it wanders before the loop can answer, and what to keep for that."""
        self.fluctuation.note(
            self.steady_w, self.reserve_w, self.explained_w, self.slope, self.drawn_w,
            told=(self._quiet.seconds >= ahead_s) & self._undisturbed() & ~untold,
            ahead_s=np.zeros(len(untold)) + ahead_s, now_s=now_s, step_s=step_s,
        )  # fmt: skip
        # What is believed is the highest of the last seconds, which has a part of that in it.
        above_w = np.maximum(self.now_w - np.nan_to_num(self.steady_w), 0.0)
        self.reserve_w = np.maximum(self.reserve_w, self.fluctuation.spread_w - above_w)

    def _undisturbed(self) -> Bools:
        """Levels whose devices were neither cut nor lost of late."""
        return np.asarray(self._quiet.seconds >= 2 * RECENT_S)

    def _for_swing_w(self, most_w: Floats) -> Floats:
        """What caps that hold a mean may let through between two looks.

        Looks once a second need not meet the peaks of a swing, and may meet the same flank of it
        for ever. So what they did see beyond the caps is taken to be a part of it, and where they
        saw nothing, most of how far they lie apart.
        """
        swings = self.swing_w > 0
        seen_w = np.where(swings, BETWEEN_LOOKS * self.rise_w, 0.0)
        part = np.minimum(UNSEEN * self._swing_part, HIGHEST_PEAK)
        unseen_w = np.where(swings & (self.rise_w < 0.05 * most_w), part * most_w, 0.0)
        # Means of a second hide no peak. What was there a moment ago counts as load now already.
        held_w = np.maximum(self.now_w - self._trend.lowest, 0.0)
        burst_w = np.maximum(BETWEEN_MEANS * np.maximum(self._bursts.highest, 0.0) - held_w, 0.0)
        return np.where(self._of_second, burst_w, np.maximum(seen_w, unseen_w))

    def _foresee(self, unread: Bools, now_s: float, ahead_s: Floats | float) -> None:
        """What to keep for the time until loop and knobs will have answered."""
        with np.errstate(invalid="ignore"):
            ramp = (self.now_w - self._past_w[0]) / (now_s - self._past_s[0])
        ramp = np.maximum(np.nan_to_num(ramp) - 0.1 * NOISE * self.drawn_w, self._lasting(now_s))
        self._past_w = np.vstack((self._past_w[1:], self.now_w))
        self._past_s = np.append(self._past_s[1:], now_s)
        soon_w = np.minimum(ramp * ahead_s, FARTHEST * self.drawn_w)
        own_w = self.now_w - self._sure_slope * self.explained_w
        left_w = self.peak_w - own_w
        # Within what it has ever been, its past is the better guide than drawing out a ramp.
        been = (left_w > 0) & (self.peak_w > 2 * NOISE * self.drawn_w)
        soon_w = np.where(been, np.minimum(soon_w, np.minimum(left_w, self.rise_w)), soon_w)
        # Where its meter is silent nobody would see it come.
        soon_w = np.where(unread, np.maximum(left_w, 0.0), soon_w)
        self.away_w = self.switched.away_w(own_w)
        large = self.away_w > 2 * NOISE * self.drawn_w
        # The sum: a ramp may go on while what was switched off comes back.
        self.reserve_w = soon_w + np.where(large, self.away_w, 0.0)

    def _lasting(self, now_s: float) -> Floats:
        """A ramp, W/s, that goes on for long enough to be told from what comes and goes.

        The lesser of the slopes of two times in a row: a step has but one.
        """
        if now_s - self._far_s[-1] >= FAR_S or np.isnan(self._far_s[-1]):
            self._far_w = np.vstack((self._far_w[1:], self.steady_w))
            self._far_s = np.append(self._far_s[1:], now_s)
        middle = len(self._far_s) // 2
        with np.errstate(invalid="ignore", divide="ignore"):
            late = (self.steady_w - self._far_w[middle]) / (now_s - self._far_s[middle])
            early = (self._far_w[middle] - self._far_w[0]) / (self._far_s[middle] - self._far_s[0])
            lesser = np.nan_to_num(np.minimum(late, early), posinf=0.0)
        lesser = np.where(self._unproven, 0.0, lesser - 0.04 * NOISE * self.drawn_w)
        return np.asarray(np.maximum(lesser, 0.0))


def _turns(past_w: Floats, low_w: Floats, span_w: Floats) -> Floats:
    """How often each column of `past_w` (T, L) went from its upper to its lower third or back."""
    # The middle third belongs to neither side: noise about the middle of a swing would otherwise
    # turn at every look.
    place = np.sign(np.round((past_w - low_w) / np.maximum(span_w, 1e-9) * 3.0 - 1.5))
    side, turns = np.zeros(past_w.shape[1]), np.zeros(past_w.shape[1])
    for row in place:
        turns += row * side < 0
        side = np.where(row == 0, side, row)
    return turns
