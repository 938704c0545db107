"""The conformance kit: ours pass it, and what is wrong in one way each does not."""

from __future__ import annotations

import itertools
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wattherd.devices.meters import replay
from wattherd.devices.meters.contract import MeterSample
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.experiments.schedule.simulators import preset
from wattherd.model.reason import StopReason
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.testing.conformance import (
    Nonconforming,
    check_meter,
    check_power_policy,
    check_scheduler,
)

OURS = {
    name: make
    for name, make in preset("none").schedulers.items()
    if name != "hived"  # its cells are whole nodes of one size, the kit's are not
}


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_schedulers_conform(name: str) -> None:
    check_scheduler(OURS[name], seeds=(0, 1))


@pytest.mark.parametrize("name", sorted(POWER_POLICIES))
def test_our_power_policies_conform(name: str) -> None:
    check_power_policy(POWER_POLICIES[name])


def test_our_meters_conform(tmp_path: Any) -> None:
    (tmp_path / "watts.csv").write_text("time_s,power_w\n0,100\n60,120\n")
    check_meter(replay, f"replay:{tmp_path}/watts.csv?column=power_w&time=time_s")


class Lazy(FifoGang):
    def plan(self, view: Any, draft: Any) -> None:
        if view.now_s < 200:
            super().plan(view, draft)


class Restless(FifoGang):
    """Everybody is stopped every ten seconds, and goes on from where it was."""

    def plan(self, view: Any, draft: Any) -> None:
        odd = int(view.now_s) // 10 % 2
        wanted = [job for job in view.live() if job.wanted]
        for job in wanted if odd else ():
            draft.stop(job, StopReason.TIME_SLICE)
        if not odd:
            super().plan(view, draft)
        draft.wake_at(float(10 * (int(view.now_s) // 10 + 1)))


class Endless(FifoGang):
    """Stops whom it has just started, at the same instant."""

    def plan(self, view: Any, draft: Any) -> None:
        wanted = [job for job in view.live() if job.wanted]
        for job in wanted:
            draft.stop(job, StopReason.TIME_SLICE)
        if not wanted:
            super().plan(view, draft)


class Moody(FifoGang):
    moods = itertools.count()

    def plan(self, view: Any, draft: Any) -> None:
        if next(self.moods) % 7:
            super().plan(view, draft)
        else:
            draft.wake_at(view.now_s + 3.0)


@pytest.mark.parametrize(
    ("planner", "said"),
    [
        (Lazy, "never ended"),
        (Restless, "was started"),
        (Endless, "no end"),
        (Moody, "other commands"),
    ],
)
def test_what_a_scheduler_must_not_do_is_noticed(planner: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_scheduler(lambda _: planner(), restarts=5)


class Greedy(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.max_w for ask in asks]


class Mean(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.floor_w for ask in asks]


class Low(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return [ask.curve.floor_w / 2 for ask in asks]


class Short(Uniform):
    def share(self, asks: Any, watts: float) -> list[float]:
        return super().share(asks, watts)[1:]


class Fickle(Uniform):
    turns = itertools.count()

    def share(self, asks: Any, watts: float) -> list[float]:
        low = [ask.curve.floor_w for ask in asks]
        return low if next(self.turns) % 2 else super().share(asks, watts)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Greedy, "were shared"),
        (Mean, "left over"),
        (Low, "for a job that takes"),
        (Short, "caps for"),
        (Fickle, "another answer"),
    ],
)
def test_what_a_power_policy_must_not_do_is_noticed(policy: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_power_policy(policy)


def meter(value: Any, **more: Any) -> ModuleType:
    driver = SimpleNamespace(sample=lambda: value, close=lambda: None)
    found: Any = SimpleNamespace(OPTIONS=frozenset(), driver=lambda *_: driver, **more)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (MeterSample(float("nan")), "no reading"),
        (100.0, "no MeterSample"),
        (MeterSample(100.0, at_s=1e11), "ahead of its time"),
    ],
)
def test_what_a_meter_must_not_do_is_noticed(value: Any, said: str) -> None:
    with pytest.raises(Nonconforming, match=said):
        check_meter(meter(value), "mine://HOST")
