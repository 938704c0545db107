"""Calls of somebody else's that do not return are told of, with the line at which they are."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattherd.errors import ClusterError
from wattherd.experiments.placement.plugin_scorers import AnsweredRows, CheckedRows
from wattherd.experiments.schedule.plugin_policies import (
    PluggedComputer,
    PluggedPlanner,
    PluggedPower,
)
from wattherd.plugin_watch import PluginWatch, not_returning
from wattherd.policy.contract import Draft, View
from wattherd.policy.power.contract import PowerAsk
from wattherd.testing.builders import a_cluster, a_node, a_state

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
    planner.watch = PluginWatch("scheduler 'mine'", SHORT_S)
    assert not_returning() == ""
    with meanwhile(lambda: planner.plan(SimpleNamespace(now_s=0.0), EmptyDraft()), stuck):  # type: ignore[arg-type]
        until(lambda: not_returning())
        told = not_returning()
        assert told.startswith("scheduler 'mine' has not returned for 0 s: it is at ")
        assert f"{__file__}:" in told  # and not threading.py, which it calls
        assert told.endswith(", in plan")
        until(lambda: caplog.records)
        time.sleep(4 * SHORT_S)
    assert not_returning() == ""
    assert [(one.levelno, "has not returned" in one.message) for one in caplog.records] == [
        (logging.ERROR, True),
        (logging.WARNING, False),
    ]
    assert "scheduler 'mine' has returned after" in caplog.messages[-1]


def test_a_power_policy_that_does_not_return_is_told_of() -> None:
    stuck = Stuck()
    power = PluggedPower("mine", stuck)
    power.watch = PluginWatch("power policy 'mine'", SHORT_S)
    with meanwhile(lambda: power.share([], 1.0), stuck):
        until(lambda: not_returning().startswith("power policy 'mine' has not returned"))
    assert not_returning() == ""


def test_a_scorer_that_does_not_return_is_told_of_with_its_place() -> None:
    stuck = Stuck()

    def rows(*given: object) -> tuple[Any, Any]:
        stuck.plan(None, None)  # type: ignore[arg-type]
        return np.zeros(1, np.int64), np.zeros(1, np.int64)

    checked = CheckedRows("mine", rows, watch=PluginWatch("scorer 'mine'", SHORT_S))
    world = a_state(a_cluster(a_node())).world
    nodes = np.zeros(1, np.int64)
    call = partial(AnsweredRows(checked), world, 0, nodes, np.zeros(0))
    with meanwhile(call, stuck):
        until(not_returning)
        assert not_returning().startswith("scorer 'mine' has not returned for 0 s: it is at ")
        assert not_returning().endswith(", in plan")
    assert not_returning() == ""


def test_what_is_computed_beside_the_core_holds_nobody_up_and_is_told_of() -> None:
    stuck = Stuck()
    computer = PluggedComputer("mine", lambda payload: stuck.share([], payload))
    computer.watch = PluginWatch("what scheduler 'mine' computes", SHORT_S, aside=True)
    with meanwhile(lambda: computer(1.0), stuck):
        until(lambda: not_returning(aside=True))
        assert not_returning() == ""
    failing = PluggedComputer("mine", lambda payload: 1 / payload)
    with pytest.raises(ClusterError, match="ZeroDivisionError"):  # the scheduler hears: no answer
        failing(0)
    with pytest.raises(ClusterError, match="SystemExit: 3"):
        PluggedComputer("mine", sys.exit)(3)


def test_several_calls_at_once_are_told_of_one_by_one() -> None:
    watch, first, second = PluginWatch("scorer 'x'", 0.0), Stuck(), Stuck()

    guarded = [PluggedPower("x", one) for one in (first, second)]
    for one in guarded:
        one.watch = watch
    with meanwhile(lambda: guarded[0].share([], 1.0), first):
        until(lambda: watch.trouble)
        with meanwhile(lambda: guarded[1].share([], 1.0), second):
            until(lambda: len(watch._calls) == 2)
        assert "in share" in watch.trouble  # the first is at it still
    assert watch.trouble == ""


def test_short_calls_are_no_news_and_their_watch_ends(caplog: pytest.LogCaptureFixture) -> None:
    def watching() -> int:
        return sum(one.name == "watch of scheduler 'quick'" for one in threading.enumerate())

    # Long enough that a busy machine, which stops a thread for a moment, makes no call a long one.
    watch = PluginWatch("scheduler 'quick'", 1.0)
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
    watch = PluginWatch("scheduler 'x'", 0.0)
    with pytest.raises(KeyError), watch:
        raise KeyError
    assert watch.trouble == ""


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_a_watch_of_its_own(copied: Callable[[PluginWatch], PluginWatch]) -> None:
    watch = PluginWatch("scheduler 'x'", 0.0)
    with watch:
        assert watch.trouble
        assert copied(watch).trouble == ""
