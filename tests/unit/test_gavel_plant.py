"""Jobs that count steps: whole ones per round, everybody waiting for the slowest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobProgressed, JobStarted, JobStopped
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.model.reason import StopReason
from wattherd.sim.gavel_plant import GavelPlant

TABLE = ThroughputTable(
    {
        "v100": {("m", 1): 2.0, ("n", 1): 1.599, ("m", 2): 3.0, ("big", 1): 1.0},
        "k80": {("m", 1): 0.5, ("m", 2): 0.75, ("big", 1): 0.0},
    },
    {"v100": {("m", 2): 2.5}},
)
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(name=f"n{i}", cpu_milli=0, memory_mib=0, gpu_count=2, gpu_model=model)
        for i, model in enumerate(("V100M16", "V100M16", "K80"))
    )
)


def a_job(name: str, kind: str = "m", steps: int | None = 1000, gpus: int = 1) -> JobSpec:
    roles = (TaskRole(count=gpus),)
    return JobSpec(id=name, submit_s=0.0, roles=roles, profile=kind, steps=steps)


def on(*nodes: int, cap_w: float | None = None) -> dict[str, object]:
    request = Request(cpu_milli=0, gpu_count=1, gpu_milli=1000)
    return {"allocations": tuple(Allocation(request, n, (0,)) for n in nodes), "cap_w": cap_w}


def start(
    plant: GavelPlant, spec: JobSpec, *nodes: int, at_s: float = 0.0, cap_w: float | None = None
) -> list[Event]:
    order = StartJob(job_id=spec.id, attempt=1, **on(*nodes, cap_w=cap_w))  # type: ignore[arg-type]
    return list(plant.start(spec, order, at_s))


def stop(plant: GavelPlant, name: str, at_s: float) -> JobStopped:
    order = StopJob(job_id=name, attempt=1, reason=StopReason.MIGRATED, grace_s=0.0)
    (event,) = plant.stop(order, at_s)
    assert isinstance(event, JobStopped)
    return event


def progress(events: list[Event]) -> dict[str, tuple[float, float]]:
    return {e.job_id: (e.at_s, e.progress) for e in events if isinstance(e, JobProgressed)}


def exits(events: list[Event]) -> dict[str, float]:
    return {e.job_id: e.at_s for e in events if isinstance(e, JobExited)}


def test_a_round_ends_with_the_last_whole_step_of_the_slowest() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    start(plant, a_job("slow", "n"), 0)
    start(plant, a_job("fast", "m"), 1)
    # 1.599 x 360 = 575.64, so 575 steps; the other has 720 and needs all of the 360 s.
    assert plant.next_s() == 360.0
    assert plant.advance(359.9) == []
    assert progress(list(plant.advance(360.0))) == {"slow": (360.0, 575.0), "fast": (360.0, 720.0)}
    # 280 steps are left for the fast one: 140 s; the round now ends with the slow one's 425.
    assert plant.next_s() == 500.0
    assert exits(list(plant.advance(500.0))) == {"fast": 500.0}
    assert plant.next_s() == pytest.approx(360.0 + 425 / 1.599)
    assert exits(list(plant.advance(1000.0))) == {"slow": 360.0 + 425 / 1.599}
    assert plant.next_s() is None


def test_alone_a_round_is_as_short_as_its_whole_steps() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    start(plant, a_job("slow", "n"), 0)
    assert progress(list(plant.advance(400.0))) == {"slow": (575 / 1.599, 575.0)}


def test_without_rounds_jobs_work_on_and_keep_whole_steps_when_stopped() -> None:
    plant = GavelPlant(TABLE, CLUSTER)
    spec = a_job("a")
    start(plant, spec, 0)
    assert plant.next_s() == 500.0
    assert plant.advance(100.3) == []
    assert stop(plant, "a", 100.3).progress == 200.0
    assert plant.next_s() is None
    start(plant, spec, 2, at_s=200.0)  # 800 steps at 0.5 per second
    assert exits(list(plant.advance(2000.0))) == {"a": 1800.0}


def test_a_job_stopped_in_mid_round_keeps_whole_steps() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    start(plant, a_job("a"), 0)
    plant.advance(360.0)
    assert stop(plant, "a", 370.9).progress == 720.0 + 21.0


def test_a_job_that_did_its_steps_gains_nothing_by_waiting() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    start(plant, a_job("slow", "n"), 0)
    start(plant, a_job("fast", "m"), 1)
    assert stop(plant, "slow", 359.99).progress == 575.0


def test_the_slowest_type_sets_the_pace() -> None:
    plant = GavelPlant(TABLE, CLUSTER)
    start(plant, a_job("a", gpus=2, steps=300), 0, 2)
    assert exits(list(plant.advance(1e6))) == {"a": 400.0}


@pytest.mark.parametrize(("slows", "end_s"), [(False, 100.0), (True, 120.0)])
def test_several_servers_slow_a_job_only_if_asked(slows: bool, end_s: float) -> None:
    plant = GavelPlant(TABLE, CLUSTER, spread_slows=slows)
    start(plant, a_job("a", gpus=2, steps=300), 0, 1)
    assert exits(list(plant.advance(1e6))) == {"a": end_s}


def test_a_job_that_does_not_run_there_fails_at_once() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    started, crashed = start(plant, a_job("a", "big"), 2)
    assert isinstance(started, JobStarted)
    assert isinstance(crashed, JobExited)
    assert crashed.exit_code == 1
    assert plant.next_s() is None


def test_a_cap_slows_what_is_left_of_the_round() -> None:
    def speed_at(spec: JobSpec, nodes: Sequence[int], gpus: int, cap_w: float | None) -> float:
        del spec, nodes, gpus
        return 1.0 if cap_w is None else cap_w / 300.0

    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0, speed_at=speed_at)
    start(plant, a_job("a"), 0)
    plant.advance(100.0)
    (applied,) = plant.cap(SetCap(job_id="a", attempt=1, cap_w=150.0), 100.0)
    assert applied.at_s == 100.0
    # 200 steps so far, and one per second for the other 260 s.
    assert progress(list(plant.advance(360.0))) == {"a": (360.0, 460.0)}
    plant.cap(SetCap(job_id="a", attempt=1, cap_w=None), 360.0)
    assert exits(list(plant.advance(1e6))) == {"a": 360.0 + 540 / 2.0}


def test_how_much_there_is_to_train_must_be_known() -> None:
    plant = GavelPlant(TABLE, CLUSTER)
    with pytest.raises(UserError, match="job a: steps: has no number of steps"):
        start(plant, a_job("a", steps=None), 0)


def test_a_lost_node_takes_the_steps_of_a_round_that_is_not_over() -> None:
    plant = GavelPlant(TABLE, CLUSTER, round_s=360.0)
    spec = a_job("a")
    start(plant, spec, 0)
    start(plant, a_job("b"), 1)
    plant.advance(360.0)
    plant.advance(370.0)
    plant.lose(0, 370.0)
    assert plant.cap(SetCap(job_id="a", attempt=1, cap_w=None), 370.0) == ()
    assert stop(plant, "a", 370.0).progress == 720.0
    assert exits(list(plant.advance(1000.0))) == {"b": 500.0}
    start(plant, spec, 1, at_s=1000.0)
    assert exits(list(plant.advance(2000.0))) == {"a": 1000.0 + (1000 - 720) / 2.0}
