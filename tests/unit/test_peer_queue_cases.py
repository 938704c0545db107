"""What YARN's and Kueue's own tests assert of preemption and limits, told as jobs on GPUs.

Numbers, or a part of them, are those of TestProportionalCapacityPreemptionPolicy and TestLeafQueue
(Hadoop) and of TestPreemption (Kueue); a container or a CPU there is a GPU here. Where gangs must
differ, the test says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.model.command import GiveNotice, RejectJob, StopJob
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import StopReason
from wattherd.policy.queue.capacity import Usage, ideal, next_leaf
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.testing.timed_world import Story, t4_nodes, timed

AT_ONCE = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
LONG_S = 36_000.0


# --- YARN: who gives how much back ---------------------------------------------------------------


@dataclass(frozen=True)
class Q:
    """A queue in GPUs of the whole cluster, as YARN's tables have it."""

    name: str
    guaranteed: int
    used: int = 0
    pending: int = 0
    children: tuple[Q, ...] = ()
    most: int | None = None
    reclaimable: bool = True
    priority: int = 0

    def leaves(self) -> list[Q]:
        return [leaf for child in self.children for leaf in child.leaves()] or [self]

    def queue(self, parent: int, parent_most: int) -> CapacityQueue:
        most = parent_most if self.most is None else self.most
        children = tuple(child.queue(self.guaranteed, most) for child in self.children)
        part = 100 * self.guaranteed / parent if parent else 100 * (self.name == "first")
        return CapacityQueue(
            name=self.name,
            guaranteed_pct=part,
            maximum_pct=max(100 * most / parent_most, part),
            user_limit_factor=-1,
            children=children,
            reclaimable=self.reclaimable,
            priority=self.priority,
        )


def stopped(total: int, *queues: Q, reclaim: Reclaim = AT_ONCE, **root: Any) -> Counter[str]:
    """GPUs taken back from each leaf once what is pending asks, ten seconds after the rest."""
    tree = QueueTree(
        CapacityQueue(
            name="root", children=tuple(one.queue(total, total) for one in queues), **root
        )
    )
    jobs: list[JobSpec] = []
    leaves = [leaf for one in queues for leaf in one.leaves()]
    for at_s, field in ((0.0, "used"), (10.0, "pending")):
        for leaf in leaves:
            jobs += [
                timed(f"{leaf.name}-{field}{n}", queue=leaf.name, at_s=at_s, lasts_s=LONG_S)
                for n in range(getattr(leaf, field))
            ]
    planner = CapacityScheduler(tree=tree, reclaim=reclaim)
    story = Story(planner, t4_nodes(total, cpu_milli=0), jobs, until_s=40.0, round_s=5.0)
    early = [at for at, c in story.commands if isinstance(c, StopJob) and at < 10.0]
    assert not early
    stops = [c.job_id for at, c in story.commands if isinstance(c, StopJob)]
    return Counter(job.split("-")[0] for job in stops)


def beyond_due(total: int, *queues: Q) -> dict[str, float]:
    """GPUs that leaves hold beyond what they are due, as far as it is any."""
    tree = QueueTree(
        CapacityQueue(name="root", children=tuple(one.queue(total, total) for one in queues))
    )
    leaves = [leaf for one in queues for leaf in one.leaves()]
    used = {leaf.name: float(leaf.used) for leaf in leaves}
    due = ideal(tree, total, {one.name: one.used + one.pending for one in leaves}, used)
    over = {name: round(used[name] - due[name], 1) for name in used}
    return {name: gpus for name, gpus in over.items() if gpus > 0}


def test_imbalance_without_demand_is_left_alone() -> None:
    assert stopped(20, Q("A", 8), Q("B", 8, used=12), Q("C", 4, used=8)) == {}


def test_only_up_to_the_guarantee_is_taken_from_whoever_exceeds_his_most() -> None:
    queues = Q("A", 2, 6, 4), Q("B", 8, 12, 1), Q("C", 4, 2, 4), Q("D", 6)
    assert stopped(20, *queues) == {"A": 2}


def test_all_that_an_empty_queue_is_owed_comes_from_the_most_over_served() -> None:
    assert stopped(20, Q("A", 8, 0, 2), Q("B", 8, 12), Q("C", 4, 8)) == {"C": 2}


def test_a_queue_at_its_maximum_takes_nothing_back() -> None:
    assert stopped(20, Q("A", 8, 11, 2), Q("B", 8, 9, 2, most=9), Q("C", 4)) == {}


def test_a_tenth_over_the_guarantee_is_left_alone() -> None:
    dead = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.1, natural=1.0)
    # YARN's numbers hold 103 of 100; here one less runs in B and two less in A.
    assert stopped(100, Q("A", 40, 37, 10), Q("B", 40, 42), Q("C", 20, 21), reclaim=dead) == {}


def test_a_queue_that_must_not_be_reclaimed_is_passed_over() -> None:
    queues = Q("A", 55, 0, 10), Q("B", 25, 54), Q("C", 20, 46)
    assert stopped(100, *queues) == {"B": 4, "C": 6}
    spared = Q("A", 55, 0, 10), Q("B", 25, 54, reclaimable=False), Q("C", 20, 46)
    assert stopped(100, *spared) == {"C": 10}


def hierarchy(*, spare_b: bool) -> tuple[Q, ...]:
    a = Q("A", 10, children=(Q("B", 5, 6, reclaimable=not spare_b), Q("C", 5, 5)))
    return a, Q("D", 10, children=(Q("E", 1, 9), Q("F", 9, 0, 1)))


def test_a_parent_over_its_guarantee_gives_before_a_cousin_within_its_own() -> None:
    assert stopped(20, *hierarchy(spare_b=False)) == {"B": 1}
    assert stopped(20, *hierarchy(spare_b=True)) == {"E": 1}


@pytest.mark.parametrize(
    ("spared", "gave"), [("", {"B": 26.7, "E": 23.3}), ("B", {"E": 50}), ("BE", {})]
)
def test_siblings_and_over_served_parents_share_what_is_taken(
    spared: str, gave: dict[str, float]
) -> None:
    f = Q("F", 200, 150, 50)
    queues = (
        Q("A", 350, children=(Q("B", 150, 200, reclaimable="B" not in spared), Q("C", 200, 200))),
        Q("D", 400, children=(Q("E", 200, 250, reclaimable="E" not in spared), f)),
        Q("G", 250, children=(Q("H", 100, 150), Q("I", 150, 50))),
    )  # fmt: skip
    assert beyond_due(1000, *queues) == gave


def test_what_a_parent_forbids_holds_for_all_below_it() -> None:
    def queues(**of_a: Any) -> tuple[Q, ...]:
        below = Q("B", 200), Q("C", 200, 350), Q("D", 100, 350)
        wanting = Q("F", 200, 0, 200), Q("G", 200, 200), Q("H", 100, 100)
        return Q("A", 500, children=below, **of_a), Q("E", 500, children=wanting)

    assert beyond_due(1000, *queues()) == {"C": 16.7, "D": 183.3}
    assert beyond_due(1000, *queues(reclaimable=False)) == {}


def test_the_root_may_forbid_all_reclaim() -> None:
    queues = Q("A", 5, 0, 2), Q("B", 5, 10)
    assert stopped(10, *queues) == {"B": 2}
    assert stopped(10, *queues, reclaimable=False) == {}


def test_a_preemptible_sibling_of_a_spared_queue_gives_alone() -> None:
    below = Q("B", 800, 300), Q("C", 100, 800, reclaimable=False), Q("D", 100, 200)
    wanting = Q("F", 500, 500), Q("G", 300, 0, 300), Q("H", 200, 200)
    queues = Q("A", 1000, children=below), Q("E", 1000, children=wanting)
    assert beyond_due(2000, *queues) == {"D": 100}


def test_satisfied_queues_are_balanced_only_where_that_is_asked_for() -> None:
    queues = Q("A", 8, 12, 2), Q("B", 8, 8, 2), Q("C", 4)
    assert stopped(20, *queues) == {}
    even = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0, balance=True)
    assert stopped(20, *queues, reclaim=even) == {"A": 2}


def test_queues_of_guarantee_zero_are_satisfied_and_give_only_what_is_owed() -> None:
    above = Q("A", 10, children=(Q("B", 0, 6), Q("C", 10, 2)))
    assert stopped(20, above, Q("D", 10, children=(Q("E", 1, 9), Q("F", 9, 0, 1)))) == {}
    zero = Q("A", 10, children=(Q("B", 0, 6, 3), Q("C", 10, 2, 1), Q("D", 0, 9, 1)))
    assert stopped(20, zero, Q("E", 10, children=(Q("F", 10, 0, 2),))) == {}


def test_three_parents_give_in_proportion() -> None:
    """YARN takes 9 and 6, which it calls a rounding error of its own; without it, 10 and 5."""
    queues = (
        Q("A", 200, children=(Q("B", 60, 70), Q("C", 140, 140))),
        Q("D", 100, children=(Q("E", 70, 50), Q("F", 30, 50))),
        Q("G", 100, children=(Q("H", 10, 90), Q("I", 90, 0, 15))),
    )
    assert beyond_due(400, *queues) == {"B": 10, "H": 5}


def test_queues_over_their_guarantees_leave_each_other_alone() -> None:
    assert stopped(20, Q("A", 8, 11, 2), Q("B", 8, 9, 2), Q("C", 4)) == {}
    assert stopped(20, Q("A", 6), Q("B", 6, 8, 10), Q("C", 8, 12, 5)) == {}


def test_a_spared_queue_gives_nothing_though_it_is_at_its_maximum() -> None:
    e, f = Q("E", 17, 110, 20, most=109), Q("F", 258, 149)
    a = Q("A", 725, children=(Q("B", 360, 396), Q("C", 365, 345, 20)))
    d = Q("D", 275, most=550, reclaimable=False, children=(e, f))
    assert "E" not in beyond_due(1000, a, d)


BALANCE = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0, balance=True)


@pytest.mark.parametrize(
    ("pending", "reclaim", "gave"),
    [
        (30, AT_ONCE, {"B": 5, "C": 15}),  # A comes to its guarantee of 30
        (30, BALANCE, {"B": 6, "C": 17}),  # to 33; YARN rounds B's 6 2/3 up, and A has 34
        (6, AT_ONCE, {"C": 6}),
        (6, BALANCE, {"C": 8}),  # two more than A wants: B and C are balanced as well
    ],
)
def test_balance_goes_beyond_guarantees(
    pending: int, reclaim: Reclaim, gave: dict[str, int]
) -> None:
    queues = Q("A", 30, 10, pending), Q("B", 30, 40, 30), Q("C", 30, 50, 30), Q("D", 10)
    assert stopped(100, *queues, reclaim=reclaim) == gave


def test_balance_stops_at_guarantees_where_all_is_promised() -> None:
    assert stopped(50, Q("A", 30, 20, 35), Q("B", 20, 30, 25), reclaim=BALANCE) == {"B": 10}


def ranked(queues: tuple[Q, ...], *priorities: int) -> tuple[Q, ...]:
    return tuple(replace(one, priority=rank) for one, rank in zip(queues, priorities, strict=True))


@pytest.mark.parametrize(
    ("priorities", "gave"),
    [
        ((0, 0, 0), {"A": 3, "B": 22}),
        ((1, 2, 2), {"A": 10, "B": 15}),
        ((1, 2, 0), {"A": 10, "B": 15}),  # C is owed, whatever its priority
        ((2, 1, 0), {"B": 25}),
    ],
)
def test_the_queue_of_the_lowest_priority_gives_first(
    priorities: tuple[int, ...], gave: dict[str, int]
) -> None:
    queues = Q("A", 30, 40, 50), Q("B", 30, 59, 50), Q("C", 40, 1, 25)
    assert stopped(100, *ranked(queues, *priorities)) == gave


def test_satisfied_queues_leave_each_other_alone_whatever_their_priorities() -> None:
    queues = ranked((Q("A", 30), Q("B", 30, 40, 50), Q("C", 40, 60, 25)), 1, 1, 2)
    assert stopped(100, *queues) == {}
    assert stopped(100, *queues, reclaim=BALANCE) == {"B": 10}


def test_queues_of_one_priority_give_in_proportion_and_a_spared_one_nothing() -> None:
    """YARN, which rounds: 23 and 6; 9 and 19."""
    queues = (
        Q("A", 10, 35, 50), Q("B", 15, 25, 50), Q("C", 20, 39, 50), Q("D", 25), Q("E", 30, 1, 99),
    )  # fmt: skip
    one = ranked(queues, 1, 1, 2, 2, 2)
    assert beyond_due(100, *one) == {"A": 22.6, "B": 6.4}
    spared = (replace(one[0], reclaimable=False), *one[1:])
    assert beyond_due(100, *spared) == {"B": 10, "C": 19}


def test_priorities_count_among_the_queues_of_one_parent() -> None:
    """YARN, which rounds: 6, 1, 13 and 10."""
    a = Q("A", 29, children=(Q("A1", 12, 20, 50), Q("A2", 17, 20, 50)))
    b = Q("B", 31, children=(Q("B1", 16, 30, 50, priority=1), Q("B2", 15, 29, 50, priority=2)))
    assert beyond_due(100, a, b, Q("C", 40, 1, 30)) == {"A1": 6.2, "A2": 0.5, "B1": 14, "B2": 9.4}


def test_a_priority_claims_what_a_parent_leaves_before_its_siblings() -> None:
    x, y = Q("X", 0, 0, 6, priority=1), Q("Y", 0, 0, 6)
    parent = Q("P", 10, children=(x, y, Q("Z", 10, 2)))
    assert stopped(20, parent, Q("R", 10, 18)) == {"R": 8}
    due = beyond_due(20, replace(parent, children=(x, y, Q("Z", 10, 2))), Q("R", 10, 18))
    assert due == {"R": 8}


@pytest.mark.parametrize(
    ("priorities", "used", "first"),
    [
        ((0, 0), (0, 1), "A"),  # the least use of equal ones
        ((0, 1), (0, 1), "B"),  # both lack some of what they are promised
        ((0, 1), (4, 5), "A"),  # only one does
        ((0, 1), (5, 6), "B"),  # neither does
        ((1, 0), (9, 5), "A"),
    ],
)
def test_the_higher_priority_is_served_first_unless_only_the_other_lacks_its_own(
    priorities: tuple[int, int], used: tuple[int, int], first: str
) -> None:
    """YARN's ordering policy priority-utilization; each is promised 5 of 10."""
    children = tuple(
        CapacityQueue(name=name, guaranteed_pct=50, priority=rank)
        for name, rank in zip("AB", priorities, strict=True)
    )
    tree = QueueTree(CapacityQueue(name="root", children=children, half_life_s=1e6))
    usage = Usage(queues=Counter(dict(zip("AB", used, strict=True))))
    for lately in (None, {"A": 3.0, "B": 3.0}):
        assert next_leaf(tree, usage, 10, lambda name: True, lately) == first


def test_the_queue_of_the_higher_priority_takes_back_first() -> None:
    slow = Reclaim(wait_s=5.0, per_cycle=0.1, dead_zone=0.0, natural=1.0)
    children = (
        CapacityQueue(name="a", guaranteed_pct=50, user_limit_factor=-1),
        CapacityQueue(name="b", guaranteed_pct=50, user_limit_factor=-1, priority=1),
        CapacityQueue(name="z", guaranteed_pct=0, user_limit_factor=-1),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = [timed(f"z{n}", queue="z", lasts_s=LONG_S) for n in range(10)]
    jobs += [timed(name, queue=name, at_s=10.0, lasts_s=LONG_S) for name in ("a", "b")]
    story = Story(CapacityScheduler(tree=tree, reclaim=slow), t4_nodes(10), jobs, until_s=60.0)
    assert story.starts("b")[0] < story.starts("a")[0]


@pytest.mark.parametrize(("a", "b", "first"), [(0, 1, "A"), (2, 2, "B"), (3, 4, "B"), (3, 8, "A")])
def test_the_queue_that_uses_least_of_its_guarantee_is_served_first(
    a: int, b: int, first: str
) -> None:
    """Of 30 and 70 %, one GPU is free, both ask: by parts of guarantees, not by GPUs."""
    shares = {"A": 30.0, "B": 70.0}
    children = tuple(
        CapacityQueue(name=name, guaranteed_pct=part, user_limit_factor=-1)
        for name, part in shares.items()
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = [
        timed(f"{name}{n}", queue=name, lasts_s=LONG_S)
        for name, count in (("A", a), ("B", b))
        for n in range(count)
    ]
    jobs += [timed(f"next-{name}", queue=name, lasts_s=LONG_S) for name in ("B", "A")]
    planner = CapacityScheduler(tree=tree, reclaim=None)
    story = Story(planner, t4_nodes(a + b + 1), jobs, until_s=20.0, round_s=5.0)
    assert [name for name in story.running() if name.startswith("next")] == [f"next-{first}"]


def test_a_queue_gives_low_priorities_to_others_and_to_its_own_at_once() -> None:
    """Of 60 and 40: low jobs of `a` go for `b` and for high ones of `a`, no high one does."""
    more: dict[str, Any] = {"user_limit_factor": -1}
    children = (
        CapacityQueue(name="a", guaranteed_pct=60, preempts="lower-priority", **more),
        CapacityQueue(name="b", guaranteed_pct=40, **more),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    kinds = (("low", "a", 1, 25, 7), ("high", "a", 2, 10, 10), ("other", "b", 4, 12, 60))
    jobs = [
        timed(f"{name}-{n}", queue=queue, priority=rank, at_s=at_s, lasts_s=LONG_S)
        for name, queue, rank, held, asked in kinds
        for n, at_s in enumerate([0.0] * held + [10.0] * asked)
    ]
    planner = CapacityScheduler(tree=tree, reclaim=AT_ONCE)
    story = Story(planner, t4_nodes(50, cpu_milli=0), jobs, until_s=60.0, round_s=5.0)
    kept = Counter(name.split("-")[0] for name in story.running())
    assert kept == {"high": 20, "low": 10, "other": 20}
    stops = [c.job_id for _, c in story.commands if isinstance(c, StopJob)]
    assert {name.split("-")[0] for name in stops} == {"low"}


def test_notice_comes_first_and_is_not_given_twice() -> None:
    patient = Reclaim(wait_s=10.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
    shares = {"A": 40.0, "B": 40.0, "C": 20.0}
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=tuple(
                CapacityQueue(name=name, guaranteed_pct=part, user_limit_factor=-1)
                for name, part in shares.items()
            ),
        )
    )
    jobs = [timed(f"b{n}", queue="B", lasts_s=LONG_S) for n in range(6)]
    jobs += [timed(f"c{n}", queue="C", lasts_s=LONG_S) for n in range(4)]
    jobs.append(timed("a", queue="A", at_s=10.0))
    jobs.append(timed("news", queue="C", at_s=15.0))
    story = Story(CapacityScheduler(tree=tree, reclaim=patient), t4_nodes(10), jobs, until_s=60.0)
    notices = [(at, c.job_id) for at, c in story.commands if isinstance(c, GiveNotice)]
    assert notices == [(10.0, "c3")]
    assert story.stops("c3") == story.starts("a") == [20.0]


# --- YARN: user limits ---------------------------------------------------------------------------


def leaf(total: int, jobs: list[JobSpec], **of_queue: Any) -> Story:
    """One leaf promised the whole cluster."""
    tree = QueueTree(CapacityQueue(name="a", **of_queue))
    return Story(
        CapacityScheduler(tree=tree),
        t4_nodes(total),
        jobs,
        until_s=60.0,
        round_s=5.0,
        quota=tree,
    )


def of(user: str, name: str, gpus: int, at_s: float = 0.0, **more: Any) -> JobSpec:
    return timed(name, gpus, user=user, queue="a", at_s=at_s, lasts_s=LONG_S, **more)


def test_a_user_below_his_limit_gets_one_more_job_though_it_takes_him_beyond() -> None:
    """Two users of 9 GPUs may hold 5 each: who holds 2 gets 4 more (present use counts)."""
    jobs = [of("ann", "a0", 2), of("ann", "a1", 4, 10.0), of("bob", "huge", 9, 10.0)]
    story = leaf(9, jobs, user_limit_pct=50)
    assert story.running() == {"a0": 2, "a1": 4}


def test_a_user_at_his_limit_not_above_it_is_served_after_those_below() -> None:
    jobs = [of("ann", "a0", 3), of("ann", "a1", 3, 10.0), of("bob", "b0", 1, 10.0)]
    jobs.append(of("bob", "late", 2, 10.0))
    story = leaf(9, jobs, user_limit_pct=50)
    assert story.running() == {"a0": 3, "a1": 3, "b0": 1, "late": 2}


def test_a_user_above_his_limit_waits_while_others_ask() -> None:
    jobs = [of("ann", "a0", 6), of("ann", "a1", 1, 10.0), of("bob", "wide", 4, 10.0)]
    story = leaf(9, jobs, user_limit_pct=50)
    assert story.running() == {"a0": 6}
    assert story.why("a1").endswith("(2 users share the queue; each may hold 5 GPUs of queue 'a')")


def test_small_promises_let_one_gpu_run_and_a_factor_of_minus_one_limits_nothing() -> None:
    def story(**of_a: Any) -> Story:
        tree = QueueTree(
            CapacityQueue(
                name="root",
                children=(
                    CapacityQueue(name="a", guaranteed_pct=8.5, **of_a),
                    CapacityQueue(name="b", guaranteed_pct=91.5),
                ),
            )
        )
        jobs = [of("ann", f"a{n}", 1) for n in range(8)]
        planner = CapacityScheduler(tree=tree)
        return Story(planner, t4_nodes(8), jobs, quota=tree, until_s=50.0)

    assert sum(story().running().values()) == 1
    assert sum(story(user_limit_factor=4).running().values()) == 4
    assert sum(story(user_limit_factor=-1).running().values()) == 8


@pytest.mark.parametrize(
    ("most", "factor", "running"),
    [(100, 1, 1), (100, 10, 5), (50, 10, 4), (25, -1, 2), (18.75, -1, 1)],
)
def test_a_maximum_and_a_factor_are_never_exceeded(
    most: float, factor: float, running: int
) -> None:
    """By choice: YARN lets two run in the first case, one beyond the factor."""
    child = {"guaranteed_pct": 10.0, "maximum_pct": most, "user_limit_factor": factor}
    children = CapacityQueue(name="a", **child), CapacityQueue(name="b", guaranteed_pct=90)
    tree = QueueTree(CapacityQueue(name="root", children=children))
    jobs = [of("ann", f"a{n}", 1) for n in range(5)]
    story = Story(CapacityScheduler(tree=tree), t4_nodes(8), jobs, quota=tree, until_s=50.0)
    assert len(story.running()) == running


def test_a_best_effort_queue_of_guarantee_zero_runs_on_what_is_idle_and_gives_it_back() -> None:
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=(
                CapacityQueue(name="prod", guaranteed_pct=100),
                CapacityQueue(name="spare", guaranteed_pct=0),
            ),
        )
    )
    jobs = [timed(f"s{n}", queue="spare", lasts_s=LONG_S) for n in range(8)]
    jobs.append(timed("p", 3, queue="prod", at_s=10.0, lasts_s=LONG_S))
    planner = CapacityScheduler(tree=tree, reclaim=AT_ONCE)
    story = Story(planner, t4_nodes(8), jobs, quota=tree, until_s=50.0)
    assert story.starts("p") == [10.0]
    assert sorted(story.running()) == ["p", "s0", "s1", "s2", "s3", "s4"]


# --- gangs wider than a guarantee ----------------------------------------------------------------


def halves(**of_both: Any) -> QueueTree:
    shared = {"guaranteed_pct": 50.0, "user_limit_factor": 2.0, **of_both}
    children = tuple(CapacityQueue(name=name, **shared) for name in "ab")
    return QueueTree(CapacityQueue(name="root", children=children))


def test_a_gang_wider_than_its_guarantee_starts_though_others_never_stop_asking() -> None:
    stream = [timed(f"b{n}", queue="b", at_s=2.5 * n, lasts_s=20.0) for n in range(80)]
    jobs = [*stream, timed("wide", 6, queue="a", at_s=50.0, lasts_s=20.0)]
    planner = CapacityScheduler(tree=halves())
    early = Story(planner, t4_nodes(4, 4), jobs, until_s=55.0)
    assert early.why("wide").endswith(
        "(queue 'a' is guaranteed 4 GPUs; 6 are kept for it as they become free)"
    )
    story = Story(planner, t4_nodes(4, 4), jobs)
    assert story.starts("wide")[0] <= 50.0 + 20.0
    assert not any(story.stops(job.id) for job in stream)


def test_a_wide_gang_comes_though_its_own_queue_streams_small_jobs_too() -> None:
    streams = [
        timed(f"{queue}{n}", queue=queue, at_s=5.0 * n, lasts_s=20.0)
        for n in range(40)
        for queue in "ab"
    ]
    jobs = [*streams, timed("wide", 6, queue="a", at_s=50.0, lasts_s=20.0)]
    story = Story(CapacityScheduler(tree=halves()), t4_nodes(4, 4), jobs)
    assert story.starts("wide")[0] <= 50.0 + 3 * 20.0


def test_two_queues_with_wide_gangs_take_turns_and_never_block_each_other() -> None:
    jobs = [timed(f"{q}{n}", 6, queue=q, lasts_s=20.0) for n in range(5) for q in "ab"]
    story = Story(CapacityScheduler(tree=halves(), reclaim=AT_ONCE), t4_nodes(4, 4), jobs)
    starts = sorted(at for job in jobs for at in story.starts(job.id))
    assert starts == [20.0 * n for n in range(10)]


# --- sizes: the smallest sufficient set ----------------------------------------------------------


def story_of(jobs: list[JobSpec], *gpus: int, tree: QueueTree | None = None, **more: Any) -> Story:
    planner = CapacityScheduler(tree=tree or halves(), reclaim=more.pop("reclaim", AT_ONCE))
    return Story(planner, t4_nodes(*gpus), jobs, until_s=60.0, **more)


def gone(story: Story) -> list[str]:
    return sorted(c.job_id for _, c in story.commands if isinstance(c, StopJob))


def test_a_small_borrower_goes_instead_of_a_wide_newer_one() -> None:
    jobs = [timed("small", 2, queue="a"), timed("wide", 6, queue="a", at_s=1.0)]
    jobs.append(timed("b", 2, queue="b", at_s=10.0))
    assert gone(story_of(jobs, 8)) == ["small"]


def test_a_wide_gang_is_not_stopped_to_gain_less_than_its_queue_would_lack() -> None:
    """Six are stopped for two: four idle, and the victim's queue without anything."""
    jobs = [timed("wide", 6, queue="a"), timed("b0", 2, queue="b")]
    jobs.append(timed("b1", 2, queue="b", at_s=10.0))
    story = story_of(jobs, 8)
    assert gone(story) == []
    assert story.why("b1") == "WaitingForGpus: asked 2 GPUs, available 0 GPUs"


def test_a_wide_gang_goes_where_the_owner_lacks_more_than_its_queue_will() -> None:
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=(
                CapacityQueue(name="a", guaranteed_pct=25, user_limit_factor=4),
                CapacityQueue(name="b", guaranteed_pct=75),
            ),
        )
    )
    jobs = [timed("wide", 4, queue="a"), timed("b", 3, queue="b", at_s=10.0)]
    assert gone(story_of(jobs, 4, tree=tree)) == ["wide"]


def test_who_need_not_go_stays() -> None:
    """Going by age, 1, 1 and 3 would be stopped; once 3 goes, the others may stay."""
    jobs = [timed("old", 3, queue="a"), timed("x", 1, queue="a"), timed("y", 1, queue="a")]
    jobs += [timed("rest", 3, queue="a"), timed("b", 3, queue="b", at_s=10.0)]
    assert gone(story_of(jobs, 8)) in (["old"], ["rest"])


def test_reclaim_does_not_stop_at_a_wide_borrower_when_two_small_ones_are_less() -> None:
    jobs = [timed("five", 5, queue="a"), timed("x", 1, queue="a"), timed("y", 2, queue="a")]
    jobs.append(timed("b", 3, queue="b", at_s=10.0))
    assert gone(story_of(jobs, 8)) == ["x", "y"]


# --- Kueue: preemption ---------------------------------------------------------------------------


def kueue(policy: str = "lower-priority", reclaims: str = "any") -> QueueTree:
    """Two queues of 6 in one cohort."""
    shared: dict[str, Any] = {"guaranteed_pct": 50.0, "user_limit_factor": -1}
    return QueueTree(
        CapacityQueue(
            name="root",
            children=(
                CapacityQueue(name="c1", preempts=policy, reclaims=reclaims, **shared),
                CapacityQueue(name="c2", **shared),
            ),
        )
    )


def job(name: str, gpus: int, queue: str = "a", *, priority: int = 0, at_s: float = 0.0) -> JobSpec:
    return timed(name, gpus, queue=queue, priority=priority, at_s=at_s, lasts_s=LONG_S)


def inside(*jobs: JobSpec, policy: str = "lower-priority") -> list[str]:
    """Who is stopped in one queue of 6 GPUs."""
    tree = QueueTree(CapacityQueue(name="a", preempts=policy, user_limit_factor=-1))
    return gone(story_of(list(jobs), 6, tree=tree))


def trio(*gpus: int) -> list[JobSpec]:
    names = zip(("low", "mid", "high"), (-1, 0, 1), gpus, strict=True)
    return [job(name, max(n, 1), priority=priority) for name, priority, n in names]


@pytest.mark.parametrize(
    ("held", "asked", "priority", "preempted"),
    [
        ((2, 2, 2), 2, 1, ["low"]),
        ((2, 2, 2), 3, 1, ["low", "mid"]),
        ((3, 3, 0), 1, -1, []),
        ((3, 3, 0), 4, 0, []),
        ((1, 1, 3), 2, 1, ["low"]),
        ((1, 2, 3), 2, 1, ["mid"]),
    ],
)
def test_jobs_of_lower_priority_make_way_in_their_own_queue(
    held: tuple[int, ...], asked: int, priority: int, preempted: list[str]
) -> None:
    running = [one for one, gpus in zip(trio(*held), held, strict=True) if gpus]
    assert inside(*running, job("in", asked, priority=priority, at_s=10.0)) == preempted


def test_nobody_is_preempted_in_a_queue_that_does_not_allow_it() -> None:
    assert inside(*trio(2, 2, 2), job("in", 2, priority=9, at_s=10.0), policy="never") == []


def test_who_is_preempted_is_told_and_starts_again_when_there_is_room() -> None:
    tree = QueueTree(CapacityQueue(name="a", preempts="lower-priority", user_limit_factor=-1))
    jobs = [timed("low", 4, queue="a", lasts_s=50.0)]
    jobs.append(timed("high", 4, queue="a", priority=1, at_s=10.0, lasts_s=20.0))
    planner = CapacityScheduler(tree=tree, reclaim=AT_ONCE)
    during = Story(planner, t4_nodes(4), jobs, until_s=20.0)
    stops = [c.reason for _, c in during.commands if isinstance(c, StopJob)]
    assert stops == [StopReason.PREEMPTED_FOR_PRIORITY]
    assert Story(planner, t4_nodes(4), jobs).starts("low") == [0.0, 30.0]


@pytest.mark.parametrize(("policy", "stops"), [("lower-or-newer", [30.0]), ("lower-priority", [])])
def test_newer_jobs_of_equal_priority_make_way_where_that_is_chosen(
    policy: str, stops: list[float]
) -> None:
    """While ann is at her limit, a newer job of bob's starts; once she is not, it goes."""
    tree = QueueTree(CapacityQueue(name="a", preempts=policy))
    jobs = [timed("first", 4, queue="a", user="ann", lasts_s=30.0)]
    jobs.append(timed("in", 6, queue="a", user="ann", at_s=1.0))
    jobs.append(timed("newer", 2, queue="a", user="bob", at_s=2.0))
    story = story_of(jobs, 6, tree=tree)
    assert story.stops("newer") == stops
    assert story.starts("in") == stops


def cohort(*jobs: JobSpec, **of_c1: str) -> list[str]:
    """Who is stopped on 12 GPUs."""
    return gone(story_of(list(jobs), 12, tree=kueue(**of_c1)))


def test_quota_is_taken_back_from_a_borrower_before_own_jobs_go() -> None:
    held = job("c1-low", 3, "c1", priority=-1), job("c2-mid", 3, "c2")
    high = job("c2-high", 6, "c2", priority=1)
    assert cohort(*held, high, job("in", 3, "c1", priority=1, at_s=10.0)) == ["c2-mid"]


def test_nobody_is_stopped_where_too_little_is_borrowed() -> None:
    held = job("c1-high", 4, "c1", priority=1), job("c2-1", 4, "c2"), job("c2-2", 4, "c2")
    assert cohort(*held, job("in", 4, "c1", priority=1, at_s=10.0)) == []


def test_a_queue_may_stop_its_own_jobs_to_borrow_but_not_those_of_others() -> None:
    held = job("c1-med", 4, "c1"), job("c1-low", 4, "c1", priority=-1)
    asks = job("in", 4, "c1", priority=1, at_s=10.0)
    assert cohort(*held, job("c2-low", 4, "c2", priority=-1), asks) == ["c1-low"]


def test_borrowed_quota_of_equal_priority_is_reclaimed_only_by_choice() -> None:
    held = job("c1", 2, "c1"), job("c2-1", 4, "c2"), job("c2-2", 4, "c2")
    fill = job("fill", 2, "c2")
    asks = job("in", 4, "c1", at_s=10.0)
    assert cohort(*held, fill, asks, reclaims="lower-priority") == []
    assert cohort(*held, fill, asks, reclaims="never") == []
    assert len(cohort(*held, fill, asks)) == 1


def test_both_queues_give_where_neither_suffices_alone() -> None:
    held = (
        job("c1-low", 3, "c1", priority=-1), job("c1-mid", 2, "c1"),
        job("c2-low", 3, "c2", priority=-1), job("c2-mid", 4, "c2"),
    )  # fmt: skip
    assert cohort(*held, job("in", 4, "c1", at_s=10.0), reclaims="lower-priority") == [
        "c1-low",
        "c2-low",
    ]


def test_a_gang_that_never_fits_stops_nobody() -> None:
    tree = kueue()
    held = [job("c2", 12, "c2")]
    story = story_of([*held, job("in", 13, "c1", priority=9, at_s=10.0)], 12, tree=tree, quota=tree)
    assert gone(story) == []
    assert [c.job_id for _, c in story.commands if isinstance(c, RejectJob)] == ["in"]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"preempts": "lower"}, "queue q: preempts: unknown choice 'lower'"),
        ({"reclaims": "all"}, "queue q: reclaims: unknown choice 'all'"),
        ({"preempts_to_borrow": "any"}, "queue q: preempts_to_borrow: unknown choice 'any'"),
        (
            {"preempts_to_borrow": "lower-priority", "reclaims": "never"},
            "queue q: preempts_to_borrow: it reclaims nothing even to its due",
        ),
        (
            {"preempts_to_borrow_up_to": 0},
            "queue q: preempts_to_borrow_up_to: it preempts nobody to borrow",
        ),
    ],
)
def test_a_choice_that_means_nothing_is_named(field: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        CapacityQueue(name="q", **field)
    assert str(caught.value).startswith(told)
    assert caught.value.hint


def test_nobody_is_stopped_for_devices_that_are_owed_to_a_third_one() -> None:
    """Each plan started the short job, stopped it for the important one, and gave neither a GPU."""
    more: dict[str, Any] = {"order": "sjf", "user_limit_factor": -1, "user_limit_pct": 50}
    children = (
        CapacityQueue(
            name="x",
            guaranteed_pct=60,
            priority=-2,
            preempts="lower-priority",
            reclaims="never",
            **more,
        ),
        CapacityQueue(
            name="y",
            guaranteed_pct=40,
            preempts="lower-or-newer",
            reclaims="lower-priority",
            **more,
        ),
        CapacityQueue(name="z", guaranteed_pct=0, **more),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children))
    wide, many, one = TaskRole(count=3, gpu_count=4), TaskRole(count=12), TaskRole(count=1)
    kinds = (
        ("y", "ann", 0, 10, 30.785, wide), ("x", "bob", 1, 11, 20.459, one),
        ("x", "ann", 1, 14, 3.642, many), ("y", "ann", 0, 24, 25.425, one),
        ("y", "bob", 1, 37, 1.514, wide), ("x", "bob", 1, 54, 26.508, many),
        ("x", "bob", 0, 57, 37.4, one), ("x", "ann", 0, 65, 2.0, many),
        ("y", "ann", 2, 69, 10.389, many),
    )  # fmt: skip
    jobs = [
        timed(
            f"{queue}{n}", queue=queue, user=user, priority=rank, at_s=at, lasts_s=s, roles=(role,)
        )
        for n, (queue, user, rank, at, s, role) in enumerate(kinds)
    ]
    planner = CapacityScheduler(tree=tree, reclaim=Reclaim(wait_s=0.0, balance=True))
    story = Story(planner, t4_nodes(4, 4, 4), jobs, quota=tree, until_s=600.0)
    assert not story.core.jobs
