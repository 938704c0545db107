"""A gang is overtaken for no longer than what already runs: the bound that holds give.

Once all jobs submitted earlier have started, a job is first in line. From then on nothing that
could use its room is started, so it begins at the latest when everything that ran has ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.model.command import FinishJob, StartJob, StopJob
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.topology import chains_of
from wattherd.policy.contract import Planner
from wattherd.policy.queue.fair_share import NO_SHARE, FairClaim, FairShares, fair_stops
from wattherd.policy.queue.gang import FreeRoom
from wattherd.policy.queue.reclaim import Reclaim, ReclaimStops
from wattherd.policy.queue.tree import FAIR_SHARING, CapacityQueue, QueueTree
from wattherd.policy.schedule import capacity
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.hived import HiveD
from wattherd.testing.timed_world import Story, t4_nodes, timed

CLUSTER = t4_nodes(4, 4, 4)
LONGEST_S = 40.0
PLANNERS: dict[str, Planner] = {
    "capacity": CapacityScheduler(tree=QueueTree(CapacityQueue(name="default"))),
    "drf": Drf(),
    "hived": HiveD(
        chains=chains_of(CLUSTER, within={4: (2, 2)}), shares={"default": {"T4x4": {"node": 3}}}
    ),
}


@st.composite
def streams(draw: st.DrawFn, queues: tuple[str, ...] = ("default",)) -> list[JobSpec]:
    jobs, at_s = [], 0.0
    for number in range(draw(st.integers(5, 40))):
        at_s += draw(st.sampled_from([0.0, 1.0, 3.0, 10.0]))
        tasks, gpus = draw(
            st.sampled_from([(1, 1)] * 6 + [(2, 1), (5, 1), (12, 1), (1, 4), (3, 4)])
        )
        roles = (TaskRole(count=tasks, gpu_count=gpus),)
        lasts_s = draw(st.floats(1.0, LONGEST_S))
        queue = draw(st.sampled_from(queues))
        jobs.append(timed(f"j{number}", at_s=at_s, lasts_s=lasts_s, roles=roles, queue=queue))
    return jobs


@pytest.mark.parametrize("name", PLANNERS)
@given(jobs=streams())
@settings(max_examples=times(60))
def test_the_first_in_line_waits_for_what_runs_and_for_nothing_else(
    name: str, jobs: list[JobSpec]
) -> None:
    story = Story(PLANNERS[name], CLUSTER, jobs)
    turn_s = 0.0
    for job in jobs:
        (start_s,) = story.starts(job.id)
        turn_s = max(turn_s, job.submit_s)
        assert start_s <= turn_s + LONGEST_S
        turn_s = max(turn_s, start_s)


@given(jobs=streams(queues=("x", "y")))
@settings(max_examples=times(60))
def test_what_a_queue_is_owed_comes_after_the_notice_or_after_what_runs(
    jobs: list[JobSpec],
) -> None:
    """Two equal queues lend and reclaim; no job is wider than a guarantee (wide ones: below).

    First the queue's own jobs must end until it is owed the gang, then borrowers get notice, or,
    on nodes that the other queue uses by right, jobs must end by themselves.
    """
    jobs = [job for job in jobs if job.gpus <= 6]
    halves = [
        CapacityQueue(name=name, guaranteed_pct=50, user_limit_factor=2) for name in ("x", "y")
    ]
    reclaim = Reclaim(wait_s=5.0, dead_zone=0.0, natural=1.0, per_cycle=1.0)
    planner = CapacityScheduler(
        tree=QueueTree(CapacityQueue(name="root", children=tuple(halves))), reclaim=reclaim
    )
    story = Story(planner, CLUSTER, jobs)
    for queue in ("x", "y"):
        first_in_line = 0.0
        for since_s, until_s in stretches(story, [job for job in jobs if job.queue == queue]):
            first_in_line = max(first_in_line, until_s - since_s)
        assert first_in_line <= 2 * LONGEST_S + reclaim.wait_s


BORROWING: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"preempts_to_borrow": "lower-priority"},
        {"preempts_to_borrow": "lower-priority", "preempts_to_borrow_up_to": 0},
    ]
)


@st.composite
def trees(draw: st.DrawFn) -> QueueTree:
    """Three queues, two of them perhaps below another: zeros, limits, every choice of stops."""
    parts: tuple[float, ...] = draw(
        st.sampled_from([(50, 50, 0), (100, 0, 0), (34, 33, 33), (60, 40, 0), (10, 80, 10)])
    )
    above = parts[0] + parts[1] if draw(st.booleans()) else None
    if above is not None:
        parts = 100 * parts[0] / above, 100 * parts[1] / above, parts[2]
    reclaims = [draw(st.sampled_from(["any", "any", "lower-priority", "never"])) for _ in parts]
    children = [
        CapacityQueue(
            name=name,
            guaranteed_pct=part,
            user_limit_factor=-1,
            user_limit_pct=draw(st.sampled_from([100, 50, 25])),
            order=draw(st.sampled_from(["fifo", "fifo", "fair", "sjf"])),
            preempts=draw(st.sampled_from(["never", "never", "lower-priority", "lower-or-newer"])),
            preempts_above_user_limit=draw(st.booleans()),
            reclaims=from_others,
            priority=draw(st.sampled_from([0, 0, 1, -2])),
            reclaimable=draw(st.sampled_from([True, True, True, False])),
            weight=draw(st.sampled_from([1.0, 1.0, 0.0, 3.0])),
            **(draw(BORROWING) if from_others != "never" else {}),
        )
        for name, part, from_others in zip("xyz", parts, reclaims, strict=True)
    ]
    half_life_s = draw(st.sampled_from([None, None, 10.0, 1e6]))
    if above is not None:
        pair = tuple(children[:2])
        parent = CapacityQueue(name="p", guaranteed_pct=above, children=pair)
        children = [replace(parent, half_life_s=half_life_s), children[2]]
    return QueueTree(
        CapacityQueue(
            name="root",
            children=tuple(children),
            half_life_s=half_life_s,
            fair_sharing=draw(st.sampled_from([(), (), *FAIR_SHARING])),
        )
    )


@given(
    tree=trees(),
    jobs=streams(queues=("x", "y", "z")),
    reclaim=st.sampled_from(
        [
            None,
            Reclaim(),
            Reclaim(wait_s=5.0, dead_zone=0.0, natural=1.0, per_cycle=1.0),
            Reclaim(wait_s=0.0, balance=True),
        ]
    ),
    who=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 0, 1, 2])), min_size=40),
)
@settings(max_examples=times(60))
def test_no_job_waits_for_ever_whatever_its_width_its_queue_and_its_limits(
    tree: QueueTree, jobs: list[JobSpec], reclaim: Reclaim | None, who: list[tuple[str, int]]
) -> None:
    """Nor do queues take the same devices from each other to and fro."""
    jobs = [
        replace(job, user=user, priority=priority)
        for job, (user, priority) in zip(jobs, who, strict=False)
    ]
    story = Story(CapacityScheduler(tree=tree, reclaim=reclaim), CLUSTER, jobs, quota=tree)
    assert not story.core.jobs
    assert sum(len(story.stops(job.id)) for job in jobs) <= 6 * len(jobs)


@given(
    jobs=streams(),
    limit_pct=st.sampled_from([0, 20, 34, 50]),
    wait_s=st.sampled_from([0.0, 5.0]),
    users=st.lists(st.sampled_from("abc"), min_size=40),
)
@settings(max_examples=times(60))
def test_users_come_down_to_their_limit_by_stops_and_never_go_to_and_fro(
    jobs: list[JobSpec], limit_pct: float, wait_s: float, users: list[str]
) -> None:
    """One queue of all 12 GPUs, in which nothing else stops anybody; and all jobs end."""
    jobs = [replace(job, user=user) for job, user in zip(jobs, users, strict=False)]
    tree = QueueTree(
        CapacityQueue(name="default", user_limit_pct=limit_pct, preempts_above_user_limit=True)
    )
    planner = CapacityScheduler(tree=tree, reclaim=Reclaim(wait_s=wait_s))
    story = Story(planner, CLUSTER, jobs)
    assert not story.core.jobs
    gpus, user = {job.id: job.gpus for job in jobs}, {job.id: job.user for job in jobs}
    least = max(12 * limit_pct / 100, 12 / len(set(user.values())))
    held, starts = Counter[str](), Counter[tuple[float, str]]()
    for at_s, command in story.commands:
        if isinstance(command, StartJob):
            starts[at_s, user[command.job_id]] += gpus[command.job_id]
    for at_s, command in story.commands:
        if not isinstance(command, StartJob | StopJob | FinishJob):
            continue
        whose = user[command.job_id]
        held[whose] += gpus[command.job_id] * (1 if isinstance(command, StartJob) else -1)
        if isinstance(command, StopJob):  # a plan stops first what it starts others beside
            assert held[whose] + starts[at_s, whose] >= least
    assert sum(len(story.stops(job.id)) for job in jobs) <= len(jobs)


@given(
    jobs=streams(queues=("x", "y", "z")),
    parts=st.sampled_from([(50, 50, 0), (34, 33, 33), (100, 0, 0)]),
    weights=st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 4.0])] * 3),
    strategies=st.sampled_from(FAIR_SHARING),
    wait_s=st.sampled_from([0.0, 5.0]),
)
@settings(max_examples=times(60))
def test_with_fair_sharing_only_borrowers_give_and_never_to_and_fro(
    jobs: list[JobSpec],
    parts: tuple[float, ...],
    weights: tuple[float, ...],
    strategies: tuple[str, ...],
    wait_s: float,
) -> None:
    """And all jobs end. `checked_stops` says what is fair of each choice."""
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=tuple(
                CapacityQueue(name=name, guaranteed_pct=part, weight=weight, user_limit_factor=-1)
                for name, part, weight in zip("xyz", parts, weights, strict=True)
            ),
            fair_sharing=strategies,
        )
    )
    reclaim = Reclaim(wait_s=wait_s, per_cycle=0.01)  # one claim in each plan
    with patch.object(capacity, "fair_stops", checked_stops):
        story = Story(CapacityScheduler(tree=tree, reclaim=reclaim), CLUSTER, jobs)
    assert not story.core.jobs
    assert sum(len(story.stops(job.id)) for job in jobs) <= 6 * len(jobs)


def checked_stops(room: FreeRoom, claim: FairClaim) -> ReclaimStops | None:
    """Those of `fair_stops`, once it is clear that no stop was unfair (in a flat tree)."""
    stops = fair_stops(room, claim)
    if stops is None:
        return None
    shares, tree = claim.at_work, claim.at_work.tree
    givers = {job.spec.queue for job in stops.jobs}
    assert all(shares.of(queue) > NO_SHARE for queue in givers)
    mine = shares.of(claim.place.queue.name, claim.shape.gpus)
    assert not givers or mine <= max(map(shares.of, givers))
    left = FairShares(tree, shares.total, dict(shares.used))
    for job in stops.jobs:
        left.add(tree[job.spec.queue], -job.spec.gpus)
    if claim.strategies == ("final-share",):
        assert all(left.of(queue) >= mine for queue in givers)
    return stops


def stretches(story: Story, jobs: list[JobSpec]) -> list[tuple[float, float]]:
    """Times during which one and the same job was the first of `jobs` to wait."""
    changes = [(job.submit_s, 0, job.id) for job in jobs]
    changes += [(at, 1, job.id) for job in jobs for at in story.stops(job.id)]
    changes += [(at, 2, job.id) for job in jobs for at in story.starts(job.id)]
    order, waiting = [job.id for job in jobs], set[str]()
    found: list[tuple[float, float]] = []
    first, since_s = "", 0.0
    for at_s, kind, job_id in sorted(changes):
        (waiting.discard if kind == 2 else waiting.add)(job_id)
        now_first = min(waiting, key=order.index, default="")
        if now_first != first:
            if first:
                found.append((since_s, at_s))
            first, since_s = now_first, at_s
    return found
