"""How states of Pollux' genetic search change: crossing, mutation, repair (OSDI'21, 4.2.1).

A state (J, N) has the tasks of each job on each node. Kernels; all change states in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wattherd.jit import kernel
from wattherd.policy.schedule.pollux_problem import States

CROSSED = 0.9
"""Share of couples whose children mix them; the others' children begin as copies."""
RESET, THINNED, DROPPED = 0.1, 0.1, 0.1
"""Chances that a job goes back to what it holds, is thinned, and then loses a node."""
MOST_NODES = 16
"""The published scheduler spreads no job further."""


@kernel
def crossed(
    mother: States, father: States, one: States, other: States, rng: np.random.Generator
) -> None:
    """Two children: jobs before a random one from the one parent, the rest from the other."""
    one[:], other[:] = mother, father
    if rng.random() < CROSSED:
        cut = int(rng.random() * len(mother))
        one[:cut], other[:cut] = father[:cut], mother[:cut]


@kernel
def mutate(problem: Any, state: States, rng: np.random.Generator) -> None:
    """Some jobs go back to what they hold, some lose tasks, some take free GPUs."""
    held = problem[4]
    jobs, nodes = state.shape
    for job in range(jobs):
        if rng.random() < RESET:
            state[job] = held[job]
    for job in range(jobs):
        if rng.random() < THINNED:
            for node in range(nodes):
                if rng.random() < DROPPED:
                    state[job, node] = 0
    for node in range(nodes):
        _grow(problem, state, node, rng)


@kernel
def _grow(problem: Any, state: States, node: int, rng: np.random.Generator) -> None:
    """Let about one job, and about one of those on the node already, take more of its GPUs."""
    gpus, unit, room = problem[0], problem[1], problem[5]
    free = gpus[node]
    for job in range(len(unit)):
        free -= state[job, node] * unit[job]
    fit = there = 0
    for job in range(len(unit)):
        if unit[job] <= free:
            fit += 1
            there += state[job, node] > 0
    for job in range(len(unit)):
        if unit[job] > free or fit == 0:
            continue
        chance = 1.0 / fit
        if state[job, node] > 0:
            chance += 1.0 / there - chance / there
        if rng.random() < chance:
            now = state[job, node]
            state[job, node] = now + int(rng.random() * (max(room[job, node] - now, 0) + 1))


@kernel
def repair(problem: Any, state: States, rng: np.random.Generator) -> None:
    """Make the state an allowed one; where jobs collide, the earlier one wins."""
    least, most = problem[2], problem[3]
    one_distributed(state)
    for job in range(len(least)):
        across = (state[job] > 0).sum()
        if state[job].sum() > most[job] or across > MOST_NODES:
            _cut(state[job], most[job], rng)
    _within_gpus(problem, state)
    for job in range(len(least)):
        if state[job].sum() < least[job]:
            state[job] = 0


@kernel
def one_distributed(state: States) -> None:
    """On every node, keep the first job that spans nodes, and take it from the others."""
    jobs, nodes = state.shape
    across = np.zeros(jobs, dtype=np.int64)
    for job in range(jobs):
        for node in range(nodes):
            across[job] += state[job, node] > 0
    for node in range(nodes):
        taken = False
        for job in range(jobs):
            if state[job, node] > 0 and across[job] > 1:
                if taken:
                    state[job, node] = 0
                taken = True


@kernel
def _cut(row: States, most: int, rng: np.random.Generator) -> None:
    """At most so many tasks on `MOST_NODES` nodes, kept from nodes in random order."""
    order = np.arange(len(row))
    for at in range(len(row) - 1, 0, -1):
        other = int(rng.random() * (at + 1))
        order[at], order[other] = order[other], order[at]
    left, nodes = most, MOST_NODES
    for node in order:
        kept = min(row[node], left) if nodes > 0 else 0
        row[node] = kept
        left -= kept
        nodes -= kept > 0


@kernel
def _within_gpus(problem: Any, state: States) -> None:
    gpus, unit, room = problem[0], problem[1], problem[5]
    for node in range(len(gpus)):
        left = gpus[node]
        for job in range(len(unit)):
            state[job, node] = min(state[job, node], room[job, node], left // unit[job])
            left -= state[job, node] * unit[job]
