"""The last resort: jobs on devices that follow no cap are stopped, then their outlets switched off.

Outlets come first only where a breaker is too warm to wait for a job to end. Either happens only
where the limit is really exceeded, or nobody can tell: counting a silent device at its maximum is
reason to cut others, never by itself reason to stop a job.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_caps import CapBook
from wattherd.engine.safety_meters import Seen
from wattherd.engine.safety_stops import JobStops
from wattherd.engine.safety_terms import (
    Bools,
    Fleet,
    Floats,
    SafetyConfig,
    no_streak,
)


class Backstop:
    """Decides over jobs and outlets; remembers when it switched which device off."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Everything is on."""
        self._fleet, self._config = fleet, config
        self._stuck = no_streak(fleet.feeds + 1)
        self._off_at_s: Floats = np.full(fleet.size, np.nan)
        self._tries = np.zeros(fleet.size)
        self.jobs = JobStops(fleet, config)

    def to_stop(
        self,
        caps: CapBook,
        budget_w: Floats,
        limit_w: Floats,
        seen: Seen,
        *,
        hot: Bools,
        now_s: float,
    ) -> Bools:
        """Devices (N,) to switch off now, because nothing else brings the draw down.

        Jobs that are to stop instead are noted in `jobs`. `hot` (F + 1,) are levels whose breaker
        leaves no time for that.
        """
        fleet = self._fleet
        over_w = self._over(caps, budget_w, limit_w, seen, now_s)
        chosen = np.zeros(fleet.size, dtype=np.bool_)
        for number in np.flatnonzero(over_w > 0):
            among = caps.fixed & ~self._gone(caps, now_s) & fleet.below(int(number)) & ~chosen
            hears = among & ~caps.silent & ~self.jobs.stopped & self._config.stops_jobs
            if hears.any() and not hot[number]:
                self.jobs.stop(self._largest(caps.counted_w, hears, float(over_w[number])), now_s)
            elif hot[number] or not (among & self.jobs.ending(now_s)).any():
                chosen |= self._largest(caps.counted_w, among, float(over_w[number]))
        self._off_at_s = np.where(chosen, now_s, self._off_at_s)
        self._tries = self._tries + chosen
        return chosen

    def _gone(self, caps: CapBook, now_s: float) -> Bools:
        """Devices that are off, or on their way to it."""
        with np.errstate(invalid="ignore"):
            going = now_s - self._off_at_s < self._config.outlet_s
        return caps.off | going

    def _over(
        self, caps: CapBook, budget_w: Floats, limit_w: Floats, seen: Seen, now_s: float
    ) -> Floats:
        """By how many watts levels (F + 1,) will stay above their budgets, whatever is ordered."""
        fleet = self._fleet
        gone = self._gone(caps, now_s)
        fixed = caps.fixed & ~gone & ~self.jobs.ending(now_s)
        worst_w = np.where(fixed, caps.counted_w, fleet.floor_w)
        least_w = fleet.levels(np.where(gone, 0.0, worst_w))
        exceeded = self._drawn(caps, seen) > limit_w  # an unread feed may well be
        stuck = (least_w > budget_w) & exceeded
        lasting = self._stuck.note(stuck, now_s) >= self._config.backstop_s
        return np.where(lasting & stuck, least_w - budget_w, 0.0)

    def _drawn(self, caps: CapBook, seen: Seen) -> Floats:
        """What levels (F + 1,) draw by their meters, else by those below; infinite where unread."""
        fleet = self._fleet
        feed_w = np.where(fleet.read & np.isnan(seen.feed_w), np.inf, seen.feed_w)
        device_w = np.where(np.isnan(seen.draw_w), np.inf, seen.draw_w)
        own_w = fleet.own(np.where(caps.off, 0.0, device_w))
        return fleet.tree.filled_in(np.append(feed_w, np.nan), own_w)

    @staticmethod
    def _largest(counted_w: Floats, among: Bools, over_w: float) -> Bools:
        """As few as possible of the devices that do not follow, to save `over_w`."""
        order = np.flatnonzero(among)
        order = order[np.argsort(-counted_w[order], kind="stable")]
        saved_w = np.cumsum(counted_w[order])
        chosen = np.zeros(len(among), dtype=np.bool_)
        chosen[order[: int(np.searchsorted(saved_w, over_w)) + 1]] = True
        return chosen

    def due(self, caps: CapBook, now_s: float) -> int | None:
        """The device to switch on next; it waits twice as long after every time it was stopped."""
        wait_s = self._config.retry_s * 2.0 ** (self._tries - 1)
        with np.errstate(invalid="ignore"):
            # Off for another reason: a tripped breaker, or a predecessor stopped it.
            found = np.isnan(self._off_at_s) & self._config.wake_found
            waited = found | (now_s - self._off_at_s >= wait_s)
        rows = np.flatnonzero(caps.off & waited)
        return int(rows[0]) if len(rows) and not caps.waking.any() else None

    def to_wake(self, caps: CapBook, budget_w: Floats, due: int | None) -> Bools:
        """Switch `due` on once it fits at its maximum: a reboot has reset its cap."""
        wake = np.zeros(self._fleet.size, dtype=np.bool_)
        if due is None:
            return wake
        free_w = budget_w - self._fleet.levels(caps.counted_w)
        if self._fleet.least(free_w)[due] >= self._fleet.max_w[due]:
            wake[due] = caps.waking[due] = True
        return wake
