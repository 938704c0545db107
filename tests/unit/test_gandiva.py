"""Gandiva, mechanism by mechanism, with exact times and places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from wattherd.estimate.interference import PairSpeeds
from wattherd.estimate.job_work import constant
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import StartJob, StopJob
from wattherd.model.event import (
    BudgetChanged,
    DeviceDrained,
    Event,
    JobStopped,
    NodeLost,
    NodeReturned,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.gandiva_turns import memory_part_milli
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.surroundings import Surroundings
from wattherd.testing.timed_world import Story, TimedPlant, t4_nodes, timed

REACTIVE = Gandiva(migration=False, packing=False, growth=False)


def story(planner: Gandiva, cluster: ClusterSpec, jobs: Iterable[JobSpec], **more: object) -> Story:
    return Story(planner, cluster, jobs, **more)  # type: ignore[arg-type]


def small(name: str, memory_mib: int | None = 5_000, **more: object) -> JobSpec:
    """A job that may share a GPU (T4: 15,109 MiB)."""
    return timed(name, roles=(TaskRole(gpu_memory_mib=memory_mib),), **more)  # type: ignore[arg-type]


def reporting(pairs: PairSpeeds, pause_s: float = 0.0) -> DurationPlant:
    return DurationPlant(
        cost=constant(pause_s), report_s=20.0, surroundings=Surroundings(pairs=pairs)
    )


# --- homes ------------------------------------------------------------------------------------


def test_nodes_of_the_same_affinity_come_first_then_unlabelled_then_others() -> None:
    """j0 labels n0 with 1, w labels n1 with 2; j1 joins j0; v joins w; x gets the empty node."""
    jobs = [
        timed("j0", 1, at_s=0.0),
        timed("w", 2, at_s=1.0),
        timed("j1", 1, at_s=2.0),
        timed("v", 2, at_s=3.0),
        timed("x", 4, at_s=4.0),
        timed("y", 2, at_s=5.0),
    ]
    run = story(REACTIVE, t4_nodes(4, 4, 4), jobs)
    first = {job.id: run.places(job.id)[0] for job in jobs}
    assert first == {
        "j0": ((0, 0),),
        "w": ((1, 0, 1),),
        "j1": ((0, 1),),
        "v": ((1, 2, 3),),
        "x": ((2, 0, 1, 2, 3),),
        "y": ((0, 2, 3),),  # its own affinity is full, n0 is of another and has room
    }


def test_of_equals_the_least_loaded_takes_the_job() -> None:
    jobs = [timed("a", 3, at_s=0.0), timed("b", 1, at_s=1.0), timed("c", 1, at_s=2.0),
            timed("d", 1, at_s=3.0, lasts_s=10.0)]  # fmt: skip
    run = story(REACTIVE, t4_nodes(3, 2, 4), jobs)
    assert [run.places(one)[0] for one in "bc"] == [((1, 0),), ((1, 1),)]
    assert run.places("d")[0] == ((2, 0),)


def test_a_gang_is_split_where_no_node_has_room_and_brought_together_when_one_has() -> None:
    """a ends at 50 s; w starts on 1 + 1 GPUs; c ends at 102 s, and w moves at the next slice."""
    jobs = [
        timed("a", 1, lasts_s=50.0),
        timed("b", 1, at_s=1.0, lasts_s=500.0),
        timed("c", 1, at_s=2.0, lasts_s=100.0),
        timed("w", 2, at_s=55.0, lasts_s=500.0),
    ]
    planner = Gandiva(packing=False, free_share=2.0)
    run = story(planner, t4_nodes(2, 2), jobs)
    assert run.starts("w") == [55.0, 120.0]
    assert run.places("w") == [((0, 0), (1, 1)), ((1, 0, 1),)]


def test_gpus_of_a_gang_are_taken_under_one_switch() -> None:
    jobs = [timed("a", 1, at_s=0.0), timed("b", 2, at_s=1.0)]
    plain = story(REACTIVE, t4_nodes(4), jobs)
    assert plain.places("b") == [((0, 1, 2),)]
    close = Gandiva(migration=False, packing=False, growth=False, within={4: (2, 2)})
    assert story(close, t4_nodes(4), jobs).places("b") == [((0, 2, 3),)]


def test_a_job_wider_than_all_nodes_runs_at_the_width_that_they_have() -> None:
    job = timed("a", 6, min_width=2, lasts_s=50.0)
    assert story(REACTIVE, t4_nodes(2, 2), [job]).places("a") == [((0, 0, 1), (1, 0, 1))]


# --- turns ------------------------------------------------------------------------------------


def test_two_jobs_on_one_gpu_take_turns_of_a_quantum() -> None:
    jobs = [timed("a", lasts_s=150.0), timed("b", lasts_s=150.0, at_s=10.0)]
    run = story(REACTIVE, t4_nodes(1), jobs)
    assert run.starts("a") == [0.0, 120.0, 240.0]
    assert run.starts("b") == [60.0, 180.0, 270.0]
    assert (run.ended("a"), run.ended("b")) == (270.0, 300.0)


@pytest.mark.parametrize("quantum_s", [0.1, 1 / 3, 468.6460057459682])
def test_slices_of_any_length_come_to_an_end(quantum_s: float) -> None:
    """Times in floating point: the next slice must be later than this one."""
    jobs = [timed(name, lasts_s=300 * quantum_s) for name in "ab"]
    run = story(replace(REACTIVE, quantum_s=quantum_s), t4_nodes(1), jobs)
    assert max(run.ended("a"), run.ended("b")) == pytest.approx(600 * quantum_s)
    assert 290 <= len(run.starts("a")) <= 301


class SlowStarts(TimedPlant):
    """Runs begin to work `begins_s` after their start; one stopped before has done nothing."""

    begins_s = 90.0

    def __init__(self) -> None:
        super().__init__()
        self.begins: dict[str, tuple[float, JobSpec, StartJob]] = {}

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        self.begins[spec.id] = now_s + self.begins_s, spec, order
        return []

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        if self.begins.pop(order.job_id, None) is None:
            return super().stop(order, now_s)
        return [JobStopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt)]

    def next_s(self) -> float | None:
        ends_s = super().next_s()
        times = [at_s for at_s, _, _ in self.begins.values()]
        return min(times if ends_s is None else [*times, ends_s], default=None)

    def advance(self, to_s: float) -> Sequence[Event]:
        begun: list[Event] = []
        for job_id, (at_s, spec, order) in sorted(self.begins.items()):
            if at_s <= to_s:
                del self.begins[job_id]
                begun += super().start(spec, order, at_s)
        return [*begun, *super().advance(to_s)]


def test_a_run_that_has_not_begun_to_work_keeps_its_turn() -> None:
    """A start may take longer than a slice: an image, a framework, a data set are loaded first."""
    jobs = [timed(name, lasts_s=100.0) for name in "ab"]
    run = story(REACTIVE, t4_nodes(1), jobs, plant=SlowStarts(), until_s=3600.0)
    assert max(run.ended("a"), run.ended("b")) < 1000.0
    assert len(run.starts("a")) + len(run.starts("b")) <= 8


def test_turns_are_fair_also_where_they_do_not_divide() -> None:
    """Three jobs on two GPUs: after any six slices each has had four."""
    jobs = [timed(name, lasts_s=720.0) for name in "abc"]
    run = story(REACTIVE, t4_nodes(2), jobs)
    assert {run.ended(name) for name in "abc"} <= {1020.0, 1080.0}


def test_nobody_is_promised_more_than_the_height() -> None:
    jobs = [timed(name, lasts_s=100.0, at_s=n) for n, name in enumerate("abc")]
    planner = Gandiva(migration=False, packing=False, growth=False, height=2.0)
    run = story(planner, t4_nodes(1), jobs)
    assert run.ended("a") == 160.0
    assert run.starts("c")[0] == 180.0  # b runs on until its slice ends


def test_a_wide_gang_gets_its_turn_on_crowded_nodes_of_another_affinity() -> None:
    """One-GPU jobs keep four GPUs busy; the gang's patience ends, then it takes turns."""
    jobs = [timed(f"j{n}", at_s=n * 10.0, lasts_s=80.0) for n in range(100)]
    wide = timed("w", 4, at_s=15.0, lasts_s=100.0)
    run = story(REACTIVE, t4_nodes(2, 2), [*jobs, wide])
    assert run.starts("w") == [840.0, 1440.0]  # slices in which it is the least served
    endless = replace(REACTIVE, patience_s=1e9)
    assert story(endless, t4_nodes(2, 2), [*jobs, wide]).starts("w")[0] > 1_900.0


def test_a_lost_node_sends_its_residents_elsewhere_running_or_not() -> None:
    events: list[Event] = [NodeLost(at_s=30.0, node="n0"), NodeReturned(at_s=500.0, node="n0")]
    jobs = [timed("a", lasts_s=200.0), timed("b", lasts_s=200.0), timed("c", lasts_s=200.0)]
    run = story(REACTIVE, t4_nodes(1, 1), jobs, events=events)
    assert all(place[0][0] == 1 for name in "abc" for place in run.places(name)[1:])
    assert max(map(run.ended, "abc")) == 600.0  # what a did on n0 is lost


@pytest.mark.parametrize("drained_s", [0.0, 50.0], ids=["before", "at-work"])
def test_a_drained_gpu_is_nobodys_home(drained_s: float) -> None:
    """Two jobs take turns on the one that is left."""
    events: list[Event] = [DeviceDrained(at_s=drained_s, node="n0", gpu=0, cause="bad fan")]
    jobs = [timed(name, at_s=1.0, lasts_s=200.0) for name in "ab"]
    run = story(REACTIVE, t4_nodes(2), jobs, events=events)
    assert max(map(run.ended, "ab")) == pytest.approx(401.0 - max(drained_s - 1.0, 0.0))


def test_under_a_budget_turns_are_those_of_watts() -> None:
    """Two GPUs, watts for one job at its floor: 70 W uncapped; 60 W + 10 W idle."""
    events = [BudgetChanged(at_s=0.0, budget_w=75.0)]
    jobs = [timed("a", lasts_s=120.0), timed("b", lasts_s=120.0)]
    run = story(REACTIVE, t4_nodes(1, 1), jobs, events=events)
    assert run.starts("a") == [0.0, 180.0]  # equally served at 120 s: nobody is stopped
    assert run.starts("b") == [60.0]


def test_a_job_that_a_budget_made_narrower_has_its_width_back_with_the_next_slice() -> None:
    """75 W: one GPU at its floor and one idle; nobody else is there to take the second one."""
    events = [BudgetChanged(at_s=50.0, budget_w=75.0), BudgetChanged(at_s=100.0, budget_w=None)]
    job = timed("a", 2, lasts_s=1000.0, min_width=1, max_width=2)
    run = story(REACTIVE, t4_nodes(2), [job], events=events, until_s=400.0, narrow=True)
    assert run.starts("a") == [0.0, 50.0, 120.0]
    assert [len(place[0]) - 1 for place in run.places("a")] == [2, 1, 2]


# --- packing ----------------------------------------------------------------------------------


def test_a_part_holds_what_the_job_needs_and_not_much_more() -> None:
    assert memory_part_milli(small("a", 5_000), "T4") == 331
    assert memory_part_milli(small("a", 0), "T4") == 1
    assert memory_part_milli(small("a", 15_109), "T4") is None
    assert memory_part_milli(small("a", None), "T4") is None
    assert memory_part_milli(timed("a", 2), "T4") is None


def test_a_pair_that_pays_stays_packed() -> None:
    """Solo rates are known after one slice each, at 120 s; packed from there, 0.8 + 0.7 a second.

    a: 60 of 300 s done at 120 s, 240 left at 0.8: done at 420. b: 210 more by then, 30 left alone.
    """
    plant = reporting(PairSpeeds({("x", "y"): (0.8, 0.7)}))
    jobs = [small("a", profile="x", lasts_s=300.0), small("b", profile="y", lasts_s=300.0)]
    run = story(Gandiva(), t4_nodes(1), jobs, plant=plant)
    assert run.starts("a") == [0.0, 120.0]
    assert run.starts("b") == [60.0]
    assert run.ended("a") == pytest.approx(420.0)
    assert run.ended("b") == pytest.approx(450.0)
    turns = story(REACTIVE, t4_nodes(1), jobs, plant=reporting(PairSpeeds({})))
    assert turns.ended("b") == 600.0


def test_a_pair_that_does_not_pay_is_taken_apart_and_never_tried_again() -> None:
    """Packed from 120 to 180 s at 0.3 + 0.4; then turns again until the end."""
    plant = reporting(PairSpeeds({("x", "y"): (0.3, 0.4)}))
    jobs = [small("a", profile="x", lasts_s=300.0), small("b", profile="y", lasts_s=300.0)]
    run = story(Gandiva(), t4_nodes(1), jobs, plant=plant)
    assert run.starts("a")[:2] == [0.0, 120.0]
    assert run.stops("b")[0] == 180.0
    (gains,) = [run.core._memory["gandiva"].packing.gains]
    assert gains == {("x", "y"): pytest.approx(0.7)}
    assert max(run.ended("a"), run.ended("b")) == pytest.approx(600.0 + 60.0 * (1 - 0.7))


@pytest.mark.parametrize("memory_mib", [8_000, None])
def test_what_does_not_fit_together_or_is_not_known_is_not_packed(memory_mib: int | None) -> None:
    plant = reporting(PairSpeeds({("x", "x"): (1.0, 1.0)}))
    jobs = [small(name, memory_mib, profile="x", lasts_s=300.0) for name in "ab"]
    run = story(Gandiva(), t4_nodes(1), jobs, plant=plant)
    assert max(run.ended("a"), run.ended("b")) == 600.0


def test_partners_part_when_a_gpu_is_free_again() -> None:
    """Three jobs on two GPUs; when c ends, one of the pair gets its GPU."""
    plant = reporting(PairSpeeds({("x", "x"): (0.9, 0.9)}))
    jobs = [small(name, profile="x", lasts_s=600.0) for name in "ab"]
    jobs.append(small("c", profile="x", lasts_s=200.0))
    run = story(Gandiva(migration=False), t4_nodes(2), jobs, plant=plant)
    ends = {name: run.ended(name) for name in "abc"}
    last = {run.places(name)[-1] for name in "ab"}
    assert last == {((0, 0),), ((0, 1),)}
    assert max(ends.values()) < 600.0 * 3 / 2


# --- moves ------------------------------------------------------------------------------------


def test_defragmentation_makes_whole_nodes_free() -> None:
    """Three nodes of four GPUs, each left with one job at 100 s: two of them move at 120 s.

    w needs two whole nodes: it starts at 120 s, and only at 300 s where nobody moves.
    """
    short = [timed(f"s{n}", 1, at_s=0.0, lasts_s=100.0) for n in range(12)]
    stays = [
        timed(f"s{n}", 1, at_s=0.0, lasts_s=300.0) if n % 4 == 0 else short[n] for n in range(12)
    ]
    wide = timed("w", at_s=101.0, lasts_s=50.0, roles=(TaskRole(count=2, gpu_count=4),))
    run = story(Gandiva(height=1.0), t4_nodes(4, 4, 4), [*stays, wide])
    assert run.starts("w") == [120.0]
    moved = {name: run.places(name) for name in ("s0", "s4", "s8") if len(run.starts(name)) > 1}
    assert len(moved) == 2
    assert {place[-1][0][0] for place in moved.values()} == {0}
    assert run.ended("w") == 170.0
    still = story(Gandiva(height=1.0, migration=False), t4_nodes(4, 4, 4), [*stays, wide])
    assert still.starts("w") == [300.0]


def test_who_waits_in_a_crowd_leaves_it_for_free_gpus_at_once() -> None:
    jobs = [timed("a", lasts_s=500.0), timed("b", lasts_s=30.0), timed("c", lasts_s=100.0, at_s=1)]
    run = story(Gandiva(packing=False), t4_nodes(1, 1), jobs)
    assert run.starts("c") == [30.0]
    assert run.places("c") == [((1, 0),)]


# --- growth -----------------------------------------------------------------------------------


def test_idle_gpus_are_lent_after_a_slice_and_given_back_on_demand() -> None:
    jobs = [timed("a", 1, max_width=4, lasts_s=1_000.0), timed("b", 2, at_s=200.0, lasts_s=50.0)]
    run = story(Gandiva(), t4_nodes(4), jobs)
    assert run.starts("b") == [200.0]
    lent = list(zip(run.starts("a"), run.places("a"), strict=True))
    assert lent == [
        (0.0, ((0, 0),)),
        (60.0, ((0, 0, 1, 2, 3),)),
        (200.0, ((0, 0, 3),)),  # b has 1 and 2
        (360.0, ((0, 0, 1, 2, 3),)),  # b ended at 250; idle from 300 on
    ]


def test_what_nobody_can_use_is_not_lent() -> None:
    assert story(Gandiva(), t4_nodes(4), [timed("a", 1, lasts_s=1_000.0)]).starts("a") == [0.0]
