"""The two searches of Pollux as answers to questions: plain data in, plain data out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wattherd.policy.schedule.pollux_genetic import genetic
from wattherd.policy.schedule.pollux_problem import Problem, States

KINDS = {"genetic": "pollux-genetic"}
"""Kind of question by name of the search."""
Search = Callable[[Any], dict[str, Any]]


def searches(stream: Callable[[Sequence[int]], np.random.Generator]) -> Mapping[str, Search]:
    """Who answers which kind of question; `stream` makes a generator from a seed."""

    def by_genes(asked: Mapping[str, Any]) -> dict[str, Any]:
        problem = Problem.of(asked)
        states = _dense(asked["states"], problem) if asked["states"] else problem.held[None]
        front, values = genetic(problem, states, stream(asked["seed"]))
        return _answer(front, int(np.argmin(values[:, 0])), float(-values[:, 0].min()))

    return {KINDS["genetic"]: by_genes}


def _answer(states: States, chosen: int, fitness: float) -> dict[str, Any]:
    plan = [[[int(n), int(job[n])] for n in np.flatnonzero(job)] for job in states[chosen]]
    return {"plan": plan, "fitness": fitness, "states": [_sparse(state) for state in states]}


def _sparse(state: States) -> list[int]:
    """(job, node, tasks) after each other."""
    job, node = np.nonzero(state)
    return np.stack([job, node, state[job, node]], axis=1).ravel().tolist()


def _dense(states: Sequence[Sequence[int]], problem: Problem) -> States:
    found = np.zeros((len(states), *problem.held.shape), dtype=np.int16)
    for row, state in zip(found, states, strict=True):
        job, node, tasks = np.array(state, dtype=np.int64).reshape(-1, 3).T
        row[job, node] = tasks
    return found
