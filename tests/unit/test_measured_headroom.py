"""Watts that a job does not draw are given to others, and back at once; none by meters that lie."""

from __future__ import annotations

from typing import Any

import pytest

from wattherd.catalog.gpus import GpuModel
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.estimate.power_curve import prior_curve
from wattherd.local.devices import Device, Machine
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import SetCap, StartJob
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    DemandMeasured,
    Event,
    JobExited,
    JobStarted,
    JobSubmitted,
)
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.drf import Drf
from wattherd.server.limits.headroom import Headroom, HeldJob

GPU = GpuModel(name="G", idle_w=30, max_w=300, memory_mib=1000, min_cap_w=100, source="test")
NODE = NodeSpec(name="n", cpu_milli=1000, memory_mib=1000, gpu_count=2, gpu_model="G")
BUDGET_W = 400.0


class Desk:
    """Two jobs on two GPUs; caps are read back when the test says so. Worst cases always fit."""

    def __init__(self) -> None:
        curve = prior_curve(GPU)
        config = CoreConfig(
            cluster=ClusterSpec((NODE,)),
            planner=Drf(),
            gpus={"G": GPU},
            curve_of=lambda spec, model: curve,
        )
        self.core = Core(config)
        self.orders: list[SetCap] = []
        self.tell(BudgetChanged(at_s=0.0, budget_w=BUDGET_W))
        for name in ("a", "b"):
            self.tell(JobSubmitted(at_s=0.0, job=JobSpec(id=name, submit_s=0.0)))
        self.read_back()

    def tell(self, event: Event) -> None:
        for one in self.core.handle(event):
            if isinstance(one, StartJob):
                self.tell(JobStarted(at_s=0.0, job_id=one.job_id, attempt=one.attempt))
            if isinstance(one, SetCap):
                self.orders.append(one)
        validate(self.core)
        assert self.core.watts.drawn_mw <= BUDGET_W * 1000

    def read_back(self) -> None:
        """Every order, the oldest first, until there are none."""
        while self.orders:
            one = self.orders.pop(0)
            self.tell(CapApplied(at_s=0.0, job_id=one.job_id, attempt=one.attempt, cap_w=one.cap_w))

    def demand(self, name: str, most_w: float | None) -> None:
        self.tell(DemandMeasured(at_s=0.0, job_id=name, attempt=1, most_w=most_w))

    def caps(self) -> list[float | None]:
        return [self.core.jobs[name].cap_w for name in ("a", "b")]


def test_what_a_job_does_not_draw_goes_to_the_other_after_it_was_read_back() -> None:
    desk = Desk()
    assert desk.caps() == [200.0, 200.0]
    desk.demand("a", 120.0)
    assert [(one.job_id, one.cap_w) for one in desk.orders] == [("a", 120.0)]
    assert desk.caps() == [200.0, 200.0]  # nobody counts on a cap that was only ordered
    desk.read_back()
    assert desk.caps() == [120.0, 280.0]


def test_a_job_that_wants_more_gets_it_back_once_the_other_has_come_down() -> None:
    desk = Desk()
    desk.demand("a", 120.0)
    desk.read_back()
    desk.demand("a", None)
    assert [(one.job_id, one.cap_w) for one in desk.orders] == [("b", 200.0)]
    assert desk.caps() == [120.0, 280.0]
    desk.read_back()
    assert desk.caps() == [200.0, 200.0]


def test_a_demand_below_the_lowest_cap_is_that_cap() -> None:
    desk = Desk()
    desk.demand("a", 20.0)
    desk.read_back()
    assert desk.caps() == [100.0, 300.0]


def test_a_demand_ends_with_its_run() -> None:
    desk = Desk()
    desk.demand("a", 120.0)
    desk.read_back()
    desk.tell(JobExited(at_s=0.0, job_id="a", attempt=1))
    assert desk.core.watts.demands.of("a") is None


# What meters make of it -------------------------------------------------------------------------


class Course:
    """Two devices that are read once a second; `cap_w` are in force."""

    def __init__(self) -> None:
        device = Device(model="G", uuid="u")
        machine = Machine(node=NODE, devices=(device, device), gpu=GPU, stated="measured")
        self.headroom = Headroom(None, machine)  # type: ignore[arg-type]
        self.now_s = 1000.0
        self.cap_w: dict[str, float | None] = {"a": 200.0, "b": 200.0}
        self.demand_w: dict[str, float | None] = {"a": None, "b": None}

    def run(
        self, seconds: int, a_w: float | None, b_w: float | None, *, flicker: bool = True
    ) -> Any:
        told = []
        for second in range(seconds):
            self.now_s += 1.0
            noise = (second % 7) * 0.1 if flicker else 0.0
            said = [None if one is None else one + noise for one in (a_w, b_w)]
            held = [
                HeldJob(name, 1, (at,), self.cap_w[name], self.demand_w[name])
                for at, name in enumerate(("a", "b"))
            ]
            for event in self.headroom.news(said, held, self.now_s):
                told.append((second, event.job_id, event.most_w))
                self.demand_w[event.job_id] = event.most_w
        return told


def test_a_device_below_its_cap_gives_back_after_a_while_and_only_then() -> None:
    course = Course()
    assert course.run(10, 120.0, 199.0) == []
    ((_, name, most_w),) = course.run(20, 120.0, 199.0)
    assert name == "a"
    assert 120.0 / 0.96 <= most_w <= 121.0 / 0.96


def test_a_device_at_its_cap_wants_all_at_once() -> None:
    course = Course()
    course.run(30, 120.0, 199.0)
    course.cap_w["a"] = 126.0
    told = course.run(4, 125.5, 199.0)
    assert told[-1][1:] == ("a", None)
    assert told[-1][0] <= 3


def test_a_short_dip_takes_nothing_away() -> None:
    course = Course()
    course.run(5, 190.0, 199.0)
    assert course.run(10, 60.0, 199.0) == []
    assert course.run(10, 190.0, 199.0) == []


@pytest.mark.parametrize(
    ("a_w", "flicker"),
    [(None, True), (120.0, False), (5000.0, True)],
    ids=["silent", "frozen", "senseless"],
)
def test_a_meter_that_is_not_to_be_trusted_gives_everything_back(
    a_w: float | None, flicker: bool
) -> None:
    course = Course()
    course.run(30, 120.0, 199.0)
    assert course.demand_w["a"] is not None
    course.cap_w["a"] = 125.0
    course.run(10, a_w, 199.0, flicker=flicker)
    assert course.demand_w["a"] is None
