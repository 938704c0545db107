"""Planners that serve jobs in an order: whose turn it is, who may pass, who must give way."""

from __future__ import annotations

import pytest

from wattherd.estimate.gittins import gittins_index
from wattherd.estimate.job_work import EVERY_EVENT, constant, stretched
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import PlanUse
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.node_choice import CountTrial, YarnTrial, anywhere, yarn
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.priorities import (
    Deadline,
    Fifo,
    Gittins,
    LeastAttained,
    Order,
    Priority,
    Shortest,
    ShortestRemaining,
    Smallest,
    SmallestRemainingService,
)
from wattherd.testing.timed_world import Story, t4_nodes, timed


def in_turn(order: Order, discipline: Discipline = Discipline.STRICT, **rules: object) -> Ordered:
    return Ordered(
        rules=RankingRules(order=order, **rules), discipline=discipline, preemptive=False
    )  # type: ignore[arg-type]


def preemptive(order: Order, **rules: object) -> Ordered:
    return Ordered(rules=RankingRules(order=order, **rules))  # type: ignore[arg-type]


def story(planner: Ordered, *jobs: object, gpus: tuple[int, ...] = (4,), **more: object) -> Story:
    return Story(planner, t4_nodes(*gpus), jobs, round_s=0.0, **more)  # type: ignore[arg-type]


def finish_order(planner: Ordered, *jobs: object, **more: object) -> list[str]:
    told = story(planner, *jobs, **more)
    starts = [(min(told.starts(job.id)), job.id) for job in jobs]  # type: ignore[attr-defined]
    return [name for _, name in sorted(starts)]


# --- whose turn it is ------------------------------------------------------------------------

BUSY = timed("busy", 4, lasts_s=10.0)
WAITING = (
    timed("long", 4, at_s=1.0, lasts_s=90.0, priority=1, deadline_s=500.0),
    timed("short", 4, at_s=2.0, lasts_s=20.0, priority=0, deadline_s=900.0),
    timed("urgent", 4, at_s=3.0, lasts_s=50.0, priority=2, deadline_s=300.0),
    timed("whenever", 4, at_s=4.0, lasts_s=30.0, priority=-1),
)
ORDERS: dict[str, tuple[Order, list[str]]] = {
    "fifo": (Fifo(), ["long", "short", "urgent", "whenever"]),
    "priority": (Priority(), ["urgent", "long", "short", "whenever"]),
    "deadline": (Deadline(), ["urgent", "long", "short", "whenever"]),
    "sjf": (Shortest(), ["short", "whenever", "urgent", "long"]),
    "srtf": (ShortestRemaining(), ["short", "whenever", "urgent", "long"]),
    "tiresias": (LeastAttained(), ["long", "short", "urgent", "whenever"]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_waiting_jobs_are_served_in_order(name: str) -> None:
    order, expected = ORDERS[name]
    assert finish_order(in_turn(order), BUSY, *WAITING) == ["busy", *expected]


def test_remaining_service_counts_gpus_too() -> None:
    wide = timed("wide", 4, at_s=1.0, lasts_s=20.0)
    narrow = timed("narrow", 1, at_s=2.0, lasts_s=60.0)
    assert finish_order(in_turn(SmallestRemainingService()), BUSY, wide, narrow)[1] == "narrow"
    assert finish_order(in_turn(ShortestRemaining()), BUSY, wide, narrow)[1] == "wide"
    assert finish_order(in_turn(Smallest()), BUSY, wide, narrow)[1] == "narrow"


def test_what_is_left_counts_not_what_there_was() -> None:
    """At 60 s the long job has 40 s to go: a job of 50 s does not stop it, one of 30 s does."""
    long = timed("long", 4, lasts_s=100.0)
    later = timed("later", 4, at_s=60.0, lasts_s=50.0)
    told = story(preemptive(ShortestRemaining()), long, later)
    assert (told.stops("long"), told.starts("later")) == ([], [100.0])
    sooner = timed("sooner", 4, at_s=60.0, lasts_s=30.0)
    told = story(preemptive(ShortestRemaining()), long, sooner)
    assert (told.stops("long"), told.starts("long")) == ([60.0], [0.0, 90.0])


def test_a_planner_knows_lengths_by_the_work_it_is_told_of() -> None:
    double = stretched(2.0)
    assert double(timed("a", lasts_s=10.0)) == 20.0


def test_only_as_many_are_stopped_as_needed_the_last_ones_first() -> None:
    first, last = timed("first", 2, at_s=0.0), timed("last", 2, at_s=1.0)
    boss = timed("boss", 2, at_s=5.0, priority=1, lasts_s=10.0)
    told = story(preemptive(Priority()), first, last, boss)
    assert (told.stops("first"), told.stops("last"), told.starts("boss")) == ([], [5.0], [5.0])


def test_nobody_is_stopped_for_a_job_that_would_not_fit_even_then() -> None:
    """The important job's node is the other one: stopping would help nobody."""
    low = timed("low", 2, lasts_s=50.0)
    roles = (TaskRole(gpu_count=4),)
    boss = timed("boss", at_s=5.0, priority=1, roles=roles, gpu_models=("V100M16",))
    told = story(preemptive(Priority()), low, boss)
    assert told.stops("low") == []


@pytest.mark.parametrize("free", range(3))
def test_small_jobs_make_room_together_for_a_task_of_several_gpus(free: int) -> None:
    """Each alone gives less than a task takes, which is no reason to stop none of them."""
    small = [timed(f"s{at}", 1, at_s=float(at)) for at in range(4 - free)]
    boss = timed("boss", at_s=5.0, priority=1, lasts_s=10.0, roles=(TaskRole(gpu_count=3),))
    told = story(preemptive(Priority()), *small, boss, gpus=(4,))
    stopped = [one.id for one in small if told.stops(one.id)]
    assert (told.starts("boss"), stopped) == ([5.0], [one.id for one in small[1:]])


T4_AND_V100 = ClusterSpec(
    tuple(
        NodeSpec(name=model, cpu_milli=96_000, memory_mib=786_432, gpu_count=4, gpu_model=model)
        for model in ("T4", "V100M16")
    )
)


def test_devices_of_a_model_that_the_job_does_not_take_are_not_counted_for_it() -> None:
    """The last to come holds T4s: to stop that one makes no room for a job that needs a V100."""
    old = timed("old", 4, gpu_models=("V100M16",))
    new = timed("new", 4, at_s=1.0, gpu_models=("T4",))
    boss = timed("boss", 4, at_s=5.0, priority=1, lasts_s=10.0, gpu_models=("V100M16",))
    told = Story(preemptive(Priority()), T4_AND_V100, (old, new, boss), round_s=0.0)
    assert (told.stops("old"), told.stops("new"), told.starts("boss")) == ([5.0], [], [5.0])


class NoQuota:
    """Lets everybody hold GPUs but one job."""

    def never(self, spec: JobSpec, gpus: int, total: int, now_s: float) -> None:
        return None

    def admits(self, spec: JobSpec, gpus: int, use: PlanUse) -> Reason | None:
        if spec.id != "boss":
            return None
        return Reason(code=ReasonCode.QUOTA_EXCEEDED, since_s=use.now_s, unblocks="a larger quota")


def test_nobody_is_stopped_for_a_job_that_the_guard_refuses_and_its_reason_stands() -> None:
    low = timed("low", 4, lasts_s=50.0)
    boss = timed("boss", 4, at_s=5.0, priority=1)
    told = story(preemptive(Priority()), low, boss, quota=NoQuota(), until_s=20.0)
    assert (told.stops("low"), told.running()) == ([], {"low": 4})
    assert "a larger quota" in told.why("boss")


def test_a_gang_runs_whole_or_not_at_all() -> None:
    told = story(preemptive(Fifo()), timed("a", 3), timed("gang", 6), gpus=(4, 4), until_s=50.0)
    assert told.running() == {"a": 3}
    assert "asked 6 GPUs" in told.why("gang")


# --- who may pass ----------------------------------------------------------------------------

RUNS = timed("runs", 3, lasts_s=100.0)
WIDE = timed("wide", 4, at_s=1.0, lasts_s=10.0)


def test_strictly_nobody_passes() -> None:
    small = timed("small", 1, at_s=2.0, lasts_s=5.0)
    told = story(in_turn(Fifo()), RUNS, WIDE, small)
    assert (told.starts("wide"), told.starts("small")) == ([100.0], [110.0])


def test_first_fit_lets_all_pass() -> None:
    small = timed("small", 1, at_s=2.0, lasts_s=300.0)
    told = story(in_turn(Fifo(), Discipline.FIRST_FIT), RUNS, WIDE, small)
    assert (told.starts("small"), told.starts("wide")) == ([2.0], [302.0])


def test_backfill_lets_pass_who_is_through_in_time() -> None:
    short, long = (timed(name, 1, at_s=2.0, lasts_s=s) for name, s in (("s", 98.0), ("l", 99.0)))
    told = story(in_turn(Fifo(), Discipline.BACKFILL), RUNS, WIDE, short, long)
    assert (told.starts("s"), told.starts("wide"), told.starts("l")) == ([2.0], [100.0], [110.0])


def test_who_has_only_just_started_counts_for_the_reservation() -> None:
    """All come at once: the wide job waits for the first one, and nobody may make that longer."""
    first, wide = timed("first", 3, lasts_s=100.0), timed("wide", 4, lasts_s=10.0)
    long = timed("long", 1, lasts_s=300.0)
    told = story(in_turn(Fifo(), Discipline.BACKFILL), first, wide, long)
    assert (told.starts("wide"), told.starts("long")) == ([100.0], [110.0])


def test_the_reservation_of_a_task_of_several_gpus_counts_small_jobs_together() -> None:
    """None of the four leaves as many as it takes: without a reservation others pass for ever."""
    small = [timed(f"s{at}", 1, lasts_s=40.0 + 20.0 * at) for at in range(4)]
    task = timed("task", at_s=1.0, lasts_s=10.0, roles=(TaskRole(gpu_count=4),))
    stream = [timed(f"l{at}", 1, at_s=2.0 + at, lasts_s=300.0) for at in range(3)]
    told = story(in_turn(Fifo(), Discipline.BACKFILL), *small, task, *stream, gpus=(4,))
    assert told.starts("task") == [100.0]
    assert {start for one in stream for start in told.starts(one.id)} == {110.0}


def test_backfill_lets_pass_who_keeps_off_the_reserved_devices() -> None:
    """The reservation takes the first node whole; the second has a GPU to spare all the time."""
    other = timed("other", 3, lasts_s=1000.0)
    long = timed("long", 1, at_s=2.0, lasts_s=900.0)
    told = story(in_turn(Fifo(), Discipline.BACKFILL), RUNS, other, WIDE, long, gpus=(4, 4))
    assert (told.starts("wide"), told.starts("long")) == ([100.0], [2.0])


def test_the_reservation_is_for_when_devices_that_the_job_takes_are_free() -> None:
    """T4s are free at 10 s, the V100s at 100 s: who would hold one of those longer must wait."""
    v100 = ("V100M16",)
    jobs = (
        timed("t4", 4, lasts_s=10.0, gpu_models=("T4",)),
        timed("v100", 3, lasts_s=100.0, gpu_models=v100),
        timed("wide", 4, at_s=1.0, lasts_s=10.0, gpu_models=v100),
        timed("long", 1, at_s=2.0, lasts_s=500.0, gpu_models=v100),
    )
    told = Story(in_turn(Fifo(), Discipline.BACKFILL), T4_AND_V100, jobs, round_s=0.0)
    assert (told.starts("wide"), told.starts("long")) == ([100.0], [110.0])


def test_who_starves_is_passed_by_nobody_who_delays_him() -> None:
    """One-GPU jobs follow each other for ever; after 50 s of waiting the wide job's turn comes."""
    stream = [timed(f"s{n:03}", 1, at_s=10.0 * n, lasts_s=45.0) for n in range(100)]
    wide = timed("wide", 4, at_s=1.0, lasts_s=10.0)
    planner = in_turn(Fifo(), Discipline.FIRST_FIT)
    assert story(planner, wide, *stream).starts("wide")[0] > 900.0
    planner = in_turn(Fifo(), Discipline.FIRST_FIT, starve_s=50.0)
    assert story(planner, wide, *stream).starts("wide")[0] <= 51.0 + 45.0


def test_who_starves_comes_before_shorter_ones() -> None:
    """Short jobs keep the node full for 1000 s."""
    stream = [timed(f"s{n:03}", 4, at_s=10.0 * n, lasts_s=10.0) for n in range(100)]
    long = timed("long", 4, at_s=1.0, lasts_s=30.0)
    assert story(preemptive(ShortestRemaining()), long, *stream).starts("long")[0] >= 990.0
    told = story(preemptive(ShortestRemaining(), starve_s=100.0), long, *stream)
    assert told.starts("long")[0] == pytest.approx(101.0)
    assert told.stops("long") == []


# --- queues by service received --------------------------------------------------------------


def test_who_received_much_falls_behind_newcomers() -> None:
    """4 GPUs for 100 s are the limit of 400 GPU s."""
    old, new = timed("old", 4, lasts_s=300.0), timed("new", 4, at_s=50.0, lasts_s=60.0)
    told = story(preemptive(LeastAttained(limits_gpu_s=(400.0,))), old, new)
    assert (told.stops("old"), told.starts("new")) == ([100.0], [100.0])
    assert told.starts("old") == [0.0, 160.0]


def test_within_a_queue_who_runs_goes_on() -> None:
    old, new = timed("old", 4, lasts_s=80.0), timed("new", 4, at_s=50.0, lasts_s=60.0)
    told = story(preemptive(LeastAttained(limits_gpu_s=(400.0,))), old, new)
    assert (told.stops("old"), told.starts("new")) == ([], [80.0])


def test_promotion_after_waiting_longer_than_it_ran() -> None:
    """It ran 100 s; after 100 s of waiting it is back in the first queue, behind who is there."""
    old = timed("old", 4, lasts_s=300.0)
    stream = [timed(f"s{n:02}", 4, at_s=40.0 * n + 50.0, lasts_s=40.0) for n in range(20)]
    order = LeastAttained(limits_gpu_s=(400.0,))
    assert story(preemptive(order), old, *stream).starts("old")[1] > 800.0
    told = story(preemptive(order, promote=1.0), old, *stream)
    assert told.starts("old")[1] == 260.0


def test_gittins_prefers_who_is_likely_to_be_through_soon() -> None:
    """Half of all jobs need 10, half 1000: who has survived 10 is one of the long ones."""
    index = gittins_index([10.0, 1000.0])
    assert index.of(0.0) == pytest.approx(0.5 / 10.0)
    assert index.of(10.0) == pytest.approx(1.0 / 990.0)
    assert index.of(2000.0) == 0.0
    order = Gittins(index=index, limits_gpu_s=())
    old, new = timed("old", 1, lasts_s=1000.0), timed("new", 1, at_s=500.0, lasts_s=10.0)
    told = story(preemptive(order), old, new, gpus=(1,))
    assert told.stops("old") == [500.0]


def test_gittins_index_of_equal_services_rises() -> None:
    index = gittins_index([100.0] * 5)
    assert index.of(0.0) == pytest.approx(1 / 100.0)


def test_many_samples_are_told_by_their_quantiles() -> None:
    few = gittins_index([float(n) for n in range(1, 1001)])
    many = gittins_index([n / 10 for n in range(1, 10_001)])
    for served in (0.0, 250.0, 900.0):
        assert many.of(served) == pytest.approx(few.of(served), rel=0.05)


# --- packed anew -----------------------------------------------------------------------------


def test_packed_anew_whoever_comes_later_gives_way_to_fragments() -> None:
    """YARN's rule wants one node for two GPUs: counting would admit the pair, packing moves on."""
    ones = [timed(f"o{n}", 1, at_s=float(n), lasts_s=100.0) for n in range(2)]
    pair = timed("pair", 2, at_s=10.0, lasts_s=10.0)
    planner = Ordered(rules=RankingRules(order=Fifo()), place=yarn, anew=YarnTrial)
    told = story(planner, *ones, pair, gpus=(2, 2))
    assert told.starts("pair") == [10.0]
    counted = Ordered(rules=RankingRules(order=Fifo()), place=anywhere, anew=CountTrial)
    assert story(counted, *ones, pair, gpus=(2, 2)).starts("pair") == [10.0]


def test_packed_anew_running_jobs_move_only_if_they_must() -> None:
    """After b and c end, a and d hold one GPU of each node; the pair needs a whole one."""
    jobs = [timed(name, 1, lasts_s=s) for name, s in zip("abcd", (100, 10, 10, 100), strict=True)]
    pair = timed("pair", 2, at_s=20.0, lasts_s=10.0)
    planner = Ordered(rules=RankingRules(order=Fifo()), place=yarn, anew=YarnTrial)
    told = story(planner, *jobs, pair, gpus=(2, 2))
    assert told.starts("pair") == [20.0]
    assert sorted(len(told.stops(name)) for name in "ad") == [0, 1]


# --- what restarts cost ----------------------------------------------------------------------


def test_starts_cost_what_was_measured() -> None:
    job = timed("a", 8, profile="a2c")
    assert EVERY_EVENT.pause_s(job) == 46.0
    assert EVERY_EVENT.pause_s(timed("b", 3, profile="a2c")) == 10.0
    assert constant(5.0).pause_s(job) == 5.0
