"""Gangs whole by priority, on traces: who is stopped for whom, queues, and the gang that waits."""

from __future__ import annotations

import pytest

from wattherd.model.job import JobSpec
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.queue.turns import QueueRules
from wattherd.policy.schedule.gang import STOPS_NOBODY, Gang
from wattherd.testing.timed_world import Story, t4_nodes, timed


def halves(**of_both: float) -> QueueTree:
    shared = {"guaranteed_pct": 50.0, "user_limit_factor": 2.0, **of_both}
    return QueueTree(
        CapacityQueue(
            name="root",
            children=tuple(CapacityQueue(name=name, **shared) for name in ("a", "b")),  # type: ignore[arg-type]
        )
    )


def many(prefix: str, count: int, **more: object) -> list[JobSpec]:
    return [timed(f"{prefix}{number}", **more) for number in range(count)]  # type: ignore[arg-type]


def played(jobs: list[JobSpec], gang: Gang, until_s: float = 50.0) -> Story:
    """On two nodes of four GPUs."""
    return Story(gang, t4_nodes(4, 4), jobs, until_s=until_s)


def test_the_fewest_and_newest_of_lower_priority_make_room_for_a_gang() -> None:
    jobs = [*many("low", 6), timed("mid", 2, priority=1), timed("boss", 3, at_s=10.0, priority=5)]
    assert sorted(played(jobs, Gang()).running()) == ["boss", "low0", "low1", "low2", "mid"]


@pytest.mark.parametrize("labels", [(), (STOPS_NOBODY,)])
def test_nobody_is_stopped_for_one_that_wants_nobody_stopped(
    labels: tuple[tuple[str, str], ...],
) -> None:
    jobs = [*many("low", 8), timed("boss", at_s=10.0, priority=5, labels=labels)]
    assert ("boss" in played(jobs, Gang()).running()) is not bool(labels)


def test_nobody_is_stopped_in_vain() -> None:
    jobs = [*many("low", 8), timed("huge", 9, at_s=10.0, priority=5)]
    assert len(played(jobs, Gang()).running()) == 8


def test_what_a_queue_lent_it_takes_back_and_no_more() -> None:
    jobs = [*many("b", 8, queue="b"), *many("a", 6, queue="a", at_s=10.0)]
    story = played(jobs, Gang(queues=QueueRules(tree=halves())))
    assert sorted(story.running()) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]


def test_a_maximum_holds_and_only_where_a_queue_says_so_do_the_important_take_quota() -> None:
    jobs = [*many("a", 4, queue="a"), timed("boss", at_s=10.0, queue="a", priority=5)]
    tree = halves(maximum_pct=50)
    waits = played(jobs, Gang(queues=QueueRules(tree=tree)))
    assert "queue 'a' may hold 4 GPUs at most" in waits.why("boss")
    rules = QueueRules(tree=tree, preempting=frozenset({"a"}))
    assert sorted(played(jobs, Gang(queues=rules)).running()) == ["a0", "a1", "a2", "boss"]


@pytest.mark.parametrize("patience_s", [20.0, float("inf")])
def test_small_jobs_that_keep_coming_do_not_starve_a_gang(patience_s: float) -> None:
    small = [timed(f"s{at}", 4, lasts_s=7.0, at_s=3.5 * at) for at in range(40)]
    jobs = [*small, timed("gang", 8, at_s=5.0)]
    started = "gang" in played(jobs, Gang(patience_s=patience_s), until_s=100.0).running()
    assert started is (patience_s < 100)


def test_what_others_made_room_for_is_there_for_those_who_stop_nobody() -> None:
    never = (STOPS_NOBODY,)
    jobs = [
        *(timed(f"low{at}", 4) for at in range(2)),
        timed("early", at_s=10.0, priority=5, labels=never),
        timed("boss", 3, at_s=10.0, priority=5),
        timed("late", at_s=10.0, priority=5, labels=never),
    ]
    story = Story(Gang(), t4_nodes(4, 4), jobs, until_s=10.0, round_s=0.0)
    assert story.starts("late") == [10.0]
    assert sorted(story.running()) == ["boss", "late", "low0"]
