"""Capacity queues and dominant resource fairness: the textbook cases, worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode
from wattherd.policy.contract import PlanUse
from wattherd.policy.queue.capacity import (
    Usage,
    ideal,
    next_leaf,
    over_served,
    user_limit,
    weighted_max_min,
)
from wattherd.policy.queue.drf import dominant_share
from wattherd.policy.queue.reclaim import Reclaim, budgets
from wattherd.policy.queue.tree import CapacityQueue, QueueTree, equal_queues


def a_tree(*children: CapacityQueue) -> QueueTree:
    return QueueTree(CapacityQueue(name="root", children=children))


def a_job(queue: str = "a", user: str = "ann", gpus: int = 1) -> JobSpec:
    role = TaskRole(count=gpus)
    return JobSpec(id="j", submit_s=0.0, roles=(role,), queue=queue, user=user)


# --- the tree ----------------------------------------------------------------------------------


def test_shares_of_the_cluster_are_products_along_the_path() -> None:
    tree = a_tree(
        CapacityQueue(name="prod", guaranteed_pct=60, maximum_pct=80),
        CapacityQueue(
            name="research",
            guaranteed_pct=40,
            maximum_pct=50,
            children=(
                CapacityQueue(name="vision", guaranteed_pct=75, maximum_pct=90),
                CapacityQueue(name="speech", guaranteed_pct=25),
            ),
        ),
    )
    vision = tree["vision"]
    assert (vision.path, vision.ancestors) == (
        "root.research.vision",
        ("root", "research", "vision"),
    )
    assert vision.guaranteed == pytest.approx(0.30)
    assert vision.maximum == pytest.approx(0.45)
    assert [leaf.queue.name for leaf in tree.leaves] == ["prod", "vision", "speech"]
    assert tree.leaf("speech") is tree.leaf("root.research.speech") is tree["speech"]
    assert tree.leaf("research") is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"guaranteed_pct": -1}, "queue q: guaranteed_pct: -1 is no percentage (hint: 0 to 100)"),
        ({"maximum_pct": math.nan}, "queue q: maximum_pct: nan is no percentage (hint: 0 to 100)"),
        (
            {"guaranteed_pct": 50, "maximum_pct": 40},
            "queue q: maximum_pct: maximum 40 % is below the guarantee (hint: at least 50)",
        ),
        ({"user_limit_factor": 0}, "queue q: user_limit_factor: 0 is no factor (hint: above 0)"),
        ({"order": "fif"}, "queue q: order: unknown order 'fif' (hint: did you mean 'fifo'?)"),
        ({"name": "a.b"}, "queue a.b: name: 'a.b' is no queue name (hint: not empty, no dots)"),
        (
            {
                "children": (
                    CapacityQueue(name="x", guaranteed_pct=30),
                    CapacityQueue(name="y", guaranteed_pct=60),
                )
            },
            "queue q: children: their guarantees add up to 90 % (hint: 100 %)",
        ),
    ],
)
def test_a_queue_that_promises_nothing_sensible_is_refused(
    wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError) as caught:
        CapacityQueue(**{"name": "q", **wrong})
    assert str(caught.value) == told


def test_a_name_that_appears_twice_is_refused() -> None:
    twice = CapacityQueue(name="b", guaranteed_pct=50, children=(CapacityQueue(name="a"),))
    with pytest.raises(UserError, match="queue a: the name appears twice"):
        a_tree(CapacityQueue(name="a", guaranteed_pct=50), twice)


def test_equal_queues_are_owed_equal_parts_and_may_borrow_all() -> None:
    tree = equal_queues(["c", "a", "b"])
    assert [leaf.queue.name for leaf in tree.leaves] == ["a", "b", "c"]
    assert {round(leaf.guaranteed, 9) for leaf in tree.leaves} == {round(1 / 3, 9)}
    assert tree.admits(a_job("b"), 12, PlanUse(now_s=0.0, total_gpus=12)) is None


# --- quota -------------------------------------------------------------------------------------


def test_a_job_of_an_unknown_queue_is_told_which_there_are() -> None:
    reason = a_tree(CapacityQueue(name="a")).never(a_job("c"), 1, 100, 7.0)
    assert reason is not None
    assert reason.text() == "UnknownQueue (no leaf queue is called 'c'; there are a)"


def test_stuck_at_90_percent_is_explained_by_the_limit_that_does_it() -> None:
    """The classic: capacity 90 %, user limit factor 1, and nobody else asks for anything."""
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=90), CapacityQueue(name="b", guaranteed_pct=10)
    )
    full = PlanUse(now_s=5.0, total_gpus=100, gpus={("a", "ann"): 90})
    reason = tree.admits(a_job(), 2, full)
    assert reason is not None
    assert reason.text() == (
        "QuotaExceeded: asked 2 GPUs, in use 90 GPUs, available 0 GPUs (user limit factor 1 allows "
        "user 'ann' 90 GPUs of queue 'a'; raise it or use another queue)"
    )
    roomier = a_tree(
        CapacityQueue(name="a", guaranteed_pct=90, user_limit_factor=1.2),
        CapacityQueue(name="b", guaranteed_pct=10),
    )
    assert roomier.admits(a_job(), 2, full) is None


def test_maximum_of_every_ancestor_counts_and_the_first_one_exceeded_is_named() -> None:
    tree = a_tree(
        CapacityQueue(
            name="lab",
            guaranteed_pct=50,
            maximum_pct=60,
            children=(
                CapacityQueue(name="a", guaranteed_pct=50, user_limit_factor=9),
                CapacityQueue(name="b", guaranteed_pct=50, user_limit_factor=9),
            ),
        ),
        CapacityQueue(name="rest", guaranteed_pct=50),
    )
    use = PlanUse(now_s=0.0, total_gpus=10, gpus={("a", "ann"): 2, ("root.lab.b", "bob"): 3})
    assert tree.admits(a_job("a", gpus=1), 1, use) is None
    reason = tree.admits(a_job("a", gpus=2), 2, use)
    assert reason is not None
    assert (reason.code, reason.asked, reason.in_use, reason.available) == (
        ReasonCode.QUOTA_EXCEEDED, 2, 5, 1,
    )  # fmt: skip
    assert reason.unblocks == "queue 'lab' may hold 6 GPUs at most; raise its maximum"


def test_a_gang_wider_than_its_queue_may_ever_hold_is_told_so_beforehand() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=50, maximum_pct=50),
        CapacityQueue(name="b", guaranteed_pct=50),
    )
    reason = tree.never(a_job(gpus=6), 6, 10, 0.0)
    assert reason is not None
    assert reason.text() == (
        "NeverFits: asked 6 GPUs, available 5 GPUs "
        "(queue 'a' may hold 5 GPUs at most; raise its maximum)"
    )
    assert tree.never(a_job(gpus=5), 5, 10, 0.0) is None


def test_nothing_is_started_from_below_a_stopped_queue() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=50), CapacityQueue(name="b", guaranteed_pct=50)
    )
    use = PlanUse(now_s=9.0, total_gpus=10, stopped={"root": 4.0})
    reason = tree.admits(a_job("b"), 1, use)
    assert reason is not None
    assert (reason.code, reason.since_s) == (ReasonCode.QUEUE_STOPPED, 4.0)
    assert reason.unblocks == "queue 'root' is stopped; start it"


# --- user limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "limit"), [(1, 100), (2, 50), (3, 34), (4, 25), (5, 25), (50, 25)]
)
def test_user_limit_of_25_percent(active: int, limit: int) -> None:
    """YARN's example: two users get 50 %, three 33 % (here whole GPUs), four or more 25 %."""
    place = a_tree(CapacityQueue(name="a", user_limit_pct=25))["a"]
    assert user_limit(place, 100, used=0, asked=1, active=active) == limit


def test_user_limit_grows_with_what_the_queue_borrows_up_to_the_factor() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=40, user_limit_pct=50, user_limit_factor=1.5),
        CapacityQueue(name="b", guaranteed_pct=60),
    )
    limits = [
        user_limit(tree["a"], 100, used=used, asked=2, active=2) for used in (0, 39, 40, 98, 998)
    ]
    assert limits == [20, 20, 21, 50, 60]


# --- fair amounts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "wants", "weights", "given"),
    [
        (10, [3, 3], [1, 1], [3, 3]),
        (10, [9, 9], [1, 1], [5, 5]),
        (10, [9, 2], [1, 1], [8, 2]),
        (12, [9, 9, 9], [3, 2, 1], [6, 4, 2]),
        (12, [2, 9, 9], [3, 2, 1], [2, 20 / 3, 10 / 3]),
        (10, [4, 9, 9], [1, 0, 0], [4, 3, 3]),
        (10, [0, 0], [1, 1], [0, 0]),
        (0, [5, 5], [1, 2], [0, 0]),
    ],
)
def test_weighted_max_min(
    amount: float, wants: list[float], weights: list[float], given: list[float]
) -> None:
    assert weighted_max_min(amount, wants, weights) == pytest.approx(given)


@given(
    amount=st.integers(0, 60),
    asks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=5),
)
def test_weighted_max_min_equals_pouring_drop_by_drop(
    amount: int, asks: list[tuple[int, int]]
) -> None:
    """Raise one common level in exact arithmetic: the definition, not the algorithm."""
    wants, weights = [Fraction(want) for want, _ in asks], [Fraction(w) for _, w in asks]

    def poured(level: Fraction, weights: list[Fraction]) -> list[Fraction]:
        return [min(want, level * w) for want, w in zip(wants, weights, strict=True)]

    def pour(amount: Fraction, weights: list[Fraction]) -> list[Fraction]:
        kinks = sorted({w / g for w, g in zip(wants, weights, strict=True) if g > 0})
        low = Fraction(0)
        for kink in kinks:
            if sum(poured(kink, weights)) > amount:
                rising = sum(g for w, g in zip(wants, weights, strict=True) if g and w / g > low)
                return poured(low + (amount - sum(poured(low, weights))) / rising, weights)
            low = kink
        return poured(low, weights)

    first = pour(Fraction(amount), weights)
    even = [Fraction(int(w == 0)) for w in weights]
    second = pour(amount - sum(first), even)
    exact = [float(a + b) for a, b in zip(first, second, strict=True)]
    assert weighted_max_min(amount, wants, weights) == pytest.approx(exact)


def test_ideal_fills_guarantees_first_and_shares_the_rest_in_proportion() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=50),
        CapacityQueue(name="b", guaranteed_pct=30),
        CapacityQueue(name="c", guaranteed_pct=20),
    )
    assert ideal(tree, 100, {"a": 100, "b": 100, "c": 100}) == pytest.approx(
        {"a": 50, "b": 30, "c": 20}
    )
    assert ideal(tree, 100, {"b": 100, "c": 100}) == pytest.approx({"a": 0, "b": 60, "c": 40})
    assert ideal(tree, 100, {"a": 10, "b": 35, "c": 100}) == pytest.approx(
        {"a": 10, "b": 35, "c": 55}
    )


def test_ideal_respects_maxima_on_every_level() -> None:
    tree = a_tree(
        CapacityQueue(
            name="lab",
            guaranteed_pct=40,
            maximum_pct=70,
            children=(
                CapacityQueue(name="a", guaranteed_pct=50, maximum_pct=60),
                CapacityQueue(name="b", guaranteed_pct=50),
            ),
        ),
        CapacityQueue(name="c", guaranteed_pct=60),
    )
    assert ideal(tree, 100, {"a": 100, "b": 100}) == pytest.approx({"a": 35, "b": 35, "c": 0})
    assert ideal(tree, 100, {"a": 100}) == pytest.approx({"a": 42, "b": 0, "c": 0})
    assert ideal(tree, 100, {"a": 100, "c": 100}) == pytest.approx({"a": 40, "b": 0, "c": 60})


def test_the_most_under_served_queue_of_each_level_comes_first() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=50),
        CapacityQueue(
            name="lab",
            guaranteed_pct=40,
            children=(
                CapacityQueue(name="b", guaranteed_pct=90),
                CapacityQueue(name="c", guaranteed_pct=10),
            ),
        ),
        CapacityQueue(name="none", guaranteed_pct=10, children=(CapacityQueue(name="d"),)),
    )
    usage = Usage()

    def turn(*closed: str) -> str | None:
        return next_leaf(tree, usage, 100, lambda name: name not in closed)

    assert turn() == "a"
    usage.add(tree["a"], "ann", 10, (0, 0, 0))  # 20 % of its guarantee; lab and none have 0 %
    assert turn() == "b"
    usage.add(tree["b"], "bob", 4, (0, 0, 0))  # lab 10 %, none 0 %
    assert turn() == "d"
    assert turn("d") == "c"
    assert turn("d", "c") == "b"
    assert turn("a", "b", "c", "d") is None


def test_within_the_dead_zone_nothing_is_over_served() -> None:
    tree = a_tree(
        CapacityQueue(name="a", guaranteed_pct=50), CapacityQueue(name="b", guaranteed_pct=50)
    )
    usage = Usage()
    usage.add(tree["b"], "bob", 55, (0, 0, 0))
    ideals = {"a": 50.0, "b": 50.0}
    assert over_served(tree, usage, ideals, 100, dead_zone=0.1) == {}
    assert over_served(tree, usage, ideals, 100, dead_zone=0.09) == {"b": 5.0}
    usage.add(tree["b"], "bob", 1, (0, 0, 0))
    assert over_served(tree, usage, ideals, 100, dead_zone=0.1) == {"b": 6.0}


def test_a_round_takes_a_fifth_of_the_excess_and_no_more_than_a_tenth_of_the_cluster() -> None:
    over = {"a": 30.0, "b": 10.0}
    assert budgets(Reclaim(), {"b": 10.0}, 100) == {"b": 2}
    assert budgets(Reclaim(), over, 100) == {"a": 2, "b": 1}  # 0.2 * 7.5 and 0.2 * 2.5, rounded up
    assert budgets(Reclaim(natural=1.0, per_cycle=1.0), over, 100) == {"a": 30, "b": 10}


@pytest.mark.parametrize("wrong", [{"wait_s": -1.0}, {"per_cycle": 0.0}, {"natural": 1.5}])
def test_impossible_reclaim_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"reclaim.{next(iter(wrong))}"):
        Reclaim(**wrong)


# --- dominant resource fairness ----------------------------------------------------------------


def test_dominant_shares_of_the_paper_nine_cpus_and_eighteen_gb() -> None:
    """NSDI'11, section 4.1: three tasks of <1 CPU, 4 GB> have as much as two of <3 CPU, 1 GB>."""
    assert dominant_share((3, 12), (9, 18)) == dominant_share((6, 2), (9, 18)) == 2 / 3


def test_twice_the_weight_is_half_the_dominant_share() -> None:
    assert dominant_share((3, 12), (9, 18), (1, 2)) == 1 / 3
    assert dominant_share((5, 12), (0, 18)) == 2 / 3  # a resource that nobody has
