"""Who runs, kept in order from plan to plan, stands as a look at every job would have it."""

from __future__ import annotations

import math
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ordered_machine import GITTINS, ORDERS, of, run, streams

from effort import times
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.job_order import JobOrder
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import (
    Fifo,
    JobStanding,
    Key,
    Order,
    ShortestRemaining,
    SmallestRemainingService,
)
from wattherd.policy.schedule.running_jobs import End, KeptKeys, LastFirst, RunningColumns

MOVING: dict[str, Order] = {
    "srtf": ShortestRemaining(),
    "srsf": SmallestRemainingService(),
    "gittins": GITTINS,
}
TIMES_S = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 7.0, 50.0, 1e4])


@st.composite
def standings(draw: st.DrawFn, most: int) -> list[JobStanding]:
    """Jobs that run since some time, many of them alike."""
    found = []
    for number in range(draw(st.integers(0, most))):
        since_s = draw(TIMES_S)
        job: Any = SimpleNamespace(
            id=f"j{number}", number=number, spec=SimpleNamespace(submit_s=draw(TIMES_S))
        )
        found.append(
            JobStanding(
                job=job, gpus=draw(st.integers(1, 3)), shape=0, since_s=since_s, running=True,
                left_s=draw(TIMES_S | st.just(math.inf)), works_from_s=since_s + draw(TIMES_S),
                served_s=draw(TIMES_S), holds_s=draw(TIMES_S), queue=draw(st.integers(0, 1)),
            )
        )  # fmt: skip
    return found


def naive_end(one: JobStanding, now_s: float) -> End:
    if one.works_from_s < now_s:
        return now_s + (one.left_s - (now_s - one.works_from_s)), one.job.number, one
    return one.works_from_s + one.left_s, one.job.number, one


@pytest.mark.parametrize("name", MOVING)
@settings(max_examples=times(150), deadline=None)
@given(
    jobs=standings(most=90), others=standings(most=20), gone=st.sets(st.integers(0, 89)),
    now_s=TIMES_S, asking=st.integers(0, 89), looks=st.integers(0, 90),
)  # fmt: skip
def test_columns_say_what_every_job_says(
    name: str, jobs: list[JobStanding], others: list[JobStanding], gone: set[int], now_s: float,
    asking: int, looks: int,
) -> None:  # fmt: skip
    """`others` are what some of the jobs are after they were stopped and started, or fell."""
    order, columns, live = MOVING[name], RunningColumns(), dict[str, JobStanding]()
    for one in jobs:
        live[one.job.id] = one
        columns.put(one)
    for number in gone:
        live.pop(f"j{number}", None)
        columns.drop(f"j{number}")
    for one in others:
        columns.drop(one.job.id)
        live[one.job.id] = one
        columns.put(one)

    ranked = sorted(live.values(), key=lambda one: order.key(one, now_s))
    order.rank(ranked, now_s)
    keys = [one.key for one in ranked]
    assert keys == [order.key(one, now_s) for one in ranked]
    key: Key = keys[asking % len(keys)] if keys else order.key(_job(), now_s)
    behind = list(columns.from_last(order.keys(columns, now_s), key))[::-1]
    assert behind == [one for one in ranked if one.key >= key]
    assert [one.key for one in behind] == [one for one in keys if one >= key]

    ends = sorted(naive_end(one, now_s) for one in live.values())
    assert list(islice(columns.ends(now_s), looks)) == ends[:looks]
    assert list(columns.ends(now_s)) == ends


def _job() -> JobStanding:
    job: Any = SimpleNamespace(id="j", number=0, spec=SimpleNamespace(submit_s=0.0))
    return JobStanding(job=job, gpus=1, shape=0, since_s=0.0)


@settings(max_examples=times(100), deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 3)), max_size=40),
    asking=st.integers(0, 3),
)
def test_kept_keys_stand_as_sorted_anew(steps: list[tuple[int, int]], asking: int) -> None:
    """A job gets a key, another one, or (-1) goes."""
    kept, live = KeptKeys(), dict[str, JobStanding]()
    for number, first in steps:
        job_id = f"j{number}"
        if first < 0:
            live.pop(job_id, None)
            kept.drop(job_id)
            continue
        job: Any = SimpleNamespace(id=job_id, number=number)
        standing = live.get(job_id) or JobStanding(job=job, gpus=1, shape=0, since_s=0.0)
        standing.key = (float(first), number)
        live[job_id] = standing
        kept.put(standing)
    ranked = sorted(live.values(), key=lambda one: one.key)
    assert kept.in_order() == ranked
    last = LastFirst(kept.from_last())
    for first in (asking, asking + 1, asking):
        behind = [one for one in ranked if one.key >= (first, 5)]
        assert list(last.until((float(first), 5))) == behind[::-1]


class Anew:
    """What a lineup keeps, worked out from all who run, one by one."""

    @staticmethod
    def behind(lineup: JobOrder, key: Key, now_s: float) -> LastFirst:
        for one in lineup.running.values():
            one.key = lineup._key(one, now_s)
        ranked = sorted(lineup.running.values(), key=lambda one: one.key)
        return LastFirst(reversed([one for one in ranked if one.key >= key]))

    @staticmethod
    def ends(lineup: JobOrder, beginning: list[JobStanding], now_s: float) -> list[End]:
        ends = [naive_end(one, now_s) for one in lineup.running.values()]
        for one in beginning:
            ends.append((now_s + one.pause_s + one.remaining_s(now_s), one.job.number, one))
        return sorted(ends)


PLANNERS = {
    **{name: of(order) for name, order in ORDERS.items()},
    "starving": of(ShortestRemaining(), starve_s=30.0),
    "promoting": of(ORDERS["tiresias"], promote=1.0, starve_s=60.0),
    "backfill": of(Fifo(), discipline=Discipline.BACKFILL, preemptive=False),
}


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=times(25), deadline=None)
@given(jobs=streams(most_gpus=6))
def test_orders_are_those_of_a_planner_that_keeps_nothing(name: str, jobs: list[JobSpec]) -> None:
    kept = run(PLANNERS[name](), jobs, 4, 4, 2)
    with patch.multiple(JobOrder, behind=Anew.behind, ends=Anew.ends):
        anew = run(PLANNERS[name](), jobs, 4, 4, 2)
    assert kept.commands == anew.commands
