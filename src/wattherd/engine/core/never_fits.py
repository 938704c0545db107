"""Jobs that no budget in sight lets run: told so with numbers, and kept out of planners' sight.

A planner that serves jobs in turn would wait for such a job for ever. The budgets that are in force
now count, and all that are announced: a job that a later one lets in waits for that time. Once the
budgets change, all is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wattherd.engine.core.least_power import LeastPower, Limits, PowerShortage
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import Budgets
from wattherd.model.reason import Reason, ReasonCode

if TYPE_CHECKING:
    from wattherd.engine.core.config import CoreConfig
    from wattherd.model.job import JobSpec


# Why planners must not see such jobs: under a strict order the first job that waits is waited for,
# and a budget below its least watts would keep all others from running until somebody noticed. Told
# apart from "waits for power" by the budgets in sight: waiting is right where a rise is announced.
class SetAside:
    """Judges jobs by the budgets in force and in sight."""

    def __init__(self, config: CoreConfig, watts: PowerAccount, budgets: Budgets) -> None:
        """Nothing is limited yet."""
        self._watts, self._budgets = watts, budgets
        self._least = LeastPower(watts, config.cluster)
        self.active = config.sets_aside
        self.due = False
        """Whether budgets changed since all jobs were looked at."""
        self._judged: Limits = ()

    def why(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why no budget lets a job run, now or from a time on that is known; None: one does now."""
        # Off for old journals (`RULES` in `core.config`): their decisions were made before there
        # was this rule, and a replay must come to the same ones.
        if not (self.active and self._watts.limited):
            return None
        now = self._least.shortage(spec, self._limits())
        if now is None:
            return None
        highest = now
        # The first rise that is enough is named with its time, else the budget that comes nearest:
        # that is what would have to be raised least.
        for at_s, levels in self._budgets.outlook(now_s):
            later = self._least.shortage(spec, self._limits(levels))
            if later is None:
                return _rises(now, at_s, now_s)
            if later.limit_w - later.asked_w > highest.limit_w - highest.asked_w:
                highest = later
        return _never(highest, now_s)

    def below_idle(self) -> list[PowerShortage]:
        """Domains (the site) whose budgets in force are below what their nodes draw idle."""
        return self._least.below_idle(self._limits()) if self._watts.limited else []

    def _limits(self, levels: dict[str, float | None] | None = None) -> Limits:
        """Milliwatts that domains may draw: now, or at given levels."""
        return tuple(self._watts.held_mw if levels is None else self._watts.limits_mw(levels))

    def again(self, jobs: Iterable[JobRecord], now_s: float) -> Iterator[JobRecord]:
        """Judge waiting jobs anew; those of which planners see more now, or less."""
        limits, before = self._limits(), self._judged
        self._judged, self.due = limits, False
        if limits != before:
            self._least.forget()
        # A rise can only help those that are aside already, so that only a fall asks about
        # everybody. Budgets that are walked down by a ramp change every second.
        fell = len(before) != len(limits) or any(map(_lower, limits, before))
        for job in jobs:
            if job.wanted or not (fell or job.aside is not None):
                continue
            was, job.aside = job.aside, self.why(job.spec, now_s)
            # A reason that was given by a planner stays where this rule has nothing to say.
            if was is not None or job.aside is not None:
                job.reason = job.aside
            if (was is None) is not (job.aside is None):
                yield job


def _lower(now: int | None, before: int | None) -> bool:
    return now is not None and (before is None or now < before)


# Told under a code of its own: who waits for a known time need not do anything, who waits for
# nothing must.
def _rises(now: PowerShortage, at_s: float, now_s: float) -> Reason:
    at = f" at {now.domain}" if now.domain else ""
    return Reason(
        code=ReasonCode.WAITING_FOR_BUDGET_RISE,
        since_s=now_s,
        asked=now.asked_w,
        available=now.limit_w,
        unit=f"W{at}",
        unblocks="a higher budget is announced, which begins",
        due_s=at_s,
    )


def _never(short: PowerShortage, now_s: float) -> Reason:
    """With what the idle cluster draws, as a budget is easily stated below that."""
    of, at = (f" of {short.domain}", f" at {short.domain}") if short.domain else ("", "")
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=now_s,
        asked=short.asked_w,
        available=short.limit_w,
        unit=f"W{at}",
        unblocks=(
            f"idle devices draw {short.idle_w:.10g} W, the job at least {short.job_w:.10g} W more; "
            f"no stated or announced budget{of} is as high: raise it, or ask for fewer GPUs"
        ),
    )
