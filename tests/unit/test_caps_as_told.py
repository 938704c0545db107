"""Orders for caps, where the test says what everybody is to get: who is lowered and raised, when.

Two T4 idle at 20 W and draw 120 to 140 W: a job of two at a cap of c adds 2 (c - 10) W to 80 W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from test_cap_rules import CLUSTER, Desk, caps, started, stops, wakes

from wattherd.engine.core.power_control import JobCaps
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import OFF, CapRules, Ramps
from wattherd.estimate.power_curve import prior
from wattherd.model.command import SetCap
from wattherd.model.event import JobStopped, Woke
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.simple import Uniform


class AsTold:
    """Gives each job what the test says."""

    all_or_nothing = False

    def __init__(self) -> None:
        self.caps_w: dict[str, float] = {}

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        del watts
        return [self.caps_w.get(ask.job_id, 70.0) for ask in asks]


class Room:
    """A desk, and plans that name every cap."""

    def __init__(self, budget_w: float | None, caps_w: dict[str, float], **rules: Any) -> None:
        self.power = AsTold()
        self.desk = Desk(self.power, **rules)
        self.power.caps_w = caps_w
        self.desk.quick = True
        self.desk.budget(budget_w)
        for name in caps_w:
            self.desk.submit(name, 2 if name in "ab" else 1)
        self.desk.quick = False

    def plan(self, budget_w: float | None, at_s: float, **caps_w: float) -> list[SetCap]:
        self.power.caps_w = caps_w
        return self.orders(self.desk.budget(budget_w, at_s))

    def read_back(self, name: str, cap_w: float | None, at_s: float) -> list[SetCap]:
        return self.orders(self.desk.read_back(name, cap_w, at_s))

    def orders(self, commands: list[Any]) -> list[SetCap]:
        return [one for one in commands if isinstance(one, SetCap)]

    def in_force(self, name: str) -> float | None:
        return self.desk.core.jobs[name].cap_w

    @property
    def drawn_w(self) -> float:
        return self.desk.core.watts.drawn_mw / 1000


def test_each_raise_counts_before_the_next_one_is_asked_for() -> None:
    """There are watts for one of two raises until a third job's cut is read back."""
    room = Room(400.0, {"a": 60.0, "b": 60.0, "c": 70.0, "d": 70.0})
    assert room.drawn_w == 400.0
    found = room.plan(410.0, 1.0, a=65.0, b=65.0, c=65.0, d=65.0)
    assert caps(found) == {"c": 65.0, "d": 65.0, "a": 65.0}
    assert room.drawn_w == 410.0
    assert room.read_back("c", 65.0, 2.0) == []
    assert caps(room.read_back("d", 65.0, 3.0)) == {"b": 65.0}
    assert room.drawn_w == 410.0


def test_a_small_cut_is_put_off_until_a_raise_needs_its_watts_and_is_ordered_once() -> None:
    start = {"a": 67.0, "b": 67.0, "c": 67.0, "d": 67.0}
    room = Room(422.0, start, change_w=5.0)
    assert room.plan(422.0, 1.0, **{**start, "a": 64.0}) == [], "nobody needs it"
    # Both raises are to the top and wait for the same watts: one order gives both.
    found = room.plan(422.0, 2.0, a=64.0, b=67.0, c=70.0, d=70.0)
    assert [(one.job_id, one.cap_w) for one in found] == [("a", 64.0)]
    assert room.drawn_w == 422.0
    assert caps(room.read_back("a", 64.0, 3.0)) == {"c": 70.0, "d": 70.0}


def test_what_was_put_off_is_ordered_as_soon_as_a_budget_asks_for_it() -> None:
    room = Room(320.0, {"a": 70.0, "b": 70.0}, change_w=5.0)
    assert room.plan(320.0, 1.0, a=67.0, b=70.0) == []
    assert room.plan(320.0, 2.0, a=67.0, b=70.0) == []
    assert caps(room.plan(319.0, 3.0, a=67.0, b=70.0)) == {"a": 67.0}
    assert caps(room.plan(319.0, 4.0, a=67.0, b=70.0)) == {"a": 67.0}, "again, until it is seen"
    room.read_back("a", 67.0, 5.0)
    assert room.drawn_w == 314.0
    assert room.plan(319.0, 6.0, a=67.0, b=70.0) == []


def test_a_cut_is_no_longer_put_off_once_nobody_plans_it() -> None:
    """The raise that comes too late finds nothing to press for."""
    room = Room(320.0, {"a": 70.0, "b": 70.0}, change_w=5.0)
    assert room.plan(320.0, 1.0, a=67.0, b=70.0) == []
    assert room.plan(320.0, 2.0, a=70.0, b=70.0) == []
    commands = room.desk.submit("c", 1, at_s=3.0)
    assert (room.orders(commands), started(commands)) == ([], [])
    assert room.drawn_w == 320.0


@pytest.mark.parametrize(("to_w", "worth"), [(64.0, False), (65.0, True)])
def test_a_change_of_exactly_what_is_asked_for_is_worth_an_order(to_w: float, worth: bool) -> None:
    room = Room(400.0, {"a": 60.0, "b": 60.0}, change_w=5.0)
    assert caps(room.plan(400.0, 1.0, a=to_w, b=60.0)) == ({"a": to_w} if worth else {})


def test_rules_that_change_at_work_count_from_then_on() -> None:
    room = Room(400.0, {"a": 60.0, "b": 60.0})
    room.desk.core.power.go_by(CapRules(change_w=5.0))
    assert room.plan(400.0, 1.0, a=63.0, b=60.0) == []
    room.desk.core.power.go_by(OFF)
    assert caps(room.plan(400.0, 2.0, a=63.0, b=60.0)) == {"a": 63.0}


def test_who_waits_to_be_raised_a_second_time_is_woken_a_second_time() -> None:
    room = Room(400.0, {"a": 60.0, "b": 60.0}, hold_s=60.0)
    for at_s, now_w, next_w in ((1000.0, 62.0, 64.0), (2000.0, 66.0, 68.0)):
        assert caps(room.plan(400.0, at_s, a=now_w, b=60.0)) == {"a": now_w}
        room.power.caps_w = {"a": next_w, "b": 60.0}
        commands = room.desk.budget(400.0, at_s + 10.0)
        assert caps(commands) == {}
        assert wakes(commands, "hold") == [at_s + 60.0]
        commands = room.desk.tell(Woke(at_s=at_s + 60.0, key="hold"))
        assert caps(commands) == {"a": next_w}


def test_who_may_change_now_does_not_hide_when_another_one_may() -> None:
    room = Room(400.0, {"a": 60.0, "b": 60.0}, hold_s=60.0)
    room.plan(400.0, 1000.0, a=62.0, b=60.0)
    room.power.caps_w = {"a": 64.0, "b": 62.0}
    commands = room.desk.budget(400.0, 1010.0)
    assert caps(commands) == {"b": 62.0}
    assert wakes(commands, "hold") == [1060.0]


@pytest.mark.parametrize("hand_w", [70.0, None])
def test_a_cap_that_somebody_lifted_by_hand_counts_until_the_lower_one_is_seen(
    hand_w: float | None,
) -> None:
    """A job that was to be raised stands above its plan all at once: that is a cut, not a raise."""
    room = Room(300.0, {"a": 60.0, "b": 70.0})
    assert caps(room.plan(300.0, 1.0, a=65.0, b=60.0)) == {"b": 60.0}
    assert room.read_back("a", hand_w, 2.0) == []
    assert (room.in_force("a"), room.drawn_w) == (hand_w, 320.0)
    # There are watts for 65 W now; that the device keeps to them is not seen yet.
    assert room.read_back("b", 60.0, 3.0) == []
    assert (room.in_force("a"), room.drawn_w) == (hand_w, 300.0)
    assert caps(room.plan(300.0, 4.0, a=65.0, b=60.0)) == {"a": 65.0}
    assert (room.in_force("a"), room.drawn_w) == (hand_w, 300.0)
    room.read_back("a", 65.0, 5.0)
    assert (room.in_force("a"), room.drawn_w) == (65.0, 290.0)


def test_without_a_budget_a_hand_is_undone_with_the_next_plan_and_not_at_once() -> None:
    """At once there would be no end of it, where a driver does not let go of a cap of its own."""
    desk = Desk()
    desk.submit("a", 2)
    assert caps(desk.read_back("a", 65.0, 1.0)) == {}
    assert caps(desk.submit("b", 1, at_s=2.0)) == {"a": None}
    assert caps(desk.read_back("a", 65.0, 3.0)) == {}
    assert caps(desk.submit("c", 1, at_s=4.0)) == {"a": None}
    assert caps(desk.read_back("a", None, 5.0)) == {}
    assert caps(desk.submit("d", 1, at_s=6.0)) == {}


def test_a_job_that_was_stopped_amid_a_cut_is_told_no_more() -> None:
    room = Room(320.0, {"a": 70.0, "b": 70.0})
    assert caps(room.plan(300.0, 1.0, a=65.0, b=65.0)) == {"a": 65.0, "b": 65.0}
    commands = room.desk.budget(200.0, 2.0)
    assert stops(commands) == ["b"]
    assert caps(commands).keys() == {"a"}
    assert room.drawn_w == 320.0, "what was told to stop draws until it is gone"
    commands = room.desk.tell(JobStopped(at_s=3.0, job_id="b", attempt=1))
    assert room.drawn_w == 200.0
    commands += room.desk.budget(199.0, 4.0)
    assert caps(commands).keys() <= {"a"}


def test_orders_to_an_attempt_die_with_it() -> None:
    """Read back is what the new run's devices stand at, whatever the old ones were told."""
    room = Room(320.0, {"a": 70.0, "b": 70.0})
    room.plan(280.0, 1.0, a=60.0, b=60.0)
    room.plan(200.0, 2.0, a=70.0, b=60.0)
    room.desk.tell(JobStopped(at_s=3.0, job_id="b", attempt=1))
    assert started(room.desk.budget(400.0, 4.0)) == ["b"]
    room.read_back("b", 60.0, 5.0)
    assert room.in_force("b") == 60.0


def test_nothing_is_pressed_for_where_nothing_was_ever_shared() -> None:
    account = PowerAccount(CLUSTER, Uniform(), prior)
    fresh = JobCaps(account, CapRules(change_w=5.0), Ramps({}, 10.0, {}))
    assert (fresh.press({}, 0.0), fresh.next_s) == ([], None)
