"""Single devices out of use: by an operator, or because ranks lag there again and again."""

from __future__ import annotations

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.capacity import DrainedDevices
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.model.command import Command, StartJob, StopJob
from wattherd.model.event import (
    DeviceDrained,
    DeviceReturned,
    Event,
    JobExited,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RankLagged,
)
from wattherd.model.job import JobSpec, TaskRole, workers
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.per_job_placement import PerJobPlacement
from wattherd.workload.cluster_text import parse_cluster

CLUSTER = parse_cluster("1x3:T4", known=GPUS)
NODE = CLUSTER.nodes[0].name


class Desk:
    """A core whose orders are carried out as soon as they are given, unless it stops something."""

    def __init__(self, planner: Planner | None = None) -> None:
        self.core = Core(CoreConfig(cluster=CLUSTER, planner=planner or Drf()))
        self.now_s = 0.0
        self.starts: list[StartJob] = []
        self.stops: list[StopJob] = []

    def tell(self, event: Event) -> list[Command]:
        commands = self.core.handle(event)
        validate(self.core)
        for one in commands:
            if isinstance(one, StartJob):
                self.starts.append(one)
                self.tell(JobStarted(at_s=0.0, job_id=one.job_id, attempt=one.attempt))
            if isinstance(one, StopJob):
                self.stops.append(one)
        return commands

    def submit(self, name: str, width: int = 1, milli: int = 1000) -> None:
        roles = workers(width) if milli == 1000 else (TaskRole(gpu_milli=milli),)
        self.tell(JobSubmitted(at_s=0.0, job=JobSpec(id=name, submit_s=0.0, roles=roles)))

    def drain(self, gpu: int) -> None:
        self.tell(DeviceDrained(at_s=0.0, node=NODE, gpu=gpu, cause="bad fan"))

    def put_back(self, gpu: int) -> None:
        self.tell(DeviceReturned(at_s=0.0, node=NODE, gpu=gpu))

    def stopped(self, name: str) -> None:
        attempt = self.core.jobs[name].attempt
        self.tell(JobStopped(at_s=0.0, job_id=name, attempt=attempt))

    def lag(self, name: str, rank: int) -> None:
        job = self.core.jobs[name]
        self.tell(
            RankLagged(
                at_s=0.0, job_id=name, attempt=job.attempt, rank=rank, ranks=job.gpus, slowdown=3.0
            )
        )

    def gpus(self, name: str) -> tuple[int, ...]:
        return tuple(gpu for one in self.core.jobs[name].allocations for gpu in one.gpus)


def test_a_job_leaves_a_drained_device_and_goes_on_elsewhere() -> None:
    desk = Desk()
    desk.submit("a")
    desk.submit("b")
    assert (desk.gpus("a"), desk.gpus("b")) == ((0,), (1,))
    desk.drain(0)
    assert [(one.job_id, one.reason) for one in desk.stops] == [("a", StopReason.DEVICE_DRAINED)]
    desk.stopped("a")
    assert desk.gpus("a") == (2,)
    assert desk.gpus("b") == (1,)
    assert desk.core.drained.out[0, 0].cause == "bad fan"


def test_nothing_is_started_on_it_until_it_is_returned() -> None:
    desk = Desk()
    desk.drain(1)
    desk.drain(1)
    desk.submit("pair", width=2)
    assert desk.gpus("pair") == (0, 2)
    desk.submit("wide", width=3)
    desk.tell(JobExited(at_s=0.0, job_id="pair", attempt=1))
    assert desk.gpus("wide") == ()
    desk.put_back(1)
    assert desk.gpus("wide") == (0, 1, 2)
    desk.put_back(1)  # twice is once
    assert desk.core.drained.out == {}


def test_a_device_that_is_returned_before_its_job_has_left_is_not_given_away_twice() -> None:
    desk = Desk()
    desk.submit("a", width=3)
    desk.drain(2)
    desk.put_back(2)
    desk.submit("b")
    assert [one.job_id for one in desk.starts] == ["a"]
    desk.stopped("a")
    assert {one.job_id for one in desk.starts[1:]} <= {"a", "b"}


def test_a_shared_device_is_left_by_all_who_share_it() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.submit(name, milli=400)
    assert desk.gpus("a") == desk.gpus("b") == (0,)
    desk.drain(0)
    assert {one.job_id for one in desk.stops} == {"a", "b"}
    desk.submit("c", milli=100)
    assert desk.gpus("c") == (1,)
    desk.stopped("a")
    desk.stopped("b")
    assert 0 not in desk.gpus("a") + desk.gpus("b")
    desk.put_back(0)
    assert desk.core.planned.gpu_free(0)[0] == 1000


def best_fit() -> Placer:
    policy = place_policy("best-fit")
    return build_placer(CLUSTER, (), policy, draws=np.random.default_rng(1))


def test_a_placement_policy_names_no_device_that_is_drained() -> None:
    desk = Desk(PerJobPlacement(best_fit))
    desk.drain(0)
    for name in ("a", "b"):
        desk.submit(name, milli=600)
    desk.submit("waits", milli=600)
    assert sorted(desk.gpus("a") + desk.gpus("b")) == [1, 2]
    assert desk.gpus("waits") == ()
    desk.put_back(0)
    assert desk.gpus("waits") == (0,)


def test_what_is_given_back_on_a_drained_device_is_given_to_nobody() -> None:
    desk = Desk(PerJobPlacement(best_fit))
    for name in ("a", "b"):
        desk.submit(name, milli=400)
    assert desk.gpus("a") == desk.gpus("b")
    place = desk.gpus("a")[0]
    desk.drain(place)
    desk.stopped("a")
    desk.submit("c", milli=100)
    desk.stopped("b")
    assert place not in desk.gpus("a") + desk.gpus("b") + desk.gpus("c")
    desk.tell(NodeLost(at_s=0.0, node=NODE))
    desk.tell(NodeReturned(at_s=0.0, node=NODE))
    assert all(desk.gpus(name) and desk.gpus(name) != (place,) for name in "abc")


def test_what_makes_no_sense_is_ignored() -> None:
    desk = Desk()
    desk.drain(7)
    desk.tell(DeviceDrained(at_s=0.0, node="nowhere", gpu=0))
    assert desk.core.drained.out == {}


def test_ranks_that_lag_in_two_runs_have_their_device_drained() -> None:
    desk = Desk()
    desk.submit("a", width=3)
    desk.lag("a", 1)
    desk.lag("a", 1)
    assert desk.stops == []
    assert "needs 3.0 times" in desk.core.jobs["a"].told()
    desk.tell(JobExited(at_s=0.0, job_id="a", attempt=1))
    desk.submit("b", width=3)
    desk.lag("b", 1)
    assert list(desk.core.drained.out) == [(0, 1)]
    assert [(one.job_id, one.reason) for one in desk.stops] == [("b", StopReason.DEVICE_DRAINED)]


def test_a_job_that_lags_wherever_it_runs_is_no_fault_of_devices() -> None:
    devices = DrainedDevices()
    assert not devices.lagged((0, 0), "j", 1)
    assert not devices.lagged((0, 1), "j", 2)  # the same job elsewhere: it is the job
    assert not devices.lagged((0, 0), "k", 1)
    assert devices.lagged((0, 0), "l", 1)


def test_the_past_of_a_device_is_forgotten_when_it_is_returned() -> None:
    devices = DrainedDevices()
    devices.lagged((0, 0), "j", 1)
    devices.returned((0, 0))
    assert not devices.lagged((0, 0), "k", 1)


def test_a_rank_with_several_devices_is_held_against_none() -> None:
    desk = Desk()
    desk.submit("a", width=3)
    told = RankLagged(at_s=0.0, job_id="a", attempt=1, rank=0, ranks=1, slowdown=2.0)
    desk.tell(told)
    desk.tell(told)
    assert desk.core.drained.out == {}
    assert "lags" in desk.core.jobs["a"].told()
