"""The power side of a core: what counts, what is allowed, what is ordered, and what is to come.

Five parts work together. The account (`engine.power.account`) knows what
devices may draw now and under the plan. `Budgets` knows what is stated and announced, `Ramps` how
steeply the site and its domains may rise and fall, `JobCaps` which caps are ordered and read back,
and `EnergyBudgets` what jobs with an energy budget have left. `PowerControl` builds them on one
another and looks ahead: it holds domains to budgets that are still to come and says when to look
again.

It decides nothing about jobs. Who must give way when a budget falls is for `engine.core.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.feasibility import SetAside
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import BudgetFall, Budgets
from wattherd.engine.power.caps import JobCaps
from wattherd.engine.power.energy_budget import EnergyBudgets
from wattherd.engine.power.ramp import Ramps
from wattherd.model.cap_rules import CapRules
from wattherd.model.command import WakeAt, wake_at
from wattherd.model.event import BudgetAnnounced, BudgetChanged

# One key each, so that asking for one wake-up does not put off another.
LOOKOUTS = BUDGET, RAMP, FALL, HOLD = "budget", "ramp", "fall", "hold"
"""Keys of wake-ups: for budgets to come, ramps' credit, caps that were changed lately."""
# Any number above what a machine room draws would do; it must stay finite, since it is compared and
# subtracted as milliwatts.
ENDLESS_W = 1e12
"""A site budget that limits nothing, for caps that only joules ask for."""
Jobs = Mapping[str, JobRecord]


class PowerControl:
    """Budgets, caps and energy of one pool of nodes."""

    def __init__(self, config: CoreConfig) -> None:
        """Nothing runs; budgets are those that the power tree begins with."""
        self.watts = PowerAccount(
            config.cluster,
            config.power,
            config.curve_of,
            config.tree,
            config.gpus,
            own_tops=config.own_tops,
        )
        rules, self._tree = config.rules, config.tree
        self.energy = EnergyBudgets(self.watts)
        self._set_ramps(rules)
        self.caps = JobCaps(self.watts, rules, self.rises, asks_again=config.asks_again)
        # The site goes by two names where there is a tree: the empty one and that of its root.
        root = () if config.tree is None else (config.tree.root.name,)
        self.budgets = Budgets(rules, ("", *root))
        for domain in config.tree.domains if config.tree else ():
            self.budgets.begin(domain.name, domain.budget_w)
        self.aside = SetAside(config, self.watts, self.budgets)
        self._asked_s: dict[str, float] = {}
        """For when wake-ups have been asked for, by key."""

    def _set_ramps(self, rules: CapRules) -> None:
        """How fast the site and the domains of its tree may rise and fall."""
        domains = self._tree.domains if self._tree else ()
        up: dict[str, float | None] = {"": rules.ramp_up_w_s}
        down: dict[str, float | None] = {"": rules.ramp_down_w_s}
        up |= {one.name: one.ramp_up_w_s for one in domains}
        down |= {one.name: one.ramp_down_w_s for one in domains}
        drawn, window_s = self.watts.drawn_by, rules.ramp_window_s
        # Two ramps of one kind: a fall of what is drawn is the rise of what is not. So stops are
        # counted as starts are, and one rule says what a window's worth of credit means.
        self.rises = Ramps(up, window_s, drawn)
        self.falls = Ramps(down, window_s, {name: -mw for name, mw in drawn.items()})
        limits = self.rises.limits or self.falls.limits
        # Settling costs at every event, so that a site without ramps, joules and look-ahead pays
        # nothing.
        self._careful = rules.looks_ahead or rules.steady or limits or self.energy.any

    def go_by(self, rules: CapRules) -> None:
        """Other rules from now on; what is in force stays."""
        self._set_ramps(rules)
        self.caps.go_by(rules, self.rises)
        self.budgets.go_by(rules)

    @property
    def settles(self) -> bool:
        """Whether what is drawn from one event to the next is counted."""
        return self._careful

    @property
    def looks_ahead(self) -> bool:
        """Whether anything may have to be seen to before it happens."""
        return self._careful or self.budgets.pending

    def settle(self, now_s: float, at_s: float, jobs: Jobs) -> None:
        """Time is about to pass, from `now_s` to `at_s`, at the draw that is counted now."""
        if self.rises.limits:
            self.rises.settle(at_s, self.watts.drawn_by)
        if self.falls.limits:
            self.falls.settle(at_s, self._undrawn_mw(jobs))
        if self.energy.any:
            self.energy.settle(at_s - now_s, jobs)

    def _undrawn_mw(self, jobs: Jobs) -> dict[str, int]:
        """What is not drawn, as negative draw by domain; jobs that were told to stop are gone."""
        # Devices of a run that was told to stop draw until it has stopped, yet they are gone for
        # the ramp down: another stop in the same second would add to this one.
        drawn = self.watts.drawn_by
        for job in jobs.values():
            if job.state is State.STOPPING:
                for domain, mw in self.watts.load_mw(job).items():
                    drawn[domain] -= mw
        return {domain: -mw for domain, mw in drawn.items()}

    def must_stay(self, job: JobRecord, jobs: Jobs, now_s: float) -> bool:
        """Whether a ramp does not let a job leave now, and no limit demands it."""
        # A limit goes before a ramp: what it demands is stopped at once.
        if self.watts.exceeded() or not self.falls.limits:
            return False
        undrawn, load = self._undrawn_mw(jobs), self.watts.load_mw(job)
        left = {domain: undrawn[domain] + mw for domain, mw in load.items()}
        return self.falls.refusal(job.id, left, now_s) is not None

    def open_account(self, job: JobRecord) -> bool:
        """Keep account of a job's joules; whether the site must be held to a budget for that.

        Joules are kept by caps, and there are none without a budget: `hold_to` then states one
        that limits nothing.
        """
        self._careful = True
        self.energy.open(job)
        return not self.watts.limited

    # Budgets ------------------------------------------------------------------------------------

    def note(self, event: BudgetChanged | BudgetAnnounced, now_s: float) -> None:
        """A source has said what a domain may draw, now or from a time on."""
        domain, budget_w, source = event.domain, event.budget_w, event.source
        if isinstance(event, BudgetChanged):
            self.budgets.change(domain, budget_w, now_s, source)
            # Not what this source said but the lowest of what all sources say.
            self.watts.state(self.budgets.stated_w[domain], domain)
        else:
            self.budgets.announce(domain, event.begins_s, budget_w, source)

    def hold_to(self, domain: str, jobs: Jobs, now_s: float) -> None:
        """Hold a domain to its budget, or already to the one that comes.

        A fall that was announced is met before its second, because caps take time to arrive and
        jobs take their grace to stop; a rise is believed only when it has come.
        """
        held_w = self.budgets.held_w(domain, now_s, lambda fall: self._notice_s(fall, jobs))
        if held_w is None and self.energy.any and not domain:
            held_w = ENDLESS_W
        self.caps.set_budget(held_w, jobs.values(), domain)
        self.watts.expect(domain, self.budgets.soon(domain, now_s))
        # Left to the next plan: several budgets may change at one time, and jobs are looked at
        # once.
        self.aside.due = self.aside.active

    def _notice_s(self, fall: BudgetFall, jobs: Jobs) -> float:
        """The longest grace of planned jobs, where a fall may leave some without their floors.

        Which job will have to stop is not known before it happens, so that the longest counts.
        """
        # Jobs are asked to checkpoint before a fall, and their grace is the time that takes. Only
        # where caps alone will not do is that time needed; elsewhere the budget falls when it
        # falls.
        planned = [job for job in jobs.values() if job.wanted]
        grace_s = max((job.spec.grace_s for job in planned), default=0.0)
        return grace_s if grace_s and self.watts.too_many(fall) else 0.0

    # What is to come ----------------------------------------------------------------------------

    def woke(self, key: str) -> list[str]:
        """One of the `LOOKOUTS` came; domains to hold to their budgets anew."""
        self._asked_s.pop(key, None)
        return self.budgets.coming if key == BUDGET else []

    def wakeups(self, jobs: Jobs, now_s: float) -> Iterator[WakeAt]:
        """When to look again: falls to come, a ramp's credit, caps that may change again."""
        drawn_w = self.watts.drawn_mw / 1000
        notice_s = lambda fall: self._notice_s(fall, jobs)  # noqa: E731 - a bound argument
        for key, at_s in (
            (BUDGET, self.budgets.next_s(now_s, drawn_w, notice_s)),
            (RAMP, self.rises.next_s),
            (FALL, self.falls.next_s),
            (HOLD, self.caps.next_s),
        ):
            if at_s is None or at_s <= now_s:
                continue  # nothing to come: what is due now has been seen to by this very event
            asked_s = self._asked_s.get(key, math.inf)
            # A shell knows one wake-up by a key, and a later order moves it. One that is asked
            # for this instant and has not come yet must not be put off by a new one: what it was
            # for would wait with it. And the same time is not asked for twice.
            if now_s < asked_s != at_s:
                self._asked_s[key] = at_s
                yield wake_at(at_s=at_s, key=key)
