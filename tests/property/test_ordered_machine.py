"""Ordered planners under any legal events, and their promises: nobody delayed, nobody starved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core_machine import FLAT, SERVED, WIDE, machine

from effort import times
from wattherd.estimate.gittins import gittins_index
from wattherd.estimate.job_work import EVERY_EVENT
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.node_choice import (
    CountTrial,
    Place,
    anywhere,
    consolidated,
    spread,
    yarn,
)
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.packings import yarn_trial
from wattherd.policy.schedule.priorities import (
    Deadline,
    Fifo,
    Gittins,
    LeastAttained,
    Order,
    Priority,
    Shortest,
    ShortestRemaining,
    SmallestRemainingService,
)
from wattherd.testing.timed_world import Story, t4_nodes, timed

GITTINS = Gittins(index=gittins_index([5.0, 50.0, 500.0]), limits_gpu_s=(100.0,))


def of(order: Order, **more: object) -> Callable[[], Ordered]:
    rules = {name: more.pop(name) for name in ("starve_s", "promote", "cost") if name in more}
    return lambda: Ordered(rules=RankingRules(order=order, **rules), **more)  # type: ignore[arg-type]


PLANNERS = {
    "fifo": (of(Fifo(), discipline=Discipline.STRICT, preemptive=False), (FLAT, WIDE, SERVED)),
    "backfill": (
        of(Fifo(), discipline=Discipline.BACKFILL, preemptive=False),
        (FLAT, WIDE, SERVED),
    ),
    "sjf": (of(Shortest(), preemptive=False, starve_s=30.0), (FLAT, WIDE, SERVED)),
    "priority": (of(Priority(), place=spread), (FLAT, SERVED)),
    "srtf": (of(ShortestRemaining(), starve_s=30.0), (FLAT, WIDE, SERVED)),
    "tiresias": (of(LeastAttained(limits_gpu_s=(20.0, 60.0)), promote=1.0), (FLAT, WIDE)),
    "gittins": (of(GITTINS, place=anywhere), (FLAT, WIDE)),
    "packed anew": (of(SmallestRemainingService(), place=yarn, anew=yarn_trial), (FLAT,)),
    "counted anew": (
        of(LeastAttained(limits_gpu_s=(20.0,)), place=anywhere, anew=CountTrial, cost=EVERY_EVENT),
        (FLAT,),
    ),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_every_job_ends_whatever_happens(name: str) -> None:
    planner, shapes = PLANNERS[name]
    case = machine(planner, *shapes, elastic=False).TestCase
    case.settings = settings(max_examples=times(25), stateful_step_count=40)
    case().runTest()


@st.composite
def streams(draw: st.DrawFn, most_gpus: int) -> list[JobSpec]:
    """Jobs of known length, one after the other."""
    at_s, jobs = 0.0, []
    for number in range(draw(st.integers(2, 14))):
        at_s += draw(st.sampled_from([0.0, 1.0, 7.0, 40.0]))
        gpus, lasts_s = draw(st.integers(1, most_gpus)), draw(st.integers(1, 120))
        spec = timed(f"j{number}", gpus, at_s=at_s, lasts_s=float(lasts_s),
                     priority=draw(st.integers(0, 2)))  # fmt: skip
        jobs.append(spec)
    return jobs


def run(planner: Ordered, jobs: Sequence[JobSpec], *gpus: int) -> Story:
    return Story(planner, t4_nodes(*gpus), jobs, round_s=0.0)


def in_turn(discipline: Discipline, place: Place = consolidated) -> Ordered:
    return of(Fifo(), discipline=discipline, preemptive=False, place=place)()


@given(jobs=streams(most_gpus=8))
@settings(max_examples=times(150))
def test_backfill_never_delays_the_head_job(jobs: list[JobSpec]) -> None:
    """Until somebody must wait both do the same; the first who waits starts when he would strictly.

    On one node, where no placement is worse than another.
    """
    strict, passed = (
        run(in_turn(Discipline.STRICT), jobs, 8),
        run(in_turn(Discipline.BACKFILL), jobs, 8),
    )
    head = next((job for job in jobs if strict.starts(job.id) != [job.submit_s]), None)
    if head is not None:
        assert passed.starts(head.id) == strict.starts(head.id)
    assert all(len(passed.starts(job.id)) == 1 for job in jobs)


ORDERS: dict[str, Order] = {
    "fifo": Fifo(),
    "priority": Priority(),
    "deadline": Deadline(),
    "srtf": ShortestRemaining(),
    "srsf": SmallestRemainingService(),
    "tiresias": LeastAttained(limits_gpu_s=(50.0, 400.0)),
    "gittins": GITTINS,
}


@pytest.mark.parametrize("name", ORDERS)
@given(jobs=streams(most_gpus=10))
@settings(max_examples=times(30))
def test_gangs_run_whole_and_all_of_them_end(name: str, jobs: list[JobSpec]) -> None:
    """`Story` checks after every event that no gang is split and no device given twice."""
    told = run(of(ORDERS[name])(), jobs, 4, 4, 2)
    assert not told.core.jobs
    assert all(told.starts(job.id) for job in jobs)


@pytest.mark.parametrize("name", ORDERS)
@given(
    wide=st.integers(5, 8), lasts_s=st.integers(20, 90), every_s=st.integers(5, 30),
    gpus=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=times(25))
def test_nobody_starves_however_full_it_is(
    name: str, wide: int, lasts_s: int, every_s: int, gpus: int
) -> None:
    """Whatever the stream of more favoured jobs, the wait ends soon after `starve_s`."""
    stream = [
        timed(f"s{n:03}", gpus, at_s=float(every_s * n), lasts_s=float(lasts_s), priority=1)
        for n in range(60)
    ]
    late = timed("late", wide, at_s=1.0, lasts_s=5000.0, priority=0)
    told = run(of(ORDERS[name], starve_s=200.0)(), [*stream, late], 8)
    assert told.starts("late")[0] <= 1.0 + 200.0


@given(jobs=streams(most_gpus=8))
@settings(max_examples=times(60))
def test_counting_and_packing_agree_where_one_gpu_is_as_good_as_another(
    jobs: list[JobSpec],
) -> None:
    """On a single node YARN's rule can place whatever fits in sum."""
    order = SmallestRemainingService()
    packed = run(of(order, place=yarn, anew=yarn_trial)(), jobs, 8)
    counted = run(of(order, place=anywhere, anew=CountTrial)(), jobs, 8)
    assert [packed.starts(job.id) for job in jobs] == [counted.starts(job.id) for job in jobs]
