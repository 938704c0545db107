"""Kueue's cohorts, Volcano's and KAI's queues: their own preemption tests as jobs on GPUs.

Numbers are those of TestPreemption, TestHierarchicalPreemptions and TestFairPreemptions (Kueue),
of capacity_test.go (Volcano) and of reclaim_test.go (KAI); a CPU there is a GPU here. A cohort's
own quota is a queue of that guarantee in which nobody asks. Where the outcome is another one by
choice, the test says so, and docs/tutorials/queues.md why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from test_peer_queue_cases import AT_ONCE, gone, job

from wattherd.model.command import RejectJob, StopJob
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.queue.capacity import ideal
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.testing.timed_world import Story, t4_nodes, timed

BALANCED = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0, balance=True)


@dataclass(frozen=True)
class C:
    """A queue or cohort of so many GPUs of its own, beside those of the ones below it."""

    name: str
    quota: int = 0
    below: tuple[C, ...] = ()
    preempts: str = "lower-priority"
    reclaims: str = "any"
    up_to: int | None = None
    """Borrows from jobs of lower priority, up to this one; None: stops nobody to borrow."""

    def whole(self) -> int:
        return self.quota + sum(one.whole() for one in self.below)

    def queue(self, parent: int) -> CapacityQueue:
        mine = self.whole()
        part = 100 * mine / parent if parent else 0.0
        if not self.below:
            return CapacityQueue(
                name=self.name,
                guaranteed_pct=part,
                user_limit_factor=-1,
                preempts=self.preempts,
                reclaims=self.reclaims,
                preempts_to_borrow="never" if self.up_to is None else "lower-priority",
                preempts_to_borrow_up_to=self.up_to,
            )
        children = [one.queue(mine) for one in self.below]
        left = 100 - sum(one.guaranteed_pct for one in children)
        if left > 1e-9:
            children.append(CapacityQueue(name=f"{self.name}-own", guaranteed_pct=left))
        return CapacityQueue(name=self.name, guaranteed_pct=part, children=tuple(children))


def tree_of(*queues: C, own: int = 0) -> tuple[QueueTree, int]:
    root = C("root", own, queues)
    return QueueTree(root.queue(root.whole())), root.whole()


def stopped_for(
    asks: JobSpec,
    held: Sequence[JobSpec],
    *queues: C,
    own: int = 0,
    reclaim: Reclaim = AT_ONCE,
) -> list[str]:
    """Who is stopped once `asks` comes beside all that is `held`; it starts if and only if any."""
    tree, total = tree_of(*queues, own=own)
    planner = CapacityScheduler(tree=tree, reclaim=reclaim)
    story = Story(planner, t4_nodes(total), [*held, asks], until_s=60.0, round_s=5.0)
    assert all(story.starts(one.id)[0] < asks.submit_s for one in held)
    stops = gone(story)
    assert bool(story.starts(asks.id)) == bool(stops)
    return stops


def asking(gpus: int, queue: str, priority: int = 0) -> JobSpec:
    return job("in", gpus, queue, priority=priority, at_s=10.0)


def jobs_of(**held: tuple[Any, ...]) -> list[JobSpec]:
    """Jobs by name: queue, GPUs, priority."""
    return [
        job(name, of[1], of[0], priority=of[2] if len(of) > 2 else 0) for name, of in held.items()
    ]


def units(**counts: int) -> list[JobSpec]:
    return [job(f"{queue}{n}", 1, queue) for queue, count in counts.items() for n in range(count)]


# --- Kueue: one cohort --------------------------------------------------------------------------

PAIR = (
    C("c1", 6, preempts="lower-priority", reclaims="lower-priority"),
    C("c2", 6, preempts="never"),
)
THREE = (C("a", 2), C("b", 2), C("c", 2))


def test_a_borrower_of_equal_priority_gives_back_to_who_reclaims_from_any() -> None:
    held = jobs_of(old=("c1", 4), new=("c1", 4), own=("c2", 2))
    assert stopped_for(asking(4, "c2"), held, *PAIR) == ["new"]


def test_nobody_preempts_his_own_where_that_is_never() -> None:
    assert stopped_for(asking(10, "c2", 1), jobs_of(low=("c2", 3, -1)), *PAIR) == []


def test_of_equal_borrowers_beyond_what_is_left_the_low_one_gives() -> None:
    queues = C("lend1", 6, reclaims="lower-priority"), C("lend2", 6, reclaims="lower-priority")
    held = jobs_of(low=("lend1", 3, -1), mid=("lend2", 3), high=("lend2", 4, 1))
    assert stopped_for(asking(3, "lend1", 1), held, *queues) == ["mid"]
    assert stopped_for(asking(9, "lend1"), jobs_of(low=("lend2", 10, -1)), *queues) == []


def test_a_queue_beyond_its_quota_makes_room_among_its_own() -> None:
    held = jobs_of(a1=("a", 1, -2), a2=("a", 1, -2), a3=("a", 1, -1)) + units(b=3)
    assert stopped_for(asking(2, "a"), held, *THREE) == ["a1", "a2"]


def test_a_queue_within_its_quota_takes_the_lowest_of_both() -> None:
    held = [*jobs_of(a1=("a", 1, -1)), *units(b=4), *jobs_of(low=("b", 1, -1))]
    assert stopped_for(asking(2, "a"), held, *THREE) == ["a1", "low"]


def test_the_latest_of_equals_goes_for_who_came_before_them() -> None:
    tree = QueueTree(CapacityQueue(name="a", preempts="lower-or-newer"))
    jobs = [timed("first", 4, queue="a", user="ann", lasts_s=30.0)]
    jobs.append(timed("in", 5, queue="a", user="ann", at_s=1.0))
    jobs += [timed(f"n{n}", queue="a", user="bob", at_s=1.0 + n, lasts_s=1e4) for n in (1, 2)]
    story = Story(CapacityScheduler(tree=tree, reclaim=AT_ONCE), t4_nodes(6), jobs, until_s=60.0)
    assert gone(story) == ["n2"]
    assert story.starts("in") == [30.0]


LOW: dict[str, Any] = {"reclaims": "lower-priority", "up_to": 0}
SHARED = (
    C("a_standard", 1, preempts="never", **LOW),
    C("b_standard", 1, up_to=0),
    C("a_best", 1, preempts="never", **LOW),
    C("b_best", 0, preempts="never", **LOW),
    C("shared", 10),
)
NEVER = tuple(replace(queue, up_to=None) for queue in SHARED)


@pytest.mark.parametrize("queues", [SHARED, NEVER])
@pytest.mark.parametrize(
    ("asks", "held", "stops"),
    [
        # Would have to borrow even afterwards, from who is more important than borrowing is.
        (asking(10, "a_standard", 2), jobs_of(b=("b_standard", 10, 1)), []),
        # Comes within its own quota.
        (asking(1, "a_standard", 2), jobs_of(b=("b_standard", 13, 1)), ["b"]),
        # Its own queue preempts nobody.
        (asking(1, "a_standard", 2), jobs_of(a=("a_standard", 13, 1)), []),
        # Beyond its quota already: of its own, the lowest.
        (
            asking(1, "b_standard", 3),
            jobs_of(
                a1=("a_standard", 10, 1),
                a2=("a_standard", 1, 1),
                b1=("b_standard", 1, 1),
                b2=("b_standard", 1, 2),
            ),
            ["b1"],
        ),
    ],
)
def test_who_must_borrow_stops_his_own_and_who_need_not_any_borrower(
    asks: JobSpec, held: list[JobSpec], stops: list[str], queues: tuple[C, ...]
) -> None:
    assert stopped_for(asks, held, *queues) == stops


@pytest.mark.parametrize(
    ("asks", "held", "stops"),
    [
        pytest.param(
            asking(10, "a_standard"),
            jobs_of(a_low=("a_best", 10, -1), b_low=("b_best", 1, -1)),
            ["a_low"],
            id="a wide borrower of low priority, though its queue is then below its quota",
        ),
        pytest.param(
            asking(2, "b_standard", 2),
            jobs_of(
                high=("b_standard", 10, 2),
                mid=("b_standard", 1, 1),
                low=("a_best", 1, -1),
                lower=("a_best", 1, -2),
            ),
            ["lower", "mid"],
            id="the lowest of another queue, which keeps its quota, and of its own",
        ),
        pytest.param(
            asking(1, "a_standard"),
            jobs_of(a=("a_standard", 1), low=("b_best", 11, -1), quota=("a_best", 1, -9)),
            ["low"],
            id="nobody who is within his quota",
        ),
        pytest.param(
            asking(1, "a_standard", 5),
            jobs_of(a=("a_standard", 1), mid=("b_best", 12, 1)),
            [],
            id="nobody above the threshold",
        ),
        pytest.param(
            asking(1, "a_standard", -1),
            jobs_of(a=("a_standard", 1), same=("b_best", 12, -1)),
            [],
            id="nobody of equal priority",
        ),
    ],
)
def test_to_borrow_low_priorities_of_other_queues_go_only_where_that_is_chosen(
    asks: JobSpec, held: list[JobSpec], stops: list[str]
) -> None:
    assert stopped_for(asks, held, *SHARED) == stops
    own = {job.id for job in held if job.queue == asks.queue}
    assert set(stopped_for(asks, held, *NEVER)) <= own


BORROWING = C("borrowing")


@pytest.mark.parametrize(
    ("asks", "held", "queues", "own", "stops"),
    [
        pytest.param(
            asking(2, "q"),
            jobs_of(low=("nominal", 2, -10), same=("same", 2, -1)),
            (C("c", 2, (C("q", up_to=0), C("same"))), C("nominal", 2)),
            0,
            ["same"],
            id="within the cohort, not who is within his own outside",
        ),
        pytest.param(
            asking(2, "q", 1),
            jobs_of(high=("same", 1, 1), low=("same", 1), own=("q", 1, -1)),
            (C("c", 3, (C("q", up_to=0), C("same"))),),
            0,
            ["low", "own"],
            id="in the cohort and of its own",
        ),
        pytest.param(
            asking(3, "q"),
            jobs_of(low=("borrowing", 2, -1), same=("same", 1, -1), high=("borrowing", 2, 1)),
            (C("c", 4, (C("q", **LOW), C("same", reclaims="never"))), BORROWING),
            1,
            ["low", "same"],
            id="what the cohort is promised from outside, and the rest from inside",
        ),
        pytest.param(
            asking(1, "q"),
            jobs_of(q=("q", 2), low=("within", 2, -1)),
            (C("c", 2, (C("q", up_to=0),)), C("d", 2, (C("within"),))),
            0,
            [],
            id="nobody whose cohort borrows nothing",
        ),
    ],
)
def test_cohorts_in_which_low_priorities_make_way_for_borrowing(
    asks: JobSpec, held: list[JobSpec], queues: tuple[C, ...], own: int, stops: list[str]
) -> None:
    assert stopped_for(asks, held, *queues, own=own) == stops


def test_borrowing_never_goes_to_and_fro_between_a_promise_and_a_priority() -> None:
    """The low gang's queue has the larger promise: it would come back, and be stopped again."""
    queues = C("low", 2, up_to=9), C("high", 1, up_to=9), C("spare", 7)
    tree, total = tree_of(*queues)
    jobs = [job("wide-low", 10, "low", priority=-1)]
    jobs += [job("wide-high", 10, "high", priority=1, at_s=10.0)]
    story = Story(CapacityScheduler(tree=tree, reclaim=AT_ONCE), t4_nodes(total), jobs, until_s=300)
    assert gone(story) == []


def test_who_is_stopped_for_a_borrower_is_told() -> None:
    tree, total = tree_of(*SHARED)
    held = jobs_of(a=("a_standard", 1), low=("b_best", 12, -1))
    planner = CapacityScheduler(tree=tree, reclaim=Reclaim(wait_s=20.0))
    jobs = [*held, asking(4, "a_standard")]
    during = Story(planner, t4_nodes(total), jobs, until_s=20.0)
    assert during.why("in").startswith("WaitingForPreemption: asked 4 GPUs, available 0 GPUs")
    assert "low must give back 12 GPUs, the first" in during.why("in")
    story = Story(planner, t4_nodes(total), jobs, until_s=40.0)
    (stop,) = [(at, c) for at, c in story.commands if isinstance(c, StopJob)]
    assert (stop[0], stop[1].reason) == (30.0, StopReason.PREEMPTED_FOR_PRIORITY)


def test_with_balanced_queues_or_without_reclaim_nobody_is_stopped_for_a_borrower() -> None:
    """As in Kueue, whose fair sharing does not look at borrowWithinCohort."""
    tree, total = tree_of(*SHARED)
    jobs = [*jobs_of(a=("a_standard", 1), low=("b_best", 12, -1)), asking(1, "a_standard", 5)]
    for reclaim, stops in ((AT_ONCE, ["low"]), (None, [])):
        planner = CapacityScheduler(tree=tree, reclaim=reclaim)
        assert gone(Story(planner, t4_nodes(total), jobs, until_s=40.0)) == stops
    low = {f"b{n}": ("b", 1, -3) for n in range(5)}
    held, queues = [*units(a=3), *jobs_of(**low)], (C("a", 3, up_to=-3), C("b", 3), C("c", 3))
    assert stopped_for(asking(2, "a"), held, *queues) == ["b4"]
    assert stopped_for(asking(2, "a"), held, *queues, reclaim=BALANCED) == []


# --- Kueue: fair sharing, where it is about what is nominal ---------------------------------------

FAIR = (C("a", 3), C("b", 3), C("c", 3), C("spare", 0))


def test_what_is_nominal_comes_from_who_uses_most() -> None:
    stops = stopped_for(asking(1, "c"), units(a=3, b=5, c=1), *FAIR)
    assert Counter(name[0] for name in stops) == {"b": 1}


def test_each_borrower_gives_one() -> None:
    """Kueue's numbers doubled, since half a GPU is none."""
    queues = C("a", 6), C("b", 6), C("c", 6)
    held = [*units(a=2, b=2), *jobs_of(aw=("a", 6), bw=("b", 6))]
    stops = stopped_for(asking(4, "c"), held, *queues)
    assert Counter(name[0] for name in stops) == {"a": 1, "b": 1}


@pytest.mark.parametrize("reclaim", [AT_ONCE, BALANCED])
@pytest.mark.parametrize(
    ("asks", "held"),
    [
        (asking(1, "c"), units(a=3, b=3, c=3)),  # all within what is nominal
        (asking(2, "a"), units(a=3, b=5)),  # would only turn the imbalance round
        (asking(5, "a"), jobs_of(a1=("a", 2), wide=("b", 7))),  # wide for wide
        (asking(4, "a"), jobs_of(b1=("b", 3), b2=("b", 3), c1=("c", 3))),  # below nominal
    ],
)
def test_nobody_is_stopped_to_no_avail(
    asks: JobSpec, held: list[JobSpec], reclaim: Reclaim
) -> None:
    assert stopped_for(asks, held, *FAIR, reclaim=reclaim) == []


def test_what_may_be_borrowed_is_taken_only_where_queues_are_balanced() -> None:
    held = units(a=3, b=5, c=1)
    assert stopped_for(asking(1, "a"), held, *FAIR) == []
    stops = stopped_for(asking(1, "a"), held, *FAIR, reclaim=BALANCED)
    assert Counter(name[0] for name in stops) == {"b": 1}
    assert stopped_for(asking(2, "a"), units(a=3, b=3, spare=3), *FAIR) == []


def test_own_jobs_of_low_priority_and_then_the_biggest_borrower() -> None:
    low = jobs_of(low0=("a", 1, -1), low1=("a", 1, -1), a2=("a", 1), a3=("a", 1))
    assert stopped_for(asking(2, "a"), [*low, *units(b=5)], *FAIR) == ["low0", "low1"]
    low = jobs_of(low0=("a", 1, -1), a2=("a", 1), a3=("a", 1))
    stops = stopped_for(asking(2, "a"), [*low, *units(b=6)], *FAIR, reclaim=BALANCED)
    assert Counter(name[0] for name in stops) == {"l": 1, "b": 1}


def test_a_high_priority_that_does_not_turn_the_imbalance_goes_before_a_low_one_that_does() -> None:
    queues = C("a", 3), C("b", 3, preempts="never"), C("c", 3)
    held = jobs_of(a1=("a", 3), low=("b", 5), high=("b", 1, 1))
    assert stopped_for(asking(1, "a"), held, *queues, reclaim=BALANCED) == ["high"]


def test_queues_are_kept_at_their_guarantees_where_kueue_stops_one_job_fewer() -> None:
    """By choice: Kueue stops a1 alone, and a is left with 1 of 3."""
    held = jobs_of(a1=("a", 3), a2=("a", 1), b1=("b", 2), b2=("b", 3))
    assert stopped_for(asking(3, "c"), held, *FAIR[:3]) == ["a2", "b1"]


def test_a_gang_on_all_gpus_goes_for_what_is_promised_but_not_for_less_than_its_queue_loses() -> (
    None
):
    """Kueue stops it for two GPUs as well; here b would lack three for a's two."""
    held = jobs_of(wide=("b", 9))
    assert stopped_for(asking(3, "a"), held, *FAIR) == ["wide"]
    assert stopped_for(asking(2, "a"), held, *FAIR) == []


# --- Kueue: cohorts in cohorts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "held", "queues", "stops"),
    [
        pytest.param(
            asking(2, "q"),
            jobs_of(x=("borrowing", 2)),
            (C("c", 2, (C("q"),)), BORROWING),
            ["x"],
            id="what the cohort is promised comes back for those in it",
        ),
        pytest.param(
            asking(2, "q"),
            jobs_of(low=("nominal", 2, -10), x=("borrowing", 2)),
            (C("c", 2, (C("q"),)), BORROWING, C("nominal", 2)),
            ["x"],
            id="but not from who is within his own",
        ),
        pytest.param(
            asking(2, "q"),
            jobs_of(x1=("borrowing", 1, 1), x2=("borrowing", 1, 2)),
            (C("c", 2, (C("q"),)), BORROWING),
            ["x1", "x2"],
            id="whatever the priorities of borrowers",
        ),
        pytest.param(
            asking(4, "q"),
            jobs_of(outside=("borrowing", 3, 10), inside=("same", 3, 10)),
            (C("c", 2, (C("q", 4), C("same"))), BORROWING),
            ["inside", "outside"],
            id="the queue's own quota from inside and outside the cohort",
        ),
        pytest.param(
            asking(1, "q"),
            jobs_of(
                p8=("borrowing", 1, 8),
                p9=("borrowing", 1, 9),
                p10=("borrowing", 1, 10),
                low=("nominal", 2, -2),
            ),
            (C("c", 3, (C("q"),)), BORROWING, C("nominal", 2)),
            ["p8"],
            id="the lowest priority among borrowers",
        ),
        pytest.param(
            asking(2, "q"),
            jobs_of(o1=("other", 1, -10), o2=("other", 1, -10), same=("same", 2)),
            (C("c", 2, (C("q"), C("same"))), C("co", 2, (C("other"),))),
            [],
            id="nobody where all cohorts are within their own",
        ),
        pytest.param(
            asking(5, "q", -2),
            jobs_of(x=("borrowing", 4)),
            (C("c", 2, (C("q", 3),)), BORROWING),
            ["x"],
            id="the queue's own quota and the cohort's together",
        ),
        pytest.param(
            asking(5, "a"),
            jobs_of(a1=("a", 1, -1), a2=("a", 1, -1), a3=("a", 1, -1), b=("b", 1, -1)),
            (C("a", 5), C("right", 1, (C("b"),))),
            ["a1", "a2", "a3"],
            id="a borrower in a cohort that borrows nothing is safe",
        ),
        pytest.param(
            asking(8, "left"),
            jobs_of(far=("right", 5)),
            (C("c1", 0, (C("left", 10),)), C("c2", 0, (C("right"),))),
            ["far"],
            id="from another branch of the tree",
        ),
    ],
)
def test_cohorts_in_cohorts(
    asks: JobSpec, held: list[JobSpec], queues: tuple[C, ...], stops: list[str]
) -> None:
    assert stopped_for(asks, held, *queues) == stops


def test_borrowers_outside_and_own_jobs_together() -> None:
    queues = C("c", 4, (C("q", reclaims="lower-priority"), C("same"))), BORROWING
    held = jobs_of(low=("borrowing", 2, -1), own=("q", 1, -1), high=("borrowing", 2, 1))
    assert stopped_for(asking(3, "q"), held, *queues, own=1) == ["low", "own"]


def test_in_a_deep_tree_each_branch_gives_only_what_it_has_too_much() -> None:
    deep = C("c21", 4, (C("c31", 4, (C("q5"),)), C("c32", 4, (C("q4"),))))
    left = C("c11", 4, (deep, C("c22", 4, (C("q3"),)), C("c23", 4, (C("q2"),))))
    held = jobs_of(
        w1=("q1", 4, -6), w2=("q1", 4, -5), w3=("q2", 4, -9), w4=("q2", 4, -10),
        w5=("q3", 4, -4), w6=("q3", 3, -3), w7=("q4", 2, 4), w8=("q4", 3, 2),
    )  # fmt: skip
    stops = stopped_for(asking(7, "q5", -2), held, left, C("c12", 4, (C("q1"),)))
    assert stops == ["w1", "w4"]


# --- what a queue above is promised ---------------------------------------------------------------

FAMILY = C("p", 0, (C("x", 5), C("y", 5))), C("r", 10)


def test_a_brother_has_the_first_claim_to_what_is_idle_within_the_parent() -> None:
    """YARN: shared among the sub-queues of an organization before others may use it."""
    stops = stopped_for(asking(3, "y"), units(y=5, r=15), *FAMILY)
    assert Counter(name[0] for name in stops) == {"r": 3}


def test_no_more_is_claimed_than_the_parent_lacks_and_brothers_are_not_balanced() -> None:
    assert stopped_for(asking(3, "y"), units(y=8, r=12), *FAMILY) == []
    zero = C("p", 0, (C("x", 5), C("y", 5), C("z", 0))), C("r", 10)
    assert stopped_for(asking(3, "y"), units(y=5, z=5, r=10), *zero) == []


def test_the_owner_takes_from_a_brother_what_he_had_of_it_and_the_rest_from_others() -> None:
    stops = stopped_for(asking(5, "x"), units(y=8, r=12), *FAMILY)
    assert Counter(name[0] for name in stops) == {"r": 2, "y": 3}


def test_a_claim_within_the_parent_ends_at_every_maximum() -> None:
    leaf = CapacityQueue(name="y", guaranteed_pct=50, maximum_pct=60)
    idle = CapacityQueue(name="x", guaranteed_pct=50)
    parent = CapacityQueue(name="p", guaranteed_pct=50, maximum_pct=50, children=(idle, leaf))
    tree = QueueTree(
        CapacityQueue(name="root", children=(parent, CapacityQueue(name="r", guaranteed_pct=50)))
    )
    due = ideal(tree, 20, {"y": 20.0, "r": 15.0}, used={"y": 5, "r": 15})
    assert due == pytest.approx({"x": 0, "y": 6, "r": 14})


# --- Volcano -------------------------------------------------------------------------------------


def test_volcano_reclaims_up_to_what_is_deserved_and_not_beyond() -> None:
    zero = jobs_of(own=("q10", 1), other=("q11", 1))
    assert stopped_for(asking(1, "q10"), zero, C("q10", 2), C("q11", 0)) == ["other"]
    beyond = jobs_of(own=("q12", 1), other=("q13", 1))
    assert stopped_for(asking(1, "q12"), beyond, C("q12", 1), C("q13", 0), C("idle", 1)) == []


def test_volcano_stops_one_of_two_where_a_device_is_free() -> None:
    held = jobs_of(p17=("q12", 2), p18=("q12", 2))
    queues = C("q1", 0, (C("q11", 2), C("q12"))), C("rest", 3)
    assert len(stopped_for(asking(2, "q11"), held, *queues)) == 1


def capped(*jobs: JobSpec, child: dict[str, Any], **parent: Any) -> Story:
    """Two equal leaves below a queue, on 8 GPUs."""
    children = tuple(CapacityQueue(name=name, guaranteed_pct=50, **child) for name in ("x", "y"))
    first = CapacityQueue(name="q", children=children, **parent)
    left = 100 - first.guaranteed_pct
    rest = (CapacityQueue(name="rest", guaranteed_pct=left),) if left else ()
    tree = QueueTree(CapacityQueue(name="root", children=(first, *rest)))
    return Story(CapacityScheduler(tree=tree), t4_nodes(8), jobs, quota=tree, until_s=9.0)


def test_volcano_children_share_the_capability_of_their_parent() -> None:
    each = timed("x", 2, queue="x"), timed("y", 2, queue="y")
    shared = {"guaranteed_pct": 25, "maximum_pct": 25}
    assert len(capped(*each, child={"user_limit_factor": -1}, **shared).running()) == 1
    each = timed("x", 4, queue="x"), timed("y", 4, queue="y")
    assert len(capped(*each, child={"maximum_pct": 50}).running()) == 2


def test_volcano_takes_no_job_in_a_queue_that_has_others_below_it() -> None:
    story = capped(timed("j", 1, queue="q"), child={})
    (refusal,) = [c for _, c in story.commands if isinstance(c, RejectJob)]
    assert refusal.detail.startswith("UnknownQueue")


# --- KAI -----------------------------------------------------------------------------------------


def test_kai_a_gang_of_two_goes_for_the_one_gpu_that_another_queue_deserves() -> None:
    assert stopped_for(asking(1, "q1"), jobs_of(r0=("q0", 2)), C("q0", 1), C("q1", 1)) == ["r0"]


def test_kai_whoever_is_over_quota_gives_back_and_who_has_his_own_takes_nothing() -> None:
    two = C("q0", 2), C("q1", 2)
    held = jobs_of(r0=("q0", 1), r1=("q1", 2), r2=("q1", 1))
    assert stopped_for(asking(1, "q0"), held, *two) == ["r2"]
    held = jobs_of(r0=("q0", 1), r1=("q0", 2), r2=("q1", 1))
    assert stopped_for(asking(1, "q1"), held, C("q0", 2), C("q1", 1), C("idle", 1)) == []


def test_kai_of_two_jobs_that_would_do_the_small_one_goes() -> None:
    """By choice: KAI stops the gang of two, and one GPU more than is needed."""
    held = jobs_of(r0=("q0", 1), r1=("q0", 2), r2=("q1", 1))
    assert stopped_for(asking(1, "q1"), held, C("q0", 2), C("q1", 2)) == ["r0"]
