"""Early feedback and utilisation of a crowded cluster: exact on two jobs, in order on many."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.estimate.interference import PairSpeeds
from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn
from wattherd.experiments.schedule.time_slicing import TimeSlicingExperiment, profiled, stretch
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import Fifo
from wattherd.testing.timed_world import t4_nodes, timed
from wattherd.workload.pairs import PairMeasurements, SoloUse

ALONE = {
    "x": SoloUse(utilisation=0.5, memory_mib=4_000),
    "y": SoloUse(utilisation=0.25, memory_mib=4_000),
}
PACKED = PairMeasurements(
    PairSpeeds({("x", "x"): (0.9, 0.9), ("x", "y"): (1.0, 0.8)}), {("x", "x"): 0.75}
)
FIFO = in_turn(OrderedTerms(), Fifo(), Discipline.STRICT)


def crowd(specs: list[JobSpec], cluster: ClusterSpec) -> TimeSlicingExperiment:
    return TimeSlicingExperiment(cluster=cluster, specs=specs, alone=ALONE, packed=PACKED)


def job(name: str, profile: str, *, at_s: float, lasts_s: float) -> JobSpec:
    roles = (TaskRole(gpu_memory_mib=4_000),)
    return timed(name, at_s=at_s, lasts_s=lasts_s, profile=profile, roles=roles)


def test_first_feedback_is_the_first_report_with_a_tenth_of_the_work() -> None:
    """a reports 29 s of 600 at 30 s, 59 s at 60 s, 89 s at 90 s; c begins when a is done."""
    specs = [job("a", "x", at_s=0.0, lasts_s=600.0), job("c", "y", at_s=0.0, lasts_s=20.0)]
    felt = crowd(specs, t4_nodes(1)).run(FIFO)
    assert felt.mean_feedback_s == (90.0 + 622.0) / 2
    assert felt.makespan_s == 622.0
    turns = crowd(specs, t4_nodes(1)).run(Gandiva(packing=False))
    assert turns.mean_feedback_s == pytest.approx((90.0 + 81.0) / 2)


def test_utilisation_counts_a_packed_gpu_as_measured() -> None:
    specs = [job("a", "x", at_s=0.0, lasts_s=100.0), job("b", "y", at_s=202.0, lasts_s=100.0)]
    felt = crowd(specs, t4_nodes(2)).run(FIFO)
    assert felt.utilisation == pytest.approx(101.0 * 0.5 / (2 * 202.0))
    assert crowd(specs, t4_nodes(2)).utilisation(("x", "x")) == 0.75
    assert crowd(specs, t4_nodes(2)).utilisation(("y", "x")) == 0.5


def test_gandiva_gives_feedback_sooner_and_keeps_gpus_busier_than_fifo() -> None:
    chance = np.random.default_rng(3)
    specs = [
        job(f"j{n}", "xy"[n % 2], at_s=20.0 * n, lasts_s=float(chance.integers(100, 2_000)))
        for n in range(60)
    ]
    made = crowd(specs, t4_nodes(4))
    fifo, gandiva = made.run(FIFO), made.run(Gandiva())
    assert fifo.finished == gandiva.finished == 60
    assert gandiva.median_feedback_s < fifo.median_feedback_s / 5
    assert gandiva.utilisation > fifo.utilisation
    assert gandiva.makespan_s < fifo.makespan_s


def test_a_stretch_is_what_one_queue_got_in_that_time() -> None:
    jobs = [timed("a", at_s=5.0, queue="q"), timed("b", at_s=10.0, queue="q"),
            timed("c", at_s=19.9, queue="q"), timed("d", at_s=20.0, queue="q"),
            timed("e", at_s=15.0, queue="r")]  # fmt: skip
    found = stretch(jobs, queue="q", from_s=10.0, length_s=10.0)
    assert [(spec.id, round(spec.submit_s, 6)) for spec in found] == [("b", 0.0), ("c", 9.9)]


def test_profiles_follow_from_the_seed_and_only_single_gpu_jobs_may_share() -> None:
    jobs = [timed("a", 1), timed("b", 2), timed("c", 1)]
    once, again = (profiled(jobs, ALONE, np.random.default_rng(1)) for _ in range(2))
    assert once == again
    assert [spec.roles[0].gpu_memory_mib for spec in once] == [4_000, None, 4_000]
    assert {spec.profile for spec in once} <= {"x", "y"}
