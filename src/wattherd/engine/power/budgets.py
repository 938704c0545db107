"""Budgets over time: what is stated and announced, how steeply draw may change, who waits for it.

*Budgets* as they are stated, and as the guard must already hold them: known falls come early.
A rise is believed when it has come, a fall that was announced in time to be under it at its very
second, whether or not anybody says then that it has come. Where several sources state or announce
budgets of one domain, each speaks for itself, and the lowest counts.

*Rules* (`CapRules`) say how calmly caps and budgets change: ahead of time, no steeper than allowed,
not to and fro.

*Ramps* say how steeply counted draw may rise and fall: credit that grows with time, up to a
window's worth. Within a window that begins with full credit the draw rises by at most twice the
rate times the window; over long times, by the rate. A single rise that is more than a window's
worth is let pass when the credit is full, and paid off afterwards. A fall is the rise of what is
not drawn.

*Reasons* say why a job must wait: there are too few watts now, or there soon will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields

from wattherd.engine.power.feeds import NW
from wattherd.errors import UserError
from wattherd.model.reason import Reason, ReasonCode

# --- How calmly caps and budgets change -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRules:
    """All off by default.

    A fall of a budget that is known beforehand is met `ahead_s` before it comes: that is what caps
    need to be ordered, set and read back; jobs that must stop for it are asked their grace earlier.
    Within `refuse_s` before such a fall no job is started whose floor would not fit after it.

    The site's counted draw is raised by at most `ramp_up_w_s` (W/s), averaged over `ramp_window_s`;
    a known fall of its budget is approached by `ramp_down_w_s`, and stops that a plan chooses are
    spread by it. Budgets go before ramps, and jobs that end leave at once.

    A cap is raised by `change_w` at least (or to its top), and `hold_s` after its last change at
    the earliest; a lowering that is smaller or sooner waits until somebody needs the watts.

    Raises:
        UserError: a number that is negative or none, naming the field.
    """

    ahead_s: float = 0.0
    refuse_s: float = 0.0
    ramp_up_w_s: float | None = None
    ramp_down_w_s: float | None = None
    ramp_window_s: float = 10.0
    change_w: float = 0.0
    hold_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what could not be kept."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UserError(f"{value} is out of range", field=one.name, hint="zero or more")
        for name in ("ramp_up_w_s", "ramp_down_w_s", "ramp_window_s"):
            if getattr(self, name) == 0:
                hint = "leave it out for no limit"
                raise UserError(
                    "must be above zero, or the draw could never change", field=name, hint=hint
                )

    @property
    def looks_ahead(self) -> bool:
        """Whether known falls matter before they come."""
        return bool(self.ahead_s or self.refuse_s or self.ramp_down_w_s)

    @property
    def steady(self) -> bool:
        """Whether small or frequent changes are held back."""
        return bool(self.change_w or self.hold_s)


OFF = CapRules()


# --- What is stated and announced -------------------------------------------------------------
# A ramp that is walked down continuously would be an event at each instant; a second is shorter
# than caps take to arrive.
STEP_S = 1.0
"""Steps in which a ramp is walked down."""


@dataclass(frozen=True, slots=True)
class BudgetFall:
    """From `begins_s` on, a domain (empty: the site) may draw `budget_w`."""

    begins_s: float
    budget_w: float
    domain: str = ""
    source: str = ""


# Three numbers per domain that are easily mixed up. *Stated*: what its operators say it may draw
# now, the lowest of all sources. *Announced*: what it may draw from a time on. *Held*: what the
# guard keeps to now, which is the stated budget or already a lower announced one. Only falls are
# anticipated: to use watts before they are there breaks a promise, to leave them unused for a
# second breaks none.
class Budgets:
    """Stated and announced budgets by domain; the empty name is the site's."""

    def __init__(self, rules: CapRules, site: Collection[str]) -> None:
        """Nothing is limited; `site` are the names that ramps hold for."""
        self._rules, self._site = rules, site
        self.stated_w: dict[str, float | None] = {}
        """The lowest that any source states now."""
        self.by_source: dict[str, dict[str, float]] = {}
        """What each source states now, by domain."""
        self.surprised_s: dict[str, float] = {}
        """When a budget last changed without being announced."""
        self._coming: dict[str, list[BudgetFall]] = {}
        self.pending = False
        """Whether anything is announced."""

    def go_by(self, rules: CapRules) -> None:
        """Follow other rules from now on."""
        self._rules = rules

    @property
    def coming(self) -> list[str]:
        """Domains of which something is announced."""
        return list(self._coming)

    @property
    def announced(self) -> list[BudgetFall]:
        """All that is announced, the earliest first."""
        falls = (one for falls in self._coming.values() for one in falls)
        return sorted(falls, key=lambda one: (one.begins_s, one.domain))

    def due(self, now_s: float) -> list[BudgetFall]:
        """What was announced for a time that has come, the earliest first."""
        return [one for one in self.announced if one.begins_s <= now_s]

    def begin(self, domain: str, budget_w: float | None) -> None:
        """What a domain may draw from the beginning, until its operators say otherwise."""
        self._state(domain, budget_w, "")

    def change(self, domain: str, budget_w: float | None, now_s: float, source: str = "") -> None:
        """A source's budget is in force; what it announced up to now has come."""
        come = [one for one in self._of(domain, source) if one.begins_s <= now_s]
        # A change that was announced is no surprise. Meters of a simulation leave out the reaction
        # time of surprises, and of nothing else.
        if budget_w not in [one.budget_w for one in come]:
            self.surprised_s[domain] = now_s
        self._state(domain, budget_w, source)
        self._keep(domain, [one for one in self._coming.get(domain, ()) if one not in come])

    def _state(self, domain: str, budget_w: float | None, source: str) -> None:
        said = self.by_source.setdefault(domain, {})
        said.pop(source, None)
        if budget_w is not None:
            said[source] = budget_w
        # The lowest of all sources, since none of them knows of the others: a grid operator's limit
        # does not end because a rack's was raised.
        self.stated_w[domain] = min(said.values(), default=None)

    # A word about the same time replaces the earlier word of the same source only: two sources may
    # announce for the same second.
    def announce(
        self, domain: str, begins_s: float, budget_w: float | None, source: str = ""
    ) -> None:
        """A budget is to change; a later word on the same time counts, None takes it back."""
        fresh = [] if budget_w is None else [BudgetFall(begins_s, budget_w, domain, source)]
        same = (begins_s, source)
        known = self._coming.get(domain, ())
        others = [one for one in known if (one.begins_s, one.source) != same]
        self._keep(domain, sorted([*others, *fresh], key=lambda one: one.begins_s))

    def _of(self, domain: str, source: str) -> list[BudgetFall]:
        return [one for one in self._coming.get(domain, ()) if one.source == source]

    def _keep(self, domain: str, coming: list[BudgetFall]) -> None:
        self._coming.pop(domain, None)
        if coming:
            self._coming[domain] = coming
        self.pending = bool(self._coming)

    def held_w(
        self, domain: str, now_s: float, grace_s: Callable[[BudgetFall], float]
    ) -> float | None:
        """What the guard must keep to now; `grace_s` is the notice that jobs need for a fall."""
        known = [self.stated_w.get(domain)]
        for fall in self._coming.get(domain, ()):
            # Early by two times: `ahead_s`, that caps take to arrive and be read back, and the
            # grace in which jobs may checkpoint where caps alone will not do.
            begins_s = fall.begins_s - self._rules.ahead_s - grace_s(fall)
            if now_s >= begins_s:
                known.append(fall.budget_w)
            # Before that, a ramp down allows at each moment what can still be walked down to the
            # fall in time, and no more.
            elif (rate_w_s := self._ramp_w_s(domain)) is not None:
                known.append(fall.budget_w + rate_w_s * (begins_s - now_s))
        return min((one for one in known if one is not None), default=None)

    def _ramp_w_s(self, domain: str) -> float | None:
        return self._rules.ramp_down_w_s if domain in self._site else None

    def next_s(
        self, now_s: float, drawn_w: float, grace_s: Callable[[BudgetFall], float]
    ) -> float | None:
        """When to look again; ramps matter once they are below what is stated and drawn."""
        times = []
        for domain, falls in self._coming.items():
            stated_w, rate_w_s = self.stated_w.get(domain), self._ramp_w_s(domain)
            for fall in falls:
                begins_s = fall.begins_s - self._rules.ahead_s - grace_s(fall)
                if rate_w_s is not None:
                    top_w = drawn_w if stated_w is None else min(stated_w, drawn_w)
                    walk_s = max(top_w - fall.budget_w, 0.0) / rate_w_s
                    first_s = begins_s - walk_s
                    times.append(max(first_s, min(now_s + STEP_S, begins_s)))
                times += [begins_s, fall.begins_s - self._rules.refuse_s]
        later = [one for one in times if one > now_s]
        return min(later, default=None)

    def outlook(self, now_s: float) -> list[tuple[float, dict[str, float | None]]]:
        """Budgets by domain from each time on for which something is announced, later than now."""
        said = {domain: dict(by) for domain, by in self.by_source.items()}
        levels: dict[str, float | None] = dict(self.stated_w)
        found: list[tuple[float, dict[str, float | None]]] = []
        for one in self.announced:
            said.setdefault(one.domain, {})[one.source] = one.budget_w
            levels[one.domain] = min(said[one.domain].values())
            if one.begins_s > now_s:
                # Several sources may announce for the same second: from then on all of them count
                # together.
                if found and found[-1][0] == one.begins_s:
                    found.pop()
                found.append((one.begins_s, dict(levels)))
        return found

    def soon(self, domain: str, now_s: float) -> BudgetFall | None:
        """The lowest budget that comes within `refuse_s`, if any."""
        falls = [
            one
            for one in self._coming.get(domain, ())
            if one.begins_s <= now_s + self._rules.refuse_s
        ]
        return min(falls, key=lambda one: one.budget_w, default=None)


# --- How steeply draw may rise and fall -------------------------------------------------------
# A credit is a float that grows with time; a milliwatt is less than any step that a cap can take.
SLACK_MW = 1.0
"""Rounding of credit."""


# Why credit and not a slope. Draw moves in steps: a job starts with thousands of watts at once, and
# no slope lets it. A bucket that fills at the rate and holds a window's worth (a token bucket, as
# networks shape traffic) lets steps pass that are within the window, and keeps the mean below the
# rate over longer times.
class Ramp:
    """Counted draw in milliwatts; `rate_mw_s` None lets everything pass."""

    def __init__(self, rate_w_s: float | None, window_s: float, drawn_mw: int) -> None:
        """Begin with a window's worth of credit."""
        self._rate_mw_s = None if rate_w_s is None else rate_w_s * 1000
        self._full_mw = (self._rate_mw_s or 0.0) * window_s
        self._credit_mw = self._full_mw
        self._at_s = 0.0
        # What was drawn when this instant began. All that happens at one time is judged against it
        # together: ten starts at one event must not each have the whole credit.
        self._from_mw = drawn_mw
        self._let_mw = 0
        """What was let rise in this instant."""
        self.next_s: float | None = None
        """When what was refused last may pass."""

        self._refused_mw = 0
        self._behind_mw: dict[str, int] = {}
        """By name, what was refused in this instant before, and comes first."""

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate_mw_s is not None

    @property
    def rate_w_s(self) -> float:
        """The limit, in watts a second."""
        return (self._rate_mw_s or 0.0) / 1000

    def credit_w(self) -> float:
        """What may rise in this instant, beside what was let."""
        return max(self._credit_mw - self._let_mw, 0.0) / 1000

    def rise_w(self, to_mw: int) -> float:
        """What a rise to there adds to what was let."""
        return max(to_mw - self._from_mw - self._let_mw, 0) / 1000

    # Called when time passes and not when something changes: within one instant draw may go up and
    # down, and only what it comes to counts.
    def settle(self, now_s: float, drawn_mw: int) -> None:
        """Time passes at this draw: pay for what it rose in the instant before."""
        # Paid by what really rose, not by what was let: an order that was not carried out costs
        # nothing. May go below zero, and is earned back before anything else rises.
        self._credit_mw -= max(drawn_mw - self._from_mw, 0)
        rate = self._rate_mw_s or 0.0
        self._credit_mw = min(self._credit_mw + rate * (now_s - self._at_s), self._full_mw)
        self._at_s, self._from_mw, self._let_mw, self.next_s = now_s, drawn_mw, 0, None
        self._refused_mw = 0
        self._behind_mw.clear()

    def lets(self, to_mw: int) -> bool:
        """Whether the draw may rise so far in this instant; what is let counts for the next."""
        if self.due_s(to_mw) > self._at_s:
            return False
        self.take(to_mw)
        return True

    def due_s(self, to_mw: int, who: str = "") -> float:
        """When the draw may rise so far: now, or once there is credit for this and who came first.

        The first time of all that were refused is remembered.
        """
        if self._rate_mw_s is None:
            return self._at_s
        rise_mw = to_mw - self._from_mw - self._let_mw
        credit_mw = self._credit_mw - self._let_mw
        # A step larger than the whole bucket would wait for ever; it passes when the bucket is full
        # and leaves a debt.
        missing_mw = min(rise_mw, self._full_mw) - credit_mw
        if missing_mw <= SLACK_MW:
            return self._at_s
        at_s = self._at_s + missing_mw / self._rate_mw_s
        self.next_s = at_s if self.next_s is None else min(self.next_s, at_s)
        # Without this whoever is small would pass whoever is large, again and again, as credit
        # never grows up to the large one's step.
        return at_s + self._behind_mw.get(who, self._refused_mw) / self._rate_mw_s

    def take(self, to_mw: int) -> None:
        """The draw rises so far."""
        self._let_mw += max(to_mw - self._from_mw - self._let_mw, 0)

    # Who was refused keeps its place for this instant; the next instant's plan has its own order
    # again.
    def queue(self, to_mw: int, who: str) -> None:
        """A rise to there was refused: whoever asks next in this instant waits for it, too."""
        if who not in self._behind_mw:
            self._behind_mw[who] = self._refused_mw
            self._refused_mw += max(to_mw - self._from_mw - self._let_mw, 0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change that must wait: of `asked_w` only `credit_w` may come now, the rest by `due_s`.

    `domain` is where that holds, empty for the site, `rate_w_s` what it allows a second.
    """

    domain: str
    asked_w: float
    credit_w: float
    rate_w_s: float
    due_s: float


# The site's ramp goes by the empty name, those of domains by theirs; one draw is told under all its
# names (`PowerAccount._by_name`).
class Ramps:
    """The ramps of the site (the empty name) and of domains of its tree, one way."""

    def __init__(
        self, rates_w_s: Mapping[str, float | None], window_s: float, drawn_mw: Mapping[str, int]
    ) -> None:
        """Begin with a window's worth of credit everywhere."""
        self._by_domain = {
            name: Ramp(rate, window_s, drawn_mw.get(name, 0))
            for name, rate in rates_w_s.items()
            if rate is not None
        }

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self._by_domain)

    @property
    def next_s(self) -> float | None:
        """When something that was refused may pass."""
        times = (ramp.next_s for ramp in self._by_domain.values())
        return min((one for one in times if one is not None), default=None)

    def settle(self, now_s: float, drawn_mw: Mapping[str, int]) -> None:
        """Time passes at this draw."""
        for name, ramp in self._by_domain.items():
            ramp.settle(now_s, drawn_mw.get(name, 0))

    def refusal(self, who: str, to_mw: Mapping[str, int], now_s: float) -> Refusal | None:
        """Why the draw may not rise so far in this instant; what passes counts for the next.

        What is refused keeps its turn before `who` asks later in the same instant.
        """
        found: Refusal | None = None
        ramps = [(name, self._by_domain[name]) for name in to_mw if name in self._by_domain]
        # All ramps above a job are asked before any is charged: one that lets it pass must not pay
        # for another that does not.
        for name, ramp in ramps:
            due_s = ramp.due_s(to_mw[name], who)
            if due_s > now_s and (found is None or due_s > found.due_s):
                found = Refusal(
                    name, ramp.rise_w(to_mw[name]), ramp.credit_w(), ramp.rate_w_s, due_s
                )
        for name, ramp in ramps:
            if found is None:
                ramp.take(to_mw[name])
            else:
                ramp.queue(to_mw[name], who)
        return found


# --- Why a job waits for watts ----------------------------------------------------------------


def too_little(asked_nw: int, used_nw: int, limit_nw: int, at: str, now_s: float) -> Reason:
    """The least that a job needs is more than the plan's other jobs leave of a budget.

    Of a single budget people are told what is above idling, since all of it is for jobs; of a
    domain `at` they are told what it carries, since that is what its meter reads.
    """
    room_nw = max(limit_nw - used_nw, 0)
    budget_w = limit_nw / NW
    return Reason(
        code=ReasonCode.WAITING_FOR_POWER,
        since_s=now_s,
        asked=asked_nw / NW,
        in_use=used_nw / NW if at else None,
        available=room_nw / NW,
        unit=f"W at {at}" if at else "W above idle",
        unblocks=f"the budget of {at} is {budget_w:g} W" if at else f"the budget is {budget_w:g} W",
    )


def too_late(need_nw: int, room_nw: int, fall: BudgetFall, now_s: float, at: str = "") -> Reason:
    """Why a job must not be started before a fall; nanowatts beside the rest of the plan."""
    name = f"the budget of {at}" if at else "the budget"
    return Reason(
        # A code of its own beside WAITING_FOR_POWER: there are watts for it now, but it would be
        # stopped again before long.
        code=ReasonCode.WAITING_FOR_BUDGET_RISE,
        since_s=now_s,
        asked=need_nw / NW,
        available=max(room_nw, 0) / NW,
        unit=f"W above idle at {at}" if at else "W above idle",
        unblocks=f"{name} falls to {fall.budget_w:g} W",
        due_s=fall.begins_s,
    )


def too_steep(refusal: Refusal, since_s: float) -> Reason:
    """Why a start waits for a ramp: what it adds at once is more than may be added now."""
    where = refusal.domain or "the site"
    return Reason(
        code=ReasonCode.WAITING_FOR_RAMP,
        since_s=since_s,
        asked=round(refusal.asked_w, 3),
        available=round(refusal.credit_w, 3),
        unit="W at once",
        unblocks=f"starts are spread to {refusal.rate_w_s:g} W/s on {where},",
        due_s=refusal.due_s,
    )
