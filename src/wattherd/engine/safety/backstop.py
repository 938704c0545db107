"""The last resort: jobs on devices that follow no cap are stopped, then their outlets switched off.

Outlets come first only where a breaker is too warm to wait for a job to end. Either happens only
where the limit is really exceeded, or nobody can tell: counting a silent device at its maximum is
reason to cut others, never by itself reason to stop a job. A stopped job's devices draw what their
meters show and no more until it runs again. It runs again once its devices fit at their worst, and
after every stop it waits twice as long as before.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.caps import CapBook
from wattherd.engine.safety.contract import (
    Bools,
    Fleet,
    Floats,
    SafetyConfig,
    no_streak,
)
from wattherd.engine.safety.meters import TrustedReadings

PATIENCE, LONGEST_WAIT_S = 2.5, 15.0
"""Knobs that usually take long are waited for, so many times as long as they usually take."""
ABOUT_TO_TRIP = 0.8
"""Thermal state of a breaker from which on also devices that follow are stopped."""


class JobStops:
    """Devices (N,) whose jobs are stopped, and since when."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Every job runs."""
        self._fleet, self._config = fleet, config
        self.stopped: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self._at_s: Floats = np.full(fleet.size, np.nan)
        self._tries = np.zeros(fleet.size)
        self._restart: Bools = np.zeros(fleet.size, dtype=np.bool_)

    def take_over(self, stopped: Bools) -> None:
        """Jobs that a predecessor stopped, as if it had been just now."""
        self.stopped = stopped.copy()
        # How long they have been stopped is not handed over; to wait anew is the safe side.
        self._tries = stopped.astype(np.float64)
        self._restart = stopped.copy()

    def ending(self, now_s: float) -> Bools:
        """Devices whose jobs were told to stop and may still be at it."""
        with np.errstate(invalid="ignore"):
            return self.stopped & (now_s - self._at_s < self._config.stop_s)

    def stop(self, chosen: Bools, now_s: float) -> None:
        """Stop the jobs of these devices as well."""
        self.stopped |= chosen
        self._at_s = np.where(chosen, now_s, self._at_s)
        self._tries = self._tries + chosen

    def resume(self, caps: CapBook, budget_w: Floats, now_s: float) -> None:
        """Let one device's job run again if it fits as if it had not been stopped."""
        self._at_s = np.where(self._restart, now_s, self._at_s)
        self._restart[:] = False
        # Twice as long after each stop: a device that defies its cap whenever its job runs would
        # otherwise stop and start for ever.
        wait_s = self._config.retry_s * 2.0 ** (self._tries - 1)
        with np.errstate(invalid="ignore"):
            due = self.stopped & (now_s - self._at_s >= wait_s)
        # By what it may draw once it runs: what a device drew at rest says nothing of that.
        more_w = caps.running_w - caps.counted_w
        free_w = self._fleet.least(budget_w - caps.counted_by_level_w)
        rows = np.flatnonzero(due & (more_w <= free_w))
        # One at a time, and the next only when this one has been seen: ten at once would need ten
        # devices' worth of trust.
        self.stopped[rows[:1]] = False


# The last resort, and therefore slow to begin: everything cheaper has had its time. Jobs are
# stopped before outlets are switched, because a stopped job has saved its work and a machine
# without power has not.
class Backstop:
    """Decides over jobs and outlets; remembers when it switched which device off."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Everything is on."""
        self._fleet, self._config = fleet, config
        self._stuck = no_streak(fleet.feeds + 1)
        self.off_at_s: Floats = np.full(fleet.size, np.nan)
        self._off_ages_s: Floats | None = None
        self._tries = np.zeros(fleet.size)
        self.jobs = JobStops(fleet, config)

    def take_over(self, stopped: Bools, off_ages_s: Floats) -> None:
        """Go on with the jobs and outlets that a predecessor had stopped."""
        self.jobs.take_over(stopped)
        self._off_ages_s = off_ages_s

    def to_stop(
        self,
        caps: CapBook,
        budget_w: Floats,
        limit_w: Floats,
        seen: TrustedReadings,
        *,
        heat: Floats,
        now_s: float,
    ) -> Bools:
        """Devices (N,) to switch off now, because nothing else brings the draw down.

        Jobs that are to stop instead are noted in `jobs`. A breaker whose `heat` (F + 1,) is above
        half of a trip leaves no time for that; one that is about to trip spares nobody.
        """
        fleet, hot = self._fleet, heat > self._config.hot
        if self._off_ages_s is not None:
            self.off_at_s, self._off_ages_s = now_s - self._off_ages_s, None
        saves_w = self._left(caps, now_s)
        over_w = self._over(caps, fleet.levels(saves_w), budget_w, limit_w, seen, now_s)
        chosen = np.zeros(fleet.size, dtype=np.bool_)
        numbers = np.flatnonzero(over_w > 0)
        # Hot levels first, since an outlet saves at once what a job's end saves for the others
        # later. Among them from the devices up: what is stopped below a level helps it as well, and
        # the largest of the fewest that each level needs are the fewest for all of them.
        for number in numbers[np.argsort(~hot[numbers], kind="stable")]:
            if over_w[number] <= 0:
                continue
            low = caps.fixed | (heat[number] > ABOUT_TO_TRIP)
            among = low & ~self._gone(caps, now_s) & fleet.below(int(number)) & ~chosen
            # A silent device would not hear it, and one whose job was stopped and that draws on has
            # nothing left but its outlet.
            hears = among & ~caps.silent & ~self.jobs.stopped & self._config.stops_jobs
            # Outlets wait while jobs end, unless the breaker cannot: a job that ends has saved its
            # work.
            waits = ~hot[number] & (among & self.jobs.ending(now_s)).any()
            if hears.any() and not hot[number]:
                stopped = self._largest(caps.counted_w, hears, float(over_w[number]))
                self.jobs.stop(stopped, now_s)
            elif not waits:
                stopped = self._largest(saves_w, among, float(over_w[number]))
                chosen |= stopped
            else:
                continue
            over_w = over_w - fleet.levels(np.where(stopped, saves_w, 0.0))
        self.off_at_s = np.where(chosen, now_s, self.off_at_s)
        self._tries = self._tries + chosen
        return chosen

    def _gone(self, caps: CapBook, now_s: float) -> Bools:
        """Devices that are off, or on their way to it."""
        with np.errstate(invalid="ignore"):
            going = now_s - self.off_at_s < self._config.outlet_s
        return caps.off | going

    # Judged by what would be left if everything that follows were at its lowest: only that cannot
    # be mended by caps.
    def _left(self, caps: CapBook, now_s: float) -> Floats:
        """What devices (N,) will draw at worst once all that was ordered has come about."""
        gone = self._gone(caps, now_s)
        # Whatever was ordered off or told to stop counts as if it had followed. The next cycle
        # would otherwise stop another one for the same watts.
        fixed = caps.fixed & ~gone & ~self.jobs.ending(now_s)
        worst_w = np.where(fixed, caps.counted_w, caps.response.at(caps.lowest_w))
        return np.where(gone, 0.0, worst_w)

    def _over(
        self, caps: CapBook, least_w: Floats, budget_w: Floats, limit_w: Floats,
        seen: TrustedReadings, now_s: float,
    ) -> Floats:  # fmt: skip
        """By how many watts levels (F + 1,) will stay above their budgets, whatever is ordered."""
        # Counting at the worst may exceed a budget on paper. A job is stopped only where a meter
        # shows it, or where a meter that should tell does not.
        exceeded = self._drawn(caps, seen) > limit_w  # an unread feed may well be
        stuck = (least_w > budget_w) & exceeded
        wait_s = max(self._config.backstop_s, min(PATIENCE * caps.answer_s, LONGEST_WAIT_S))
        lasting = self._stuck.note(stuck, now_s) >= wait_s
        return np.where(lasting & stuck, least_w - budget_w, 0.0)

    def _drawn(self, caps: CapBook, seen: TrustedReadings) -> Floats:
        """What levels (F + 1,) draw by their meters, else by those below; infinite where unread."""
        fleet = self._fleet
        level_w = np.where(fleet.level_read & np.isnan(seen.level_w), np.inf, seen.level_w)
        unread_w = np.where(fleet.device_read, np.inf, caps.counted_w)
        device_w = np.where(np.isnan(seen.draw_w), unread_w, seen.draw_w)
        return fleet.tree.filled_in(level_w, fleet.own(np.where(caps.off, 0.0, device_w)))

    @staticmethod
    def _largest(counted_w: Floats, among: Bools, over_w: float) -> Bools:
        """As few as possible of the devices that do not follow, to save `over_w`."""
        order = np.flatnonzero(among)
        # Largest first: the fewest jobs for the watts. Stable, so that equal ones fall in the order
        # of the fleet.
        order = order[np.argsort(-counted_w[order], kind="stable")]
        saved_w = np.cumsum(counted_w[order])
        chosen = np.zeros(len(among), dtype=np.bool_)
        chosen[order[: int(np.searchsorted(saved_w, over_w)) + 1]] = True
        return chosen

    # One after the other: two machines that boot at once could draw two maxima.
    def due(self, caps: CapBook, now_s: float) -> int | None:
        """The device to switch on next; it waits twice as long after every time it was stopped."""
        wait_s = self._config.retry_s * 2.0 ** (self._tries - 1)
        with np.errstate(invalid="ignore"):
            # Off for another reason: a tripped breaker, or a predecessor stopped it.
            found = np.isnan(self.off_at_s) & self._config.wake_found
            waited = found | (now_s - self.off_at_s >= wait_s)
        rows = np.flatnonzero(caps.off & waited)
        return int(rows[0]) if len(rows) and not caps.waking.any() else None

    # At its maximum and not at the cap it had: a reboot leaves a device without any cap until its
    # knob has answered.
    def to_wake(self, caps: CapBook, budget_w: Floats, due: int | None) -> Bools:
        """Switch `due` on once it fits at its maximum: a reboot has reset its cap."""
        wake = np.zeros(self._fleet.size, dtype=np.bool_)
        if due is None:
            return wake
        free_w = budget_w - caps.counted_by_level_w
        if self._fleet.least(free_w)[due] >= self._fleet.max_w[due]:
            wake[due] = True
            caps.waking = caps.waking | wake
        return wake
