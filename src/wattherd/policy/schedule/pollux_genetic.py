"""Pollux' genetic search over allocations (OSDI'21, section 4.2.1): NSGA-II and its operators.

100 states breed for 100 generations. Parents are chosen by tournament and crossed at one job;
children are mutated and repaired (`pollux_breeding`), and NSGA-II (Deb et al., 2002) keeps the
fittest hundred by non-dominated fronts and crowding. States that occur already are not born again.

Kernels: they run without Numba too, as they stand, but then a search takes seconds to minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.jit import kernel
from wattherd.policy.schedule.pollux_breeding import crossed, mutate, repair
from wattherd.policy.schedule.pollux_problem import Floats, PolluxProblem, States, judge

Ints = NDArray[np.int64]

POPULATION, GENERATIONS = 100, 100
MOST_TRIES = 10
"""Couples tried per child before a generation stays smaller."""


def genetic(
    problem: PolluxProblem,
    states: States,
    rng: np.random.Generator,
    *,
    population: int = POPULATION,
    generations: int = GENERATIONS,
) -> tuple[States, Floats]:
    """The non-dominated states found from `states` on, and their objectives (S, 2).

    The same generator gives the same result.
    """
    shape = problem.held.shape
    weights = rng.integers(1, 1 << 62, size=shape, dtype=np.int64) | 1
    given = np.ascontiguousarray(states[:population]), weights
    kept, values = _searched(problem.arrays, *given, rng, population, generations)
    first = _fronts(values) == 0
    return kept[first], values[first]


@kernel
def _searched(
    problem: Any,
    given: States,
    weights: Ints,
    rng: np.random.Generator,
    population: int,
    generations: int,
) -> Any:
    """The last population, and its objectives."""
    shape = (2 * population, *weights.shape)
    states, values = np.zeros(shape, dtype=np.int16), np.zeros((2 * population, 2))
    digests = np.zeros(2 * population, dtype=np.int64)
    crowding = np.full(2 * population, np.inf)
    count = 0
    for state in given:
        states[count] = state
        repair(problem, states[count], rng)
        count += _born(problem, states, values, digests, weights, count)
    for _ in range(generations - 1):
        born = _bred(problem, states, values, crowding, digests, weights, count, population, rng)
        if born == count:
            break
        kept, apart = _survivors(values[:born], population)
        count = len(kept)
        states[:count], values[:count] = states[kept], values[kept]
        digests[:count], crowding[:count] = digests[kept], apart
    return states[:count], values[:count]


@kernel
def _born(
    problem: Any, states: States, values: Floats, digests: Ints, weights: Ints, at: int
) -> int:
    """Judge the state at `at`; 0 if it is one of those before it, else 1."""
    digest = (states[at] * weights).sum()
    for other in range(at):
        if digests[other] == digest:
            return 0
    digests[at] = digest
    values[at, 0], values[at, 1] = judge(problem, states[at])
    return 1


@kernel
def _bred(
    problem: Any,
    states: States,
    values: Floats,
    crowding: Floats,
    digests: Ints,
    weights: Ints,
    parents: int,
    wanted: int,
    rng: np.random.Generator,
) -> int:
    """Put up to `wanted` children behind the parents; how many states there are then."""
    count, last = parents, parents + wanted
    one, other = np.empty_like(states[0]), np.empty_like(states[0])
    for _ in range(MOST_TRIES * wanted):
        mother = _tournament(values, crowding, parents, rng)
        father = _tournament(values, crowding, parents, rng)
        crossed(states[mother], states[father], one, other, rng)
        for child in (one, other):
            if count < last:
                states[count] = child
                mutate(problem, states[count], rng)
                repair(problem, states[count], rng)
                count += _born(problem, states, values, digests, weights, count)
        if count == last:
            break
    return count


@kernel
def _tournament(values: Floats, crowding: Floats, count: int, rng: np.random.Generator) -> int:
    """The better of two at random: the one that dominates, else the one that stands more alone."""
    one, other = int(rng.random() * count), int(rng.random() * count)
    if _dominates(values, one, other):
        return one
    if _dominates(values, other, one):
        return other
    if crowding[one] == crowding[other]:
        return one if rng.random() < 0.5 else other
    return one if crowding[one] > crowding[other] else other


@kernel
def _dominates(values: Floats, one: int, other: int) -> bool:
    """No worse in both objectives, and better in one."""
    no_worse = values[one, 0] <= values[other, 0] and values[one, 1] <= values[other, 1]
    better = values[one, 0] < values[other, 0] or values[one, 1] < values[other, 1]
    return bool(no_worse and better)


@kernel
def _fronts(values: Floats) -> Any:
    """Number of the non-dominated front of every point (S,), 0 the best.

    In order of the first objective (the second where they are equal), a point belongs to the
    first front whose last member does not dominate it.
    """
    order = _by_both(values)
    front = np.zeros(len(values), dtype=np.int64)
    last = np.zeros(len(values), dtype=np.int64)
    fronts = 0
    for point in order:
        number = 0
        while number < fronts and _dominates(values, last[number], point):
            number += 1
        fronts = max(fronts, number + 1)
        last[number], front[point] = point, number
    return front


@kernel
def _by_both(values: Floats) -> Any:
    """Indices by the first objective, then the second, then place."""
    second = np.argsort(values[:, 1], kind="mergesort")
    return second[np.argsort(values[second, 0], kind="mergesort")]


@kernel
def _survivors(values: Floats, wanted: int) -> Any:
    """Which points survive: whole fronts, then the least crowded of the next; and how crowded."""
    front, order = _fronts(values), _by_both(values)
    kept, apart = np.zeros(wanted, dtype=np.int64), np.zeros(wanted)
    count = number = 0
    while count < wanted and number <= front.max():
        members = order[front[order] == number]
        gaps = _crowding(values[members])
        chosen = np.argsort(-gaps, kind="mergesort")[: wanted - count]
        for at in chosen:
            kept[count], apart[count] = members[at], gaps[at]
            count += 1
        number += 1
    return kept[:count], apart[:count]


@kernel
def _crowding(values: Floats) -> Any:
    """How far apart each point's neighbours are; `values` is one front in order."""
    size = len(values)
    gaps = np.full(size, np.inf)
    for at in range(1, size - 1):
        gaps[at] = 0.0
        for column in range(2):
            span = abs(values[size - 1, column] - values[0, column])
            if span > 0:
                gaps[at] += abs(values[at + 1, column] - values[at - 1, column]) / span
    return gaps
