"""AITurbo: its Borda order, its trades, and what a planner does with them."""

from __future__ import annotations

import math

import pytest

from wattherd.estimate.speed import FittedRanges, JobShape, PsBelief, SpeedModel, asked_shape
from wattherd.model.command import StartJob
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.aiturbo import AITurbo, ranks
from wattherd.policy.schedule.aiturbo_swaps import JobInSizing, ShapeTable, settle, spread, swap
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.policy.schedule.resize import ShapeDevices
from wattherd.policy.schedule.speed_forecast import LossForesight
from wattherd.testing.timed_world import Story, t4_nodes

KAPPA = 10.0


def ps_job(
    name: str = "a", workers: int = 1, at_s: float = 0.0, lasts_s: float = 1000.0
) -> JobSpec:
    """Workers of one GPU and one core each, one server; up to four of each."""
    worker = TaskRole(
        name="worker", count=workers, min_count=1, max_count=4, cpu_milli=1000,
        min_cpu_milli=1000, max_cpu_milli=4000, gpu_count=1, min_gpu_count=1, max_gpu_count=1,
    )  # fmt: skip
    server = TaskRole(name="ps", count=1, min_count=1, max_count=4, cpu_milli=1000, gpu_count=0)
    return JobSpec(id=name, submit_s=at_s, roles=(worker, server), duration_s=lasts_s)


def speed(*theta: float) -> SpeedModel:
    return SpeedModel(theta=theta, batch=8, sampled=FittedRanges(workers=(1, 8), servers=(0, 8)))


PARALLEL = speed(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""8 s on one worker, 4 s on two, 2 s on four."""
BOUND = speed(0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0)
"""All time goes into the network: w / p times 4 s."""


def sized(
    model: SpeedModel,
    shape: JobShape,
    *,
    number: int = 0,
    steps: float = 100.0,
    pause_s: float = 0.0,
) -> JobInSizing:
    atlas = ShapeTable(ps_job(f"j{number}"), model.step_s)
    return JobInSizing(
        number=number, atlas=atlas, shape=shape, runs_in=shape, steps_left=steps,
        pause_s=pause_s, kappa=KAPPA,
    )  # fmt: skip


def shape(workers: int = 1, servers: int = 1) -> JobShape:
    return JobShape(workers=workers, servers=servers, gpus=workers)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks({"a": 5.0, "b": 1.0, "c": 5.0, "d": 7.0}) == {"b": 1, "a": 2.5, "c": 2.5, "d": 4}


def test_remaining_service_is_time_by_price() -> None:
    job = sized(PARALLEL, shape(2))
    assert job.service(shape(2)) == pytest.approx(100 * 4.0 * (2 * KAPPA + 3))
    assert job.delta(shape(1)) == pytest.approx(400 * 23 - 800 * 12)
    assert job.benefit() == max(job.delta(shape(3)), job.delta(shape(2, 2)))


def test_a_job_settles_where_no_single_trade_lowers_its_service() -> None:
    job = sized(BOUND, shape(4))
    settle(job, ShapeDevices(8, 20.0))
    # One worker: 4 s / p by 10 + 1 + p cores; p = 4 is as far as it scales.
    assert (job.shape.workers, job.shape.servers) == (1, 4)
    best = job.service(job.shape)
    known = job.atlas.at(job.shape)
    assert all(job.service(one) >= best for one in (*known.adds, *known.removals) if one)


def test_a_job_takes_no_more_than_is_free() -> None:
    job = sized(BOUND, shape(1))
    settle(job, ShapeDevices(1, 3.0))
    assert job.shape.servers == 2


def test_a_restart_must_pay() -> None:
    job = sized(BOUND, shape(1), pause_s=1e6)
    settle(job, ShapeDevices(8, 20.0))
    assert job.shape == shape(1)


def test_a_swap_leaves_less_service_and_no_more_devices() -> None:
    donor, receiver = (
        sized(BOUND, shape(1, 4), steps=1.0),
        sized(BOUND, shape(1, 1), number=1, steps=500),
    )
    before = donor.service(donor.shape) + receiver.service(receiver.shape)
    left = swap([donor, receiver], ShapeDevices(0, 0.0))
    assert left == ShapeDevices(0, 0.0)
    assert receiver.shape.servers > 1 > 0 < donor.shape.servers < 4
    assert donor.service(donor.shape) + receiver.service(receiver.shape) < before


def test_free_devices_go_to_whom_they_save_most_time() -> None:
    short, long = (
        sized(PARALLEL, shape(1), steps=10),
        sized(PARALLEL, shape(1), number=1, steps=1000),
    )
    spread([short, long], ShapeDevices(2, 2.0), ShapeDevices(4, 8.0))
    assert (short.shape.workers, long.shape.workers) == (1, 3)


def test_unknown_shapes_are_never_chosen() -> None:
    model = SpeedModel(
        theta=PARALLEL.theta, batch=8, sampled=FittedRanges(workers=(1, 2), servers=(1, 1))
    )

    def step_s(one: JobShape) -> float | None:
        return model.step_s(one) if model.sampled.holds(one) else None

    job = JobInSizing(
        number=0, atlas=ShapeTable(ps_job(), step_s), shape=shape(2), runs_in=None, steps_left=10.0,
        pause_s=0.0, kappa=0.1,
    )  # fmt: skip
    spread([job], ShapeDevices(2, 8.0), ShapeDevices(4, 8.0))
    assert math.isfinite(job.time_s(job.shape))
    assert (job.shape.workers, job.shape.servers) == (2, 1)


def beliefs(*names: str, model: SpeedModel = PARALLEL) -> dict[str, PsBelief]:
    return {
        name: PsBelief(speed=model, target_loss=0.5, most_steps=1e4, epoch_steps=100.0)
        for name in names
    }


def starts(story: Story, name: str) -> list[tuple[float, int]]:
    """When a job was started, and with how many GPUs."""
    return [
        (at, sum(len(one.gpus) for one in command.allocations))
        for at, command in story.commands
        if isinstance(command, StartJob) and command.job_id == name
    ]


def test_a_lone_job_gets_the_idle_cluster() -> None:
    planner = AITurbo(foresight=LossForesight(beliefs=beliefs("a")))
    story = Story(planner, t4_nodes(4), [ps_job("a", lasts_s=600)])
    assert starts(story, "a")[0] == (0.0, 4)


def test_without_sizing_all_an_unpredictable_job_runs_as_asked_for() -> None:
    planner = AITurbo(foresight=_Silent(beliefs=beliefs("a")), sizes_all=False)
    story = Story(planner, t4_nodes(4), [ps_job("a", workers=2, lasts_s=600)])
    assert starts(story, "a") == [(0.0, 2)]


class _Silent(LossForesight):
    """Knows speeds, never how much is left."""

    def steps_left(self, view: object, job: object, memory: object) -> float | None:
        del view, job, memory
        return None


def test_a_newcomer_displaces_whoever_was_served_most() -> None:
    planner = AITurbo(
        foresight=_Silent(beliefs=beliefs("a", "b")), sizes_all=False, thresholds=(3.0,)
    )
    jobs = [ps_job("a", 4, lasts_s=20_000), ps_job("b", 4, at_s=10_000, lasts_s=500)]
    story = Story(planner, t4_nodes(4), jobs)
    assert story.stops("a") == [10_000]
    assert story.starts("b") == [10_000]
    assert len(story.starts("a")) == 2


def test_optimus_gives_everybody_one_worker_first() -> None:
    planner = OptimusEstimated(foresight=LossForesight(beliefs=beliefs("a", "b", "c")))
    jobs = [ps_job(name, workers=4) for name in "abc"]
    story = Story(planner, t4_nodes(4), jobs, until_s=700.0)
    assert sorted(story.running().values()) == [1, 1, 2]


def test_optimus_does_not_leave_a_cluster_idle_until_its_interval_ends() -> None:
    planner = OptimusEstimated(foresight=LossForesight(beliefs=beliefs("a", "b")))
    jobs = [ps_job("a", lasts_s=30), ps_job("b", at_s=20, lasts_s=30)]
    story = Story(planner, t4_nodes(1), jobs)
    assert story.starts("b") == [30]


def test_the_asked_shape_is_that_of_the_roles() -> None:
    assert asked_shape(ps_job(workers=3)) == JobShape(workers=3, servers=1, gpus=3)
