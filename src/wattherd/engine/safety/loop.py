"""The safety loop: keep every feed and the site within its limit, whatever meters and knobs do.

Theory of operation
-------------------
Once a period, `SafetyLoop.cycle`: judge the meters (`meters`), read the caps back
(`caps`), learn what devices draw under them (`response`) and what else is drawn
(`other_load`), see how much of each limit that leaves (`allowance`), share it out
(`fill`), order. The rules and why:

* *A reading that is higher than expected is believed at once; one that is lower never without
  proof.* A wrong high reading costs seconds of work, a wrong low one the breaker. So nothing that a
  feed's meter shows is "implausible"; and a meter that stands still, a device that reads low while
  its feed does not, or a feed that reads less than its devices, frees no watt.
* *Caps are counted, not draw.* Draw may jump within the loop's delay, caps may not (training jobs
  are back from a checkpoint in a second). Meters only say who does not need its cap.
* *A cap's watts are learned.* Each device counts at what it draws under its cap: caps regulate some
  percent high, do not cover a whole node (1.82 times its GPUs), and cannot be met below some draw.
  That is no defiance. Defiant is a device that claims a lower cap and goes on as before.
* *Other load is an unknown of its own on every level,* believed from its meter, with its ramp and
  its past: what it gave up at once it may take again at once. Devices get what it leaves.
* *Lower, read back, only then raise* (or the sum overshoots while caps cross). Cuts go out at once
  and in one step, raises wait for watts that were read back, and are limited per second, as in
  Dynamo (ISCA'16): three bands, cut fast, release slowly.
* *Every order is a lease.* Devices that hear nothing fall to their floor by themselves; a default
  on loss of contact must be safe (GEOPM's access service reverts when its client dies).
* *Missing readings* are counted at their worst. With more than a fifth missing everybody goes to
  the floor, where Dynamo stops acting. A device or feed that never had a meter is a fact and no
  fault: it is counted by its caps, or its devices.
* *Clocks* of meters may be wrong: who tells of now is told from who is late by its own moves
  (`late_meters`).
* *Late readings* of devices are brought up to now by their caps, as far as a level's meter shows
  it: what they took since their news is no other load (`late_meters`).
* *Backstop.* Where caps cannot help, jobs on devices that do not follow are stopped, and where that
  does not help either, their outlets switched off (`backstop`).
* *Storage* bridges a cut while caps come down, gives above a limit while it lasts, and recharges
  below it (`storage`); it counts for what it is read to give, never for what it might.
* *Ramps and swings* have limits of their own (`ramp`), which go after those of watts.
* *Restore and hand over.* What was found is put back by `leave`; `state` is what a successor needs
  to be as sure as its predecessor was.

The loop is pure: no clock, no device, no chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattherd.engine.safety.aims import Aims, CapWishes
from wattherd.engine.safety.allowance import Allowance
from wattherd.engine.safety.backstop import Backstop
from wattherd.engine.safety.caps import SAME_W, CapBook
from wattherd.engine.safety.contract import (
    Bools,
    Breaker,
    Fleet,
    Floats,
    Orders,
    Readings,
    SafetyConfig,
    SafetyNote,
)
from wattherd.engine.safety.fill import fill, steps_that_fit
from wattherd.engine.safety.late_meters import LateDraws, MeterClocks
from wattherd.engine.safety.mean_meters import MeanMeters
from wattherd.engine.safety.medians import nine_tenths
from wattherd.engine.safety.meters import LastSecond, Meters, TrustedReadings
from wattherd.engine.safety.notes import NoteBook
from wattherd.engine.safety.other_load import BaseLoad
from wattherd.engine.safety.ramp import DrawRamps, RampLimits
from wattherd.engine.safety.state import SafetyState
from wattherd.engine.safety.storage import LevelStorage, StoredPower
from wattherd.engine.safety.wanted_caps import Wants

__all__ = [
    "Breaker",
    "Fleet",
    "Orders",
    "Readings",
    "SafetyConfig",
    "SafetyLoop",
    "SafetyNote",
    "SafetyState",
]

NEVER_LAPSES = float("inf")
AIM_STEP = 0.02
"""Wishes are made anew when other load has moved by that share of a limit."""
LAG_S = 5.0
"""Beside a knob's answer: a period, the draw's own lag and the looks until a change is sure."""
AT_REACH = 0.001
LONGEST_AHEAD_S = 20.0
REGAIN_S, REGAIN = 15.0, 0.5
"""For so long after a false alarm caps may go back to where they were, by that part of the way each
second. At once, caps that hold means let through what they saved meanwhile: 8 % for a second."""


# Order within a cycle, and why not another. Limits and orders of who leads come first, as readings
# are judged by them. Meters before caps: whether a lower cap is believed depends on whether
# anybody's meter would show the contrary. Caps before other load: what devices are counted at is
# what a level's reading is compared with. Cuts before raises: a raise may use only watts that the
# cuts of earlier cycles have freed and that were read back since. Notes last, of what was found;
# they order nothing.
#
# What is counted. Of every level: counted watts of its devices (caps in force, as far as draw was
# seen to keep them) + other load <= limit. Each of the two terms is an upper bound on its own, so
# that neither has to be right about the other.
class SafetyLoop:
    """Controller of one site. `found_w` (N,) is what a journal kept of an earlier life, or nothing.

    The caps found are those read back first; keep `found_w` where it outlives this process, so that
    a successor can still restore them; or better the whole `state()`. `aims` says what watts are
    best spent on; without it all get the same. `ramps` limits how fast and far draw may move.
    """

    def __init__(
        self,
        fleet: Fleet,
        config: SafetyConfig | None = None,
        found_w: Floats | None = None,
        aims: Aims | None = None,
        *,
        state: SafetyState | None = None,
        ramps: RampLimits | None = None,
        storages: Sequence[LevelStorage] = (),
    ) -> None:
        """Nothing is known of the devices until the first cycle, but what `state` tells."""
        self._aims = aims
        self.fleet = fleet
        self.config = config or SafetyConfig()
        self.caps = CapBook(fleet, self.config)
        self.base = BaseLoad(fleet, self.config.unproven)
        self.safe_mode = False
        self.seen: TrustedReadings | None = None
        """What the last cycle believed of its readings."""
        self.budget_w: Floats = np.zeros(fleet.feeds + 1)
        """What the last cycle found that devices may be counted at, by level (F + 1,)."""
        self._idle: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self._meters = Meters(fleet, self.config)
        self._clocks = MeterClocks(fleet, self.config.max_age_s)
        self._late = LateDraws(fleet)
        self._means = MeanMeters(fleet)
        self._second = LastSecond(fleet)
        self._allowance = Allowance(fleet, self.config)
        self._backstop = Backstop(fleet, self.config)
        self._wants = Wants(fleet, self.config)
        self._notes = NoteBook(fleet)
        self._ramps = DrawRamps(fleet, ramps or RampLimits.of(fleet.feeds + 1))
        self.stored = StoredPower(fleet, storages)
        self._at_s: float | None = None
        self._behind_s = 0.0
        """How far the clock of the readings was put back so far."""
        self._passed_s = 0.0
        self._alarm_s = -np.inf
        self._before_alarm_w: Floats = fleet.floor_w.copy()
        self._most_w: Floats = fleet.max_w.copy()
        """What each device may be counted at, whatever the limits leave."""
        if state is not None:
            self._take_over(state)
            found_w = state.found_w if found_w is None else found_w
        # NaN until a first answer: a cap that was never read cannot be restored, and the maximum is
        # what `leave` puts then.
        self.found_w: Floats = np.full(fleet.size, np.nan) if found_w is None else found_w.copy()

    def cycle(
        self, readings: Readings, limit_w: Floats, most_w: Floats | None = None,
        *, wishes: CapWishes | None = None,
    ) -> Orders:  # fmt: skip
        """One decision; `limit_w` (F + 1,) for the feeds and, last, the site, in watts.

        `most_w` (N,) is what each device may draw at most whatever the limits leave, as whoever
        leads has ordered it; NaN, or nothing, for no such order. `wishes` are a scheduler's, with
        its own; without them devices get whatever fits.
        """
        readings, limit_w = self.stored.take(self._forward(readings), limit_w)
        now_s, step_s = readings.now_s, self._step(readings)
        # Steps are measured, never assumed: a loop that was suspended wakes up to a long one.
        self._passed_s = step_s
        self._most_w = self._ordered_most(most_w if wishes is None else wishes.most_w)
        self._hear(wishes, now_s)
        seen = self._look(readings)
        budget_w = self._allowance.budget(
            limit_w, self.base, step_s=step_s,
            given_w=self.stored.given_w, lasting_w=self.stored.counted_w,
        )  # fmt: skip
        self.budget_w = budget_w
        due = self._backstop.due(self.caps, now_s)
        aim_w = self._aimed(now_s, limit_w) if wishes is None else wishes.aim_w
        wanted_w = self._wanted(seen, now_s)
        # The reserve is for devices whose outlets are about to be switched on: a machine that boots
        # draws what it likes until its knob answers.
        target_w = self._target(budget_w - self._reserve(due), wanted_w, aim_w)
        self._ramps.look(seen, self.caps, self.base, now_s)
        # Ramps come after the budget and may only take away from it.
        target_w = self._ramps.within(target_w, self.caps)
        lowered_w = self._lowered(target_w, budget_w)
        lowered_w = self._ramps.softened(lowered_w, self.caps, budget_w, at_once=self.safe_mode)
        cap_w = self._raised(lowered_w, target_w, self._ramps.budget(budget_w), seen, now_s)
        off = self._stopped(budget_w, limit_w, seen, now_s)
        on = self._backstop.to_wake(self.caps, budget_w, due)
        # Limits as the meters see them: what storage gives above what is counted is no excess.
        seen_limit_w = limit_w + self.stored.given_w - self.stored.counted_w
        self._notes.take(
            self.caps, self.base, self._meters, seen, seen_limit_w, now_s, self._ramps.found()
        )
        self._at_s = now_s
        return Orders(
            # Every device, every cycle: an order that changes nothing still renews the lease, and
            # undoes a reboot, a reset driver or somebody else's hand.
            cap_w=self.caps.order(cap_w),
            lease_s=self.config.lease_s,
            switch_off=off,
            switch_on=on,
            stop_job=self._backstop.jobs.stopped.copy(),
            storage_w=self._of_storage(wanted_w) if self.stored.any else None,
        )

    def _of_storage(self, wanted_w: Floats) -> Floats:
        """What storages (S,) are to give."""
        fleet, caps, kept_w = self.fleet, self.caps, self._allowance.kept_w
        draw_w = np.maximum(caps.response.at(np.maximum(wanted_w, fleet.floor_w)), 0.0)
        wished_w = np.where(caps.fixed | caps.off | self._at_rest, caps.counted_w, draw_w)
        return self.stored.order(
            caps.counted_by_level_w + kept_w, fleet.levels(wished_w) + kept_w,
            self.config.margin,
        )  # fmt: skip

    def leave(self, readings: Readings) -> Orders:
        """Put the caps back that were found, for good, and switch everything on again."""
        readings, _ = self.stored.take(self._forward(readings), np.zeros(self.fleet.feeds + 1))
        self._look(readings)
        self._at_s = readings.now_s
        cap_w = np.where(np.isnan(self.found_w), self.fleet.max_w, self.found_w)
        return Orders(
            cap_w=cap_w,
            lease_s=NEVER_LAPSES,
            switch_off=np.zeros(self.fleet.size, dtype=np.bool_),
            switch_on=readings.off.copy(),
            storage_w=np.zeros(len(self.stored.storages)) if self.stored.any else None,
        )

    def notes(self) -> tuple[SafetyNote, ...]:
        """What the last cycle noticed, for an operator."""
        behind_s = self._behind_s
        return tuple(replace(one, since_s=one.since_s - behind_s) for one in self._notes.current)

    def state(self) -> SafetyState:
        """All that was learned, for a successor."""
        size, now_s = self.fleet.size, self._at_s or 0.0
        return SafetyState(
            found_w=self.found_w.copy(),
            ordered_w=self.caps.ordered_w.copy(),
            # Where nothing was ever ordered `held_w` is what a new loop assumes, and no knowledge
            # to hand on.
            held_w=np.where(np.isnan(self.caps.ordered_w), np.nan, self.caps.held_w),
            reach_w=self.caps.response.reach_w.copy(),
            beyond_w=self.caps.response.beyond_w.copy(),
            resolution_w=self._meters.resolution_w[:size].copy(),
            stopped=self._backstop.jobs.stopped.astype(np.float64),
            off_age_s=now_s - self._backstop.off_at_s,
            base_w=self.base.steady_w.copy(),
            base_rise_w=self.base.rise_w.copy(),
            base_peak_w=self.base.peak_w.copy(),
            base_away_w=self.base.away_w.copy(),
            base_wait_s=self.base.switched.wait_s.copy(),
            kept_w=self._allowance.kept_w.copy(),
            heat=self._allowance.heat.copy(),
            level_resolution_w=self._meters.resolution_w[size:].copy(),
        )

    def _take_over(self, state: SafetyState) -> None:
        """Go on from where a predecessor ended; what is NaN there is as for a new loop."""
        caps = self.caps
        caps.held_w = np.where(np.isnan(state.held_w), caps.held_w, state.held_w)
        # Where nothing was held nothing was known, and an order without that would be believed on
        # the strength of a mere number.
        caps.ordered_w = np.where(np.isnan(state.held_w), np.nan, state.ordered_w)
        caps.response.restore(state.reach_w, state.beyond_w, state.held_w)
        self._backstop.take_over(np.nan_to_num(state.stopped) > 0, state.off_age_s)
        self.base.restore(state.base_w, state.base_rise_w, state.base_peak_w)
        self.base.switched.restore(state.base_away_w, state.base_wait_s)
        self._allowance.kept_w = np.nan_to_num(state.kept_w)
        self._allowance.heat = np.where(np.isnan(state.heat), self._allowance.heat, state.heat)
        self._meters.resolution_w = np.concatenate((state.resolution_w, state.level_resolution_w))

    def _stopped(
        self, budget_w: Floats, limit_w: Floats, seen: TrustedReadings, now_s: float
    ) -> Bools:
        """The backstop's turn: outlets (N,) to switch off; jobs to stop are kept there."""
        jobs, heat = self._backstop.jobs, self._allowance.heat
        off = self._backstop.to_stop(self.caps, budget_w, limit_w, seen, heat=heat, now_s=now_s)
        jobs.resume(self.caps, budget_w, now_s)
        self.caps.jobless = (jobs.stopped & ~jobs.ending(now_s)) | self._idle
        return off

    def _hear(self, wishes: CapWishes | None, now_s: float) -> None:
        """Take a scheduler's wishes; a job that has begun counts at once at its device's cap."""
        if wishes is None:
            return
        fleet, jobs = self.fleet, self._backstop.jobs
        with np.errstate(invalid="ignore"):
            # A scheduler that says "idle" of a device that draws more than its floor is not
            # believed: somebody works there of whom it does not know.
            works = self.caps.drawn_w > fleet.floor_w  # for somebody the scheduler does not know
        self._idle = wishes.idle & fleet.device_read & ~works
        self.caps.jobless = (jobs.stopped & ~jobs.ending(now_s)) | self._idle

    def offered_w(self, budget_w: Floats | None = None) -> float:
        """Caps that all devices could have together if every one had a use for the most, in watts.

        Less what even their lowest exceed a limit by, if all follow: whose job has to stop because
        its device does not is the backstop's to say. It is for a scheduler to plan with.
        `budget_w` (F + 1,) stands for what the last cycle found.
        """
        caps, fleet, draw = self.caps, self.fleet, self.caps.response.at
        # What is kept free while devices rest is theirs within seconds of their start.
        budget_w = (self.budget_w if budget_w is None else budget_w) + self.base.for_rises_w
        fixed, lowest_w = caps.fixed, draw(caps.lowest_w)
        fixed_w = np.where(fixed, caps.counted_w, 0.0)
        least_w = np.where(fixed, np.fmin(fixed_w, lowest_w), lowest_w)
        # Idle devices are offered at their floor as long as everybody may have one. Where not all
        # may, who has no job is counted at what it draws, or else nobody could start anything.
        if np.any(fleet.levels(least_w) > budget_w):  # not all may have a job
            low_w = np.where(self._idle, np.fmin(caps.counted_w, lowest_w), lowest_w)
            least_w = np.where(fixed, np.fmin(fixed_w, lowest_w), low_w)
        short_w = float((fleet.levels(least_w) - budget_w).max())
        low_w = np.where(fixed, 0.0, least_w)
        high_w = low_w if self.safe_mode else np.where(fixed, 0.0, draw(fleet.max_w))
        given_w = fill(fleet, budget_w - fleet.levels(fixed_w), low_w, high_w)
        kept_w = np.where(caps.off, 0.0, np.fmax(caps.ordered_w, caps.lowest_w))
        cap_w = np.where(fixed, kept_w, np.minimum(caps.response.cap_for(given_w), fleet.max_w))
        return float(cap_w.sum()) - max(short_w, 0.0)

    def _look(self, readings: Readings) -> TrustedReadings:
        """Believe what is to be believed, of caps, draw and other load."""
        caps, fleet, now_s = self.caps, self.fleet, readings.now_s
        size, step_s = fleet.size, self._step(readings)
        lied = self._meters.liars[size:]
        readings = self._clocks.put_right(readings)
        seen = self._meters.judge(readings)
        lies = self._meters.liars[size:]
        self.base.keep(~lies, now_s)
        self.base.go_back(lies != lied)
        renews_s = self._meters.renews_s
        seen = self._late.up_to_now(
            readings, seen, renews_s=renews_s, response=caps.response,
            counted_w=caps.counted_w, other_w=self.base.steady_w,
        )  # fmt: skip
        seen = self._means.up_to_now(readings, seen, self.config.disagree, caps.counted_w)
        self.seen = seen = self._second.mean(seen, readings, renews_s)
        self.base.forget(self._means.changed)
        caps.read_back(
            readings, self._watched(seen), seen.draw_w, news_s=renews_s[:size],
            resolution_w=np.nan_to_num(self._meters.resolution_w[:size]),
        )  # fmt: skip
        self.found_w = np.where(np.isnan(self.found_w), readings.cap_w, self.found_w)
        # Below a level whose meter shows less than its devices' together nothing is learned: one of
        # them is wrong, and it is not known which.
        trusted = np.isfinite(seen.draw_w) & ~fleet.any_above(self._refuted(seen))
        explained_w = caps.compare(
            seen.draw_w, trusted, now_s, step_s, late=self._late.late, telling=self._late.telling
        )
        # What a device newly explains of a level's draw was counted as other load before: it
        # changes sides, and is counted once.
        self.base.transfer(np.maximum(explained_w, 0.0))
        self.base.take_back(np.maximum(-explained_w, 0.0))
        # Nine tenths of the meters and not all: one that never has news would stretch the horizon
        # of everybody.
        soon_s = np.where(np.append(self._late.late, np.zeros(fleet.feeds + 1)), 0.0, renews_s)
        news_s = nine_tenths(soon_s)
        # How far other load must be foreseen: until a cut that is ordered now has been answered and
        # seen.
        ahead_s = min(LAG_S + caps.answer_s + news_s, LONGEST_AHEAD_S)
        self.base.look(
            seen, caps.counted_w, readings.off, now_s=now_s, step_s=step_s, ahead_s=ahead_s,
            news_s=news_s, level_news_s=np.where(self._means.found, 0.0, renews_s[size:]),
            late_s=self._means.late_s, own_then_w=self._means.own_then_w,
            faded_w=self._means.faded_w, told_more_w=self._late.more_w,
        )  # fmt: skip
        # By the highest caps and not by those in force: draw beyond a cap is news that is acted
        # upon at once, an alarm is what nobody's devices could draw.
        self._meters.expect(fleet.levels(caps.response.at(fleet.max_w)) + self.base.highest_w)
        # What is remembered at a first alarm are the caps before it: if it proves false they may
        # come back at once, and work is lost for seconds instead of for a slow climb.
        if seen.alarmed.any():
            if now_s - self._alarm_s > REGAIN_S:
                self._before_alarm_w = np.nan_to_num(caps.ordered_w)
            self._alarm_s = now_s
        missing, enough = seen.missing_share, self.config.missing_share
        # Hysteresis: at the same share for in and out, a meter that comes and goes would move all
        # caps of a site up and down.
        self.safe_mode = missing > (enough / 2 if self.safe_mode else enough)
        return seen

    def _watched(self, seen: TrustedReadings) -> Bools:
        """Devices (N,) of which a meter would tell if they did not keep their cap.

        Their own, or the nearest above: one farther up would tell too late, and not of whom. Where
        there is none at all, the knob's word is what there is.
        """
        fleet = self.fleet
        feed_metered = fleet.level_read[fleet.feed]
        feed_told = np.isfinite(seen.level_w)[fleet.feed]
        nobody = ~fleet.device_read & ~feed_metered
        return np.asarray(np.isfinite(seen.draw_w) | feed_told | nobody)

    def _refuted(self, seen: TrustedReadings) -> Bools:
        """Levels (F + 1,) whose meter shows less than their devices' claim: those learn nothing."""
        return np.append(~seen.agreed, np.False_)

    def _forward(self, readings: Readings) -> Readings:
        """The same on a clock that never goes back: streaks and windows would stand still."""
        back_s = 0.0 if self._at_s is None else self._at_s - readings.now_s - self._behind_s
        self._behind_s += max(back_s, 0.0)
        by_s = self._behind_s
        if by_s == 0.0:
            return readings
        return replace(
            readings, now_s=readings.now_s + by_s, draw_at_s=readings.draw_at_s + by_s,
            feed_at_s=readings.feed_at_s + by_s, site_at_s=readings.site_at_s + by_s,
            storage_at_s=None if readings.storage_at_s is None else readings.storage_at_s + by_s,
        )  # fmt: skip

    def _step(self, readings: Readings) -> float:
        return 0.0 if self._at_s is None else max(readings.now_s - self._at_s, 0.0)

    def _ordered_most(self, most_w: Floats | None) -> Floats:
        """Orders from outside (N,), within what the devices can be held to."""
        fleet = self.fleet
        if most_w is None:
            return fleet.max_w
        return np.asarray(np.fmin(np.fmax(np.where(np.isnan(most_w), fleet.max_w, most_w),
                                          fleet.floor_w), fleet.max_w))  # fmt: skip

    def _reserve(self, due: int | None) -> Floats:
        """Watts (F + 1,) kept free for a device that waits to be switched on."""
        kept_w = np.zeros(self.fleet.size)
        if due is not None:
            kept_w[due] = self.fleet.max_w[due]
        return self.fleet.levels(kept_w)

    def _aimed(self, now_s: float, limit_w: Floats) -> Floats:
        """Wishes (N,) for the limits themselves, which move less often than what is safe does."""
        if self._aims is None:
            return self.fleet.floor_w
        taken = np.clip(self._allowance.kept_w / np.maximum(limit_w, 1.0), 0.0, 1.0)
        coarse = np.ceil(np.maximum(taken - AIM_STEP / 2, 0.0) / AIM_STEP) * AIM_STEP
        return self._aims.caps(now_s, limit_w * (1.0 - np.maximum(coarse, self.config.margin)))

    def _wanted(self, seen: TrustedReadings, now_s: float) -> Floats:
        """Caps (N,) with a use now; a device without a meter may have one for all."""
        held_w = self.caps.held_w
        wanted_w = self._wants.caps(
            seen, held_w, now_s, doubted=self.base.doubted, answer_s=self.caps.answer_s
        )
        wanted_w = np.where(self.fleet.device_read, wanted_w, self.fleet.max_w)
        return np.asarray(np.minimum(wanted_w, self._most_w))

    def _target(self, budget_w: Floats, wanted_w: Floats, aim_w: Floats) -> Floats:
        """Caps (N,) that fit beside the devices that do not follow.

        Wishes come first; what is left goes to whoever has a use for it now, and what is left then
        to all the others, who may have one soon: first of all they keep what they have. Shared are
        watts of draw; caps are what brings them about.
        """
        caps, fleet = self.caps, self.fleet
        if self.safe_mode:
            return fleet.floor_w.copy()
        fixed, draw, idle = caps.fixed, caps.response.at, self._at_rest
        apart = fixed | idle
        left_w = budget_w - fleet.levels(np.where(apart, caps.counted_w, 0.0))
        low_w = np.where(apart, 0.0, draw(caps.lowest_w))
        # A cap that was seen to regulate high is lowered until what is drawn is what was ordered.
        most_w = draw(self._most_w)
        ordered = self._most_w < fleet.max_w
        if ordered.any():
            high = ordered & ~caps.response.keeps(self._most_w)
            most_w = np.where(high, self._most_w, most_w)
        most_w = np.where(apart, 0.0, np.maximum(most_w, low_w))
        high_w = np.where(apart, 0.0, draw(np.maximum(wanted_w, fleet.floor_w)))
        high_w = np.minimum(high_w, most_w)
        wished_w = fill(fleet, left_w, low_w, np.clip(draw(aim_w), low_w, high_w))
        shared_w = fill(fleet, left_w, wished_w, high_w)
        kept_w = np.fmin(np.fmax(shared_w, draw(caps.ordered_w)), most_w)
        # Spare watts stay where they are as far as they go. Shared out anew in each cycle, they
        # would move every cap of a site to and fro.
        for high_w in (kept_w, most_w):
            shared_w = fill(fleet, left_w, shared_w, high_w)
        cap_w = np.clip(caps.response.cap_for(shared_w), fleet.floor_w, self._most_w)
        # Who has the least that it is believed to reach loses nothing by the lowest cap; and where
        # that belief is wrong, nothing else would show it.
        least = shared_w <= caps.response.reach_w * (1.0 + AT_REACH)
        cap_w = np.where(least & self._over(budget_w), fleet.floor_w, cap_w)
        cap_w = self._stepped(cap_w, self._most_w, left_w, ~apart)
        cap_w = np.where(idle, caps.on_grid(self._most_w), cap_w)
        if not fixed.any():
            return cap_w
        return np.asarray(np.where(fixed, self._of_fixed(budget_w), cap_w))

    @property
    def _at_rest(self) -> Bools:
        """Devices (N,) that nobody has a job on, as their meters show."""
        caps = self.caps
        return self._idle & ~caps.fixed & np.isfinite(caps.drawn_w)

    def _of_fixed(self, budget_w: Floats) -> Floats:
        """Devices that do not follow get what they would if all did, as far as it is counted.

        So when they follow again they are where the others are. Those that hear nothing, and come
        back with a cap of their own, begin at the floor.
        """
        caps, fleet, draw = self.caps, self.fleet, self.caps.response.at
        even_w = fill(fleet, budget_w, draw(caps.lowest_w), draw(fleet.max_w))
        level_w = np.clip(caps.response.cap_for(even_w), fleet.floor_w, self._most_w)
        most_w = np.where(caps.pending_s >= ASK_AGAIN_S, caps.held_w, caps.ordered_w)
        slow_w = np.fmax(np.fmin(np.fmin(most_w, level_w), self._most_w), fleet.floor_w)
        broken = caps.silent | caps.waking | caps.off
        return np.asarray(np.where(broken, fleet.floor_w, slow_w))

    def _lowered(self, target_w: Floats, budget_w: Floats) -> Floats:
        """Cut to the target where a limit demands it or the gap is worth an order."""
        over = self._over(budget_w)
        ordered_w = np.where(np.isnan(self.caps.ordered_w), target_w, self.caps.ordered_w)
        band_w = self.config.band * self.fleet.max_w
        forced = over | self.safe_mode | self.caps.fixed | (ordered_w > self._most_w)
        cut = target_w < ordered_w - np.where(forced, SAME_W, band_w)
        again = self.caps.fixed & (self.caps.pending_s >= ASK_AGAIN_S)
        lowered_w = np.where(cut | again, target_w, ordered_w)
        if not again.any():
            return np.asarray(lowered_w)
        # A knob that claims what it was told is sent nothing new: it gets another number now and
        # then, and the old one next, and may follow this time.
        turn = self.caps.pending_s % ASK_AGAIN_S < self._passed_s
        same = np.abs(lowered_w - ordered_w) <= np.where(self.caps.coarse, self.caps.step_w, SAME_W)
        another_w = np.minimum(lowered_w + 2.0 * self.caps.step_w, self.fleet.max_w)
        return np.asarray(np.where(again & turn & same, another_w, lowered_w))

    def _over(self, budget_w: Floats) -> Bools:
        """Devices below a level whose worst case exceeds its budget."""
        return self.fleet.any_above(self.caps.counted_by_level_w > budget_w)

    def _raised(
        self, cap_w: Floats, target_w: Floats, budget_w: Floats, seen: TrustedReadings, now_s: float
    ) -> Floats:
        """Raise towards the target with watts that were read back, not with ordered ones."""
        caps, config, fleet = self.caps, self.config, self.fleet
        # Nothing is raised on readings that are missing, or that nobody has confirmed.
        if self.safe_mode or seen.alarmed.any():
            return cap_w
        draw, told = caps.response.at, np.isfinite(seen.draw_w) | ~fleet.device_read
        idle = self._at_rest
        cap_w = np.where(idle, np.maximum(cap_w, target_w), cap_w)
        # An order from outside is followed to the watt.
        # Raises smaller than the band are not made: each is an order to a driver, and the band is
        # what keeps two devices from handing a watt to and fro.
        least_w = np.where(self._most_w < fleet.max_w, SAME_W, config.band * fleet.max_w)
        may = caps.settled & told & (target_w - cap_w > least_w) & ~idle
        before_w = draw(cap_w)
        gap_w = np.where(may, draw(target_w) - before_w, 0.0)
        asked_w = fleet.levels(gap_w)
        free_w = np.maximum(budget_w - caps.counted_by_level_w, 0.0)
        rate_w = config.raise_per_s * np.maximum(budget_w, 0.0)
        if now_s - self._alarm_s <= REGAIN_S:
            back_w = draw(np.minimum(target_w, self._before_alarm_w)) - before_w
            back_w *= 1.0 - (1.0 - REGAIN) ** self._passed_s
            # Except after a false alarm, for `REGAIN_S`.
            rate_w = np.maximum(rate_w, fleet.levels(np.where(may, np.maximum(back_w, 0.0), 0.0)))
        # A coarse knob moves by whole steps: a rate below its step would never let it move at all.
        free_w = np.minimum(free_w, np.maximum(rate_w, np.where(may, caps.step_w, 0.0).max()))
        # Everybody gets the same part of what it asks for, by the tightest level above it: who is
        # first in the fleet has nothing of that.
        part = np.minimum(free_w / np.maximum(asked_w, 1e-9), 1.0)
        grant_w = gap_w * fleet.least(part)
        # A grant that is a crumb of what was asked for waits until there is more, unless it is all
        # that was asked.
        worth = grant_w >= np.minimum(0.25 * config.band * fleet.max_w, gap_w)
        raised_w = caps.response.cap_for(before_w + grant_w)
        raised_w = np.clip(raised_w, cap_w, np.maximum(target_w, cap_w))
        raised_w = np.where(may & worth, raised_w, cap_w)
        if not caps.coarse.any():
            return raised_w
        room_w = free_w + fleet.levels(np.where(may, before_w, 0.0))
        return self._stepped(raised_w, target_w, room_w, may)

    def _stepped(self, cap_w: Floats, most_w: Floats, room_w: Floats, which: Bools) -> Floats:
        """Caps (N,) in the steps of coarse knobs; what rounding down leaves goes to a few of them.

        `room_w` (F + 1,) is what those of `which` (N,) may draw together. Who has its step already
        comes first, so that nobody takes turns.
        """
        caps, fleet = self.caps, self.fleet
        if not caps.coarse.any():
            return cap_w
        low_w = caps.on_grid(cap_w)
        next_w = low_w + caps.step_w
        rows = np.flatnonzero(caps.coarse & which & (next_w <= most_w + 1e-6))
        draw = caps.response.at
        left_w = room_w - fleet.levels(np.where(which, draw(low_w), 0.0))
        # Stable: among equals the order of the fleet, so that the same readings give the same
        # orders.
        rows = rows[np.argsort(caps.ordered_w[rows] < next_w[rows] - SAME_W, kind="stable")]
        fits = steps_that_fit(fleet, left_w, draw(next_w) - draw(low_w), rows)
        return np.where(fits, next_w, low_w)


ASK_AGAIN_S = 45.0
"""A knob that has not followed for so long, the slowest on record, is asked for something else."""
