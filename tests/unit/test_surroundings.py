"""Jobs of known duration that slow each other down: exact times."""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.estimate.interference import PairSpeeds
from wattherd.estimate.job_work import constant
from wattherd.estimate.locality import Locality
from wattherd.model.allocation import Allocation
from wattherd.model.command import StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobProgressed, JobStopped
from wattherd.model.job import JobSpec, Request
from wattherd.model.topology import topology_of
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.surroundings import Surroundings
from wattherd.testing.timed_world import t4_nodes, timed

PAIRS = PairSpeeds({("x", "y"): (0.8, 0.5)})


def part(node: int, *gpus: int, milli: int = 1000) -> Allocation:
    return Allocation(Request(cpu_milli=0, gpu_count=len(gpus), gpu_milli=milli), node, gpus)


def start(
    plant: DurationPlant, name: str, *allocations: Allocation, at_s: float = 0.0, **more: object
) -> JobSpec:
    spec = timed(name, **more)  # type: ignore[arg-type]
    plant.start(spec, StartJob(job_id=name, attempt=1, allocations=allocations), at_s)
    return spec


def ends(events: Sequence[Event]) -> dict[str, float]:
    return {e.job_id: e.at_s for e in events if isinstance(e, JobExited)}


def test_a_packed_pair_runs_at_its_measured_speeds_until_one_leaves() -> None:
    """x: 100 s alone; y joins at 50 s with 25 s of work, done 50 s later; x did 40 meanwhile."""
    plant = DurationPlant(surroundings=Surroundings(pairs=PAIRS))
    start(plant, "a", part(0, 0, milli=400), profile="x")
    assert plant.advance(50.0) == []
    start(plant, "b", part(0, 0, milli=400), at_s=50.0, profile="y", lasts_s=25.0)
    assert plant.next_s() == 100.0
    assert ends(plant.advance(1000.0)) == {"b": 100.0, "a": 110.0}


def test_whole_gpus_are_nobody_elses() -> None:
    plant = DurationPlant(surroundings=Surroundings(pairs=PAIRS))
    start(plant, "a", part(0, 0), profile="x")
    start(plant, "b", part(0, 1), profile="y")
    start(plant, "c", part(1, 0, milli=400), profile="y")
    assert ends(plant.advance(1000.0)) == {"a": 100.0, "b": 100.0, "c": 100.0}


def test_a_stop_sets_the_other_free() -> None:
    plant = DurationPlant(surroundings=Surroundings(pairs=PAIRS), cost=constant(10.0))
    start(plant, "a", part(0, 0, milli=400), profile="x")
    start(plant, "b", part(0, 0, milli=400), profile="y")
    plant.advance(30.0)  # a has done 20 s x 0.8
    from wattherd.model.reason import StopReason

    order = StopJob(job_id="b", attempt=1, reason=StopReason.TIME_SLICE, grace_s=0.0)
    (stopped,) = plant.stop(order, 30.0)
    assert isinstance(stopped, JobStopped)
    assert stopped.progress == 10.0
    assert ends(plant.advance(1000.0)) == {"a": 114.0}


def test_a_lost_node_sets_nobody_free_but_those_who_stay() -> None:
    plant = DurationPlant(surroundings=Surroundings(network_slowdown=0.5))
    start(plant, "a", part(0, 0), part(1, 0))
    start(plant, "b", part(1, 1), part(2, 0))
    plant.lose(0, 20.0)
    assert ends(plant.advance(1000.0)) == {"b": 110.0}


def test_distributed_jobs_on_one_node_share_its_link() -> None:
    plant = DurationPlant(surroundings=Surroundings(network_slowdown=0.25))
    start(plant, "a", part(0, 0), part(1, 0), lasts_s=30.0)
    start(plant, "b", part(1, 1), part(2, 0))
    start(plant, "c", part(1, 2))  # not distributed
    assert ends(plant.advance(1000.0)) == {"a": 40.0, "b": 110.0, "c": 100.0}


def test_a_bad_placement_is_slow_for_the_sensitive_only() -> None:
    locality = Locality(topology_of(t4_nodes(2, 2)))
    plant = DurationPlant(surroundings=Surroundings(locality=locality.factor))
    start(plant, "a", part(0, 0), part(1, 0), profile="cifar10", lasts_s=47.2)
    start(plant, "b", part(0, 1), part(1, 1), profile="else", lasts_s=47.2)
    done = ends(plant.advance(1000.0))
    assert abs(done["a"] - 100.0) < 1e-9
    assert done["b"] == 47.2


def test_reports_carry_the_rate_and_the_loss_of_the_moment() -> None:
    plant = DurationPlant(
        surroundings=Surroundings(pairs=PAIRS),
        report_s=10.0,
        loss_at=lambda spec, work_s: 1.0 / (1.0 + work_s),
    )
    start(plant, "a", part(0, 0, milli=400), profile="x")
    start(plant, "b", part(0, 0, milli=400), profile="y")
    (first, second) = [e for e in plant.advance(10.0) if isinstance(e, JobProgressed)]
    assert (first.progress, first.rate_per_s, first.loss) == (8.0, 0.8, 1.0 / 9.0)
    assert (second.progress, second.rate_per_s) == (5.0, 0.5)
