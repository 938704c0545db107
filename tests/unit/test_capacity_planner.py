"""Capacity queues on a running cluster: guarantee, borrow, reclaim with notice, limits, holds."""

from __future__ import annotations

import pytest

from wattherd.errors import UserError
from wattherd.model.command import GiveNotice, StartJob
from wattherd.model.event import NodeLost, QueueStarted, QueueStopped
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import StopReason
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.testing.timed_world import Story, t4_nodes, timed

AT_ONCE = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
SOON = Reclaim(wait_s=15.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)


def two_queues(**of_both: float) -> QueueTree:
    shared = {"guaranteed_pct": 50.0, "user_limit_factor": 2.0, **of_both}
    return QueueTree(
        CapacityQueue(
            name="root",
            children=(CapacityQueue(name="a", **shared), CapacityQueue(name="b", **shared)),
        )  # type: ignore[arg-type]
    )


def many(prefix: str, count: int, **more: object) -> list[JobSpec]:
    return [timed(f"{prefix}{number}", **more) for number in range(count)]  # type: ignore[arg-type]


def test_both_queues_get_their_guarantee_when_both_ask_at_once() -> None:
    jobs = [*many("a", 8, queue="a"), *many("b", 8, queue="b")]
    story = Story(
        CapacityScheduler(tree=two_queues()), t4_nodes(4, 4), jobs, until_s=50.0, round_s=10.0
    )
    assert sorted(story.running()) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    assert story.why("b7") == "WaitingForGpus: asked 1 GPU, available 0 GPUs"


def test_idle_capacity_is_lent_up_to_the_maximum() -> None:
    jobs = many("a", 8, queue="a")
    story = Story(
        CapacityScheduler(tree=two_queues(maximum_pct=75)), t4_nodes(4, 4), jobs, until_s=50.0
    )
    assert len(story.running()) == 6
    assert story.why("a7") == (
        "QuotaExceeded: asked 1 GPU, in use 6 GPUs, available 0 GPUs (queue 'a' may hold 6 GPUs)"
    )


def test_a_borrower_gets_notice_and_gives_back_when_it_is_over() -> None:
    jobs = [*many("a", 8, queue="a"), timed("b", 3, queue="b", at_s=10.0)]
    planner = CapacityScheduler(tree=two_queues(), reclaim=SOON)
    story = Story(planner, t4_nodes(4, 4), jobs, until_s=99.0)
    notices = [(at, c) for at, c in story.commands if isinstance(c, GiveNotice)]
    assert [(at, c.job_id, c.at_s) for at, c in notices] == [
        (10.0, "a7", 25.0), (10.0, "a6", 25.0), (10.0, "a5", 25.0),
    ]  # fmt: skip
    assert all(c.reason is StopReason.RECLAIMED for _, c in notices)
    assert [story.stops(name) for name in ("a7", "a6", "a5", "a4")] == [[25.0], [25.0], [25.0], []]
    assert story.starts("b") == [25.0]


def test_while_the_notice_runs_both_sides_are_told() -> None:
    jobs = [*many("a", 8, queue="a"), timed("b", 3, queue="b", at_s=10.0)]
    planner = CapacityScheduler(tree=two_queues(), reclaim=SOON)
    story = Story(planner, t4_nodes(4, 4), jobs, until_s=20.0)
    assert story.why("b") == (
        "WaitingForPreemption: asked 3 GPUs, available 0 GPUs "
        "(a7, a6, a5 must give back 3 borrowed GPUs, the first in about 15 s)"
    )


def test_the_notice_is_withdrawn_when_the_need_is_gone() -> None:
    """A borrower that ends by itself makes the stop unnecessary."""
    jobs = [
        *many("a", 7, queue="a"),
        timed("short", queue="a", lasts_s=12.0, priority=1),
        timed("b", queue="b", at_s=10.0),
    ]
    story = Story(
        CapacityScheduler(tree=two_queues(), reclaim=SOON), t4_nodes(4, 4), jobs, until_s=60.0
    )
    assert story.starts("b") == [12.0]
    assert not any(story.stops(f"a{number}") for number in range(7))


def test_lowest_priority_goes_first_then_the_newest() -> None:
    jobs = [
        timed("low", queue="a", priority=-1),
        *many("a", 7, queue="a"),
        timed("b", 2, queue="b", at_s=10.0),
    ]
    story = Story(
        CapacityScheduler(tree=two_queues(), reclaim=AT_ONCE), t4_nodes(4, 4), jobs, until_s=50.0
    )
    assert story.stops("low") == story.stops("a6") == story.starts("b") == [10.0]
    assert not any(story.stops(f"a{number}") for number in range(6))


def test_a_queue_within_its_guarantee_is_never_robbed() -> None:
    jobs = [*many("a", 4, queue="a"), *many("b", 4, queue="b")]
    jobs.append(timed("urgent", queue="b", priority=9, at_s=10.0))
    story = Story(
        CapacityScheduler(tree=two_queues(), reclaim=AT_ONCE), t4_nodes(4, 4), jobs, until_s=50.0
    )
    assert sorted(story.running()) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    assert not any(story.stops(job.id) for job in jobs)


def test_reclaim_goes_in_steps_of_a_fifth_of_the_excess() -> None:
    """YARN's defaults: 10 over, then 8, 6, ... each step after 15 s of notice."""
    jobs = [*many("a", 20, queue="a"), *many("b", 10, queue="b", at_s=100.0, lasts_s=500.0)]
    jobs = [timed(job.id, queue=job.queue, at_s=job.submit_s, lasts_s=500.0) for job in jobs]
    planner = CapacityScheduler(tree=two_queues(), reclaim=Reclaim(dead_zone=0.0, per_cycle=1.0))
    story = Story(planner, t4_nodes(4, 4, 4, 4, 4), jobs, until_s=300.0)
    stops = sorted(at for job in jobs for at in story.stops(job.id))
    assert stops == [115.0] * 2 + [130.0] * 2 + [145.0] * 2 + [160.0, 175.0, 190.0, 205.0]


@pytest.mark.parametrize("round_s", [None, 0.0])
def test_a_gang_gets_all_it_is_owed_step_by_step_also_where_nothing_else_happens(
    round_s: float | None,
) -> None:
    """A service plans when it is woken: nobody but the planner knows that a step is to follow."""
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=(
                CapacityQueue(name="prod", guaranteed_pct=75.0),
                CapacityQueue(name="research", guaranteed_pct=25.0, user_limit_factor=4.0),
            ),
        )
    )
    jobs = [*many("a", 4, queue="research"), timed("b", 3, queue="prod", at_s=10.0)]
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4), jobs, until_s=99.0, round_s=round_s)
    assert story.running() == {"a0": 1, "b": 3}
    assert [len(story.stops(f"a{number}")) for number in range(4)] == [0, 1, 1, 1]
    assert len(story.starts("b")) == 1
    assert story.starts("b")[0] <= 10.0 + 3 * 15.0 + 2 * 1.0


def test_no_reclaim_is_made_for_a_gang_that_could_not_start_anyway() -> None:
    """6 of 8 GPUs are more than the 4 that queue b is owed while a has use for its own 4."""
    jobs = [*many("a", 8, queue="a"), timed("b", 6, queue="b", at_s=10.0)]
    story = Story(CapacityScheduler(tree=two_queues(), reclaim=AT_ONCE), t4_nodes(4, 4), jobs)
    assert not any(story.stops(f"a{number}") for number in range(8))
    assert story.starts("b") == [100.0]


@pytest.mark.parametrize(("users", "each"), [(2, 50), (3, 34), (4, 25), (5, 25)])
def test_user_limit_of_25_percent_on_a_hundred_gpus(users: int, each: int) -> None:
    tree = QueueTree(CapacityQueue(name="a", user_limit_pct=25))
    jobs = [
        timed(f"{user}-{number}", queue="a", user=str(user))
        for user in range(users)
        for number in range(100)
    ]
    story = Story(
        CapacityScheduler(tree=tree), t4_nodes(*[10] * 10), jobs, until_s=50.0, round_s=10.0
    )
    held = sorted(
        sum(gpus for job, gpus in story.running().items() if job.startswith(f"{user}-"))
        for user in range(users)
    )
    assert sum(held) == 100
    assert held[-1] == each


def test_who_is_at_the_user_limit_is_told_so_and_wider_first_gangs_are_let_in() -> None:
    tree = QueueTree(CapacityQueue(name="a", user_limit_pct=25))
    jobs = [*many("ann", 8, queue="a", user="ann"), timed("bob", 5, queue="a", user="bob")]
    early = Story(CapacityScheduler(tree=tree), t4_nodes(8), jobs, until_s=50.0, round_s=10.0)
    assert sorted(early.running()) == ["ann0", "ann1", "ann2", "ann3"]
    assert early.why("ann4") == (
        "QuotaExceeded: asked 1 GPU, in use 4 GPUs, available 0 GPUs "
        "(2 users share the queue; each may hold 4 GPUs of queue 'a')"
    )
    story = Story(CapacityScheduler(tree=tree), t4_nodes(8), jobs, round_s=10.0)
    assert story.starts("bob") == [210.0]  # those who asked before him come first


def test_stuck_at_ninety_percent_tells_which_knob_does_it() -> None:
    tree = QueueTree(
        CapacityQueue(
            name="root",
            children=(
                CapacityQueue(name="a", guaranteed_pct=90),
                CapacityQueue(name="b", guaranteed_pct=10),
            ),
        )
    )
    jobs = many("j", 10, queue="a", user="ann")
    story = Story(CapacityScheduler(tree=tree), t4_nodes(10), jobs, quota=tree, until_s=50.0)
    assert len(story.running()) == 9
    assert story.why("j9") == (
        "QuotaExceeded: asked 1 GPU, in use 9 GPUs, available 0 GPUs "
        "(user limit factor 1 allows 'ann' 9 GPUs of queue 'a')"
    )


def test_a_wide_gang_is_not_overtaken_for_ever_by_small_jobs_of_its_own_queue() -> None:
    stream = [timed(f"s{n}", at_s=5.0 * n, lasts_s=20.0) for n in range(200)]
    jobs = [*stream, timed("wide", 8, at_s=50.0, lasts_s=20.0)]
    tree = QueueTree(CapacityQueue(name="default"))
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4, 4), jobs)
    assert story.starts("wide")[0] <= 50.0 + 2 * 20.0


def test_a_wide_task_is_not_kept_waiting_by_scattered_small_ones() -> None:
    """Enough GPUs are always free, but never four on one node unless they are held together."""
    stream = [timed(f"s{n}", queue="b", at_s=5.0 * n, lasts_s=22.0) for n in range(200)]
    wide = timed("wide", queue="a", at_s=50.0, roles=(TaskRole(count=1, gpu_count=4),))
    tree = two_queues()
    story = Story(CapacityScheduler(tree=tree, reclaim=None), t4_nodes(4, 4), [*stream, wide])
    assert story.starts("wide")[0] <= 80.0


def test_what_is_held_stays_held_while_a_wider_job_of_the_same_user_is_at_the_limit() -> None:
    """Who is at a limit is tried once more when all were served; who was below it is not."""
    stream = [timed(f"s{n}", user="bob", at_s=2.0 * n, lasts_s=20.0) for n in range(200)]
    runs = timed("runs", 4, user="ann", lasts_s=1000.0)
    wide = timed("wide", user="ann", at_s=50.0, roles=(TaskRole(count=1, gpu_count=4),))
    wider = timed("wider", 12, user="ann", at_s=50.0)
    tree = QueueTree(CapacityQueue(name="default", order="fair", user_limit_factor=1.0))
    jobs = [runs, *stream, wide, wider]
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4, 4, 4), jobs, until_s=300.0)
    assert story.starts("wide")[0] <= 72.0  # never, where the hold was given up in each plan
    assert "user limit factor 1 allows 'ann' 12 GPUs" in story.why("wider")


@pytest.mark.parametrize(("every_s", "lasts_s"), [(5.0, 30.0), (4.0, 22.0), (5.0, 40.0)])
def test_room_is_held_where_it_becomes_free_first(every_s: float, lasts_s: float) -> None:
    """Not on the first node that is as large, where another job may run for weeks."""
    stream = [timed(f"s{n}", user="bob", at_s=every_s * n, lasts_s=lasts_s) for n in range(100)]
    runs = timed("runs", 4, user="ann", lasts_s=1000.0)
    wide = timed("wide", user="ann", at_s=50.0, roles=(TaskRole(count=1, gpu_count=4),))
    tree = QueueTree(CapacityQueue(name="default", order="fair", user_limit_factor=1.0))
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4, 4, 4), [runs, *stream, wide])
    assert story.starts("wide")[0] <= 50.0 + lasts_s


def test_a_hold_moves_to_where_less_must_still_become_free() -> None:
    """At 10 s no node is better than another; what ends from 20 s on shows which one is."""
    stays = [timed(f"a{n}", 1, lasts_s=1000.0) for n in range(4)]
    ends = [timed(f"b{n}", 1, lasts_s=20.0 + 10.0 * n) for n in range(4)]
    stream = [timed(f"s{n}", at_s=12.0 + n, lasts_s=9.0) for n in range(300)]
    wide = timed("wide", at_s=10.0, roles=(TaskRole(count=1, gpu_count=4),))
    tree = QueueTree(CapacityQueue(name="default", user_limit_factor=2.0))
    jobs = [*stays, *ends, wide, *stream]
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4, 4), jobs, until_s=200.0)
    assert story.starts("wide") == [50.0]


def test_a_stopped_queue_starts_nothing_and_lets_the_running_end() -> None:
    jobs = [timed("early"), timed("late", at_s=20.0)]
    events = [QueueStopped(at_s=10.0, queue="default"), QueueStarted(at_s=60.0, queue="default")]
    tree = QueueTree(CapacityQueue(name="default"))
    paused = Story(CapacityScheduler(tree=tree), t4_nodes(4), jobs, events=events, until_s=50.0)
    assert list(paused.running()) == ["early"]
    assert paused.why("late") == "QueueStopped (queue 'default' is stopped; start it)"
    story = Story(CapacityScheduler(tree=tree), t4_nodes(4), jobs, events=events)
    assert (story.starts("late"), story.stops("early")) == ([60.0], [])


def test_a_lost_node_costs_every_queue_its_share() -> None:
    jobs = [*many("a", 8, queue="a", lasts_s=500.0), *many("b", 8, queue="b", lasts_s=500.0)]
    events = [NodeLost(at_s=50.0, node="n1")]
    planner = CapacityScheduler(tree=two_queues(), reclaim=AT_ONCE)
    story = Story(planner, t4_nodes(4, 4), jobs, events=events, until_s=60.0)
    held = [job[0] for job in story.running()]
    assert (held.count("a"), held.count("b")) == (2, 2)


def test_fair_order_in_a_leaf_lets_users_take_turns() -> None:
    tree = QueueTree(CapacityQueue(name="default", order="fair", user_limit_factor=1.0))
    jobs = [*many("a", 8, user="ann"), *many("b", 8, user="bob")]
    story = Story(CapacityScheduler(tree=tree), t4_nodes(8), jobs, until_s=50.0, round_s=10.0)
    assert sorted(story.running()) == [f"{who}{n}" for who in "ab" for n in range(4)]


def test_a_rogue_planner_cannot_exceed_a_quota() -> None:
    """The guard asks the tree, whoever plans."""

    class Rogue:
        def plan(self, view, draft) -> None:  # type: ignore[no-untyped-def]
            from wattherd.policy.contract import Share

            for job in view.live():
                if not job.wanted:
                    draft.start(job, [Share(0, 1)])

    tree = two_queues(maximum_pct=50)
    story = Story(Rogue(), t4_nodes(8), many("a", 8, queue="a"), quota=tree, until_s=50.0)
    assert sum(story.running().values()) == 4
    assert story.why("a7").startswith("QuotaExceeded: asked 1 GPU, in use 4 GPUs, available 0 GPUs")


def test_gangs_are_placed_on_few_nodes_with_room_for_all_roles() -> None:
    roles = (TaskRole(count=6), TaskRole(name="ps", count=2, gpu_count=0, cpu_milli=40_000))
    story = Story(
        CapacityScheduler(tree=QueueTree(CapacityQueue(name="default"))),
        t4_nodes(4, 8, 4, cpu_milli=64_000),
        [timed("g", roles=roles)],
        until_s=1.0,
    )
    ((_, start),) = [(at, c) for at, c in story.commands if isinstance(c, StartJob)]
    nodes = [(one.node, one.role, one.tasks) for one in start.allocations]
    assert nodes == [(1, 0, 6), (0, 1, 1), (1, 1, 1)]


def lent(half_life_s: float | None, *, until_s: float) -> dict[str, float]:
    """GPU seconds of b and c, which borrow what a leaves; c has been alone for 1,000 s."""
    names = {"a": 50.0, "b": 25.0, "c": 25.0}
    children = tuple(
        CapacityQueue(name=name, guaranteed_pct=pct, user_limit_factor=4.0)
        for name, pct in names.items()
    )
    tree = QueueTree(CapacityQueue(name="root", children=children, half_life_s=half_life_s))
    early = many("c", 400, queue="c", lasts_s=50.0)
    late = many("b", 400, queue="b", lasts_s=50.0, at_s=990.0)
    planner = CapacityScheduler(tree=tree, reclaim=None)
    story = Story(planner, t4_nodes(8), [*early, *late], until_s=until_s)
    return {
        name: sum(
            50.0 for n in range(400) for at_s in story.starts(f"{name}{n}") if at_s >= 1_000.0
        )
        for name in "bc"
    }


def test_what_is_lent_goes_first_to_who_had_least_lately() -> None:
    now = lent(None, until_s=1_400.0)
    assert now["b"] == pytest.approx(now["c"], rel=0.25), "who has least now"
    lately = lent(1_000.0, until_s=1_400.0)
    assert lately["c"] == pytest.approx(2 * 400.0, rel=0.2), "what it is promised, and no more"
    assert lately["b"] > 2.5 * lately["c"]


def test_long_ago_is_forgotten() -> None:
    """After many half-lives both are lent as much."""
    far = lent(100.0, until_s=2_000.0)
    assert 0.9 < far["b"] / far["c"] < 1.5


def test_whoever_lacks_what_is_promised_is_served_first_whatever_was_used() -> None:
    """c has used all there is for long, and still gets its half before b borrows."""
    children = (
        CapacityQueue(name="b", guaranteed_pct=50, user_limit_factor=4.0),
        CapacityQueue(name="c", guaranteed_pct=50, user_limit_factor=4.0),
    )
    tree = QueueTree(CapacityQueue(name="root", children=children, half_life_s=1e6))
    jobs = [
        *many("c", 4, queue="c", lasts_s=1_000.0),
        *many("b", 4, queue="b", at_s=1_000.0),
        *many("d", 4, queue="c", at_s=1_000.0),
    ]
    planner = CapacityScheduler(tree=tree, reclaim=None)
    story = Story(planner, t4_nodes(4), jobs, until_s=1_050.0, round_s=10.0)
    assert sorted(story.running()) == ["b0", "b1", "d0", "d1"]


@pytest.mark.parametrize("half_life_s", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_half_life_is_refused(half_life_s: float) -> None:
    with pytest.raises(UserError, match="half_life"):
        CapacityQueue(name="root", half_life_s=half_life_s)
