"""Parameter-server jobs in the simulated world: pauses, reports, steps kept, devices at work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wattherd.errors import Bug
from wattherd.estimate.curve_judge import LEAST_POINTS, look, taught, thinned
from wattherd.estimate.ps_job import LossKind, PsJob, TrueLoss, busy
from wattherd.estimate.speed import FittedRanges, JobShape, SpeedModel
from wattherd.estimate.steps import LossCurve
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import JobExited, JobProgressed, JobStopped
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.model.reason import StopReason
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.sim.ps_plant import Overheads, PsPlant, UsePoint, utilisation

SPEED = SpeedModel(
    theta=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    batch=10,
    sampled=FittedRanges(workers=(1, 8), servers=(0, 8)),
)
"""Ten seconds per step on one GPU, and the GPU works all the time."""
CURVE = LossCurve(b0=0.01, b1=0.2, b2=0.5, error=0.0)
SPEC = JobSpec(
    id="a", submit_s=0.0, roles=(TaskRole(count=1, max_count=2, cpu_milli=1000, gpu_count=1),)
)


def truth(kind: LossKind = LossKind.CONVERGING, steps: float = 30.0) -> PsJob:
    loss = TrueLoss(
        kind=kind, curve=CURVE, steps=steps, tells_from=0.0, slow=(0.0, 0.0), quick=(0.0,),
        drops=(10.0,),
    )  # fmt: skip
    return PsJob(id="a", speed=SPEED, steps=steps, loss=loss, run_noise=(1.0,))


def start(attempt: int = 0, gpus: int = 1) -> StartJob:
    request = Request(
        cpu_milli=1000 * gpus, memory_mib=0, gpu_count=gpus, gpu_milli=1000, models=()
    )
    share = Allocation(request, 0, tuple(range(gpus)), 0, gpus)
    return StartJob(job_id="a", attempt=attempt, allocations=(share,), cap_w=None)


def plant(kind: LossKind = LossKind.CONVERGING) -> PsPlant:
    return PsPlant({"a": truth(kind)}, overheads=Overheads(restart_s=30.0, profile_s=80.0))


def through(world: PsPlant, until_s: float = float("inf")) -> list[object]:
    """Everything that happens up to a moment."""
    events: list[object] = []
    while (at_s := world.next_s()) is not None and at_s <= until_s:
        events.extend(world.advance(at_s))
    return events


def test_a_cap_slows_a_job_from_then_on() -> None:
    """Thirty steps of ten seconds: ten at full speed, twenty at half of it."""

    def half_when_capped(
        spec: JobSpec, nodes: Sequence[int], gpus: int, cap_w: float | None
    ) -> float:
        del spec, nodes, gpus
        return 1.0 if cap_w is None else 0.5

    world = PsPlant({"a": truth()}, overheads=Overheads(restart_s=30.0), speed_at=half_when_capped)
    world.start(SPEC, start(), 0.0)
    through(world, 120.0)
    world.cap(SetCap(job_id="a", attempt=0, cap_w=100.0), 130.0)
    events = through(world)
    assert isinstance(events[-1], JobExited)
    assert events[-1].at_s == 130.0 + 20 * 20.0


def test_a_job_trains_after_its_pause_and_ends_with_a_last_report() -> None:
    world = plant()
    world.start(SPEC, start(), 0.0)
    events = through(world)
    assert isinstance(events[-1], JobExited)
    assert events[-1].at_s == 30.0 + 300.0
    reports = [one for one in events if isinstance(one, JobProgressed)]
    assert [one.at_s for one in reports] == [60.0, 120.0, 180.0, 240.0, 300.0, 330.0]
    assert [one.progress for one in reports] == pytest.approx([3, 9, 15, 21, 27, 30])
    assert reports[-1].loss == pytest.approx(CURVE.loss(30))


def test_another_shape_costs_sample_runs_once() -> None:
    world = plant()
    world.start(SPEC, start(gpus=2), 0.0)
    through(world, 200.0)
    stopped = world.stop(
        StopJob(job_id="a", attempt=0, reason=StopReason.RESIZED, grace_s=0.0), 200.0
    )
    assert isinstance(stopped[0], JobStopped)
    assert stopped[0].progress == pytest.approx((200 - 110) / 5)
    world.start(SPEC, start(1, gpus=2), 200.0)
    assert world.paused_s == [110.0, 30.0]
    end = through(world)[-1]
    assert isinstance(end, JobExited)
    assert end.at_s == pytest.approx(230 + (30 - 18) * 5)


def test_who_does_not_run_cannot_be_stopped() -> None:
    with pytest.raises(Bug):
        plant().stop(StopJob(job_id="a", attempt=0, reason=StopReason.RESIZED, grace_s=0.0), 1.0)


def test_use_counts_work_only_between_pause_and_end() -> None:
    world = plant()
    world.start(SPEC, start(), 0.0)
    through(world)
    cluster = ClusterSpec(
        (NodeSpec(name="n", cpu_milli=4000, memory_mib=1, gpu_count=2, gpu_model="P100"),)
    )
    use = utilisation(world.use, cluster, 330.0)
    assert use.held_pct == pytest.approx(50.0)
    assert use.gpu_pct == pytest.approx(50.0 * 300 / 330)


def test_the_gap_is_of_what_is_held() -> None:
    cluster = ClusterSpec(
        (NodeSpec(name="n", cpu_milli=8000, memory_mib=1, gpu_count=4, gpu_model="P100"),)
    )
    points = [
        UsePoint(at_s=0.0, gpus=1.0, cores=1.0, held_gpus=2, held_cores=4.0),
        UsePoint(at_s=10.0, gpus=0.0, cores=0.0, held_gpus=0, held_cores=0.0),
    ]
    use = utilisation(points, cluster, 20.0)
    assert use.gap_points == pytest.approx(100 * (1 / 2 - 1 / 4))
    assert use.gpu_pct == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("kind", "early", "late"),
    [
        (LossKind.CONVERGING, CURVE.loss(5), CURVE.loss(20)),
        (LossKind.CUT_SHORT, CURVE.loss(5), CURVE.loss(20)),
        (LossKind.STEPWISE, CURVE.loss(0), 0.45 * CURVE.loss(0)),
        (LossKind.WANDERING, 0.6 * CURVE.loss(0), 0.6 * CURVE.loss(0)),
    ],
)
def test_losses_develop_as_their_kind_says(kind: LossKind, early: float, late: float) -> None:
    loss = truth(kind).loss
    assert (loss.at(5), loss.at(20)) == pytest.approx((early, late))


def test_no_more_devices_work_than_are_held() -> None:
    shape = JobShape(workers=2, servers=0, gpus=2)
    at_work = busy(truth(), shape, SPEED.step_s(shape))
    assert at_work.gpus == pytest.approx(2.0)


def test_a_clean_curve_is_told_from_noise() -> None:
    clean = [(float(k), CURVE.loss(k)) for k in range(1, 40)]
    flat = [(float(k), 2.0 + 0.5 * (-1) ** k) for k in range(1, 40)]
    target = CURVE.loss(100)
    good, bad = look(clean, target), look(flat, target)
    assert good is not None
    assert bad is not None
    assert good.ends_at == pytest.approx(100, rel=0.05)
    judge = taught([good, good, bad, bad], [True, True, False, False])
    assert judge.predictability(good) > 0.5 > judge.predictability(bad)
    assert look(clean[: LEAST_POINTS - 1], target) is None


def test_thinning_keeps_the_last_point() -> None:
    points = [(float(k), 1.0) for k in range(101)]
    kept = thinned(points)
    assert len(kept) == 51
    assert kept[-1] == points[-1]


def test_workers_go_to_one_node_and_servers_where_cores_are_idle() -> None:
    room = GangRoom(gpus=[2, 4], cpu_milli=[64_000, 8_000])
    shares = room.place(JobShape(workers=3, servers=2, gpus=3))
    assert shares is not None
    assert [(one.node, one.tasks, one.role) for one in shares] == [(1, 3, 0), (0, 2, 1)]
    assert room.gpus == [2, 1]


def test_what_does_not_fit_takes_nothing() -> None:
    room = GangRoom(gpus=[2, 2], cpu_milli=[4_000, 4_000])
    assert room.place(JobShape(workers=2, servers=1, server_cores=5, gpus=2)) is None
    assert (room.gpus, room.cpu_milli) == ([2, 2], [4_000, 4_000])


def test_a_lost_node_takes_all_since_the_last_stop() -> None:
    world = plant()
    world.start(SPEC, start(), 0.0)
    through(world, 100.0)
    world.lose(1, 100.0)
    assert world.next_s() is not None
    world.lose(0, 100.0)
    assert world.next_s() is None
    rest = StopJob(job_id="a", attempt=0, reason=StopReason.NODE_LOST, grace_s=0.0)
    (stopped,) = world.stop(rest, 100.0)
    assert isinstance(stopped, JobStopped)
    assert stopped.progress == 0.0
    world.start(SPEC, start(1), 200.0)
    end = through(world)[-1]
    assert isinstance(end, JobExited)
    assert (end.at_s, end.attempt) == (200.0 + 30.0 + 300.0, 1)
    assert (world.use[-1].held_gpus, world.use[-1].gpus) == (0.0, 0.0)
