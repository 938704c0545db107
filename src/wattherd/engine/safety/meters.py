"""Which readings may be believed: missing, stale, skewed, frozen, spiking, coarse and slow meters.

A reading that is higher than expected is believed at once; one that is lower must not come from a
meter that is silent, old or frozen. What is normal for a meter is learned from itself: how often it
has news, and the smallest step it makes. A meter in steps of 40 W that repeats itself is coarse;
one that used to flicker at every look and no longer does is frozen; and so is one whose devices'
own meters have moved far while it stood still. The module knows no caps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Readings, SafetyConfig
from wattherd.engine.safety.medians import median_of_known

MOST_W = 1e12
"""No site draws that: a reading beyond it is no number that could be reckoned with."""
AT_ONCE = 20.0
"""Times its rating that opens every breaker within a tenth of a second (IEC 60898, type D). A meter
that shows more tells milliwatts, or nothing."""
FAR = 5.0
"""Times its maximum that no device draws, with all that its meter may count beside it (a node of
eight GPUs draws 1.82 times theirs)."""
LIES, TRUE_AGAIN, ODD_KEPT = 1.5, 0.3, 0.9
"""A meter that told two impossible numbers within some looks is no longer believed whatever it
says, until it has told none for some twenty."""
LIAR_MOST = 1.5
"""Times its breaker's rating that such a meter is still believed: more would soon trip it."""
NOTHING = 0.1
"""Of what its devices draw: who shows less shows nothing."""
LIVELY = 1.1
"""A meter whose runs of the same digits were no longer than that in the mean always has news."""
ENOUGH_RUNS = 8
"""So many changes tell how often a meter has news."""
LONGEST_RUN = 4.0
"""Longer runs count as this long in the mean: one long pause makes no slow meter."""
SLOWEST_LOOKS = 12.0
"""Meters whose digits stand still for longer are not taken to be so slow: their load stands."""
COARSE = 0.003
"""Share of a reading: meters in larger steps may repeat themselves because their load does."""
MANY_DIGITS = 1e-6
"""Of 0.1 W: who tells no multiples of that has more digits than meters in steps."""
SETTLES_S = 10.0
"""For so long after a cap moved a draw may creep towards it."""
ON_GRID, STEPPED = 0.03, 0.9
SLOWEST_S = 40.0
"""Boards and exporters that have news less often than that are not waited for."""
MOVED = 0.03
"""Devices that moved by this share of what their feed draws must show on the feed's meter."""
FALSE_ALARMS = 3.0
"""After so many refuted spikes a meter's next one waits for a second reading."""
FORGET_ALARM_S = 600.0
JUMP, PASSES = 0.6, 2
"""A jump by this share of all that a level drew, which is over after so many looks, is a spike."""
SPIKE_LOOKS = 6
"""A level that has shown more for so many looks draws more."""
SLOW_S = 0.5
"""Meters that have news less often than that tell nothing of a second."""
SECOND_S = 0.95
"""Looks that are no farther apart than that are taken together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedReadings:
    """Readings as far as they are trusted, NaN where they are not.

    `draw_w` (N,) and `feed_w` (F,) are medians of three; `now_w` (N,) and `level_now_w` (F + 1,)
    what is read now, for whatever is higher than expected; `level_w` (F + 1,) the medians with the
    site's. `agreed` (F,) is false where a feed's meter shows less than its devices' together.
    """

    draw_w: Floats
    feed_w: Floats
    agreed: Bools
    missing_share: float
    now_w: Floats = field(default_factory=lambda: np.zeros(0))
    level_w: Floats = field(default_factory=lambda: np.zeros(0))
    level_now_w: Floats = field(default_factory=lambda: np.zeros(0))
    alarmed: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Levels whose reading is beyond all that was ever to be expected, and not confirmed yet."""
    frozen_levels: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Levels (F + 1,) whose meter tells nothing new against its habit."""
    of_second: Bools = field(default_factory=lambda: np.zeros(1, dtype=np.bool_))
    """Levels (F + 1,) of which means of a second are told; (1,) stands for all."""
    still: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Devices (N,) whose meters never said anything else: what is lower there proves nothing."""


# Why every meter is compared with its own past. A data sheet says how fine and how fast a meter is,
# and what stands between it and the loop (an exporter's cache, a proxy's rounding) makes it coarser
# and slower without saying so. What a meter did so far is what is known of it.
#
# Why low is doubted and high is not: see the head of `loop.py`.
class Meters:
    """Judges every meter by its own past, feeds' also by their devices'.

    Arrays over the N + F + 1 meters of devices, feeds and site.
    """

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Nothing has been read yet."""
        self._fleet, self._config = fleet, config
        count = fleet.size + fleet.feeds + 1
        self._last = np.full((3, count), np.nan)
        self._same = np.zeros(count)
        self._run = np.ones(count)
        self._mean_run = np.ones(count)
        self._mean_looks = np.ones(count)
        # How often the loop looks, learned too: digits are counted in looks and told in seconds.
        self._period_s = max(config.refresh_s, 1.0)
        self._runs = np.zeros(count)
        self._habits = np.zeros(count)
        """How many runs told of the meter and not of its load."""
        self._way = np.zeros(count)
        """Up or down, of each meter's last change."""
        self._of_meter: Bools = np.zeros(count, dtype=np.bool_)
        """Whether that change was the meter's own."""
        self._cap_w = np.full(count, np.nan)
        self._cap_moved_s = np.full(count, -np.inf)
        self._ended_run = np.zeros(count)
        """Of the run that the last look ended, if the next one does not go back to its digits."""
        self._looked_s = -np.inf
        self._news_at_s = np.full(count, np.nan)
        self._gaps_s = np.full((2, count), np.nan)
        self.resolution_w: Floats = np.full(count, np.nan)
        """The smallest step seen."""
        self._on_grid: Floats = np.ones(count)
        """The share of late news that were multiples of that step."""
        self._alarms = np.zeros(count)
        self._alarm_run = np.zeros(count)
        self._most_w = np.concatenate((fleet.max_w, fleet.levels(fleet.max_w)))
        rated_w = np.asarray(fleet.breaker.rated_w, dtype=np.float64)
        carried_w = np.where(rated_w > 0, np.minimum(AT_ONCE * rated_w, MOST_W), MOST_W)
        self._carried_w = np.concatenate((np.fmin(FAR * fleet.max_w, MOST_W), carried_w))
        """What no reading can be true beyond."""
        # Of a level that is lied about the meter is what there is; a device has its cap to go by.
        self._liar_w = np.concatenate((np.full(fleet.size, -1.0), carried_w * LIAR_MOST / AT_ONCE))
        self._odd = np.zeros(count)
        self.liars: Bools = np.zeros(count, dtype=np.bool_)
        """Meters that tell impossible numbers among possible ones."""
        self._below_w = np.zeros(fleet.feeds + 1)
        """What devices showed together when their level's meter last had news, and before that."""
        self._below_before_w = np.zeros(fleet.feeds + 1)
        self.frozen: Bools = np.zeros(count, dtype=np.bool_)
        self._at_s = -np.inf

    # The slower of two clues. A timestamp may be that of the exporter and not of the meter behind
    # it, digits may stand still for a load that does: so digits count only for meters whose steps
    # are fine.
    @property
    def renews_s(self) -> Floats:
        """How often each meter (N + F + 1,) has news, in seconds; 0 where that is not known.

        By its timestamps, or by how long it shows the same digits; but a coarse meter's digits may
        stand still because its load does.
        """
        # The shorter of the last two: one reading that was lost makes no slow meter.
        stamped_s = np.minimum(np.fmin(self._gaps_s[0], self._gaps_s[1]), SLOWEST_S)
        with np.errstate(invalid="ignore"):
            coarse = (self.resolution_w > COARSE * self._last[-1]) & (self._on_grid > 0.5)
        digits_s = np.where(coarse | (self._runs < 3), 0.0, self._mean_looks * self._period_s)
        return np.asarray(np.maximum(np.nan_to_num(stamped_s), digits_s))

    @property
    def in_steps(self) -> Bools:
        """Meters (N + F + 1,) whose news were all multiples of their smallest step."""
        return (self._on_grid > STEPPED) & (self._runs >= 3)

    def expect(self, most_w: Floats) -> None:
        """Tell what each level (F + 1,) may draw at most: beyond that a reading raises an alarm."""
        self._most_w[self._fleet.size :] = most_w

    def judge(self, readings: Readings) -> TrustedReadings:
        """Take in one cycle's readings."""
        fleet, size = self._fleet, self._fleet.size
        value = np.concatenate((readings.draw_w, readings.feed_w, [readings.site_w]))
        at_s = np.concatenate((readings.draw_at_s, readings.feed_at_s, [readings.site_at_s]))
        with np.errstate(invalid="ignore"):
            # A negative draw or a number beyond reckoning is no reading. One infinite one would
            # make every sum above it infinite.
            self._note_lies(value)
            most_w = np.where(self.liars, self._liar_w, self._carried_w)
            value = np.where((value >= 0) & (value <= most_w), value, np.nan)
        fresh = np.isfinite(value) & self._recent(readings.now_s, at_s)
        self._note_caps(readings)
        was_w = self._last[-1]
        self._note_digits(value, readings.now_s)
        now_w, alarmed = self._confirmed(np.where(fresh, value, np.nan), readings.now_s)
        self.frozen = self._frozen(value)
        trusted = fresh & ~self.frozen
        # Three readings: one that is odd has no say, and two alike are believed. A longer memory
        # would hold back what is true as well.
        median_w = np.where(trusted, median_of_known(self._last), np.nan)
        with np.errstate(invalid="ignore"):
            # What is higher than what it stood at is believed at once, of a frozen meter as well.
            higher = fresh & (value > was_w)
        now_w = np.where(trusted | higher, now_w, np.nan)
        draw_w, feed_w = median_w[:size], median_w[size:-1]
        # A device without power or without a meter is a fact and no fault: counted as missing, a
        # site where a fifth of all devices rests would be sent to its floors.
        missing = np.isnan(draw_w) & ~readings.off & fleet.device_read
        return TrustedReadings(
            draw_w=draw_w,
            feed_w=feed_w,
            agreed=self._agreement(draw_w, feed_w),
            missing_share=float(missing.mean()) if size else 0.0,
            now_w=now_w[:size],
            level_w=median_w[size:],
            level_now_w=now_w[size:],
            alarmed=self._alarmed_levels(alarmed, np.isfinite(now_w[size:])),
            frozen_levels=self.frozen[size:],
            still=self._runs[:size] == 0,
        )

    # One that answers now and then is no liar, and is believed when it does. But who says that
    # nothing is drawn where boards draw, or less than nothing, says of more than can be as little.
    def _note_lies(self, value: Floats) -> None:
        """Learn who tells what cannot be."""
        size = self._fleet.size
        below_w = self._fleet.levels(np.nan_to_num(self._last[-1, :size]))
        odd = (value < 0) | (value > self._carried_w)
        odd[size:] |= value[size:] < NOTHING * below_w
        self._odd = ODD_KEPT * self._odd + odd
        self.liars = np.where(self.liars, self._odd >= TRUE_AGAIN, self._odd >= LIES)

    def _alarmed_levels(self, alarmed: Bools, read: Bools) -> Bools:
        """Levels (F + 1,) that an alarm concerns: the meter's own, and all above it.

        A device's alarm is its level's where that has no reading of its own.
        """
        size = self._fleet.size
        devices = self._fleet.own(alarmed[:size].astype(np.float64)) * ~read
        return np.asarray(self._fleet.tree.sums(devices + alarmed[size:]) > 0)

    def _recent(self, now_s: float, at_s: Floats) -> Bools:
        """Readings no older than their meter's news use to be; from the future is as useless.

        A meter that has news every ten seconds is ten seconds old by right; one whose timestamps
        go on second by second but lie half a minute back is stale, or its clock is wrong.
        """
        with np.errstate(invalid="ignore"):
            gap_s = at_s - self._news_at_s
            news = np.isfinite(at_s) & ~(gap_s <= 0)
        steps = news & (gap_s > 0)
        self._gaps_s[0] = np.where(steps, self._gaps_s[1], self._gaps_s[0])
        self._gaps_s[1] = np.where(steps, gap_s, self._gaps_s[1])
        self._news_at_s = np.where(np.isfinite(at_s), at_s, self._news_at_s)
        oldest_s = np.maximum(self._config.max_age_s, 2.5 * self.renews_s)
        with np.errstate(invalid="ignore"):
            late = now_s - at_s > oldest_s
            # A timestamp from the future is a wrong clock: how old that reading is cannot be known.
            ahead = at_s - now_s > self._config.max_age_s
        return np.isfinite(at_s) & ~late & ~ahead

    def _note_caps(self, readings: Readings) -> None:
        """When the caps of each meter's devices moved last, by more than a meter flickers."""
        known_w = np.where(np.isfinite(readings.cap_w), readings.cap_w, self._fleet.max_w)
        cap_w = np.concatenate((known_w, self._fleet.levels(known_w)))
        with np.errstate(invalid="ignore"):
            moved = np.abs(cap_w - self._cap_w) > COARSE * cap_w
        self._cap_moved_s = np.where(moved, readings.now_s, self._cap_moved_s)
        self._cap_w = np.where(moved | np.isnan(self._cap_w), cap_w, self._cap_w)

    # A fleet that is raised step by step shows other digits at every look, and then stands still
    # at its caps: that is a habit of the loop, and not of its meters. What is the meter's own is a
    # turn, or a step as small as it makes while no cap moves. Only a meter of many digits never
    # repeats itself, in a climb or at rest.
    def _own_news(self, value: Floats, now_s: float) -> Bools:
        """Which changes since the last look tell of the meter, and not of a load that is led."""
        previous = self._last[-1]
        with np.errstate(invalid="ignore"):
            many_digits = np.abs(10.0 * value - np.rint(10.0 * value)) > MANY_DIGITS
            step_w = value - previous
            small = np.abs(step_w) <= np.fmin(COARSE * value, 1.5 * self.resolution_w)
        turned = np.sign(step_w) * self._way < 0
        led = now_s - self._cap_moved_s <= SETTLES_S
        return np.asarray(many_digits | turned | (small & ~led))

    def _note_digits(self, value: Floats, now_s: float) -> None:
        """Learn how long each meter shows the same digits, and its smallest step."""
        previous = self._last[-1]
        with np.errstate(invalid="ignore"):
            step_w = np.abs(value - previous)
            self.resolution_w = np.where(step_w > 0, np.fmin(self.resolution_w, step_w),
                                         self.resolution_w)  # fmt: skip
            steps = value / self.resolution_w
            fits = np.abs(steps - np.rint(steps)) < ON_GRID
        self._on_grid = np.where(step_w > 0, 0.7 * self._on_grid + 0.3 * fits, self._on_grid)
        if now_s - self._looked_s < self._config.refresh_s:
            self._last[-1] = value
            return
        if np.isfinite(self._looked_s):
            self._period_s += 0.1 * (now_s - self._looked_s - self._period_s)
        self._looked_s = now_s
        # Spikes between the same digits are no news.
        # Digits are compared exactly: a live meter's last digit flickers, and that is what tells it
        # from a frozen one.
        again = (value == self._last).any(axis=0)
        read = np.isfinite(value)
        back = value == self._last[-2]
        ended = read & ~back & (self._ended_run > 0)
        run = np.minimum(self._ended_run, LONGEST_RUN)
        habit = ended & self._of_meter
        self._mean_run = np.where(habit, 0.9 * self._mean_run + 0.1 * run, self._mean_run)
        self._habits += habit
        self._runs = np.where(ended, self._runs + 1, self._runs)
        self._run = np.where(back & (self._ended_run > 0), self._ended_run + 1, self._run)
        looks = np.minimum(self._ended_run, SLOWEST_LOOKS)
        self._mean_looks = np.where(ended, 0.7 * self._mean_looks + 0.3 * looks, self._mean_looks)
        changed = read & (value != previous) & np.isfinite(previous) & ~back
        own = self._own_news(value, now_s)
        self._of_meter = (changed & own) | (~changed & self._of_meter)
        self._way = np.where(changed, np.sign(value - previous), self._way)
        self._ended_run = np.where(read, np.where(changed, self._run, 0.0), self._ended_run)
        self._run = np.where(changed, 1.0, np.where(read, self._run + 1, self._run))
        # Down by one and not to nothing, since a frozen meter may flicker once. And no higher than
        # twice the bound, so that a meter that lives again is soon believed.
        self._same = np.where(again, self._same + 1, np.maximum(self._same - 1, 0))
        self._same = np.minimum(self._same, 2 * self._config.frozen_after)
        self._last = np.vstack((self._last[1:], value))

    def _frozen(self, value: Floats) -> Bools:
        """Meters that repeat themselves against their habit, or though their load has moved."""
        fleet, size = self._fleet, self._fleet.size
        # Repeating itself is not enough: a coarse meter of a steady load does so for hours. It must
        # be against the meter's habit, or against what moved below it.
        silent = self._same >= self._config.frozen_after
        lively = (self._habits >= ENOUGH_RUNS) & (self._mean_run <= LIVELY)
        below_w = fleet.levels(np.where(np.isfinite(value[:size]), value[:size], 0.0))
        changed = self._run[size:] <= 1.0
        self._below_before_w = np.where(changed, self._below_w, self._below_before_w)
        self._below_w = np.where(changed, below_w, self._below_w)
        with np.errstate(invalid="ignore"):
            far_w = np.fmax(MOVED * value[size:], 3 * np.nan_to_num(self.resolution_w[size:]))
            moved = np.abs(below_w - self._below_w) > far_w
        # A meter whose stamps say that it has news once a minute stands still for that long.
        stamped = np.nan_to_num(np.fmin(self._gaps_s[0], self._gaps_s[1])[size:]) / self._period_s
        moved &= self._run[size:] > 2.5 * np.maximum(self._mean_looks[size:], stamped)
        contradicted = np.concatenate((np.zeros(size, dtype=np.bool_), moved))
        return np.asarray(silent & (lively | contradicted))

    def _confirmed(self, value: Floats, now_s: float) -> tuple[Floats, Bools]:
        """What is read now, and which of it raises an alarm that no second reading confirmed yet.

        Believed at once all the same, but of meters that cried wolf: there the median speaks until
        the next reading says the same.
        """
        passed_s = max(now_s - self._at_s, 0.0) if np.isfinite(self._at_s) else 0.0
        self._at_s = now_s
        with np.errstate(invalid="ignore"):
            alarm = value > self._config.plausible * self._most_w
        refuted = np.isfinite(value) & ~alarm & (self._alarm_run == 1)
        self._alarms = self._alarms * np.exp(-passed_s / FORGET_ALARM_S) + refuted
        self._alarm_run = np.where(alarm, self._alarm_run + 1, 0.0)
        single = alarm & (self._alarm_run < 2)
        # A meter that raised three false alarms of late is heard with the next reading: one cycle
        # later, which is what its own past has cost it.
        wolf = single & (self._alarms >= FALSE_ALARMS - 0.5)
        if wolf.any():
            value = np.where(wolf, median_of_known(self._last), value)
        return value, single & ~wolf

    def _agreement(self, draw_w: Floats, feed_w: Floats) -> Bools:
        """Whether each feed's meter shows as much as its devices' do.

        More is other load and no contradiction. A feed that has no meter contradicts nobody, and a
        slow one tells of devices as they were when it last had news.
        """
        known_w = np.where(np.isfinite(draw_w), draw_w, 0.0)
        # The lower of two moments: a slow meter shows one of them, and it is not known which.
        then_w = np.minimum(self._below_w, self._below_before_w)
        read_w = np.minimum(self._fleet.levels(known_w), then_w)[:-1]
        with np.errstate(invalid="ignore"):
            less = feed_w < read_w * (1.0 - self._config.disagree)
        return np.asarray(~less | ~self._fleet.read)


# A meter that spikes is believed at each of its spikes, and costs some seconds of work then. What
# is remembered of other load is another matter: a spike that passed for load which went would be
# kept free for most of a minute. Loads do jump and go, so that it takes three of such jumps within
# minutes; and what lasts is remembered as soon as it has.
class MeterSpikes:
    """Which levels' meters show for a look or two what nobody draws. Arrays over levels (L,)."""

    def __init__(self, levels: int) -> None:
        """No meter was seen to spike."""
        self._past_w: Floats = np.full((SPIKE_LOOKS, levels), np.nan)
        self._run: Floats = np.zeros(levels)
        self._spikes: Floats = np.zeros(levels)

    def note(self, other_w: Floats, drawn_w: Floats, *, told: Bools, step_s: float) -> Bools:
        """Levels whose meter is known to spike, and shows a jump that has not lasted yet.

        `other_w` (L,) is what is drawn beside devices, so that caps which are cut meanwhile make no
        spike of a load that stays; `told` (L,) says where all of that is read.
        """
        self._past_w = np.vstack((self._past_w[1:], np.where(told, other_w, np.nan)))
        low_w = np.fmin.reduce(self._past_w, axis=0)
        with np.errstate(invalid="ignore"):
            jump_w = other_w - low_w
            high = told & (jump_w > JUMP * (drawn_w - jump_w))
        over = told & ~high & (self._run > 0)
        self._spikes *= np.exp(-step_s / FORGET_ALARM_S)
        self._spikes += over & (self._run <= PASSES)
        self._run = np.where(high, self._run + 1, np.where(told, 0.0, self._run))
        return np.asarray(high & (self._spikes >= FALSE_ALARMS - 0.5))


# Limits hold for means of a second, and caps that hold a mean let bursts pass that are over within
# one. Of moments a second apart nobody can tell how long a burst lasts: where they miss its peak
# the limit is exceeded, and where they meet it watts are kept free that nobody draws.
class LastSecond:
    """Means of the last second, where looks are more frequent than one a second."""

    def __init__(self, fleet: Fleet) -> None:
        """Nothing has been seen."""
        self._fleet = fleet
        self._looks: deque[tuple[float, TrustedReadings]] = deque()

    def mean(self, seen: TrustedReadings, readings: Readings, renews_s: Floats) -> TrustedReadings:
        """What is read now as means of the last second, this look among them.

        What is not read now has no mean. Where looks are a second apart it says which levels tell
        means by themselves. `renews_s` (N + F + 1,) is how seldom meters have news.
        """
        looks, now_s = self._looks, readings.now_s
        looks.append((now_s, seen))
        while now_s - looks[0][0] > SECOND_S or looks[0][0] > now_s:
            looks.popleft()
        if len(looks) == 1:
            return replace(seen, of_second=self._told(readings.of_second))
        # Of a mean and of what is seconds old no difference says anything: all or none.
        if (renews_s > SLOW_S).any():
            return seen
        return replace(
            seen,
            draw_w=_mean([one.draw_w for _, one in looks]),
            now_w=_mean([one.now_w for _, one in looks]),
            level_w=_mean([one.level_w for _, one in looks]),
            level_now_w=_mean([one.level_now_w for _, one in looks]),
            of_second=np.ones(self._fleet.feeds + 1, dtype=np.bool_),
        )

    def _told(self, meters: Bools | None) -> Bools:
        """Levels (F + 1,) of which means are told: by their meter, or by all meters below."""
        fleet = self._fleet
        if meters is None:
            return np.zeros(fleet.feeds + 1, dtype=np.bool_)
        moments = ~meters
        below = fleet.levels((fleet.device_read & moments[: fleet.size]).astype(np.float64))
        own = fleet.level_read & moments[fleet.size :]
        below += fleet.tree.sums(own.astype(np.float64))
        return np.where(fleet.level_read, ~own, below == 0)


def _mean(looks_w: list[Floats]) -> Floats:
    """Means over looks of as many meters each; NaN where the last look has none."""
    past_w = np.array(looks_w)
    known = np.isfinite(past_w)
    sums_w = np.where(known, past_w, 0.0).sum(axis=0)
    return np.where(known[-1], sums_w / np.maximum(known.sum(axis=0), 1), np.nan)
