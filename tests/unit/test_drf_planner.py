"""Dominant resource fairness on a running cluster."""

from __future__ import annotations

from collections import Counter

import pytest

from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.testing.timed_world import Story, t4_nodes, timed

GB = 1024


def task_of(user: str, number: int, cpus: int, gigabytes: int, **more: object) -> JobSpec:
    role = TaskRole(gpu_count=0, cpu_milli=1000 * cpus, memory_mib=GB * gigabytes)
    return timed(f"{user}{number}", user=user, roles=(role,), **more)  # type: ignore[arg-type]


def held(story: Story) -> Counter[str]:
    return Counter(
        job.spec.user or job.spec.queue for job in story.core.jobs.values() if job.active
    )


def test_the_example_of_the_paper_on_nine_cpus_and_eighteen_gigabytes() -> None:
    node = NodeSpec(name="n", cpu_milli=9000, memory_mib=18 * GB)
    jobs = [task_of("A", n, 1, 4) for n in range(9)] + [task_of("B", n, 3, 1) for n in range(9)]
    for given in (jobs, jobs[::-1]):
        story = Story(Drf(), ClusterSpec((node,)), given, until_s=50.0, round_s=10.0)
        assert held(story) == {"A": 3, "B": 2}


@pytest.mark.parametrize(
    ("over", "weights", "expected"),
    [
        ("user", {}, {"ann": 4, "bob": 4}),
        ("user", {"bob": (3.0, 3.0, 3.0)}, {"ann": 2, "bob": 6}),
    ],
)
def test_users_share_by_weight(
    over: str, weights: dict[str, tuple[float, ...]], expected: dict[str, int]
) -> None:
    jobs = [timed(f"{u}{n}", user=u) for u in ("ann", "bob") for n in range(9)]
    planner = Drf(over=over, weights=weights)
    story = Story(planner, t4_nodes(4, 4), jobs, until_s=50.0, round_s=10.0)
    assert held(story) == expected


def test_queues_may_be_the_owners() -> None:
    jobs = [timed(f"{q}{n}", queue=q) for q in ("x", "y") for n in range(9)]
    story = Story(Drf(over="queue"), t4_nodes(8), jobs, until_s=50.0, round_s=10.0)
    assert held(story) == {"x": 4, "y": 4}


def test_who_waits_is_told_his_share() -> None:
    jobs = [timed(f"a{n}", user="ann") for n in range(3)]
    story = Story(Drf(), t4_nodes(2), jobs, until_s=50.0)
    assert story.why("a2") == (
        "WaitingForGpus: asked 1 GPU, available 0 GPUs "
        "(the dominant share of user 'ann' is 100%; those with less come first)"
    )


@pytest.mark.long
def test_a_wide_gang_is_not_kept_waiting_by_a_stream_of_small_jobs() -> None:
    stream = [timed(f"s{n}", user="bob", at_s=5.0 * n, lasts_s=20.0) for n in range(200)]
    wide = timed("wide", 8, user="ann", at_s=50.0)
    story = Story(Drf(), t4_nodes(4, 4), [*stream, wide])
    assert story.starts("wide")[0] <= 70.0
