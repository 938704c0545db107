"""The safety loop: keep every feed and the site within its limit, whatever meters and knobs do.

Once a second: judge the meters, read the caps back, find what every device may draw at worst, and
order caps so that those worst cases fit. The rules:

* Caps are counted, not draw: draw may jump within the loop's delay, caps may not. Meters only say
  who does not need its cap, and who does not keep it.
* Cuts go out at once. Raises wait until the watts for them have been read back from others, and are
  limited per second.
* Every order is a lease: devices that hear nothing fall to their floor by themselves.
* What feeds draw beyond the sum of what was counted, for whatever reason, is taken off the budget.
* Where no cap can help, jobs on devices that do not follow are stopped, and where that does not
  help either, their outlets switched off (the backstop).

Bands and the fifth of missing readings are Dynamo's (ISCA'16), restoring what was found is GEOPM's
access service. The loop is pure: no clock, no device, no chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattherd.engine.safety_aims import Aims
from wattherd.engine.safety_backstop import Backstop
from wattherd.engine.safety_caps import SAME_W, CapBook
from wattherd.engine.safety_fill import fill
from wattherd.engine.safety_limits import Allowance
from wattherd.engine.safety_meters import Meters, Seen
from wattherd.engine.safety_state import SafetyState, nothing_known
from wattherd.engine.safety_terms import (
    Bools,
    Breaker,
    Fleet,
    Floats,
    Note,
    Orders,
    Readings,
    SafetyConfig,
)
from wattherd.engine.safety_wants import Wants

__all__ = [
    "Breaker",
    "Fleet",
    "Note",
    "Orders",
    "Readings",
    "SafetyConfig",
    "SafetyLoop",
    "SafetyState",
]

NEVER_LAPSES = float("inf")


class SafetyLoop:
    """Controller of one site. `found_w` (N,) is what a journal kept of an earlier life, or nothing.

    The caps found are those read back first; keep `found_w` where it outlives this process, so that
    a successor can still restore them. `aims` says what watts are best spent on; without it all get
    the same.
    """

    def __init__(
        self,
        fleet: Fleet,
        config: SafetyConfig | None = None,
        found_w: Floats | None = None,
        aims: Aims | None = None,
        *,
        state: SafetyState | None = None,
    ) -> None:
        """Nothing is known of the devices until the first cycle, but what `state` tells."""
        if found_w is None and state is not None:
            found_w = state.found_w
        self._aims = aims
        self.fleet = fleet
        self.config = config or SafetyConfig()
        self.caps = CapBook(fleet, self.config)
        self.safe_mode = False
        self.seen: Seen | None = None
        """What the last cycle believed of its readings."""
        self.found_w: Floats = np.full(fleet.size, np.nan) if found_w is None else found_w.copy()
        self._meters = Meters(fleet, self.config)
        self._allowance = Allowance(fleet, self.config)
        self._backstop = Backstop(fleet, self.config)
        self._wants = Wants(fleet, self.config)
        self._at_s: float | None = None

    def cycle(self, readings: Readings, limit_w: Floats) -> Orders:
        """One decision; `limit_w` (F + 1,) for the feeds and, last, the site, in watts."""
        seen = self._look(readings)
        budget_w = self._allowance.budget(
            limit_w, self.caps.counted_w, seen, now_s=readings.now_s, step_s=self._step(readings)
        )
        due = self._backstop.due(self.caps, readings.now_s)
        aim_w = self._aimed(readings.now_s, limit_w)
        wanted_w = self._wants.caps(seen, self.caps.held_w, readings.now_s)
        target_w = self._target(budget_w - self._reserve(due), wanted_w, aim_w)
        lowered_w = self._lowered(target_w, budget_w)
        cap_w = self._raised(lowered_w, target_w, budget_w, seen)
        off = self._stopped(budget_w, limit_w, seen, readings.now_s)
        on = self._backstop.to_wake(self.caps, budget_w, due)
        self._at_s = readings.now_s
        return Orders(
            cap_w=self.caps.order(cap_w),
            lease_s=self.config.lease_s,
            switch_off=off,
            switch_on=on,
            stop_job=self._backstop.jobs.stopped.copy(),
        )

    def state(self) -> SafetyState:
        """All that was learned, for a successor."""
        return replace(
            nothing_known(self.fleet.size, self.fleet.feeds + 1),
            found_w=self.found_w.copy(),
            ordered_w=self.caps.ordered_w.copy(),
            held_w=self.caps.held_w.copy(),
            heat=self._allowance.heat.copy(),
        )

    def notes(self) -> tuple[Note, ...]:
        """What the last cycle noticed, for an operator."""
        return ()

    def _stopped(self, budget_w: Floats, limit_w: Floats, seen: Seen, now_s: float) -> Bools:
        """The backstop's turn: outlets (N,) to switch off; jobs to stop are kept there."""
        jobs, hot = self._backstop.jobs, self._allowance.heat > self.config.hot
        off = self._backstop.to_stop(self.caps, budget_w, limit_w, seen, hot=hot, now_s=now_s)
        jobs.resume(self.caps, budget_w, now_s)
        self.caps.jobless = jobs.stopped & ~jobs.ending(now_s)
        return off

    def leave(self, readings: Readings) -> Orders:
        """Put the caps back that were found, for good, and switch everything on again."""
        self._look(readings)
        cap_w = np.where(np.isnan(self.found_w), self.fleet.max_w, self.found_w)
        return Orders(
            cap_w=cap_w,
            lease_s=NEVER_LAPSES,
            switch_off=np.zeros(self.fleet.size, dtype=np.bool_),
            switch_on=readings.off.copy(),
        )

    def _look(self, readings: Readings) -> Seen:
        self.seen = seen = self._meters.judge(readings)
        # The nearest meter only: one farther up would tell too late, and not of whom.
        metered = np.append(np.isfinite(seen.feed_w), np.False_)[self.fleet.feed]
        watched = np.isfinite(seen.draw_w) | metered
        self.caps.read_back(readings, watched)
        self.found_w = np.where(np.isnan(self.found_w), readings.cap_w, self.found_w)
        self.caps.compare(seen.draw_w, readings.now_s)
        missing = seen.missing_share
        enough = self.config.missing_share
        self.safe_mode = missing > (enough / 2 if self.safe_mode else enough)
        return seen

    def _step(self, readings: Readings) -> float:
        return 0.0 if self._at_s is None else max(readings.now_s - self._at_s, 0.0)

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
        return self._aims.caps(now_s, limit_w * (1.0 - self.config.margin))

    def _target(self, budget_w: Floats, wanted_w: Floats, aim_w: Floats) -> Floats:
        """Caps (N,) that fit beside the devices that do not follow; those go to their floor.

        Wishes come first; what is left goes to whoever has a use for it now, and what is left then
        to all the others, who may have one soon: first of all they keep what they have.
        """
        caps, fleet = self.caps, self.fleet
        if self.safe_mode:
            return fleet.floor_w.copy()
        fixed = caps.fixed
        left_w = budget_w - fleet.levels(np.where(fixed, caps.counted_w, 0.0))
        low_w = np.where(fixed, 0.0, fleet.floor_w)
        high_w = np.where(fixed, 0.0, np.maximum(wanted_w, fleet.floor_w))
        wished_w = fill(fleet, left_w, low_w, np.clip(aim_w, low_w, high_w))
        shared_w = fill(fleet, left_w, wished_w, high_w)
        most_w = np.where(fixed, 0.0, fleet.max_w)
        kept_w = np.fmin(np.fmax(shared_w, caps.ordered_w), most_w)
        for high_w in (kept_w, most_w):
            shared_w = fill(fleet, left_w, shared_w, high_w)
        return np.asarray(np.where(fixed, self._of_fixed(shared_w), shared_w))

    def _of_fixed(self, shared_w: Floats) -> Floats:
        """Slow devices keep their order or the general level, the others start from the floor."""
        caps, fleet = self.caps, self.fleet
        free_w = shared_w[~caps.fixed]
        level_w = float(free_w.max()) if len(free_w) else 0.0
        slow_w = np.fmin(caps.ordered_w, np.maximum(level_w, fleet.floor_w))
        broken = caps.silent | caps.defiant | caps.waking | caps.off
        return np.asarray(np.where(broken, fleet.floor_w, slow_w))

    def _lowered(self, target_w: Floats, budget_w: Floats) -> Floats:
        """Cut to the target where a limit demands it or the gap is worth an order."""
        over = self._over(budget_w)
        ordered_w = np.where(np.isnan(self.caps.ordered_w), target_w, self.caps.ordered_w)
        band_w = self.config.band * self.fleet.max_w
        forced = over | self.safe_mode | self.caps.fixed
        cut = target_w < ordered_w - np.where(forced, SAME_W, band_w)
        return np.asarray(np.where(cut, target_w, ordered_w))

    def _over(self, budget_w: Floats) -> Bools:
        """Devices below a level whose worst case exceeds its budget."""
        return self.fleet.any_above(self.fleet.levels(self.caps.counted_w) > budget_w)

    def _raised(self, cap_w: Floats, target_w: Floats, budget_w: Floats, seen: Seen) -> Floats:
        """Raise towards the target with watts that were read back, not with ordered ones."""
        caps, config = self.caps, self.config
        if self.safe_mode:
            return cap_w
        gap_w = target_w - cap_w
        may = caps.settled & np.isfinite(seen.draw_w) & (gap_w > config.band * self.fleet.max_w)
        gap_w = np.where(may, gap_w, 0.0)
        asked_w = self.fleet.levels(gap_w)
        free_w = np.maximum(budget_w - self.fleet.levels(caps.counted_w), 0.0)
        free_w = np.minimum(free_w, config.raise_per_s * np.maximum(budget_w, 0.0))
        part = np.minimum(free_w / np.maximum(asked_w, 1e-9), 1.0)
        grant_w = gap_w * self.fleet.least(part)
        worth = grant_w >= np.minimum(0.25 * config.band * self.fleet.max_w, gap_w)
        return np.asarray(cap_w + np.where(worth, grant_w, 0.0))
