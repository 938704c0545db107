"""Full draws of runs on GPUs that are throttled, reckoned back from what is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattherd.local.devices import PAUSED_PART, Device, Machine, slots
from wattherd.local.executor import Key, Pace
from wattherd.server.hardware.draw import DrawSample
from wattherd.server.site.full_draws import MARGIN, FullDraws

KEY = ("j-1", 1)


def sample(at_s: float, by_job: dict[str, float], read: float | None = 1.0) -> DrawSample:
    return DrawSample(
        at_s=at_s, draw_w=0.0, budget_w=None, by_job=by_job, stated="measured", read=(read,)
    )


def machine_of_gpus() -> Machine:
    """One GPU that draws 100 W idle, 145 W paused and 550 W at most."""
    machine = slots("here", 1)
    gpu = replace(machine.gpu, idle_w=100.0, max_w=550.0)
    return replace(machine, devices=(Device(model="H", uuid="GPU-1"),), gpu=gpu)


class World:
    """A run under a cap; its GPU computes on for a part of each period after the stop."""

    def __init__(self, cap_w: float, full_w: float, late: float = 0.0) -> None:
        self.machine, self.cap_w, self.full_w, self.late = machine_of_gpus(), cap_w, full_w, late
        self.duty = self.machine.duty(cap_w)
        self.changes = 0
        self.draws = FullDraws(self.machine, self.paces, self.learned)

    def paces(self) -> dict[Key, Pace]:
        return {KEY: Pace(self.duty, None, None, devices=1)}

    def learned(self, key: Key, full_w: float) -> None:
        assert key == KEY
        self.changes += 1
        self.duty = self.machine.duty(self.cap_w, full_w)

    def watts(self) -> float:
        paused_w = 100.0 + PAUSED_PART * 450.0
        on = 1.0 if self.duty == 1.0 else min(1.0, self.duty + self.late)
        return paused_w + on * (self.full_w - paused_w)

    def run(self, seconds: int) -> None:
        for second in range(seconds):
            self.draws.look(sample(float(second), {"j-1": self.watts()}))


def test_a_gpu_that_computes_on_after_each_stop_comes_below_its_cap() -> None:
    world = World(cap_w=350.0, full_w=540.0, late=0.2)
    assert world.watts() > 350.0
    world.run(60)
    assert 0.8 * 350.0 < world.watts() <= 350.0


def test_a_job_that_draws_little_is_not_stopped_for_nothing() -> None:
    world = World(cap_w=350.0, full_w=300.0)
    assert world.duty < 0.6
    world.run(60)
    assert world.duty == 1.0


def test_a_steady_draw_changes_nothing_any_more() -> None:
    world = World(cap_w=350.0, full_w=540.0, late=0.05)
    world.run(60)
    known = world.changes
    world.run(60)
    assert world.changes == known <= 6


def test_nothing_is_reckoned_while_a_change_is_fresh() -> None:
    world = World(cap_w=350.0, full_w=540.0)
    for second in range(4):
        world.draws.look(sample(float(second), {"j-1": 540.0}))
    assert world.changes == 0


def test_a_full_draw_is_the_measured_one_at_full_duty_with_a_margin() -> None:
    told: list[float] = []
    draws = FullDraws(
        machine_of_gpus(),
        lambda: {KEY: Pace(None, None, None, 2)},
        lambda _, watts: told.append(watts),
    )
    for second in range(12):
        draws.look(sample(float(second), {"j-1": 800.0, "other": 1.0}))
    assert told == [pytest.approx(400.0 * MARGIN)]


def test_what_no_meter_has_told_is_nothing_to_reckon_with() -> None:
    world = World(cap_w=350.0, full_w=300.0)
    for second in range(20):
        world.draws.look(sample(float(second), {"j-1": 550.0}, read=None))
    assert world.changes == 0
