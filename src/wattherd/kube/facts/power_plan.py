"""What power domains and budgets add up to: a tree and limits that can be held, and what is wrong.

What cannot be used does not undo what could: a domain whose parent is missing or that hangs below
itself keeps the parent it had, or else hangs below the site, and its limit counts all the while; a
budget that cannot be read keeps the watts that it said last. Both say so. Of several limits of one
domain (its own, budgets, the command line's) the lowest counts. Times are Unix seconds, and given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import UNSET

from wattherd.errors import UserError
from wattherd.kube.api.objects import LabelSelector, Requirement
from wattherd.kube.facts.domain_tree import SITE, DomainBranch, DomainTree
from wattherd.kube.facts.power_kinds import (
    NodeLabels,
    PowerBudget,
    PowerBudgetSpec,
    PowerDomain,
)
from wattherd.units import plain, show_watts, watts

SILENT_S = 60.0
"""How long a source may take to say anything, before its safe level counts."""
AHEAD_S = 60.0
"""A fall that is known counts this long before it begins: caps need time to be set and read."""


class Word(StrEnum):
    """Why an object is in force, or is not as it stands."""

    IN_FORCE = "InForce"
    UNKNOWN_PARENT = "UnknownParent"
    CYCLE = "Cycle"
    UNKNOWN_DOMAIN = "UnknownDomain"
    INVALID = "Invalid"
    NO_LIMIT = "NoLimit"
    SIGNAL_WAITING = "SignalWaiting"
    SIGNAL_LOST = "SignalLost"


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """Of one object: in force as it stands if the word says so."""

    word: Word = Word.IN_FORCE
    text: str = ""

    @property
    def ready(self) -> bool:
        """Whether the object is in force as it stands."""
        return self.word is Word.IN_FORCE


@dataclass(frozen=True, slots=True)
class Stated:
    """What a budget says: `now_w` (None: no limit), and from `step_at_s` on `step_w`."""

    now_w: float | None = None
    step_at_s: float | None = None
    step_w: float | None = None
    verdict: PlanVerdict = PlanVerdict()

    def counts_w(self, now_s: float) -> float | None:
        """What counts already: a fall that begins soon counts now."""
        soon = self.step_at_s is not None and self.step_at_s - now_s <= AHEAD_S
        known = [one for one in (self.now_w, self.step_w if soon else None) if one is not None]
        return min(known, default=None)


class Timetable(Protocol):
    """One budget at work."""

    def stated(self) -> Stated:
        """What it says at this moment; never waits, never raises."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


OpenTimetable = Callable[[PowerBudgetSpec, float | None], Timetable]
"""A budget at work, of a domain with this limit (W); raises UserError where it makes no sense."""


@dataclass(slots=True)
class _Known:
    """A budget object: what it was opened for, and what it said last."""

    budget: PowerBudget
    limit_w: float | None
    timetable: Timetable | None
    verdict: PlanVerdict
    last: Stated
    waits_s: float | None = None
    """Since when its source has said nothing at all."""

    def while_waiting(self, told: Stated, now_s: float) -> Stated:
        """As it stood before we began; a source that stays silent gets no more than it is safe."""
        self.waits_s = now_s if self.waits_s is None else self.waits_s
        silent = now_s - self.waits_s >= SILENT_S
        known = [
            one for one in (self.last.now_w, told.now_w if silent else None) if one is not None
        ]
        return Stated(min(known, default=None), verdict=told.verdict)


@dataclass(frozen=True, slots=True)
class PowerState:
    """What is in force, and of every object how it stands."""

    tree: DomainTree = field(default_factory=DomainTree)
    budgets_mw: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, PlanVerdict] = field(default_factory=dict)
    budgets: Mapping[str, PlanVerdict] = field(default_factory=dict)
    said: Mapping[str, Stated] = field(default_factory=dict)
    """By budget object."""
    steps: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    """By domain the next change of what it may draw: when, and to what."""


class PowerPlan:
    """Domains and budgets by name, as they come; `open_timetable` makes budgets tell."""

    def __init__(
        self, open_timetable: OpenTimetable, stated_mw: Mapping[str, int] | None = None
    ) -> None:
        """`stated_mw` are budgets by domain that stand beside the objects."""
        self._open = open_timetable
        self._stated_mw = dict(stated_mw or {})
        self._domains: dict[str, PowerDomain] = {}
        self._budgets: dict[str, _Known] = {}
        self._parents: dict[str, str] = {}
        """As they are in force."""
        self._limits_w: dict[str, float] = {}
        self.last_w: Mapping[str, float] = {}
        """By domain, what it might draw by budgets that cannot be read any more."""
        self.fed: frozenset[str] = frozenset()
        """Domains that nodes are labelled with, whether they are objects or not."""

    # What was seen --------------------------------------------------------------------------------

    def domain_seen(self, name: str, domain: PowerDomain | None) -> None:
        """A domain is there and so, or (None) it was deleted."""
        if domain is None:
            self._domains.pop(name, None)
            self._limits_w.pop(name, None)
        else:
            self._domains[name] = domain

    def budget_seen(self, name: str, budget: PowerBudget | None) -> None:
        """A budget is there and so, or (None) it was deleted."""
        known = self._budgets.get(name)
        if budget is None:
            self._budgets.pop(name, None)
            if known is not None and known.timetable is not None:
                known.timetable.close()
        elif known is None or known.budget.spec != budget.spec:
            told = UNSET if known is not None else budget.status.watts
            last = known.last if known is not None else Stated(None if told is UNSET else told)
            self._take(name, budget, known, last)

    def _take(self, name: str, budget: PowerBudget, known: _Known | None, last: Stated) -> None:
        """Have a budget tell; one that cannot leaves what was told before in force."""
        limit_w = self._limits_w.get(budget.spec.domain)
        try:
            fresh = self._open(budget.spec, limit_w)
        except UserError as error:
            verdict = PlanVerdict(Word.INVALID, error.line())
            old = None if known is None else known.timetable
            self._budgets[name] = _Known(budget, limit_w, old, verdict, last)
            return
        if known is not None and known.timetable is not None:
            known.timetable.close()
        self._budgets[name] = _Known(budget, limit_w, fresh, PlanVerdict(), last)

    def close(self) -> None:
        """Nothing is listened to any more."""
        for name in list(self._budgets):
            self.budget_seen(name, None)

    # What follows ---------------------------------------------------------------------------------

    def state(self, now_s: float) -> PowerState:
        """What is in force now."""
        domains = self._read_limits()
        tree = self._tree(domains)
        said, budgets = self._ask(tree, now_s)
        limits: dict[str, list[float]] = {}
        for name, mw in self._stated_mw.items():
            limits.setdefault(name, []).append(mw / 1000)
        for name, limit_w in self._limits_w.items():
            limits.setdefault(name, []).append(limit_w)
        for name, last_w in self.last_w.items():
            limits.setdefault(name, []).append(last_w)
        for name, one in said.items():
            counts_w = one.counts_w(now_s)
            if counts_w is not None:
                limits.setdefault(self._budgets[name].budget.spec.domain, []).append(counts_w)
        lowest = {name: round(1000 * min(many)) for name, many in limits.items()}
        return PowerState(tree, lowest, domains, budgets, said, self._steps(said))

    def _read_limits(self) -> dict[str, PlanVerdict]:
        verdicts = {}
        for name, domain in self._domains.items():
            verdicts[name] = PlanVerdict()
            if domain.spec.limit is UNSET:
                self._limits_w.pop(name, None)
                continue
            try:
                self._limits_w[name] = watts(plain(domain.spec.limit), field="limit")
            except UserError as error:
                verdicts[name] = PlanVerdict(Word.INVALID, error.line())
        return verdicts

    def _tree(self, verdicts: dict[str, PlanVerdict]) -> DomainTree:
        """Parents that make a tree; where they do not, those before them, or the site."""
        wanted = {name: _parent(one) for name, one in self._domains.items()}
        parents = {}
        for name in sorted(wanted):
            parent = wanted[name]
            if parent != SITE and parent not in wanted:
                said = f"there is no PowerDomain {parent!r}"
                verdicts[name] = PlanVerdict(Word.UNKNOWN_PARENT, self._instead(name, said))
            elif _is_cycle(name, wanted):
                said = f"it hangs below itself: {' < '.join(_loop(name, wanted))}"
                verdicts[name] = PlanVerdict(Word.CYCLE, self._instead(name, said))
            else:
                parents[name] = parent
        for name in sorted(wanted.keys() - parents.keys()):
            before = self._parents.get(name, SITE)
            parents[name] = before if before in wanted else SITE
            if _is_cycle(name, parents):
                parents[name] = SITE
        self._parents = parents
        return DomainTree(
            {
                name: DomainBranch(parents[name], _selector(one.spec.node_selector))
                for name, one in sorted(self._domains.items())
            }
        )

    def _instead(self, name: str, said: str) -> str:
        before = self._parents.get(name, SITE)
        where = f"below {before}" if before in self._domains else "below the site"
        return f"{said}; meanwhile it stays {where}, and its limit counts"

    def _ask(
        self, tree: DomainTree, now_s: float
    ) -> tuple[dict[str, Stated], dict[str, PlanVerdict]]:
        said, verdicts = {}, {}
        for name, known in sorted(self._budgets.items()):
            domain = known.budget.spec.domain
            if known.limit_w != self._limits_w.get(domain):
                self._take(name, known.budget, known, known.last)
                known = self._budgets[name]  # noqa: PLW2901
            told = known.last if known.timetable is None else known.timetable.stated()
            if told.verdict.word is Word.SIGNAL_WAITING:
                told = known.while_waiting(told, now_s)
            known.last = said[name] = told
            verdict = known.verdict if not known.verdict.ready else told.verdict
            # Whatever else it lacks may follow from that: a share of no limit, above all.
            if domain not in tree.branches and domain not in self.fed:
                text = f"no PowerDomain, and no node, is called {domain!r}"
                verdict = PlanVerdict(Word.UNKNOWN_DOMAIN, text)
            verdicts[name] = verdict
        return said, verdicts

    def _steps(self, said: Mapping[str, Stated]) -> dict[str, tuple[float, float | None]]:
        """The next step of each domain that any of its budgets takes, others as they are."""
        found: dict[str, tuple[float, float | None]] = {}
        for name, one in said.items():
            domain = self._budgets[name].budget.spec.domain
            sooner = domain not in found or (one.step_at_s or 0.0) < found[domain][0]
            if one.step_at_s is None or not sooner:
                continue
            others = [
                other.now_w
                for key, other in said.items()
                if key != name and self._budgets[key].budget.spec.domain == domain
            ]
            beside = [self._limits_w.get(domain), one.step_w, *others]
            known = [each for each in beside if each is not None]
            found[domain] = (one.step_at_s, min(known, default=None))
        return found


def _parent(domain: PowerDomain) -> str:
    return SITE if domain.spec.parent is UNSET else domain.spec.parent


def _is_cycle(name: str, parents: Mapping[str, str]) -> bool:
    """Whether `name` is above itself."""
    return name in _above(name, parents)


def _above(name: str, parents: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    at = parents.get(name, SITE)
    while at != SITE and at not in found:
        found.append(at)
        at = parents.get(at, SITE)
    return found


def _loop(name: str, parents: Mapping[str, str]) -> Iterable[str]:
    above = _above(name, parents)
    return (name, *above[: above.index(name) + 1])


def _selector(labels: NodeLabels | object) -> LabelSelector | None:
    if not isinstance(labels, NodeLabels):
        return None
    given = labels.match_labels
    needs = labels.match_expressions
    return LabelSelector(
        match_labels=None if given is UNSET else dict(given),
        match_expressions=[
            Requirement(
                key=one.key,
                operator=one.operator,
                values=None if one.values is UNSET else list(one.values),
            )
            for one in (() if needs is UNSET else needs)
        ],
    )


def shown(budget_w: float | None) -> str:
    """A limit for people."""
    return "no limit" if budget_w is None else show_watts(budget_w)
