"""Pollux' search: fitness as its definition says, allowed states only, the same twice."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_pollux_machine import reports

from effort import times
from wattherd.estimate.goodput import best
from wattherd.model.training import BatchRange, StepTime, TrainingReport
from wattherd.policy.schedule.pollux_breeding import MOST_NODES, repair
from wattherd.policy.schedule.pollux_climb import climb
from wattherd.policy.schedule.pollux_genetic import _crowding, _fronts, genetic
from wattherd.policy.schedule.pollux_problem import (
    PolluxApplicant,
    PolluxProblem,
    States,
    question,
    restart_factor,
)
from wattherd.policy.schedule.pollux_search import KINDS, searchers

SEARCHES = searchers(np.random.default_rng)
SEARCH = SEARCHES[KINDS["genetic"]]


@st.composite
def applicants(draw: st.DrawFn, nodes: int) -> PolluxApplicant:
    least = draw(st.sampled_from([1, 1, 1, 2, 3]))
    held = draw(st.dictionaries(st.integers(0, nodes - 1), st.integers(1, 2), max_size=2))
    return PolluxApplicant(
        unit=draw(st.sampled_from([1, 1, 1, 2])),
        least=least,
        most=draw(st.integers(least, 9)),
        factor=draw(st.floats(0, 1)),
        held=tuple(sorted(held.items())),
        barred=tuple(draw(st.sets(st.integers(0, nodes - 1), max_size=1))),
        report=draw(st.none() | reports()),
    )


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=5))
    jobs = draw(st.lists(applicants(len(gpus)), min_size=1, max_size=5))
    asked = question(gpus, jobs)
    sizes = {"states": [], "seed": [1, 2], "population": 12, "generations": 8}
    return json.loads(json.dumps({**asked, **sizes}))


def any_states(draw: st.DrawFn, problem: PolluxProblem) -> States:
    count = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 999))
    shape = (count, *problem.held.shape)
    return np.random.default_rng(seed).integers(0, 5, shape).astype(np.int16)


def allowed(problem: PolluxProblem, state: States) -> bool:
    across = (state > 0).sum(axis=1)
    crowded = ((state > 0) & (across > 1)[:, None]).sum(axis=0) > 1
    tasks = state.sum(axis=1)
    return bool(
        (state >= 0).all()
        and (state <= problem.room).all()
        and (state.T.astype(int) @ problem.unit <= problem.gpus).all()
        and not crowded.any()
        and ((tasks == 0) | (tasks >= problem.least)).all()
        and (tasks <= problem.most).all()
        and (across <= MOST_NODES).all()
    )


def plainly(
    gpus: list[int], jobs: list[PolluxApplicant], state: list[list[int]]
) -> tuple[float, float]:
    """Fitness and utilisation, job by job, straight from the definition."""
    inverse = speed = 0.0
    for job, row in zip(jobs, state, strict=True):
        room = sum(have // job.unit for node, have in enumerate(gpus) if node not in job.barred)
        fair = math.ceil(sum(gpus) / job.unit / len(jobs))
        speedup = plain_speedup(job, row, fair, min(job.most, room))
        held = [dict(job.held).get(node, 0) for node in range(len(gpus))]
        counted = speedup * job.unit * len(gpus) / sum(gpus)
        inverse += 1 / (counted * (1 if row == held else job.factor) + 1e-3)
        speed += speedup * job.unit
    used = sum(have for node, have in enumerate(gpus) if any(row[node] > 0 for row in state))
    return len(jobs) / inverse, speed / max(used, 1)


def plain_speedup(job: PolluxApplicant, row: list[int], fair: int, most: int) -> float:
    tasks, nodes = sum(row), sum(one > 0 for one in row)
    if not tasks or job.report is None:
        return tasks / fair
    goodput = float(best(job.report, nodes, tasks).goodput[0])
    base = float(best(job.report, 1, fair).goodput[0])
    if base == 0:
        several = (
            float(best(job.report, across, count).goodput[0])
            for across in (1, 2)
            for count in range(1, most + 1)
        )
        base = max(several, default=0.0)
    return goodput / base if base > 0 else 0.0


@given(data=st.data())
def test_fitness_is_what_its_definition_says(data: st.DataObject) -> None:
    gpus = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4))
    jobs = data.draw(st.lists(applicants(len(gpus)), min_size=1, max_size=4))
    asked = question(gpus, jobs)
    problem = PolluxProblem.of(json.loads(json.dumps(asked)))
    states = data.draw(st.composite(any_states)(problem))
    for state in states:
        np.minimum(state.cumsum(axis=1), problem.most[:, None], out=state, casting="unsafe")
        state[:] = np.diff(state, axis=1, prepend=0)
    judged = problem.evaluate(states)
    for state, (fitness, utilisation) in zip(states.tolist(), judged, strict=True):
        expected = plainly(gpus, jobs, state)
        assert -fitness == pytest.approx(expected[0], rel=1e-9)
        assert -utilisation == pytest.approx(expected[1], rel=1e-9)


@given(asked=questions(), data=st.data())
def test_whatever_is_repaired_is_allowed(asked: dict[str, Any], data: st.DataObject) -> None:
    problem = PolluxProblem.of(asked)
    for state in data.draw(st.composite(any_states)(problem)):
        repair(problem.arrays, state, np.random.default_rng(3))
        assert allowed(problem, state)
        again = state.copy()
        repair(problem.arrays, again, np.random.default_rng(4))
        assert (again == state).all()


@settings(max_examples=times(60))
@given(asked=questions(), kind=st.sampled_from(sorted(KINDS.values())))
def test_answers_are_allowed_no_worse_than_the_start_and_repeat(
    asked: dict[str, Any], kind: str
) -> None:
    problem = PolluxProblem.of(asked)
    answer = json.loads(json.dumps(SEARCHES[kind](asked)))
    state = np.zeros(problem.held.shape, dtype=np.int16)
    for job, pairs in enumerate(answer["plan"]):
        for node, tasks in pairs:
            state[job, node] = tasks
    assert allowed(problem, state)
    assert -problem.evaluate(state[None])[0, 0] == answer["fitness"]
    start = problem.held.copy()
    if allowed(problem, start):
        assert answer["fitness"] >= -problem.evaluate(start[None])[0, 0]
    assert answer == SEARCHES[kind](asked)


@settings(max_examples=times(60))
@given(asked=questions())
def test_the_next_search_begins_where_the_last_one_ended(asked: dict[str, Any]) -> None:
    answer = SEARCH(asked)
    further = SEARCH({**asked, "states": answer["states"], "seed": [9, 9]})
    assert further["fitness"] >= answer["fitness"]


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25)


@given(points=points)
def test_fronts_are_peeled_off_one_by_one(points: list[tuple[int, int]]) -> None:
    values = np.array(points, dtype=float)
    expected, left, number = {}, set(range(len(points))), 0
    while left:
        front = {
            i
            for i in left
            if not any(
                points[j] != points[i]
                and points[j][0] <= points[i][0]
                and points[j][1] <= points[i][1]
                for j in left
            )
        }
        expected.update(dict.fromkeys(front, number))
        left -= front
        number += 1
    assert _fronts(values).tolist() == [expected[i] for i in range(len(points))]


def test_the_ends_of_a_front_are_never_crowded() -> None:
    gaps = _crowding(np.array([[0.0, 4.0], [1.0, 2.0], [2.0, 1.0], [4.0, 0.0]]))
    assert np.isinf(gaps[[0, 3]]).all()
    assert gaps[1] == pytest.approx(2 / 4 + 3 / 4)


def test_a_restart_counts_less_the_older_a_job_is() -> None:
    assert restart_factor(0.0, 0) == 0.0
    assert restart_factor(570.0, 0) == pytest.approx(0.95)
    assert restart_factor(570.0, 2) == pytest.approx(510 / 600)
    assert restart_factor(30.0, 4) == 0.0


def test_a_wide_gang_finds_its_place_at_once() -> None:
    asked = question([4, 4, 2], [PolluxApplicant(unit=1, least=10, most=10, factor=1.0)])
    problem = PolluxProblem.of(asked)
    assert problem.gangs().tolist() == [[4, 4, 2]]
    states, _ = genetic(problem, problem.gangs()[None], np.random.default_rng(1), generations=1)
    assert states.sum() == 10


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_good_split_is_found(kind: str) -> None:
    """Two equal jobs that scale perfectly share eight GPUs evenly, each on a node of its own."""
    jobs = [PolluxApplicant(unit=1, least=1, most=8, factor=0.5) for _ in range(2)]
    asked = {**question([4, 4], jobs), "states": [], "seed": [0, 0]}
    answer = SEARCHES[kind]({**asked, "population": 100, "generations": 100})
    assert sorted(sum(tasks for _, tasks in pairs) for pairs in answer["plan"]) == [4, 4]


def step(**changed: float) -> StepTime:
    """A step time whose parts are all one second, but for those named."""
    names = ("pass_s", "sample_s", "network_sync_s", "network_ring_s", "node_sync_s", "node_ring_s")
    return StepTime(**{**dict.fromkeys((*names, "overlap"), 1.0), **changed})


def alone(most: int, time: StepTime, batches: BatchRange, least: int = 1) -> PolluxApplicant:
    """A job whose gradient is all noise."""
    report = TrainingReport(
        step_time=time, grad_sqr=0.0, grad_var=1.0, most_replicas=1, batches=batches
    )
    return PolluxApplicant(unit=1, least=least, most=most, factor=1.0, report=report)


TWO = BatchRange(initial=2, most=2, least_local=1, most_local=1)
"""Two samples, one at a time."""
WIDE = BatchRange(initial=12, most=1200, least_local=1, most_local=100)
SLOW_INSIDE = step(node_sync_s=2.0)
SLOWER_INSIDE = step(node_sync_s=50.0, node_ring_s=9.0, network_ring_s=1e-8)
INSTANT = step(pass_s=1e-8, sample_s=1e-8, node_sync_s=9.0, node_ring_s=9.0)
"""One replica is a hundred million times as fast as a fair share of several."""
SEVEN = BatchRange(initial=14, most=14, least_local=5, most_local=6)
"""Not to be split over two replicas, but over three."""


class Given(NamedTuple):
    """GPUs by node and the only job."""

    gpus: list[int]
    job: PolluxApplicant


@st.composite
def lonely(draw: st.DrawFn) -> Given:
    gpus = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return Given(gpus, draw(applicants(len(gpus))))


@settings(max_examples=times(60))
@given(given=lonely())
@example(given=Given([1, 2], alone(2, SLOW_INSIDE, TWO)))
@example(given=Given([4, 4], alone(8, SLOWER_INSIDE, WIDE)))
@example(given=Given([4, 3, 1], alone(3, SLOWER_INSIDE, WIDE, least=3)))
@example(given=Given([4, 4], alone(1, SLOWER_INSIDE, WIDE)))
@example(given=Given([4, 4], alone(8, INSTANT, WIDE)))
@example(given=Given([2], alone(2, step(), SEVEN)))
def test_one_job_climbs_to_the_best_of_all_states(given: Given) -> None:
    gpus, job = given
    problem = PolluxProblem.of(json.loads(json.dumps(question(gpus, [job]))))
    rooms = (range(int(room) + 1) for room in problem.room[0])
    every = np.array([[row] for row in product(*rooms)], dtype=np.int16)
    fair = np.array([state for state in every if allowed(problem, state)], dtype=np.int16)
    _, values = climb(problem, problem.held[None], np.random.default_rng(1))
    # Rows whose costs differ by less than a billionth are the same to the climb.
    assert values[0, 0] == pytest.approx(problem.evaluate(fair)[:, 0].min(), rel=1e-6)


@pytest.mark.long
def test_a_job_whose_fair_share_cannot_be_split_runs_where_its_batch_can() -> None:
    """Fourteen samples, five or six at a time: three replicas can, the two of a fair share not."""
    job = alone(4, step(), SEVEN)
    other = PolluxApplicant(unit=1, least=1, most=1, factor=1.0)
    asked = {**question([4], [job, other]), "states": [], "seed": [0, 0]}
    answer = SEARCHES[KINDS["climb"]](asked)
    assert answer["plan"] == [[[0, 3]], [[0, 1]]]
