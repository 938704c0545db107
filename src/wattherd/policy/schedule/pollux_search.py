"""The searches for Pollux as answers to questions: plain data in, plain data out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wattherd.policy.schedule.pollux_climb import climb
from wattherd.policy.schedule.pollux_genetic import genetic
from wattherd.policy.schedule.pollux_problem import PolluxProblem, States

KINDS = {"genetic": "pollux-genetic", "climb": "pollux-climb"}
"""Kind of question by name of the search: the published one, and our own."""
Stream = Callable[[Sequence[int]], np.random.Generator]
"""Makes a generator from a seed."""


def searchers(stream: Stream) -> Mapping[str, Callable[[Any], dict[str, Any]]]:
    """Who answers which kind of question."""

    def by_genes(asked: Mapping[str, Any]) -> dict[str, Any]:
        problem = PolluxProblem.of(asked)
        states, values = genetic(
            problem,
            _given(asked["states"], problem),
            stream(asked["seed"]),
            population=asked["population"],
            generations=asked["generations"],
        )
        return _answer(states, int(np.argmin(values[:, 0])), float(-values[:, 0].min()))

    def by_climbing(asked: Mapping[str, Any]) -> dict[str, Any]:
        problem = PolluxProblem.of(asked)
        states, values = climb(problem, _given(asked["states"], problem), stream(asked["seed"]))
        return _answer(states, 0, float(-values[0, 0]))

    return {KINDS["genetic"]: by_genes, KINDS["climb"]: by_climbing}


def _given(sparse: Sequence[Sequence[int]], problem: PolluxProblem) -> States:
    """Where the search begins: what the last one found, or what jobs hold."""
    states = _dense(sparse, problem) if sparse else problem.held[None]
    if (problem.least > 1).any():
        return np.concatenate([problem.gangs()[None], states])
    return states


def _answer(states: States, chosen: int, fitness: float) -> dict[str, Any]:
    plan = [[[int(n), int(job[n])] for n in np.flatnonzero(job)] for job in states[chosen]]
    return {"plan": plan, "fitness": fitness, "states": [_sparse(state) for state in states]}


def _sparse(state: States) -> list[int]:
    """(job, node, tasks) after each other."""
    job, node = np.nonzero(state)
    found: list[int] = np.stack([job, node, state[job, node]], axis=1).ravel().tolist()
    return found


def _dense(states: Sequence[Sequence[int]], problem: PolluxProblem) -> States:
    found = np.zeros((len(states), *problem.held.shape), dtype=np.int16)
    for row, state in zip(found, states, strict=True):
        job, node, tasks = np.array(state, dtype=np.int64).reshape(-1, 3).T
        row[job, node] = tasks
    return found
