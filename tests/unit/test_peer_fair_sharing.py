"""Kueue's fair sharing: its own preemption tests as jobs on GPUs, and whose turn it is.

Numbers are those of TestFairPreemptions (Kueue), doubled where a CPU is halved there; a CPU there
is a GPU here. Of equal jobs the newest goes first here, there the one whose name comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_peer_cohort_cases import C, asking, jobs_of, tree_of, units
from test_peer_queue_cases import AT_ONCE, gone, job

from wattherd.errors import UserError
from wattherd.model.command import GiveNotice, StopJob
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.queue.capacity import ideal
from wattherd.policy.queue.fair_share import FairShares, LeafHead
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.testing.timed_world import Story, t4_nodes, timed

BOTH = ("final-share", "initial-share")
FINAL, INITIAL = BOTH[:1], BOTH[1:]
THREE = C("a", 3), C("b", 3), C("c", 3)
SIX = C("a", 6), C("b", 6), C("c", 6)


def fair(
    *queues: C,
    own: int = 0,
    weights: Mapping[str, float] | None = None,
    strategies: tuple[str, ...] = BOTH,
) -> tuple[QueueTree, int]:
    """Queues and cohorts with weights (1 where none is said)."""
    tree, total = tree_of(*queues, own=own)

    def weighted(queue: CapacityQueue) -> CapacityQueue:
        children = tuple(weighted(child) for child in queue.children)
        return replace(queue, weight=(weights or {}).get(queue.name, 1.0), children=children)

    return QueueTree(replace(weighted(tree.root), fair_sharing=strategies)), total


def stopped_for(asks: JobSpec, held: Sequence[JobSpec], *queues: C, **of_tree: Any) -> list[str]:
    """Who is stopped once `asks` comes beside all that is `held`; it starts if and only if any."""
    tree, total = fair(*queues, **of_tree)
    planner = CapacityScheduler(tree=tree, reclaim=AT_ONCE)
    story = Story(planner, t4_nodes(total, cpu_milli=0), [*held, asks], until_s=10.5, round_s=5.0)
    assert all(story.starts(one.id)[0] < asks.submit_s for one in held)
    stops = gone(story)
    assert bool(story.starts(asks.id)) == bool(stops)
    return stops


def counted(stops: list[str]) -> Counter[str]:
    """By the first letter of their names."""
    return Counter(name[0] for name in stops)


# --- one cohort ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "held", "queues", "stops"),
    [
        pytest.param(
            asking(1, "c"), units(a=3, b=5, c=1), THREE, {"b": 1},
            id="what is nominal comes from who uses most",
        ),
        pytest.param(
            asking(3, "c"), jobs_of(a2=("a", 1), a1=("a", 3), b2=("b", 3), b1=("b", 2)), THREE,
            {"a": 1},
            id="a queue that uses less, if the newest job of who uses most is not enough",
        ),
        pytest.param(
            asking(1, "a"), units(a=3, b=5, c=1), THREE, {"b": 1},
            id="what may be borrowed comes from who uses most",
        ),
        pytest.param(
            asking(4, "c"), [*jobs_of(aw=("a", 6), bw=("b", 6)), *units(a=2, b=2)], SIX,
            {"a": 1, "b": 1},
            id="each borrower gives one",
        ),
        pytest.param(
            asking(1, "c"), units(a=3, b=3, c=3), THREE, {},
            id="nobody while all are within what is nominal",
        ),
        pytest.param(
            asking(2, "a"), units(a=3, b=5), THREE, {},
            id="nobody if that turned the imbalance round",
        ),
        pytest.param(
            asking(2, "a"), jobs_of(b1=("b", 9)), THREE, {"b": 1},
            id="a huge job if nothing else will do",
        ),
        pytest.param(
            asking(5, "a"), jobs_of(a1=("a", 2), b1=("b", 7)), THREE, {},
            id="no huge job for another huge one",
        ),
        pytest.param(
            asking(6, "a"), jobs_of(b1=("b", 2), b2=("b", 2), b3=("b", 3)), THREE, {},
            id="no two smaller ones for a huge one",
        ),
        pytest.param(
            asking(4, "a"), jobs_of(b1=("b", 3), b2=("b", 3), c1=("c", 3)), THREE, {},
            id="nobody whose end would take his queue below what is nominal",
        ),
        pytest.param(
            asking(2, "a"), units(a=3, b=3, preemptible=3), (*THREE, C("preemptible")), {},
            id="nobody for a low priority alone",
        ),
    ],
)  # fmt: skip
def test_who_gives_in_one_cohort(
    asks: JobSpec, held: list[JobSpec], queues: tuple[C, ...], stops: dict[str, int]
) -> None:
    assert counted(stopped_for(asks, held, *queues)) == stops


def test_low_priorities_of_the_same_queue_go() -> None:
    low = jobs_of(low0=("a", 1, -1), low1=("a", 1, -1), a2=("a", 1), a3=("a", 1))
    assert stopped_for(asking(2, "a"), [*low, *units(b=5)], *THREE) == ["low0", "low1"]


def test_one_of_the_same_queue_and_one_of_the_largest_share() -> None:
    low = jobs_of(low0=("a", 1, -1), a2=("a", 1), a3=("a", 1))
    stops = stopped_for(asking(2, "a"), [*low, *units(b=6)], *THREE)
    assert counted(stops) == {"l": 1, "b": 1}


def test_own_ones_and_others_though_it_comes_to_borrow() -> None:
    held = jobs_of(low1=("a", 1, -1), low2=("a", 2, -1), b1=("b", 3), b2=("b", 3))
    stops = stopped_for(asking(4, "a"), held, *THREE)
    assert counted(stops) == {"l": 1, "b": 1}
    assert "low2" in stops


def test_the_job_that_leaves_its_queue_the_larger_share_is_preferred() -> None:
    """A wide one would do by the second strategy; the first one suffices."""
    held = jobs_of(b1=("b", 4), b3=("b", 4), b2=("b", 2), c1=("c", 2))
    assert stopped_for(asking(7, "a"), held, *SIX) == ["b2"]


def test_of_different_queues_if_the_largest_share_gets_smaller_and_never_back() -> None:
    held = jobs_of(b1=("b", 4), b2=("b", 5), c1=("c", 4), c2=("c", 5))
    assert counted(stopped_for(asking(7, "a"), held, *SIX)) == {"b": 1, "c": 1}
    tree, total = fair(*SIX)
    jobs = [*held, asking(7, "a")]
    planner = CapacityScheduler(tree=tree, reclaim=AT_ONCE)
    story = Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=900.0, round_s=5.0)
    assert all(at <= 11.0 for at, c in story.commands if isinstance(c, StopJob))


@pytest.mark.parametrize(("strategies", "stops"), [(INITIAL, ["b_low"]), (FINAL, ["b_high"])])
def test_the_strategy_says_whether_priority_or_the_share_counts(
    strategies: tuple[str, ...], stops: list[str]
) -> None:
    held = jobs_of(a1=("a", 3), b_low=("b", 5, 0), b_high=("b", 1, 1))
    assert stopped_for(asking(1, "a"), held, *THREE, strategies=strategies) == stops


def test_a_wide_job_goes_for_what_is_borrowed_only_by_the_second_strategy() -> None:
    held = jobs_of(a1=("a", 3), wide=("b", 6))
    assert stopped_for(asking(1, "a"), held, *THREE) == ["wide"]
    assert stopped_for(asking(1, "a"), held, *THREE, strategies=FINAL) == []


# --- weights --------------------------------------------------------------------------------------


def test_a_queue_of_a_larger_weight_gets_more() -> None:
    held = units(a=3, b=6)
    assert len(stopped_for(asking(2, "a"), held, *THREE, weights={"a": 2})) == 2
    assert stopped_for(asking(2, "a"), held, *THREE) == []


def test_all_that_a_queue_of_weight_zero_borrows_goes_and_nothing_of_its_own() -> None:
    held = units(a=3, b=6)
    assert len(stopped_for(asking(3, "a"), held, *THREE, weights={"b": 0})) == 3
    assert stopped_for(asking(1, "a"), units(a=3, b=3), *THREE[:2], weights={"b": 0}) == []


def test_nothing_of_a_cohort_of_weight_zero_that_borrows_nothing() -> None:
    queues = C("left"), C("right-cohort", 1, (C("right"),))
    weights = {"right": 0.0, "right-cohort": 0.0}
    assert stopped_for(asking(1, "left"), units(right=1), *queues, weights=weights) == []


def test_a_queue_of_weight_zero_takes_back_what_is_its_own() -> None:
    assert stopped_for(
        asking(1, "a"), jobs_of(b1=("b", 1)), C("a", 1), C("b"), weights={"a": 0}
    ) == ["b1"]
    inside = C("A", 1, (C("a"),)), C("b")
    weights = {"a": 0.0, "A": 0.0}
    assert stopped_for(asking(1, "a"), jobs_of(b1=("b", 1)), *inside, weights=weights) == ["b1"]


def test_two_queues_of_weight_zero_leave_each_other_alone_where_they_are_even() -> None:
    weights = {"a": 0.0, "b": 0.0}
    queues = C("a"), C("b"), C("spare", 4)
    held = units(a=2, b=2)
    assert stopped_for(asking(1, "a"), held, *queues, weights=weights) == []
    assert len(stopped_for(asking(1, "a"), units(a=1, b=3), *queues, weights=weights)) == 1


# --- cohorts in cohorts ---------------------------------------------------------------------------


def test_shares_are_compared_where_the_ways_part() -> None:
    left = C("LEFT", 5, (C("a", 1), C("b", 1)))
    right = C("RIGHT", 5, (C("d", 1), C("e", 1)))
    held = [job(f"{queue}{n}", 1, queue, priority=n) for queue in "bcde" for n in range(1, 6)]
    weights = {"a": 2.0, "LEFT": 2.0, "e": 0.99}
    stops = stopped_for(asking(5, "a"), held, left, C("c", 1), right, own=5, weights=weights)
    assert stops == ["b1", "b2", "c1", "c2", "e1"]


def test_a_borrower_in_a_cohort_that_borrows_nothing_is_safe() -> None:
    queues = C("a", 5), C("RIGHT", 1, (C("b"),))
    held = jobs_of(a1=("a", 1, -1), a2=("a", 1, -1), a3=("a", 1, -1), b1=("b", 1, -1))
    weights = {"a": 10.0, "b": 0.1, "RIGHT": 0.1}
    assert stopped_for(asking(5, "a"), held, *queues, weights=weights) == ["a1", "a2", "a3"]


def test_own_jobs_go_where_the_borrower_is_too_important() -> None:
    queues = C("a", 5, reclaims="lower-priority"), C("RIGHT", 3, (C("b"),))
    held = jobs_of(a1=("a", 1, -1), a2=("a", 1, -1), a3=("a", 1, -1), b1=("b", 4, 100))
    assert stopped_for(asking(4, "a"), held, *queues) == ["a1", "a2", "a3"]


def test_deep_below_two_organizations_their_weights_decide() -> None:
    def chain(top: str, *below: C) -> C:
        return C(top, 0, (C(top * 2, 0, (C(top * 3, 0, below),)),))

    queues = chain("A", C("a")), chain("B", C("b")), C("C", 0, (C("CC", 1),))
    weights = {"A": 1.01, "B": 0.99}
    held = jobs_of(b1=("b", 1))
    assert stopped_for(asking(1, "a"), held, *queues, weights=weights) == ["b1"]
    assert stopped_for(asking(1, "a"), held, *queues) == []


# --- whose turn it is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "heads", "weights", "first"),
    [
        ({"a": 4, "b": 5}, {"a": 1, "b": 1}, {}, "a"),
        ({"a": 4, "b": 5}, {"a": 3, "b": 1}, {}, "b"),  # the share with the job counts
        ({"a": 5, "b": 4}, {"a": 1, "b": 1}, {"a": 4.0}, "a"),
        ({"a": 1, "b": 0}, {"a": 2, "b": 1}, {}, "a"),  # both within their own: the older
        ({"a": 3, "b": 3}, {"a": 1, "b": 1}, {"a": 0.0}, "b"),
    ],
)
def test_the_least_share_with_its_job_is_served_first(
    used: dict[str, int], heads: dict[str, int], weights: dict[str, float], first: str
) -> None:
    tree, total = fair(*THREE, weights=weights)
    shares = FairShares(tree, total, {name: float(gpus) for name, gpus in used.items()})
    line = {name: LeafHead(gpus, 0, n) for n, (name, gpus) in enumerate(heads.items())}
    assert shares.next_leaf(line) == first


def test_of_equal_shares_priority_and_then_age_come_first() -> None:
    tree, total = fair(*THREE)
    shares = FairShares(tree, total, {})
    assert shares.next_leaf({"a": LeafHead(1, 0, 1), "b": LeafHead(1, 1, 2)}) == "b"
    assert shares.next_leaf({"a": LeafHead(1, 0, 2), "b": LeafHead(1, 0, 1)}) == "b"
    assert shares.next_leaf({}) is None


def test_what_is_lent_goes_by_weights() -> None:
    tree, total = fair(C("a", 2), C("b", 2), C("spare", 8), weights={"a": 3})
    jobs = [one for n in range(12) for one in (job(f"b{n}", 1, "b"), job(f"a{n}", 1, "a"))]
    jobs.insert(0, timed("before", total, queue="spare", lasts_s=10.0))
    planner = CapacityScheduler(tree=tree, reclaim=None)
    story = Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=20.0)
    assert counted(sorted(story.running())) == {"a": 8, "b": 4}


def test_what_is_due_is_promises_first_and_the_rest_by_weights() -> None:
    tree, total = fair(C("a", 2), C("b", 2), C("spare", 8), weights={"a": 3})
    due = ideal(tree, total, {"a": 20.0, "b": 20.0})
    assert due == pytest.approx({"a": 8, "b": 4, "spare": 0})
    due = ideal(tree, total, {"a": 3.0, "b": 20.0, "spare": 4.0})
    assert due == pytest.approx({"a": 3, "b": 5, "spare": 4})


# --- notice, and what is refused ------------------------------------------------------------------


def test_a_borrower_gets_notice_and_is_told() -> None:
    tree, total = fair(*THREE)
    planner = CapacityScheduler(tree=tree, reclaim=Reclaim(wait_s=15.0))
    jobs = [*units(a=3, b=5, c=1), asking(1, "a")]
    story = Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=25.0, round_s=5.0)
    notices = [(at, c.job_id, c.at_s) for at, c in story.commands if isinstance(c, GiveNotice)]
    assert notices == [(10.0, "b4", 25.0)]
    stops = [(at, c.reason) for at, c in story.commands if isinstance(c, StopJob)]
    assert stops == [(25.0, StopReason.RECLAIMED)]
    assert story.starts("in") == [25.0]


def test_without_reclaim_nobody_is_stopped() -> None:
    tree, total = fair(*THREE)
    planner = CapacityScheduler(tree=tree, reclaim=None)
    jobs = [*units(a=3, b=5, c=1), asking(1, "c")]
    assert not gone(Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=40.0))


@pytest.mark.parametrize(
    ("of_queue", "told"),
    [
        ({"weight": -1.0}, "queue q: weight: -1.0 is no weight"),
        ({"weight": float("inf")}, "queue q: weight: inf is no weight"),
        ({"fair_sharing": ("final",)}, "queue q: fair_sharing: unknown strategies [final]"),
        (
            {"fair_sharing": ("initial-share", "final-share")},
            "queue q: fair_sharing: unknown strategies [initial-share, final-share]",
        ),
    ],
)
def test_what_makes_no_sense_is_named(of_queue: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        CapacityQueue(name="q", **of_queue)
    assert str(caught.value).startswith(told)
    assert caught.value.hint


def test_only_the_root_says_how_what_is_lent_is_shared() -> None:
    child = CapacityQueue(name="x", fair_sharing=BOTH)
    with pytest.raises(UserError) as caught:
        QueueTree(CapacityQueue(name="root", children=(child,)))
    assert "queue x: fair_sharing: it shares for the whole tree" in str(caught.value)
    assert "root" in caught.value.hint


def test_gangs_that_were_made_room_for_get_it_and_not_who_comes_meanwhile() -> None:
    tree, total = fair(C("a", 4), C("b", 4))
    jobs = [*units(b=8), timed("in", 4, queue="a", at_s=10.0, lasts_s=50.0)]
    jobs += [timed(f"late{n}", queue="b", at_s=11.0, lasts_s=9.0) for n in range(4)]
    planner = CapacityScheduler(tree=tree, reclaim=Reclaim(wait_s=5.0))
    story = Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=40.0)
    assert story.starts("in") == [15.0]
