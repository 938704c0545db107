"""The power side of a core: what counts, what is allowed, what is ordered, and what is to come.

Five parts work together. The account (`engine.power.account`) knows what
devices may draw now and under the plan. `Budgets` knows what is stated and announced, `Ramps` how
steeply the site and its domains may rise and fall, `JobCaps` which caps are ordered and read back,
and `EnergyBudgets` what jobs with an energy budget have left. `PowerControl` builds them on one
another and looks ahead: it holds domains to budgets that are still to come and says when to look
again.

Caps are orders: lower ones at once, higher ones when there are watts for them. What a device may
draw counts at the cap in force until a lower one has been read back, so that nothing is raised on
the strength of a cap that was only ordered.

It decides nothing about jobs. Who must give way when a budget falls is for `engine.core.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from operator import attrgetter

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.feasibility import SetAside
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import BudgetFall, Budgets, CapRules, Ramps
from wattherd.engine.power.energy_budget import EnergyBudgets
from wattherd.model.command import SetCap, WakeAt, set_cap, wake_at
from wattherd.model.event import BudgetAnnounced, BudgetChanged

# --- Orders for caps that are under way, and when each job's cap last changed ---------------------
#
# A cap that was read back may already be followed by a higher one on its way: what a device may
# draw is the highest of what was read back last and of everything ordered after it.

# Sweeping costs by what is remembered; done now and then it costs nothing per event.
MOST_GONE = 1000
"""Jobs of which changes are remembered before those that are over are forgotten."""


# The one rule of these orders: what a device may draw is the highest of what was last read back and
# of every order after it. A raise that is ordered may take effect at any time from now on; a cut
# that is ordered has no effect until it is seen. So watts are free only when a *lower* cap was read
# back and no higher one is on its way behind it.
class CapOrders:
    """By job: orders are carried out in the order in which they were given, or not at all."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._sent: dict[str, tuple[int, list[float]]] = {}
        """Attempt, and caps (W) that were ordered and not read back; inf lifts the cap."""
        self._changed: dict[str, tuple[float, float | None]] = {}
        """When the last change was ordered, and to what."""

    def give(self, job: JobRecord, cap_w: float | None, now_s: float) -> SetCap:
        """The order to cap a running job."""
        attempt, sent = self._sent.get(job.id, (job.attempt, []))
        # Orders to another attempt died with it: the new run's devices start at the cap of their
        # start order.
        sent = [*(sent if attempt == job.attempt else ()), as_number(cap_w)]
        self._sent[job.id] = job.attempt, sent
        # An order that is repeated is no change. Cuts are repeated at every plan until they are
        # read back, and each would put off the next change by `hold_s`.
        if self._changed.get(job.id, (0.0, -1.0))[1] != cap_w:
            self._changed[job.id] = now_s, cap_w
        return set_cap(job_id=job.id, attempt=job.attempt, cap_w=cap_w)

    def promised_w(self, job: JobRecord) -> float:
        """The lowest cap under way to a job; inf if there is none."""
        attempt, sent = self._sent.get(job.id, (0, []))
        return min(sent, default=math.inf) if attempt == job.attempt else math.inf

    def read_back(self, job: JobRecord, cap_w: float | None) -> float | None:
        """The highest cap that may be in force, once `cap_w` was read back."""
        attempt, sent = self._sent.get(job.id, (0, []))
        read_w = as_number(cap_w)
        # A cap that nobody ordered (an operator's hand, a driver's clamp) is a fact all the same,
        # and counts as it was read.
        if attempt != job.attempt or read_w not in sent:
            return cap_w
        # Orders before it are overtaken: devices carry them out in order, or not at all.
        left = sent[sent.index(read_w) + 1 :]
        if not left:
            del self._sent[job.id]
            return cap_w
        self._sent[job.id] = attempt, left
        most_w = max(read_w, *left)
        return None if math.isinf(most_w) else most_w

    def is_last(self, job: JobRecord, cap_w: float | None) -> bool:
        """Whether of all orders that are under way to a job the last one is for this cap."""
        attempt, sent = self._sent.get(job.id, (0, []))
        return attempt == job.attempt and sent[-1:] == [as_number(cap_w)]

    def changed_s(self, job_id: str) -> float:
        """When a change of its cap was last ordered; long ago if never."""
        return self._changed.get(job_id, (-math.inf, None))[0]

    def forget(self, live: Container[str]) -> None:
        """Jobs that are over have no caps."""
        if self._sent:
            self._sent = {one: sent for one, sent in self._sent.items() if one in live}
        if len(self._changed) > MOST_GONE:
            self._changed = {one: at for one, at in self._changed.items() if one in live}


def as_number(cap_w: float | None) -> float:
    """A cap to compare with others: without one there is no end."""
    return math.inf if cap_w is None else cap_w


class JobCaps:
    """The caps of running jobs under a budget; without one there is nothing to do."""

    def __init__(
        self, watts: PowerAccount, rules: CapRules, ramps: Ramps, *, asks_again: bool = True
    ) -> None:
        """Nothing is capped; `asks_again` as in `CoreConfig`."""
        self._watts, self._rules, self._ramps = watts, rules, ramps
        self._asks_again = asks_again
        self._orders = CapOrders()
        self._deferred: dict[str, None] = {}
        """Jobs whose lower caps wait until somebody needs the watts."""
        self.next_s: float | None = None
        """When a cap that was changed lately may be raised."""
        self._active = watts.limited
        """Whether a budget holds, or caps of an earlier one may still be in force."""
        # Two lists of who is to change, instead of a look at all running jobs at each event: most
        # events change nobody's cap.
        self._to_lower: dict[str, None] = {}
        """Jobs whose planned cap may be lower than the one in force."""
        self._held_back: dict[str, None] = {}
        """Jobs that are to get a higher cap when there are watts for it, in order."""

    def go_by(self, rules: CapRules, ramps: Ramps) -> None:
        """Follow other rules from now on."""
        self._rules, self._ramps = rules, ramps

    def set_budget(
        self, budget_w: float | None, jobs: Iterable[JobRecord], domain: str = ""
    ) -> None:
        """A domain (the site) may draw this much from now on; None lifts the budget."""
        self._watts.set_budget(budget_w, jobs, domain)
        self._active = True

    # A shell may answer the last of several orders only: of 100 W, 105 W and again 100 W it says
    # once that 100 W are in force. That may be the answer to the first order, with 105 W to come.
    # Asked again, it is told apart; else the watts would be held until the next plan, and a job
    # that is planned to have them waits for no plan.
    def applied(
        self, job: JobRecord, cap_w: float | None, jobs: Mapping[str, JobRecord], now_s: float
    ) -> list[SetCap]:
        """A cap was read back on a job's devices; a later order may already have raised it.

        Orders the same cap once more where that is not known though the last order was for it.
        """
        job.cap_w = self._orders.read_back(job, cap_w)
        self._watts.note(job)
        self._sort_in([job], jobs)
        doubtful = as_number(job.cap_w) > as_number(cap_w) and self._orders.is_last(job, cap_w)
        if not (self._asks_again and doubtful and _runs(job)):
            return []
        return [self._orders.give(job, cap_w, now_s)]

    def _sort_in(self, changed: Iterable[JobRecord], jobs: Mapping[str, JobRecord]) -> None:
        """Note where the planned cap and the one in force differ; one of the two has changed."""
        later = []
        for job in changed:
            if _to_lower(job):
                self._to_lower[job.id] = None
            elif _held_back(job) and job.id not in self._held_back:
                later.append(job)
        if later:
            known = [jobs[one] for one in self._held_back if one in jobs] + later
            self._held_back = {one.id: None for one in sorted(known, key=_number)}

    # Called after every plan, also without a budget as long as any cap of an earlier one may be in
    # force: those have to be lifted.
    def share_out(self, live: Mapping[str, JobRecord], now_s: float) -> list[SetCap]:
        """Share the watts out anew; without a budget once more, to lift the caps.

        Orders lower caps at once, and again in every plan until they are read back.
        """
        # Also where nothing is limited any more: who ended before his cap was lifted is over too.
        self._orders.forget(live)
        if not self._active:
            return []
        # Sharing first, orders after it: both the cuts and whom they are for come from the same
        # plan.
        self._sort_in(self._watts.share(live.values()), live)
        if not self._watts.limited:
            self._active = any(job.cap_w is not None for job in live.values())
        return self._lower(live, now_s)

    def _lower(self, live: Mapping[str, JobRecord], now_s: float) -> list[SetCap]:
        """Order the lower caps that were not read back yet, in order of submission.

        Others count on a lower cap once it is under way: more than that is a raise, for later.
        """
        known = [live[one] for one in self._to_lower if one in live]
        # Again in every plan until it is read back: an order may be lost on its way, and a lost cut
        # would keep others waiting for ever.
        due = sorted((job for job in known if _to_lower(job)), key=_number)
        self._to_lower = {job.id: None for job in due}
        self._deferred = {}
        if self._rules.steady and not self._watts.exceeded():
            self._deferred = {job.id: None for job in due if not self._worthwhile(job, now_s)}
        return [
            self._lower_one(job, now_s)
            for job in due
            if _runs(job) and job.id not in self._deferred
        ]

    def _lower_one(self, job: JobRecord, now_s: float) -> SetCap:
        # Never above a cut that is under way. Others count on it: their raise waits for its
        # read-back, and a higher order behind it would take these watts away again.
        promised_w = self._orders.promised_w(job)
        return self._orders.give(job, min(as_number(job.wanted_cap_w), promised_w), now_s)

    def _worthwhile(self, job: JobRecord, now_s: float) -> bool:
        """Whether a change of a job's cap is large enough, and not too soon after the last one."""
        if not self._rules.steady:
            return True
        # Steadiness (`CapRules.change_w`, `hold_s`): small and quick changes are put off unless
        # somebody needs the watts, or the cap returns to the top.
        change_w = abs(as_number(job.wanted_cap_w) - as_number(job.cap_w))
        if change_w < self._rules.change_w and not self._to_top(job):
            return False
        at_s = self._orders.changed_s(job.id) + self._rules.hold_s
        if now_s < at_s:
            self.next_s = at_s if self.next_s is None else min(self.next_s, at_s)
        return now_s >= at_s

    def _to_top(self, job: JobRecord) -> bool:
        """Whether the planned cap is the highest that the job can use."""
        curve = self._watts.curve(job.spec, job.allocations)
        # Caps are whole watts, so that the highest one there is may be below the end of the curve.
        return curve is None or as_number(job.wanted_cap_w) >= int(curve.max_w)

    # Once and then forgotten: those whose cuts were ordered are no longer deferred, and the next
    # plan sorts anew.
    def press(self, live: Mapping[str, JobRecord], now_s: float) -> list[SetCap]:
        """Somebody needs watts: order what was deferred."""
        found = [live[one] for one in self._deferred if one in live]
        self._deferred = {}
        due = [job for job in found if _runs(job) and _to_lower(job)]
        return [self._lower_one(job, now_s) for job in due]

    def raise_due(
        self, jobs: Mapping[str, JobRecord], *, replanned: bool, now_s: float
    ) -> list[SetCap]:
        """Order higher caps as far as what others gave up has been read back."""
        orders: list[SetCap] = []
        self.next_s = None
        if not self._held_back or (not self._watts.limited and not replanned):
            return orders
        for job_id in list(self._held_back):
            job = jobs.get(job_id)
            if job is None or not _held_back(job):
                del self._held_back[job_id]
            # One after the other in order of submission, each booked before the next is asked for:
            # together they might not fit.
            elif _runs(job) and self._worthwhile(job, now_s):
                if not self._watts.fits(job, job.allocations):
                    # Somebody waits for watts that deferred cuts would free: now they are worth an
                    # order.
                    orders += self.press(jobs, now_s)
                elif self._watts.climbs(job, job.allocations, self._ramps, now_s) is None:
                    # In force from the order on: the device may draw more before it is read back.
                    job.cap_w = job.wanted_cap_w
                    self._watts.note(job)
                    orders.append(self._orders.give(job, job.cap_w, now_s))
        return orders


_number = attrgetter("number")


def _runs(job: JobRecord) -> bool:
    """Whether it runs as planned."""
    return job.state in (State.STARTING, State.RUNNING) and job.wanted == job.allocations


def _to_lower(job: JobRecord) -> bool:
    """Whether the planned cap is lower than the one in force."""
    cap_w = job.wanted_cap_w
    return cap_w is not None and (job.cap_w is None or cap_w < job.cap_w)


def _held_back(job: JobRecord) -> bool:
    """Whether the cap in force is lower than the planned one."""
    if job.cap_w is None:
        return False
    return job.wanted_cap_w is None or job.wanted_cap_w > job.cap_w


# --- Budgets, caps and energy together ------------------------------------------------------------
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
