"""Our own search for Pollux' problem: climb from several states to the next best one.

The fitness is a harmonic mean over jobs, hence a sum of costs, one per job, each of which depends
on that job's own row alone. A move gives one job another row - nothing, what it held, some tasks
on one node, whole rests of several nodes - perhaps after taking a node from another job. Moves
that lower the sum are made until there is none.

Kernels, as in `pollux_genetic`; `problem` is `PolluxProblem.arrays`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wattherd.jit import kernel
from wattherd.policy.schedule.pollux_breeding import MOST_NODES, repair
from wattherd.policy.schedule.pollux_problem import NOT_ZERO, Floats, PolluxProblem, States

MOST_PASSES = 50
_LOWER = 1.0 - 1e-9
"""What costs at least this share of another is no better: sums of the same costs round apart."""


def climb(
    problem: PolluxProblem, states: States, rng: np.random.Generator
) -> tuple[States, Floats]:
    """The best state reached from any of `states` or from least gangs, and its objectives.

    Both have one row; the same generator gives the same result.
    """
    starts = np.concatenate([states, problem.held[None], problem.gangs()[None]])
    best = _searched(problem.arrays, starts, rng)[None]
    return best, problem.evaluate(best)


@kernel
def _searched(problem: Any, starts: States, rng: np.random.Generator) -> Any:
    """The best state reached."""
    best, total = starts[0], np.inf
    for state in starts:
        repair(problem, state, rng)
        _climbed(problem, state)
        cost = _sum(problem, state)
        if cost < total * _LOWER:
            best, total = state, cost
    return best


@kernel
def _sum(problem: Any, state: States) -> float:
    """The cost of all jobs."""
    total = 0.0
    for job in range(len(state)):
        total += _cost(problem, job, state[job])
    return total


@kernel
def _climbed(problem: Any, state: States) -> None:
    """Make moves until none helps."""
    jobs = len(state)
    for _ in range(MOST_PASSES):
        moved = False
        for job in range(jobs):
            moved |= _settle(problem, state, job)
        for job in range(jobs):
            for other in range(jobs):
                if other != job:
                    moved |= _take(problem, state, job, other)
        if not moved:
            return


@kernel
def _cost(problem: Any, job: int, row: States) -> float:
    """A job's part of the sum, which is to be small."""
    held, factor, speedup, scale = problem[4], problem[6], problem[7], problem[8]
    tasks = across = 0
    moved = False
    for node in range(len(row)):
        moved |= row[node] != held[job, node]
        if row[node] > 0:
            tasks += row[node]
            across += 1
    plain = speedup[job, 1 if across > 1 else 0, tasks]
    counted: float = plain * scale[job] * (factor[job] if moved else 1.0)
    return 1.0 / (counted + NOT_ZERO)


@kernel
def _settle(problem: Any, state: States, job: int) -> bool:
    """Give one job the best row that the others leave room for; whether that is another."""
    before = state[job].copy()
    state[job] = 0
    best, cost = before, _cost(problem, job, before)
    found = _best_row(problem, state, job)
    if _cost(problem, job, found) < cost * _LOWER:
        best = found
    state[job] = best
    return bool((best != before).any())


@kernel
def _take(problem: Any, state: States, job: int, other: int) -> bool:
    """Let one job take a node, or one task there, from another, if both together gain by it."""
    for node in range(state.shape[1]):
        have = state[other, node]
        if have == 0:
            continue
        for left in (0, have - 1):
            before, theirs = state[job].copy(), state[other].copy()
            cost = _cost(problem, job, before) + _cost(problem, other, theirs)
            state[other, node] = left
            if state[other].sum() < problem[2][other]:
                state[other] = 0
            state[job] = 0
            state[job] = _best_row(problem, state, job)
            after = _cost(problem, job, state[job]) + _cost(problem, other, state[other])
            if after < cost * _LOWER:
                return True
            state[job], state[other] = before, theirs
    return False


@kernel
def _best_row(problem: Any, state: States, job: int) -> Any:
    """The row of least cost for a job that has nothing yet, within what is free."""
    nodes = state.shape[1]
    room = _rooms(problem, state, job)
    shared = _spanned(state)
    best, trial = np.zeros(nodes, dtype=np.int16), np.zeros(nodes, dtype=np.int16)
    cost = _cost(problem, job, best)
    held = problem[4][job]
    if (held <= room).all() and held.sum() > 0 and _may(problem, job, held, shared):
        cost, best = _better(problem, job, held, cost, best)
    cost, best = _best_alone(problem, job, room, trial, cost, best)
    return _best_across(problem, job, room, shared, trial, cost, best)


@kernel
def _better(problem: Any, job: int, row: States, cost: float, best: States) -> Any:
    """The cheaper of a row and the best one so far."""
    found = _cost(problem, job, row)
    return (found, row.copy()) if found < cost * _LOWER else (cost, best)


@kernel
def _may(problem: Any, job: int, row: States, shared: Any) -> bool:
    """Whether the row has an allowed number of tasks, and meets no other job that spans nodes."""
    tasks, across, meets = row.sum(), (row > 0).sum(), False
    for node in range(len(row)):
        meets |= row[node] > 0 and shared[node]
    fits = problem[2][job] <= tasks <= problem[3][job] and across <= MOST_NODES
    return bool(fits and (across == 1 or not meets))


@kernel
def _rooms(problem: Any, state: States, job: int) -> Any:
    """How many tasks of the job each node could take."""
    gpus, unit, room = problem[0], problem[1], problem[5]
    found = np.zeros(state.shape[1], dtype=np.int16)
    for node in range(state.shape[1]):
        free = gpus[node]
        for other in range(len(unit)):
            free -= state[other, node] * unit[other]
        found[node] = min(free // unit[job], room[job, node])
    return found


@kernel
def _spanned(state: States) -> Any:
    """On which nodes a job runs that spans several."""
    found = np.zeros(state.shape[1], dtype=np.bool_)
    for job in range(len(state)):
        if (state[job] > 0).sum() > 1:
            found |= state[job] > 0
    return found


@kernel
def _best_alone(
    problem: Any, job: int, room: States, trial: States, cost: float, best: States
) -> Any:
    """On one node: for every number of tasks the one that it fills best."""
    for tasks in range(max(problem[2][job], 1), min(problem[3][job], room.max()) + 1):
        tightest = -1
        for node in range(len(room)):
            if room[node] >= tasks and (tightest < 0 or room[node] < room[tightest]):
                tightest = node
        trial[:] = 0
        trial[tightest] = tasks
        cost, best = _better(problem, job, trial, cost, best)
    return cost, best


@kernel
def _best_across(
    problem: Any,
    job: int,
    room: States,
    shared: Any,
    trial: States,
    cost: float,
    best: States,
) -> Any:
    """On the freest nodes that no other spanning job is on: rests of one node more each time.

    What fits on the first alone is tried across two as well: by its report, a job's nodes may
    synchronise more slowly inside than over the network.
    """
    least, most = problem[2][job], problem[3][job]
    trial[:] = 0
    tasks = across = first = 0
    for node in np.argsort(-room, kind="mergesort"):
        if shared[node] or room[node] <= 0 or tasks >= most or across >= MOST_NODES:
            continue
        if across == 0:
            first, tasks, across = node, min(room[node], most - 1), 1
            trial[first] = tasks
            continue
        if across == 1:
            for fewer in range(max(least - 1, 1), tasks):
                trial[first], trial[node] = fewer, 1
                cost, best = _better(problem, job, trial, cost, best)
            trial[first] = tasks
        for more in range(1, min(room[node], most - tasks) + 1):
            trial[node] = more
            if tasks + more >= least:
                cost, best = _better(problem, job, trial, cost, best)
        tasks += trial[node]
        across += 1
    return best
