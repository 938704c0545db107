"""Which micro-batch a job is told under a cap: learned from what it draws, guarded, carried out."""

from __future__ import annotations

from collections import Counter

import pytest

from wattherd.engine.jobs.batches import Batches
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.estimate.micro_batches import MARGIN, MicroBatches
from wattherd.local.devices import slots
from wattherd.local.executor import Pace
from wattherd.model.command import SetBatch
from wattherd.model.event import Event, JobDrew
from wattherd.model.job import JobSpec
from wattherd.policy.power.micro_batch import choose
from wattherd.server.site.draw_reports import DrawReports
from wattherd.workload.job_file import validated_job

IDLE_W = 10.0


def curve(*seen: tuple[int, float, float]) -> MicroBatches:
    """Sizes 32 to 4; `seen` are size, watts and steps per second at full duty."""
    made = MicroBatches((4, 8, 16, 32), 64)
    for size, watts, rate in seen:
        made.note(size, watts, duty=1.0, idle_w=IDLE_W, rate_per_s=rate)
    return made


@pytest.mark.parametrize(
    ("seen", "cap_w", "size"),
    [
        ((), 50.0, 32),
        (((32, 100.0, 1.0),), None, 32),
        (((32, 40.0, 1.0),), 50.0, 32),
        (((32, 100.0, 1.0),), 50.0, 16),
        (((32, 100.0, 1.0), (16, 70.0, 0.9)), 50.0, 8),
        (((32, 100.0, 1.0), (16, 40.0, 0.9)), 50.0, 16),
        (((32, 100.0, 1.0), (16, 99.0, 0.9)), 50.0, 32),
        (((32, 100.0, 1.0), (16, 70.0, 0.3), (8, 40.0, 0.2)), 50.0, 32),
        (((32, 90.0, 1.0), (16, 70.0, 0.9), (8, 60.0, 0.8), (4, 55.0, 0.4)), 50.0, 8),
    ],
    ids=[
        *("nothing seen", "no cap", "fits as it is", "one too much", "two too much", "second fits"),
        *("no use", "slower than a duty", "the best of all"),
    ],
)
def test_the_size_follows_from_what_was_seen(
    seen: tuple[tuple[int, float, float], ...], cap_w: float | None, size: int
) -> None:
    assert choose(curve(*seen), cap_w, IDLE_W) == size


def test_what_was_measured_under_a_duty_is_reckoned_back() -> None:
    found = curve()
    found.note(16, 40.0, duty=0.5, idle_w=IDLE_W, rate_per_s=2.0)
    seen = found.seen(16)
    assert seen is not None
    assert (seen.full_w, seen.rate_per_s) == (70.0, 4.0)
    assert found.full_w(16) == pytest.approx(MARGIN * 70.0)
    assert found.setting(16).accumulation == 4


def test_a_peak_counts_for_a_while() -> None:
    found = curve((16, 80.0, 1.0), (16, 50.0, 1.0))
    seen = found.seen(16)
    assert seen is not None
    assert 75.0 < seen.full_w < 80.0
    for _ in range(60):
        found.note(16, 50.0, duty=1.0, idle_w=IDLE_W, rate_per_s=1.0)
    assert seen.full_w == pytest.approx(50.0, abs=0.5)


def test_what_makes_no_sense_is_not_learned() -> None:
    found = curve((7, 50.0, 1.0))
    found.note(16, 50.0, duty=0.001, idle_w=IDLE_W, rate_per_s=1.0)
    assert all(found.seen(size) is None for size in found.sizes)


# The guard --------------------------------------------------------------------------------------


def running(**more: object) -> JobRecord:
    given = {"batch_size": 64, "micro_batches": (32, 16, 8), **more}
    job = JobRecord(spec=JobSpec(id="j", submit_s=0.0, **given), number=0)  # type: ignore[arg-type]
    job.state, job.attempt, job.cap_w = State.RUNNING, 1, 50.0
    return job


def drew(watts: float, size: int | None) -> JobDrew:
    return JobDrew(
        at_s=0.0, job_id="j", attempt=1, watts=watts, duty=1.0, micro_batch=size, rate_per_s=1.0
    )


def test_an_order_is_given_once_until_something_changes() -> None:
    batches, job = Batches(Counter()), running()
    first = batches.heard(job, drew(100.0, 32), IDLE_W, {"j"})
    assert first == [SetBatch(job_id="j", attempt=1, micro_batch=16)]
    assert batches.heard(job, drew(100.0, 32), IDLE_W, {"j"}) == []
    (second,) = batches.heard(job, drew(40.0, 16), IDLE_W, {"j"})
    assert (second.micro_batch, second.full_w) == (16, pytest.approx(42.0))
    (louder,) = batches.heard(job, drew(60.0, 16), IDLE_W, {"j"})
    assert louder.micro_batch == 8


def test_a_job_that_allows_nothing_is_told_nothing() -> None:
    job = running(micro_batches=(), batch_size=None)
    assert Batches(Counter()).heard(job, drew(100.0, 32), IDLE_W, {"j"}) == []


def test_micro_batches_without_a_batch_are_refused() -> None:
    with pytest.raises(UserError, match="not known"):
        JobSpec(id="j", submit_s=0.0, micro_batches=(4,))


# The shells -------------------------------------------------------------------------------------


def test_a_duty_follows_from_what_a_device_really_draws() -> None:
    machine = slots("here", 1)
    gpu = machine.gpu
    cap_w = (gpu.idle_w + gpu.max_w) / 2
    assert machine.duty(cap_w) < 0.5
    assert machine.duty(cap_w, full_w=cap_w) == 1.0
    assert machine.duty(cap_w, full_w=10 * gpu.max_w) == machine.duty(cap_w)
    assert machine.duty(cap_w, full_w=gpu.idle_w) == 1.0


def test_a_run_is_told_of_once_it_has_settled() -> None:
    told: list[Event] = []
    pace = Pace(0.5, 16, 2.0, devices=2)
    reports = DrawReports(lambda: {("j", 1): pace}, told.append)
    for second in range(15):
        reports.sampled(float(second), {"j": 80.0})
    assert told == [
        JobDrew(
            at_s=0.0, job_id="j", attempt=1, watts=40.0, duty=0.5, micro_batch=16, rate_per_s=2.0
        )
    ]
    pace = Pace(0.5, 8, 2.0, devices=2)
    for second in range(15, 22):
        reports.sampled(float(second), {"j": 60.0})
    assert len(told) == 1


@pytest.mark.parametrize(
    ("micro", "sizes"),
    [
        ({"min": 4, "max": 32}, (32, 16, 8, 4)),
        ({"min": 5, "max": 24}, (24, 12, 6)),
        ([8, 3], (8, 3)),
    ],
    ids=["halves", "odd halves", "a list"],
)
def test_a_job_file_says_which_sizes_are_possible(micro: object, sizes: tuple[int, ...]) -> None:
    spec = validated_job({"run": "true", "batch": {"global": 64, "micro": micro}}, "job").spec()
    assert (spec.batch_size, spec.micro_batches) == (64, sizes)


def test_a_job_file_without_sense_is_refused() -> None:
    with pytest.raises(UserError):
        validated_job(
            {"run": "true", "batch": {"global": 64, "micro": {"min": 9, "max": 3}}}, "job"
        )
