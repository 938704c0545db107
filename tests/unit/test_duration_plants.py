"""Plants of known durations: when jobs end, whatever happens to them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from wattherd.engine.core.executor import Plant
from wattherd.errors import UserError
from wattherd.estimate.job_work import RestartCost, constant, stretched
from wattherd.experiments.schedule.simulators import PRESETS
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.allocation import Allocation
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import JobExited, JobProgressed, JobStopped
from wattherd.model.job import JobSpec, Request
from wattherd.model.reason import StopReason
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.event_charged_plant import EventChargedPlant
from wattherd.testing.timed_world import t4_nodes, timed

ON_NODE = (Allocation(Request(cpu_milli=0, gpu_count=1, gpu_milli=1000), 0, (0,)),)


def start(plant: Plant, job: JobSpec, now_s: float, attempt: int = 1) -> None:
    order = StartJob(job_id=job.id, attempt=attempt, allocations=ON_NODE)
    plant.start(job, order, now_s)


def stop(plant: Plant, name: str, now_s: float, attempt: int = 1) -> list[JobStopped]:
    why = StopReason.MIGRATED
    order = StopJob(job_id=name, attempt=attempt, reason=why, grace_s=0.0)
    return list(plant.stop(order, now_s))  # type: ignore[arg-type]


def ends(plant: Plant, to_s: float) -> list[tuple[str, float]]:
    return [(one.job_id, one.at_s) for one in plant.advance(to_s) if isinstance(one, JobExited)]


def half_speed(spec: JobSpec, nodes: Sequence[int], gpus: int, cap_w: float | None) -> float:
    return 1.0 if cap_w is None else 0.5


def test_a_job_ends_when_its_work_is_done() -> None:
    plant = DurationPlant()
    start(plant, timed("a", lasts_s=30.0), 5.0)
    assert plant.next_s() == 35.0
    assert ends(plant, 34.0) == []
    assert ends(plant, 40.0) == [("a", 35.0)]


def test_every_run_begins_with_its_pause() -> None:
    plant, job = DurationPlant(cost=constant(4.0)), timed("a", lasts_s=30.0)
    start(plant, job, 0.0)
    (stopped,) = stop(plant, "a", 14.0)
    assert stopped.progress == 10.0
    start(plant, job, 20.0, attempt=2)
    assert ends(plant, 100.0) == [("a", 20.0 + 4.0 + 20.0)]


def test_a_job_stopped_in_its_pause_has_done_nothing() -> None:
    plant = DurationPlant(cost=constant(4.0))
    start(plant, timed("a", lasts_s=30.0), 0.0)
    assert stop(plant, "a", 3.0)[0].progress == 0.0


def test_a_stop_goes_back_to_the_last_checkpoint() -> None:
    plant, job = DurationPlant(), timed("a", lasts_s=30.0, checkpoint_s=8.0)
    start(plant, job, 0.0)
    assert stop(plant, "a", 20.0)[0].progress == 16.0
    start(plant, job, 20.0, attempt=2)
    assert plant.next_s() == 20.0 + 14.0


def test_a_stop_takes_its_time() -> None:
    plant = DurationPlant(stop_s=5.0)
    start(plant, timed("a", lasts_s=30.0), 0.0)
    assert stop(plant, "a", 10.0) == []
    assert plant.next_s() == 15.0
    (stopped,) = plant.advance(15.0)
    assert (stopped.at_s, stopped.progress) == (15.0, 10.0)  # type: ignore[attr-defined]


def test_a_lost_node_takes_what_was_not_saved() -> None:
    plant, job = DurationPlant(), timed("a", lasts_s=30.0)
    start(plant, job, 0.0)
    plant.lose(0, 20.0)
    assert plant.next_s() is None
    start(plant, job, 20.0, attempt=2)
    assert plant.next_s() == 50.0


def test_a_cap_slows_from_now_on() -> None:
    plant = DurationPlant(speed_at=half_speed)
    start(plant, timed("a", lasts_s=30.0), 0.0)
    plant.cap(SetCap(job_id="a", attempt=1, cap_w=100.0), 10.0)
    assert ends(plant, 100.0) == [("a", 10.0 + 40.0)]


def test_reports_come_at_their_times() -> None:
    plant = DurationPlant(report_s=10.0)
    start(plant, timed("a", lasts_s=25.0), 0.0)
    for now_s in (10.0, 20.0):
        assert plant.next_s() == now_s
        (told,) = plant.advance(now_s)
        assert isinstance(told, JobProgressed)
        assert (told.at_s, told.progress) == (now_s, now_s)
    assert plant.next_s() == 25.0


def test_a_stop_of_an_earlier_attempt_is_ignored() -> None:
    for plant in (DurationPlant(), EventChargedPlant(cost=RestartCost(every_event=True))):
        start(plant, timed("a", lasts_s=30.0), 0.0, attempt=2)
        assert stop(plant, "a", 10.0, attempt=1) == []
        assert plant.next_s() == 30.0


def test_a_job_of_unknown_length_is_refused() -> None:
    with pytest.raises(UserError, match="job a: duration_s: has no duration"):
        start(DurationPlant(), JobSpec(id="a", submit_s=0.0), 0.0)


# --- every event costs -----------------------------------------------------------------------


def charged(pause_s: float = 4.0) -> EventChargedPlant:
    return EventChargedPlant(cost=RestartCost(pause_s=constant(pause_s).pause_s, every_event=True))


def test_an_event_costs_everybody_who_runs_a_pause() -> None:
    plant = charged()
    start(plant, timed("a", lasts_s=30.0), 0.0)
    assert plant.next_s() == 30.0
    plant.advance(10.0)  # 6 s of work
    assert plant.next_s() == 10.0 + 24.0


def test_an_event_within_the_pause_lets_nobody_work() -> None:
    plant = charged()
    start(plant, timed("a", lasts_s=30.0), 0.0)
    plant.advance(3.0)
    assert plant.next_s() == 33.0


def test_who_is_through_when_an_event_comes_is_through() -> None:
    plant = charged()
    start(plant, timed("a", lasts_s=30.0), 0.0)
    start(plant, timed("b", lasts_s=50.0), 0.0)
    assert ends(plant, 30.0) == [("a", 30.0)]
    assert plant.next_s() == 30.0 + 50.0 - 26.0


def test_progress_survives_a_stop_and_the_table_closes_its_gaps() -> None:
    plant = charged()
    for name in "abc":
        start(plant, timed(name, lasts_s=30.0), 0.0)
    plant.advance(10.0)
    (stopped,) = stop(plant, "a", 10.0)
    assert stopped.progress == pytest.approx(6.0)
    plant.advance(20.0)
    start(plant, timed("a", lasts_s=30.0), 20.0, attempt=2)
    assert plant.next_s() == 20.0 + 30.0 - 12.0
    found = ends(plant, 100.0)
    assert found == [("b", 38.0), ("c", 38.0), ("a", 44.0)]


def test_a_crowd_is_charged_like_one_job() -> None:
    plant = charged()
    for number in range(200):
        start(plant, timed(f"j{number}", lasts_s=30.0 + number), 0.0)
    plant.advance(10.0)
    assert plant.next_s() == 10.0 + 30.0 - 6.0
    found = ends(plant, 50.0)
    assert sorted(found) == sorted((f"j{one}", 34.0 + one) for one in range(17))
    assert plant.next_s() == 50.0 + 47.0 - 6.0 - 36.0


def test_work_may_be_stretched() -> None:
    plant = EventChargedPlant(cost=RestartCost(), work=stretched(1.5))
    start(plant, timed("a", lasts_s=30.0), 0.0)
    assert plant.next_s() == 45.0


# --- lost nodes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("checkpoint_s", "left_s"), [(None, 24.0), (5.0, 15.0)])
def test_where_every_event_costs_too(checkpoint_s: float | None, left_s: float) -> None:
    """Six seconds of work, a stop, twelve more, and the node is gone."""
    plant = charged()
    job = timed("a", lasts_s=30.0, checkpoint_s=checkpoint_s)
    start(plant, job, 0.0)
    plant.advance(10.0)
    stop(plant, "a", 10.0)
    start(plant, job, 10.0, attempt=2)
    start(plant, timed("b", lasts_s=100.0), 10.0)
    plant.advance(26.0)
    plant.lose(1, 26.0)
    assert plant.next_s() == 26.0 + 12.0
    plant.lose(0, 26.0)
    assert plant.next_s() is None
    (stopped,) = stop(plant, "a", 30.0, attempt=2)
    assert stopped.progress == 30.0 - left_s
    assert stop(plant, "a", 30.0, attempt=2) == []
    start(plant, job, 50.0, attempt=3)
    assert ends(plant, 500.0) == [("a", 50.0 + left_s)]


def test_work_done_since_it_was_stopped_last_is_forgotten_when_a_job_is_over() -> None:
    plant, job = charged(), timed("a", lasts_s=30.0)
    start(plant, job, 0.0)
    plant.advance(10.0)
    stop(plant, "a", 10.0)
    start(plant, job, 10.0, attempt=2)
    assert ends(plant, 34.0) == [("a", 34.0)]
    start(plant, job, 40.0)  # another one of the same name
    assert plant.next_s() == 70.0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_jobs_that_a_preset_cannot_run_are_refused_before_it_begins(name: str) -> None:
    """A job with neither a duration nor a measured application is of no use to any of them."""
    job = timed("x", lasts_s=0.0, profile="nobody-measured-it")
    jobs = ReadJobs(specs=(replace(job, duration_s=None),))
    with pytest.raises(UserError, match=r"has no|needs") as told:
        PRESETS[name].plant(jobs, t4_nodes(2), half_speed, 0.0)
    assert told.value.hint
