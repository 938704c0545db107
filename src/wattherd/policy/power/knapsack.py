"""One choice per job within the budgets of a tree, worth most: multiple-choice knapsacks, nested.

Prices per watt of each domain give a bound (Lagrange), and say by how much a choice, or a watt left
over, falls short of it. What falls short by more than the best known solution does is dropped; what
remains is searched by Pareto sets of (watts, worth), merged job by job and domain by domain (after
Pisinger, 1995). The search is limited by counted states, not by time: where they run out only the
most promising are kept, and the result is no longer proven to be the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from wattherd.policy.power.limits import SLACK_W, Limits
from wattherd.policy.power.menu import Bools, Floats, Ints, Menu

MOST_STATES = 2_000_000
"""States of one search, all its layers together."""
_MOST_PAIRS = 1_000_000
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class _Search:
    """What all merges know; watts are those at the outermost budget of each job."""

    menu: Menu
    budget_w: Floats
    price: Floats
    gap: float
    most: int

    def job_set(self, job: int, scale: float, price: float) -> _Set:
        """The choices of one job that may stand in a better solution."""
        rows = np.arange(self.menu.first[job], self.menu.first[job + 1])
        watts, worth = self.menu.watts[rows], self.menu.value[rows]
        reduced = worth - price * watts
        short = reduced.max() - reduced
        return _Set(watts * scale, worth, short, rows).only(short < self.gap)

    def merged(self, one: _Set, two: _Set) -> _Set:
        """Every state of one with every state of the other, as far as hopeful and Pareto."""
        one, two = self._thinned(one, two)
        short = one.short[:, None] + two.short[None, :]
        at, to = np.nonzero(short < self.gap)
        watts, worth = one.watts[at] + two.watts[to], one.worth[at] + two.worth[to]
        both = _Set(watts, worth, short[at, to], None, ((one, at), (two, to)))
        return self._capped(both.only(_pareto(watts, worth)))

    def _thinned(self, one: _Set, two: _Set) -> tuple[_Set, _Set]:
        """So few states of both that all pairs can be looked at."""
        small, large = sorted((len(one.watts), len(two.watts)))
        if small * large <= _MOST_PAIRS:
            return one, two
        most = max(_MOST_PAIRS // max(small, 1), int(_MOST_PAIRS**0.5))
        return _best(one, most), _best(two, most)

    def _capped(self, states: _Set) -> _Set:
        return _best(states, self.most)

    def closed(self, states: _Set, domain: int, *, outermost: bool) -> _Set:
        """What fits into a domain; watts left over there cost their price.

        Outside of the outermost domain watts are of no interest.
        """
        left_w = self.budget_w[domain] - states.watts
        short = states.short + self.price[domain] * np.maximum(left_w, 0.0)
        watts = np.zeros(len(left_w)) if outermost else states.watts
        closed = _Set(watts, states.worth, short, states.rows, states.parts)
        closed = closed.only(np.flatnonzero((left_w >= -SLACK_W) & (short < self.gap)))
        return closed.only(_pareto(closed.watts, closed.worth)) if outermost else closed


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


def refined(menu: Menu, limits: Limits, price: Floats, known: Ints) -> Ints:
    """Rows (J,) worth at least as much as `known`, the most there is if states suffice.

    `price` (D,) is per watt of each domain; any prices are right, those of the linear optimum prune
    best.
    """
    outermost = limits.price
    each = np.append(price, 0.0)[limits.path]
    job_price = (each * limits.scale).sum(axis=1)
    reduced = menu.value - job_price[menu.job] * menu.watts
    top = np.maximum.reduceat(reduced, menu.least).sum()
    least = float(menu.value[known].sum())
    gap = float(price @ limits.room_w) + float(top) - least - _EPSILON
    if gap <= _EPSILON:
        return known
    factor = limits.factor
    most = max(MOST_STATES // menu.jobs, 1_000)
    search = _Search(menu, limits.room_w * factor, price / factor, gap, most)
    found = _searched(search, limits, outermost, job_price)
    if not len(found.worth) or found.worth.max() <= least + _EPSILON:
        return known
    return _traced(found, int(np.argmax(found.worth)), menu)


def _searched(search: _Search, limits: Limits, scale: Floats, price: Floats) -> _Set:
    """States of all jobs: merged below each domain, from the innermost outwards."""
    below: dict[int, list[_Set]] = {-1: []}
    parent, order = _family(limits)
    for job, domain in enumerate(limits.path[:, 0].tolist()):
        mine = search.job_set(job, float(scale[job]), float(price[job]))
        below.setdefault(domain, []).append(mine if domain >= 0 else _freed(mine))
    for domain in order:
        inside = _merged(search, below.get(domain, []))
        if inside is not None:
            outer = parent[domain]
            below.setdefault(outer, []).append(search.closed(inside, domain, outermost=outer < 0))
    found = _merged(search, below[-1])
    return _Set(np.empty(0), np.empty(0), np.empty(0)) if found is None else found


def _freed(states: _Set) -> _Set:
    """A job without any budget above it."""
    return _Set(np.zeros(len(states.watts)), states.worth, states.short, states.rows)


def _merged(search: _Search, sets: Sequence[_Set]) -> _Set | None:
    return reduce(search.merged, sets) if sets else None


def _family(limits: Limits) -> tuple[dict[int, int], list[int]]:
    """The domain around each domain (-1: none), and all domains, inner ones first."""
    parent: dict[int, int] = {}
    rank: dict[int, int] = {}
    for row in np.unique(limits.path, axis=0).tolist():
        path = [domain for domain in row if domain >= 0]
        for level, domain in enumerate(path):
            parent[domain] = path[level + 1] if level + 1 < len(path) else -1
            rank[domain] = max(rank.get(domain, 0), level)
    return parent, sorted(rank, key=lambda domain: (rank[domain], domain))


def _traced(states: _Set, at: int, menu: Menu) -> Ints:
    """The rows that led to a state."""
    row = menu.least.copy()
    stack = [(states, at)]
    while stack:
        one, state = stack.pop()
        if one.parts is not None:
            stack.extend((part, int(index[state])) for part, index in one.parts)
        elif one.rows is not None:
            row[menu.job[one.rows[state]]] = one.rows[state]
    return row
