"""Measured points for jobs within the budgets of a power tree: one point per job.

`allocate` rounds the water-filling optimum: whole pieces of the hulls first, then whatever single
step still fits and adds most, and for up to two thousand jobs an exact search among what could
still be better (`refined`). `Allocator` keeps what does not depend on the budgets, for those who
ask again and again.

The search is for one choice per job within the budgets of a tree, worth most: multiple-choice
knapsacks, nested. Prices per watt of each domain give a bound (Lagrange), and say by how much a
choice, or a watt left over, falls short of it. What falls short by more than the best known
solution does is dropped; what remains is searched by Pareto sets of (watts, worth), merged job by
job and domain by domain (after Pisinger, 1995). Of every set that waits to be merged the state
nearest to the bound falls short by something, too: that much less is allowed to all others. After
each rank of domains the sets stand for large jobs of many choices, and water-filling among these
finds better solutions to compare with.

The search is limited by counted pairs, not by time: where they run out only the most promising
states are kept, and the result is no longer proven to be the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattherd.estimate.measured_curve import CurveChoice
from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices, menu_of
from wattherd.policy.power.limits import SLACK_W, DomainRoom, one_budget, tree_limits
from wattherd.policy.power.tree_filling import TreeFilling, filling_of, stepped, whole

# --- Allocation -------------------------------------------------------------------------------
__all__ = ["Allocator", "DomainRoom", "allocate", "best_rows", "bound", "one_budget", "tree_limits"]

MOST_REFINED_JOBS = 2_000
"""Beyond that steps are so small, beside the sum, that hardly anything is left to gain."""


class Allocator:
    """Jobs below one tree, to be served again and again under budgets that change."""

    def __init__(self, menu: PowerChoices, limits: DomainRoom) -> None:
        """Hulls, their order, and the order by domain are found once."""
        self.menu, self.limits = menu, limits
        self.filling: TreeFilling = filling_of(menu, limits)

    def watts(self, room_w: Floats) -> Floats:
        """Watts of each job (J,) at the linear optimum under budgets `room_w` (D,).

        Raises:
            UserError: the least choices do not fit.
        """
        return self.filling.watts(self.filling.served(self.filling.room(room_w)))

    def rows(self, room_w: Floats) -> Ints:
        """The row of the menu chosen for each job (J,): whole pieces, then single steps.

        Raises:
            UserError: the least choices do not fit.
        """
        given = self.filling.served(self.filling.room(room_w))
        return stepped(self.menu, self.limits.with_room(room_w), whole(self.filling, given))

    def prices(self, room_w: Floats) -> Floats:
        """Worth of one more watt of each budget (D,) at the linear optimum."""
        return self.filling.prices(self.filling.room(room_w))


def bound(jobs: Sequence[Sequence[CurveChoice]], limits: DomainRoom) -> float:
    """The most that fractions of choices could be worth, exactly.

    Raises:
        UserError: the least choices do not fit.
    """
    filling = filling_of(menu_of(jobs), limits)
    return filling.value(filling.served(filling.room(limits.room_w)))


def best_rows(menu: PowerChoices, limits: DomainRoom) -> Ints:
    """The row for every job (J,): the most of the values, proven so unless states run out.

    Raises:
        UserError: the least choices do not fit.
    """
    allocator = Allocator(menu, limits)
    rows = allocator.rows(limits.room_w)
    if menu.jobs > MOST_REFINED_JOBS:
        return rows
    best = refined(menu, limits, allocator.prices(limits.room_w), rows)
    # A search that ran out of states may leave watts over.
    return stepped(menu, limits, best)


def allocate(jobs: Sequence[Sequence[CurveChoice]], limits: DomainRoom) -> list[int]:
    """A choice for every job, by index.

    Raises:
        UserError: the least choices do not fit.
    """
    if not jobs:
        return []
    menu = menu_of(jobs)
    chosen: list[int] = np.subtract(best_rows(menu, limits), menu.least).tolist()
    return chosen


# --- The search for the best ------------------------------------------------------------------
MOST_PAIRS = 40_000_000
"""Pairs of states that one search looks at, all merges together: seconds."""
_FEWEST_PAIRS = 20_000
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class _Set:
    """Pareto states of some jobs (S,), by watts; `short` is what each falls short of the bound.

    A single job's set has `rows`; a merged one knows the states of both its `parts`.
    """

    watts: Floats
    worth: Floats
    short: Floats
    rows: Ints | None = None
    parts: tuple[tuple[_Set, Ints], tuple[_Set, Ints]] | None = None

    def only(self, keep: Ints | Bools) -> _Set:
        """Some of the states."""
        rows = None if self.rows is None else self.rows[keep]
        parts = self.parts and (
            (self.parts[0][0], self.parts[0][1][keep]),
            (self.parts[1][0], self.parts[1][1][keep]),
        )
        return _Set(self.watts[keep], self.worth[keep], self.short[keep], rows, parts)

    @property
    def least_short(self) -> float:
        """What its best state falls short of the bound."""
        return float(self.short.min(initial=np.inf))


@dataclass(slots=True)
class _Search:
    """The frontier: sets by the domain around them (-1: none), and how much short is allowed.

    `gap` is what the best known solution falls short of the bound, `floor` what all sets of the
    frontier do at least. Watts are those at the outermost budget of each job.
    """

    limits: DomainRoom
    budget_w: Floats
    price: Floats
    gap: float
    most_pairs: int
    floor: float = 0.0
    sets: dict[int, list[_Set]] = field(default_factory=dict)
    better: list[tuple[_Set, int]] | None = None
    """States that together are worth more than what was known, one of each set they came from."""

    def add(self, domain: int, states: _Set) -> None:
        """One more set waits."""
        self.sets.setdefault(domain, []).append(states)
        self.floor += states.least_short

    def merged(self, sets: Sequence[_Set]) -> _Set:
        """All of them in one, as far as hopeful and Pareto; they leave the frontier."""
        found = self._hopeful(sets[0])
        for other in sets[1:]:
            found = self._pair(found, self._hopeful(other))
        self.floor -= found.least_short
        return found

    def _hopeful(self, states: _Set) -> _Set:
        """States that may be part of a better solution; one is always kept."""
        keep = states.short < max(self.gap - self.floor, 0.0) + states.least_short + _EPSILON
        return states if keep.all() else states.only(keep)

    def _pair(self, one: _Set, two: _Set) -> _Set:
        one, two = self._thinned(one, two)
        apart = one.least_short + two.least_short
        allowed = self.gap - self.floor + apart
        short = one.short[:, None] + two.short[None, :]
        at, to = np.nonzero(short <= max(allowed, apart) + _EPSILON)
        watts, worth = one.watts[at] + two.watts[to], one.worth[at] + two.worth[to]
        both = _Set(watts, worth, short[at, to], None, ((one, at), (two, to)))
        both = both.only(_pareto(watts, worth))
        self.floor += both.least_short - apart
        return both

    def _thinned(self, one: _Set, two: _Set) -> tuple[_Set, _Set]:
        """So few states of both that all pairs can be looked at."""
        small, large = sorted((len(one.watts), len(two.watts)))
        if small * large <= self.most_pairs:
            return one, two
        most = max(self.most_pairs // small, int(self.most_pairs**0.5))
        return _best(one, most), _best(two, most)

    def closed(self, states: _Set, domain: int, *, outermost: bool) -> _Set:
        """What fits into a domain; watts left over there cost their price.

        Outside of the outermost domain watts are of no interest.
        """
        left_w = self.budget_w[domain] - states.watts
        short = states.short + self.price[domain] * np.maximum(left_w, 0.0)
        watts = np.zeros(len(left_w)) if outermost else states.watts
        closed = _Set(watts, states.worth, short, states.rows, states.parts)
        closed = closed.only(np.flatnonzero(left_w >= -SLACK_W))
        return closed.only(_pareto(closed.watts, closed.worth)) if outermost else closed

    def improve(self) -> None:
        """Water-filling among the sets, as if each were a job: perhaps better than the known."""
        waiting = [(domain, one) for domain, some in self.sets.items() for one in some]
        found = _filled(self._limits_of([domain for domain, _ in waiting]), [s for _, s in waiting])
        if found is None:
            return
        picked = list(zip((states for _, states in waiting), found, strict=True))
        short = sum(float(states.short[at]) for states, at in picked)
        # Watts left over in domains that are still open count when these are closed.
        short += self._left_over(waiting, found)
        if short < self.gap - _EPSILON:
            self.gap, self.better = short, picked

    def _limits_of(self, domains: Sequence[int]) -> DomainRoom:
        """The budgets above sets that lie in `domains`, in watts at the outermost."""
        rows = {-1: np.full(self.limits.path.shape[1], -1)}
        for path in np.unique(self.limits.path, axis=0):
            for level in range(len(path)):
                rest = np.full(len(path), -1)
                rest[: len(path) - level] = path[level:]
                rows[int(path[level])] = rest
        path = np.array([rows[domain] for domain in domains])
        return DomainRoom(self.budget_w, path, np.ones(path.shape), self.limits.names)

    def _left_over(self, waiting: Sequence[tuple[int, _Set]], found: Sequence[int]) -> float:
        limits = self._limits_of([domain for domain, _ in waiting])
        watts = np.array([one.watts[at] for (_, one), at in zip(waiting, found, strict=True)])
        open_ = np.zeros(len(self.budget_w), dtype=np.bool_)
        open_[np.unique(limits.path[limits.path >= 0])] = True
        left_w = np.maximum(self.budget_w - limits.load_w(watts), 0.0)
        return float((self.price * left_w)[open_].sum())


def _filled(limits: DomainRoom, sets: Sequence[_Set]) -> list[int] | None:
    """A state of each set that fit together; None if not even the least do."""
    sizes = np.array([len(one.watts) for one in sets])
    if not sizes.all():
        return None
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    menu = PowerChoices(
        first,
        np.repeat(np.arange(len(sets)), sizes),
        np.concatenate([one.watts for one in sets]),
        np.concatenate([one.worth for one in sets]),
    )
    if (limits.load_w(menu.watts[menu.least]) > limits.room_w).any():
        return None
    filling = filling_of(menu, limits)
    given = filling.served(filling.room(limits.room_w))
    found: list[int] = (stepped(menu, limits, whole(filling, given)) - menu.least).tolist()
    return found


def _best(states: _Set, most: int) -> _Set:
    """The states nearest to the bound, in the order they had."""
    if len(states.watts) <= most:
        return states
    return states.only(np.sort(np.argpartition(states.short, most)[:most]))


def _pareto(watts: Floats, worth: Floats) -> Ints:
    """Indices of states that no other beats, by watts."""
    order = np.lexsort((-worth, watts))
    best = np.maximum.accumulate(worth[order]) if len(order) else worth
    new: Bools = np.ones(len(order), dtype=np.bool_)
    new[1:] = worth[order][1:] > best[:-1] + _EPSILON
    return np.asarray(order[new])


def refined(menu: PowerChoices, limits: DomainRoom, price: Floats, known: Ints) -> Ints:
    """Rows (J,) worth at least as much as `known`, the most there is if states suffice.

    `price` (D,) is per watt of each domain; any prices are right, those of the linear optimum prune
    best.
    """
    job_price = (np.append(price, 0.0)[limits.path] * limits.scale).sum(axis=1)
    reduced = menu.value - job_price[menu.job] * menu.watts
    top = np.maximum.reduceat(reduced, menu.least)
    least = float(menu.value[known].sum())
    gap = float(price @ limits.room_w) + float(top.sum()) - least
    if gap <= _EPSILON:
        return known
    factor = limits.factor
    most = max(MOST_PAIRS // menu.jobs, _FEWEST_PAIRS)
    search = _Search(limits, limits.room_w * factor, price / factor, gap, most)
    short = top[menu.job] - reduced
    for job, domain in enumerate(limits.path[:, 0].tolist()):
        search.add(domain, _job_set(menu, job, limits, short))
    return _traced(_searched(search), menu, known)


def _job_set(menu: PowerChoices, job: int, limits: DomainRoom, short: Floats) -> _Set:
    """The choices of one job; without any budget above it watts are of no interest."""
    rows = np.arange(menu.first[job], menu.first[job + 1])
    states = _Set(menu.watts[rows] * limits.price[job], menu.value[rows], short[rows], rows)
    if limits.path[job, 0] >= 0:
        return states
    best = states.only(np.array([len(rows) - 1]))
    return _Set(np.zeros(1), best.worth, best.short, best.rows)


def _searched(search: _Search) -> Iterable[tuple[_Set, int]]:
    """States of sets that hold all jobs, worth more than what was known; none if there are none.

    Domains are closed from the innermost outwards.
    """
    limits = search.limits
    parent, ranks = _parents(limits), limits.ranks
    for rank in range(int(ranks.max(initial=-1)) + 1):
        for domain in np.flatnonzero(ranks == rank).tolist():
            inside = search.sets.pop(domain, [])
            if not inside:
                continue
            outer = parent.get(domain, -1)
            closed = search.closed(search.merged(inside), domain, outermost=outer < 0)
            if not len(closed.watts):
                return search.better or ()
            search.add(outer, closed)
            if search.floor >= search.gap:
                return search.better or ()
        search.improve()
    return search.better or ()


def _parents(limits: DomainRoom) -> dict[int, int]:
    """The domain around each domain that has one."""
    pairs = zip(limits.path[:, :-1].ravel(), limits.path[:, 1:].ravel(), strict=True)
    return {int(inner): int(outer) for inner, outer in pairs if inner >= 0 and outer >= 0}


def _traced(picked: Iterable[tuple[_Set, int]], menu: PowerChoices, known: Ints) -> Ints:
    """The rows that led to some states."""
    row, stack = known.copy(), list(picked)
    while stack:
        one, state = stack.pop()
        if one.parts is not None:
            stack.extend((part, int(index[state])) for part, index in one.parts)
        elif one.rows is not None:
            row[menu.job[one.rows[state]]] = one.rows[state]
    return row
