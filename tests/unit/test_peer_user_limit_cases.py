"""YARN's preemption inside a queue for user limits (userlimit_first), told as jobs on GPUs.

Numbers, or a tenth of them, are those of Hadoop's tests of intra-queue preemption by user limit; a
container there is a GPU here. YARN leaves a user at least one container above the limit; here he
keeps the limit itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from wattherd.model.command import GiveNotice, StopJob
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.testing.timed_world import Story, t4_nodes, timed

AT_ONCE = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
LONG_S = 36_000.0


def of(user: str, name: str, gpus: int = 1, at_s: float = 0.0, **more: Any) -> JobSpec:
    more.setdefault("queue", "a")
    return timed(name, gpus, user=user, at_s=at_s, lasts_s=LONG_S, **more)


def units(user: str, name: str, count: int, at_s: float = 0.0, **more: Any) -> list[JobSpec]:
    return [of(user, f"{name}-{n}", 1, at_s, **more) for n in range(count)]


def leaf(**of_queue: Any) -> QueueTree:
    """One queue that is promised all GPUs, in which users of half of it may be stopped beyond."""
    of_queue = {"user_limit_pct": 50, "preempts_above_user_limit": True, **of_queue}
    return QueueTree(CapacityQueue(name="a", **of_queue))


def story_of(total: int, jobs: list[JobSpec], tree: QueueTree | None = None, **more: Any) -> Story:
    planner = CapacityScheduler(tree=tree or leaf(), reclaim=more.pop("reclaim", AT_ONCE))
    more.setdefault("until_s", 60.0)
    return Story(planner, t4_nodes(total, cpu_milli=0), jobs, round_s=5.0, **more)


def gone(story: Story) -> Counter[str]:
    """How many jobs were stopped, by the name before the dash."""
    stops = [c.job_id for _, c in story.commands if isinstance(c, StopJob)]
    return Counter(job.split("-")[0] for job in stops)


def test_who_is_above_his_limit_makes_room_for_who_is_far_below() -> None:
    jobs = units("user1", "app1", 10) + units("user2", "app2", 3, 10.0)
    story = story_of(10, jobs)
    assert gone(story) == {"app1": 3}
    assert sorted(name for name in story.running() if "app2" in name) == [
        "app2-0", "app2-1", "app2-2",
    ]  # fmt: skip


def test_the_newest_go_first_and_are_told_why() -> None:
    jobs = [of("user1", f"app1-{n}", 2) for n in range(5)] + [of("user2", "app2", 4, 10.0)]
    story = story_of(10, jobs)
    assert sorted(c.job_id for _, c in story.commands if isinstance(c, StopJob)) == [
        "app1-3", "app1-4",
    ]  # fmt: skip
    (why,) = {c.reason for _, c in story.commands if isinstance(c, StopJob)}
    assert why is StopReason.PREEMPTED_FOR_PRIORITY
    just_then = story_of(10, jobs, until_s=10.0)
    assert just_then.why("app1-4").endswith(
        "('user1' is above the user limit of queue 'a', job app2 below)"
    )


def test_off_by_default_and_where_the_limit_is_the_whole_queue() -> None:
    jobs = units("user1", "app1", 10) + units("user2", "app2", 3, 10.0)
    assert not gone(story_of(10, jobs, leaf(preempts_above_user_limit=False)))
    assert not gone(story_of(10, jobs, leaf(user_limit_pct=100)))


def test_a_single_user_waits_for_his_own_jobs() -> None:
    jobs = units("user1", "app1", 10) + units("user1", "app2", 3, 10.0)
    assert not gone(story_of(10, jobs))
    jobs = units("user1", "app1", 3) + units("user1", "app2", 2) + units("user1", "app3", 3)
    jobs += units("user1", "more", 9, 10.0)
    assert not gone(story_of(10, jobs))


def test_nobody_who_holds_no_more_than_his_limit_is_stopped() -> None:
    """YARN's table leaves a fifth of the queue idle, which is used before anybody is stopped."""
    jobs = units("user1", "app1", 5) + units("user2", "app2", 3) + units("user2", "more", 3, 10.0)
    story = story_of(10, jobs)
    assert not gone(story)
    assert len(story.running()) == 10


def test_the_limit_comes_before_priorities() -> None:
    jobs = units("user1", "app1", 10, priority=2) + units("user2", "app2", 3, 10.0, priority=1)
    assert gone(story_of(10, jobs)) == {"app1": 3}


def test_the_newer_of_several_jobs_of_the_user_above_the_limit_give() -> None:
    """Of 100: 30 and 50 against 20; user2 comes to his limit, and user1 keeps his."""
    jobs = units("user1", "app1", 3) + units("user2", "app2", 2) + units("user1", "app3", 5)
    jobs += units("user1", "more1", 6, 10.0) + units("user2", "more2", 4, 10.0)
    story = story_of(10, jobs)
    assert gone(story) == {"app3": 3}
    holds = Counter(name.split("-")[0] for name in story.running())
    assert holds == {"app1": 3, "app2": 2, "app3": 2, "more2": 3}


def test_the_lowest_priority_of_that_user_gives_first() -> None:
    jobs = units("user1", "app1", 3, priority=3) + units("user2", "app2", 2, priority=1)
    jobs += units("user1", "app3", 5, priority=4) + units("user2", "more2", 4, 10.0, priority=1)
    assert gone(story_of(10, jobs)) == {"app1": 3}


def test_each_of_two_queues_looks_at_its_own_users() -> None:
    """Of 60 and 40; no queue borrows, so that nothing is reclaimed."""
    shared: dict[str, Any] = {
        "user_limit_pct": 50, "user_limit_factor": -1, "preempts_above_user_limit": True,
    }  # fmt: skip
    children = (
        CapacityQueue(name="a", guaranteed_pct=60, **shared),
        CapacityQueue(name="b", guaranteed_pct=40, **shared),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = units("user1", "app1", 5) + units("user2", "app2", 1)
    jobs += units("user1", "app5", 3, queue="b") + units("user2", "app6", 1, queue="b")
    jobs += units("user2", "more2", 4, 10.0) + units("user2", "more6", 4, 10.0, queue="b")
    story = story_of(10, jobs, tree)
    assert gone(story) == {"app1": 2, "app5": 1}


def test_a_queue_that_borrows_shares_what_it_has() -> None:
    """The limit is a part of what the queue holds where that is more than it is promised."""
    shared: dict[str, Any] = {"user_limit_factor": -1}
    mine = {**shared, "user_limit_pct": 50, "preempts_above_user_limit": True}
    children = (
        CapacityQueue(name="a", guaranteed_pct=40, **mine),
        CapacityQueue(name="b", guaranteed_pct=60, **shared),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = units("user1", "app1", 10) + units("user2", "app2", 9, 10.0)
    assert gone(story_of(10, jobs, tree)) == {"app1": 5}


def test_three_users_come_to_a_third_each() -> None:
    tree = leaf(user_limit_pct=10)
    jobs = units("user1", "app1", 9)
    jobs += units("user2", "app2", 5, 10.0) + units("user3", "app3", 5, 10.0)
    story = story_of(9, jobs, tree)
    assert gone(story) == {"app1": 6}
    holds = Counter(name.split("-")[0] for name in story.running())
    assert holds == {"app1": 3, "app2": 3, "app3": 3}


@pytest.mark.parametrize(
    ("asked", "stops"),
    [(3, {"wide": 1}), (6, {"wide": 1}), (7, {})],
)
def test_who_must_give_keeps_as_much_as_who_asks_will_hold(
    asked: int, stops: dict[str, int]
) -> None:
    """Of 12: the user of two gangs of 6 is left with one, and no smaller than the one that asks."""
    jobs = [of("user1", "wide-0", 6), of("user1", "wide-1", 6), of("user2", "in", asked, 10.0)]
    assert gone(story_of(12, jobs)) == stops


def test_a_gang_whose_end_takes_its_user_below_the_limit_stays() -> None:
    jobs = [of("user1", "wide", 8), of("user2", "in", 3, 10.0)]
    story = story_of(8, jobs)
    assert not gone(story)
    assert story.why("in").startswith("WaitingForGpus: asked 3 GPUs, available 0 GPUs")


def test_equal_users_never_take_the_same_gpus_from_each_other() -> None:
    """Gangs of 4 and of 6 of three users on 16 GPUs: what was given is not taken back."""
    tree = leaf(user_limit_pct=25)
    jobs = [of("user1", f"x-{n}", 4) for n in range(6)]
    jobs += [of("user2", f"y-{n}", 6, 10.0) for n in range(3)]
    jobs += [of("user3", f"z-{n}", 4, 20.0) for n in range(3)]
    story = story_of(16, jobs, tree, until_s=500.0)
    assert sum(gone(story).values()) <= 3
    assert all(at < 30.0 for at, c in story.commands if isinstance(c, StopJob))


def test_notice_comes_first() -> None:
    patient = Reclaim(wait_s=15.0)
    jobs = [*units("user1", "app1", 10), of("user2", "in", 2, 10.0)]
    story = story_of(10, jobs, reclaim=patient)
    notices = [(at, c.job_id, c.at_s) for at, c in story.commands if isinstance(c, GiveNotice)]
    assert notices == [(10.0, "app1-9", 25.0), (10.0, "app1-8", 25.0)]
    assert story.starts("in") == [25.0]


def test_what_another_queue_has_borrowed_comes_before_own_users() -> None:
    shared: dict[str, Any] = {"user_limit_factor": -1}
    children = (
        CapacityQueue(
            name="a",
            guaranteed_pct=50,
            user_limit_pct=50,
            preempts_above_user_limit=True,
            **shared,
        ),
        CapacityQueue(name="b", guaranteed_pct=50, **shared),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = units("user1", "app1", 4) + units("user3", "lent", 6, queue="b")
    jobs += units("user2", "app2", 1, 10.0)
    assert gone(story_of(10, jobs, tree)) == {"lent": 1}
    assert gone(story_of(10, jobs, tree, reclaim=None)) == {"app1": 1}
