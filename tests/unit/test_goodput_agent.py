"""The agent beside a job, and a plant whose jobs have one."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.estimate.application import Application, Validation
from wattherd.estimate.goodput_agent import GoodputAgent
from wattherd.model.allocation import Allocation
from wattherd.model.command import SetCap, StartJob
from wattherd.model.event import JobMeasured
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.sim.application_plant import ApplicationPlant

LOCAL = np.array([8.0, 128.0])


def placed(pass_s: float, sync_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Steps of 10 ms a sample and what the passes and links take."""
    steps = pass_s + 0.01 * LOCAL + sync_s
    return LOCAL, np.stack([steps, np.full(2, sync_s)], axis=1)


def an_application(pinned: int | None = None) -> Application:
    validations = tuple(
        Validation(
            batch_size=size,
            progress=np.array([1000.0, 2000.0, 3000.0]),
            iteration=np.array([1000.0, 2000.0, 3000.0]) * 16 / size,
            grad_sqr=np.array([1.0, 1.0, 1.0]),
            grad_var=np.array([noise, 4 * noise, 16 * noise]),
        )
        for size, noise in ((16, 4.0), (256, 4.0))
    )
    return Application(
        name="toy",
        validations=validations,
        placed={(1,): placed(0.2, 0.001), (2,): placed(0.2, 0.05), (1, 1): placed(0.2, 0.3)},
        scaled=np.zeros((0, 5)),
        epochs=3,
        least_local=8,
        most_local=128,
        pinned_batch=pinned,
    )


def test_before_the_first_step_a_job_trains_at_its_initial_batch() -> None:
    agent = GoodputAgent(an_application())
    assert agent.report() is None
    assert agent.batch((1,)).total(1) == 16
    assert agent.batch((2, 2)).total(4) == 32  # 8 samples each are the least


def test_more_noise_makes_larger_batches_worth_while() -> None:
    agent = GoodputAgent(an_application())
    agent.observe((2,), 8, (0.33, 0.05), (1.0, 4.0))
    small = agent.batch((2,)).total(2)
    agent.observe((2,), 8, (0.33, 0.05), (1.0, 400.0))
    assert small < agent.batch((2,)).total(2) <= 256


def test_the_report_says_what_was_seen() -> None:
    agent = GoodputAgent(an_application())
    agent.observe((1, 1), 8, (0.58, 0.3), (1.0, 4.0))
    agent.observe((2,), 16, (0.41, 0.05), (2.0, 5.0))
    report = agent.report()
    assert report is not None
    assert (report.grad_sqr, report.grad_var, report.most_replicas) == (2.0, 5.0, 2)
    assert (report.batches.initial, report.batches.most) == (16, 256)
    assert report.step_time.node_sync_s < report.step_time.network_sync_s


@pytest.mark.long
def test_a_pinned_batch_stays() -> None:
    agent = GoodputAgent(an_application(pinned=64))
    agent.observe((2,), 32, (0.57, 0.05), (1.0, 1e6))
    assert agent.batch((2,)).total(2) == 64
    assert agent.report() is not None


def started(plant: ApplicationPlant, *, batch: int | None) -> JobSpec:
    spec = JobSpec(
        id="a", submit_s=0.0, roles=(TaskRole(count=2),), profile="toy", batch_size=batch
    )
    request = Request(cpu_milli=0, gpu_count=2, gpu_milli=1000)
    where = Allocation(request, 0, (0, 1), 0, 2)
    plant.start(spec, StartJob(job_id="a", attempt=1, allocations=(where,)), 0.0)
    return spec


def test_jobs_with_agents_report_after_every_slice_and_gain_from_adapting() -> None:
    plants = [ApplicationPlant({"toy": an_application()}) for _ in range(2)]
    started(plants[0], batch=None)
    started(plants[1], batch=16)
    adapted, fixed = (plant.advance(60_000.0) for plant in plants)
    reports = [event for event in adapted if isinstance(event, JobMeasured)]
    assert reports[0].at_s == 60.0
    assert reports[0].report.most_replicas == 2
    assert not any(isinstance(event, JobMeasured) for event in fixed)
    assert adapted[-1].at_s < fixed[-1].at_s


@pytest.mark.long
def test_an_agent_measures_what_a_cap_leaves() -> None:
    plant = ApplicationPlant(
        {"toy": an_application()}, speed_at=lambda _, __, ___, cap_w: 0.5 if cap_w else 1.0
    )
    started(plant, batch=None)
    plant.cap(SetCap(job_id="a", attempt=1, cap_w=50.0), 0.0)
    (first,) = plant.advance(60.0)
    assert isinstance(first, JobMeasured)
    model = first.report.step_time
    assert model.pass_s + 8 * model.sample_s == pytest.approx(2 * (0.2 + 0.08), rel=1e-6)


def test_a_job_on_a_lost_node_begins_again_with_its_epoch() -> None:
    """Within the first epoch: the run afterwards is as long as one that was never begun."""
    plants = [ApplicationPlant({"toy": an_application()}) for _ in range(2)]
    lost, fresh = plants
    spec = started(lost, batch=16)
    lost.advance(60.0)
    lost.lose(1, 60.0)
    lost.lose(0, 60.0)
    assert lost.advance(600.0) == []
    assert fresh.advance(600.0) == []
    where = Allocation(Request(cpu_milli=0, gpu_count=2, gpu_milli=1000), 0, (0, 1), 0, 2)
    ends = []
    for plant in plants:
        plant.start(spec, StartJob(job_id="a", attempt=2, allocations=(where,)), 600.0)
        ends.append(plant.advance(60_000.0)[-1])
    assert ends[0] == ends[1]
