"""Calls of somebody else's that do not return are told of, with the line at which they are."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from wattherd.engine.core.config import CoreConfig
from wattherd.experiments.schedule.plan_watch import PlanWatch
from wattherd.experiments.schedule.plugin_policies import (
    PluggedPlanner,
    PluggedPower,
    not_returning,
)
from wattherd.policy.contract import Draft, View
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.testing.timed_world import t4_nodes

SHORT_S = 0.05


def until(true: Callable[[], object], most_s: float = 30.0) -> None:
    end_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.005)


class Stuck:
    """Comes back when a test lets it."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def plan(self, view: View, draft: Draft) -> None:
        while not self.goes_on.is_set():
            pass

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        while not self.goes_on.is_set():
            pass
        return []


@contextmanager
def meanwhile(call: Callable[[], object], stuck: Stuck) -> Iterator[None]:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stuck.goes_on.set()
        thread.join(30)
    assert not thread.is_alive()


class EmptyDraft:
    def mark(self) -> int:
        return 0


def test_a_plan_that_does_not_return_is_told_of_once_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck = Stuck()
    planner = PluggedPlanner("mine", stuck)
    planner.watch = PlanWatch("scheduler 'mine'", SHORT_S)
    config = CoreConfig(cluster=t4_nodes(1), planner=planner)
    assert not_returning(config) == ""
    with meanwhile(lambda: planner.plan(None, EmptyDraft()), stuck):  # type: ignore[arg-type]
        until(lambda: not_returning(config))
        told = not_returning(config)
        assert told.startswith("scheduler 'mine' has not returned for 0 s: it is at ")
        assert f"{__file__}:" in told  # and not threading.py, which it calls
        assert told.endswith(", in plan")
        until(lambda: caplog.records)
        time.sleep(4 * SHORT_S)
    assert not_returning(config) == ""
    assert [(one.levelno, "has not returned" in one.message) for one in caplog.records] == [
        (logging.ERROR, True),
        (logging.WARNING, False),
    ]
    assert "scheduler 'mine' has returned after" in caplog.messages[-1]


def test_a_power_policy_that_does_not_return_is_told_of() -> None:
    stuck = Stuck()
    power = PluggedPower("mine", stuck)
    power.watch = PlanWatch("power policy 'mine'", SHORT_S)
    config = CoreConfig(cluster=t4_nodes(1), planner=FifoGang(), power=power)
    with meanwhile(lambda: power.share([], 1.0), stuck):
        until(lambda: not_returning(config).startswith("power policy 'mine' has not returned"))
    assert not_returning(config) == ""
    assert not_returning(CoreConfig(cluster=t4_nodes(1), planner=FifoGang(), power=Uniform())) == ""


def test_short_calls_are_no_news_and_their_watch_ends(caplog: pytest.LogCaptureFixture) -> None:
    def watching() -> int:
        return sum(one.name == "watch of scheduler 'quick'" for one in threading.enumerate())

    # Long enough that a busy machine, which stops a thread for a moment, makes no call a long one.
    watch = PlanWatch("scheduler 'quick'", 1.0)
    for _ in range(100):
        with watch:
            pass
        assert watch.trouble == ""
    assert watching() <= 2  # one that ends, and its successor
    until(lambda: not watching())
    with watch:  # and begins again
        assert watching()
    assert caplog.records == []


def test_a_call_that_raises_is_over() -> None:
    watch = PlanWatch("scheduler 'x'", 0.0)
    with pytest.raises(KeyError), watch:
        raise KeyError
    assert watch.trouble == ""


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_a_watch_of_its_own(copied: Callable[[PlanWatch], PlanWatch]) -> None:
    watch = PlanWatch("scheduler 'x'", 0.0)
    with watch:
        assert watch.trouble
        assert copied(watch).trouble == ""
