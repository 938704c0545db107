"""What is seen to before it happens: budgets that will fall, joules that will be spent.

`Foresight` holds domains to budgets that are still to come, ends jobs before they draw more joules
than they have, and asks to be woken in time for both.
"""

from __future__ import annotations

import math

from wattherd.engine.budgets import Fall
from wattherd.engine.conduct import Batch, Conduct
from wattherd.engine.joules import SAME_S, Account, moved
from wattherd.engine.ledger import JobRecord
from wattherd.engine.lifecycle import State, Trigger
from wattherd.model.command import wake_at
from wattherd.model.reason import StopReason

LOOKOUTS = BUDGET, RAMP, FALL, HOLD = "budget", "ramp", "fall", "hold"
"""Keys of wake-ups: for budgets to come, ramps' credit, caps that were changed lately."""
JOULES = "joules"
ENDLESS_W = 1e12
"""A site budget that limits nothing, for caps that only joules ask for."""


class Foresight(Conduct):
    """A pool that looks ahead."""

    # Joules -------------------------------------------------------------------------------------

    def _settle(self, at_s: float) -> None:
        """Time is about to pass at the present draw."""
        if self._rises.limits:
            self._rises.settle(at_s, self.watts.drawn_by)
        if self._falls.limits:
            self._falls.settle(at_s, self._undrawn_mw())
        if self._joules.any:
            self._joules.settle(at_s - self.now_s, self.jobs)

    def _open_account(self, job: JobRecord, batch: Batch) -> None:
        """Energy budgets are kept by caps, so that there must be some, whatever the site's."""
        self._careful = True
        self._joules.open(job)
        if not self.watts.limited:
            self._hold_to("", batch)

    def _watch_joules(self, batch: Batch) -> None:
        """End what cannot be done within its joules; ask to be woken before they are spent."""
        for job, account in self._joules.jobs(self.jobs):
            if job.state in (State.STARTING, State.RUNNING):
                self._watch_run(job, account, batch)
            elif job.state is State.QUEUED and not job.wanted:
                reason = self._joules.short(job, account, self.now_s)
                if reason is not None:
                    job.reason = reason
                    self._end(job, Trigger.FAIL, reason.text(), batch)
                    batch.replan = True

    def _watch_run(self, job: JobRecord, account: Account, batch: Batch) -> None:
        end_s = self._joules.end_s(job, account, self.now_s)
        if end_s is None:
            return
        if end_s <= self.now_s + SAME_S:
            self._forget_plan(job)
            self._stop(job, StopReason.ENERGY_BUDGET, Trigger.FAIL, batch)
            batch.replan = True
        elif moved(account, end_s):
            batch.commands.append(wake_at(at_s=end_s, key=self._key(JOULES, job)))

    # Budgets to come ----------------------------------------------------------------------------

    def _hold_to(self, domain: str, batch: Batch) -> None:
        """Hold a domain to its budget, or already to the one that comes."""
        held_w = self.budgets.held_w(domain, self.now_s, self._notice_s)
        if held_w is None and self._joules.any and not domain:
            held_w = ENDLESS_W
        self._caps.set_budget(held_w, self.jobs.values(), domain)
        self.watts.expect(domain, self.budgets.soon(domain, self.now_s))
        self._aside.due = self._aside.active
        self._keep_budget(batch)
        batch.replan = True

    def _notice_s(self, fall: Fall) -> float:
        """The longest grace of planned jobs, where a fall may leave some without their floors."""
        planned = [job for job in self.jobs.values() if job.wanted]
        grace_s = max((job.spec.grace_s for job in planned), default=0.0)
        return grace_s if grace_s and self.watts.too_many(fall) else 0.0

    def _look_ahead(self, batch: Batch) -> None:
        """Ask to be woken for falls to come, for a ramp's credit, for caps that were held."""
        drawn_w = self.watts.drawn_mw / 1000
        for key, at_s in (
            (BUDGET, self.budgets.next_s(self.now_s, drawn_w, self._notice_s)),
            (RAMP, self._rises.next_s),
            (FALL, self._falls.next_s),
            (HOLD, self._caps.next_s),
        ):
            asked_s = self._asked_s.get(key, math.inf)
            # One that is due this instant is still to come: it must not be put off.
            if at_s is not None and asked_s > self.now_s < at_s != asked_s:
                self._asked_s[key] = at_s
                batch.commands.append(wake_at(at_s=at_s, key=key))
