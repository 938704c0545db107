"""Budgets as they are stated, and as the guard must already hold them: known falls come early.

A rise is believed when it has come, a fall that was announced in time to be under it at its very
second, whether or not anybody says then that it has come. Where several sources state or announce
budgets of one domain, each speaks for itself, and the lowest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from wattherd.model.cap_rules import CapRules

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
