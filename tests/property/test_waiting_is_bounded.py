"""However many short jobs keep coming, no job waits for ever under our planner: a bound.

A job is overdue once it has waited `PATIENCE` times as long as it still has to run. Then it waits
for what was submitted before it and for nobody else. Planners look at events, so the next end of a
job comes on top; and whoever was owed GPUs in vain is asked again a little later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.model.event import BudgetChanged, Event, TenantLimited
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.job_progress import StatedProgress
from wattherd.policy.schedule.overdue import IN_VAIN, PATIENCE
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.testing.timed_world import Story, t4_nodes, timed

CLUSTER = t4_nodes(4, 4, 2)
MOST_W = 10 * GPUS["T4"].max_w
LASTING_S = 400.0
SHORT_S = (5.0, 10.0)
LONG_S = (15.0, 30.0)
WIDE = ((1, 1), (4, 1), (10, 1), (1, 4), (2, 4), (3, 2))
"""Tasks, and GPUs of each on one node."""


def ours(patience: float = PATIENCE) -> ProgressPerWatt:
    return ProgressPerWatt(progress=StatedProgress(), look_s=None, patience=patience)


@dataclass(frozen=True)
class Stream:
    """Short jobs for ever, by turns; `wide` are (when, how long, tasks, GPUs of each)."""

    gaps: list[float]
    lengths: list[float]
    widths: list[int]
    wide: list[tuple[float, float, tuple[int, int]]]

    def jobs(self) -> list[JobSpec]:
        """In order of submission."""
        jobs: list[JobSpec] = []
        at_s = 0.0
        while at_s < LASTING_S:
            number = len(jobs)
            lasts_s = self.lengths[number % len(self.lengths)]
            gpus = self.widths[number % len(self.widths)]
            jobs.append(timed(f"s{number}", gpus, at_s=at_s, lasts_s=lasts_s))
            at_s += self.gaps[number % len(self.gaps)]
        for number, (at_s, lasts_s, (tasks, gpus)) in enumerate(self.wide):
            roles = (TaskRole(count=tasks, gpu_count=gpus),)
            jobs.append(timed(f"w{number}", at_s=at_s + number, lasts_s=lasts_s, roles=roles))
        return sorted(jobs, key=lambda job: job.submit_s)


def some(values: Sequence[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most)


WIDE_ONES = st.tuples(
    st.sampled_from([3.0, 20.0, 60.0]), st.sampled_from(LONG_S), st.sampled_from(WIDE)
)
STREAMS = st.builds(
    Stream,
    gaps=some([2.0, 4.0, 8.0], 6),
    lengths=some(SHORT_S, 6),
    widths=some([1, 1, 2], 6),
    wide=st.lists(WIDE_ONES, min_size=1, max_size=4),
)


def bounds_s(story: Story, jobs: list[JobSpec], patience: float) -> dict[str, float]:
    """When each must have ended at the latest."""
    lasts_s = {job.id: job.duration_s or 0.0 for job in jobs}
    last_s = {job.id: 0.0 for job in jobs}
    for at_s, command in story.commands:
        name = getattr(command, "job_id", "")
        if name in last_s:
            last_s[name] = at_s
    found = {}
    for number, job in enumerate(jobs):
        own_s = lasts_s[job.id]
        # The last start of an earlier job and its length say when it ended, or a little later.
        before_s = sum(
            lasts_s[one.id]
            for one in jobs[:number]
            if last_s[one.id] + lasts_s[one.id] > job.submit_s
        )
        waits_s = IN_VAIN * (patience * own_s + before_s) + max(lasts_s.values())
        found[job.id] = job.submit_s + waits_s + own_s
    return found


def ended_s(story: Story, jobs: list[JobSpec]) -> dict[str, float]:
    """When each ended: after its last start, what it had not done before."""
    found = {}
    for job in jobs:
        starts, stops = story.starts(job.id), story.stops(job.id)
        if job.id in story.core.jobs or not starts:
            found[job.id] = math.inf
            continue
        done_s = sum(stop_s - start_s for start_s, stop_s in zip(starts, stops, strict=False))
        found[job.id] = starts[-1] + (job.duration_s or 0.0) - done_s
    return found


def late(story: Story, jobs: list[JobSpec], patience: float = PATIENCE) -> list[str]:
    """Who ended after its bound."""
    bound, end = bounds_s(story, jobs, patience), ended_s(story, jobs)
    return [job.id for job in jobs if end[job.id] > bound[job.id] + 1e-6]


@given(stream=STREAMS)
@settings(max_examples=times(60), deadline=None)
def test_nobody_waits_for_ever_whatever_its_width_and_where_free_gpus_lie(
    stream: Stream,
) -> None:
    jobs = stream.jobs()
    assert not late(Story(ours(), CLUSTER, jobs), jobs)


@given(
    stream=STREAMS,
    part=st.sampled_from([0.4, 0.6, 0.8]),
    at_s=st.sampled_from([0.0, 50.0, 150.0]),
)
@settings(max_examples=times(40), deadline=None)
def test_nor_under_a_budget_that_carries_its_width(
    stream: Stream, part: float, at_s: float
) -> None:
    """What the budget never carries is told so elsewhere, and takes nothing from anybody here."""
    jobs = stream.jobs()
    budget = BudgetChanged(at_s=at_s, budget_w=part * MOST_W)
    story = Story(ours(), CLUSTER, jobs, events=[budget])
    t4 = GPUS["T4"]
    cap_w = t4.min_cap_w or t4.max_w
    least_w = {job.id: job.gpus * cap_w + (10 - job.gpus) * t4.idle_w for job in jobs}
    hopeless = [name for name, needs_w in least_w.items() if needs_w > part * MOST_W]
    assert not set(late(story, jobs)) - set(hopeless)


@given(stream=STREAMS, shut=st.integers(1, 12), most=st.sampled_from([0, 1]))
@settings(max_examples=times(40), deadline=None)
def test_nor_behind_jobs_that_a_limit_refuses_for_ever(
    stream: Stream, shut: int, most: int
) -> None:
    jobs = stream.jobs()
    refused = [
        timed(f"r{n}", 2 + n % 3, lasts_s=10.0 + n, tenant=f"t{n}", user=f"u{n}")
        for n in range(shut)
    ]
    limits: list[Event] = [
        TenantLimited(at_s=0.0, tenant=f"t{n}", most_gpus=most) for n in range(shut)
    ]
    story = Story(ours(), CLUSTER, [*refused, *jobs], events=limits, until_s=4 * LASTING_S)
    assert not late(story, jobs)


def test_the_bound_is_what_keeps_it() -> None:
    """The same stream with endless patience: the search above would find it."""
    jobs = [timed(f"s{n}", at_s=2.0 * n, lasts_s=10.0) for n in range(200)]
    wide = timed("wide", 10, at_s=3.0, lasts_s=30.0)
    given_ = sorted([*jobs, wide], key=lambda job: job.submit_s)
    starved = Story(ours(math.inf), CLUSTER, given_)
    assert "wide" in late(starved, given_)
    assert not late(Story(ours(), CLUSTER, given_), given_)


@pytest.mark.parametrize("priority", [0, 5])
def test_the_bound_holds_among_equals_and_higher_priority_still_comes_first(priority: int) -> None:
    jobs = [timed(f"s{n}", at_s=2.0 * n, lasts_s=10.0, priority=priority) for n in range(200)]
    wide = timed("wide", 10, at_s=3.0, lasts_s=30.0)
    story = Story(ours(), CLUSTER, [*jobs, wide])
    assert (story.starts("wide")[-1] < LASTING_S) == (priority == 0)
