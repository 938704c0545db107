"""Which nodes of a pool are switched: for whom, within which watts, and without swinging."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from wattherd.errors import UserError
from wattherd.policy.rebalance.pool import Phase, PodSeat, PoolNode, PoolPlan, PoolRules, plan_pool
from wattherd.policy.rebalance.sleep import AfterIdle

GPU_W = 250.0


@dataclass
class Slots:
    """Groups of one-GPU pods; nodes give so many GPUs."""

    free: dict[str, int]
    wants: Mapping[str, int]
    booked: dict[str, list[str]] = field(default_factory=dict)

    def seats(self, group: str, among: Sequence[str]) -> Sequence[PodSeat] | None:
        found: list[str] = []
        for _ in range(self.wants[group]):
            able = [name for name in among if self.free[name] > found.count(name)]
            if not able:
                return None
            found.append(able[0])
        for name in found:
            self.free[name] -= 1
        self.booked[group] = found
        return [PodSeat(name, GPU_W) for name in found]

    def undo(self, group: str) -> None:
        for name in self.booked.pop(group):
            self.free[name] += 1


def on(name: str, used: int = 0, idle_since_s: float | None = None, **more: object) -> PoolNode:
    return a_node(name, Phase.ON, gpus_used=used, idle_since_s=idle_since_s, **more)


def off(name: str, **more: object) -> PoolNode:
    return a_node(name, Phase.OFF, **more)


def a_node(name: str, phase: Phase, **more: object) -> PoolNode:
    given = {"gpus": 4, "idle_w": 300.0, "wake_w": 500.0, "domains": ("row", ""), **more}
    return PoolNode(name=name, phase=phase, **given)  # type: ignore[arg-type]


def plan(
    nodes: list[PoolNode], wants: dict[str, int] | None = None,
    headroom_w: dict[str, float] | None = None, now_s: float = 1000.0, **rules: float,
) -> PoolPlan:  # fmt: skip
    wants = wants or {}
    slots = Slots({one.name: one.gpus - one.gpus_used for one in nodes}, wants)
    spare = int(rules.pop("spare", 0))
    made = PoolRules(sleep=AfterIdle(after_s=60.0, spare=spare), **rules)
    return plan_pool(nodes, wants, slots, headroom_w or {}, made, now_s)


def test_nodes_are_woken_for_those_who_fit_nowhere_else() -> None:
    nodes = [on("a", used=3), off("b"), off("c")]
    assert plan(nodes, {"one": 1}).wake == ()
    assert plan(nodes, {"one": 1, "two": 1}).wake == ("b",)
    assert plan(nodes, {"gang": 8}).wake == ("b", "c")


def test_a_gang_wakes_all_of_its_nodes_or_none() -> None:
    found = plan([on("a", used=4), off("b"), off("c")], {"gang": 9, "one": 1})
    assert found.wake == ("b",)
    assert found.waiting == {"gang": "no node of the pool would do"}


def test_who_is_served_by_a_node_that_wakes_wakes_no_other() -> None:
    waking = a_node("b", Phase.WAKING)
    assert plan([on("a", used=4), waking, off("c")], {"one": 4}).wake == ()
    assert plan([on("a", used=4), waking, off("c")], {"one": 4, "two": 1}).wake == ("c",)


def test_waking_and_the_pods_that_come_must_fit_in_every_domain() -> None:
    nodes = [on("a", used=4), off("b"), off("c", domains=("other", ""))]
    assert plan(nodes, {"two": 2}, {"": 1000.0}).wake == ("b",)
    short = plan(nodes, {"two": 2}, {"": 999.0})
    assert short.wake == ()
    assert short.waiting["two"] == "waking needs 1000 W, the site has 999 W left"
    assert plan(nodes, {"two": 2}, {"row": 400.0}).wake == ("c",)
    full = plan(nodes, {"two": 2}, {"": 100.0})
    assert full.waiting["two"] == "waking needs 500 W, the site has 100 W left"


def test_watts_are_spent_once() -> None:
    nodes = [on("a", used=4), off("b"), off("c")]
    found = plan(nodes, {"one": 4, "two": 4}, {"": 2500.0})
    assert found.wake == ("b",)
    assert set(found.waiting) == {"two"}


def test_idle_nodes_go_after_a_while_but_for_spare_ones() -> None:
    nodes = [on("a", idle_since_s=900.0), on("b", idle_since_s=950.0), on("c", used=1)]
    assert plan(nodes).sleep == ("a",)
    assert plan(nodes, now_s=1010.0).sleep == ("a", "b")
    assert plan(nodes, now_s=1010.0, spare=1).sleep == ("a",)


def test_a_node_that_was_just_woken_stays_a_while() -> None:
    nodes = [on("a", idle_since_s=900.0, since_s=800.0)]
    assert plan(nodes, hold_s=300.0).sleep == ()
    assert plan(nodes, hold_s=200.0).sleep == ("a",)


def test_who_waits_keeps_the_node_where_it_fits() -> None:
    assert plan([on("a", idle_since_s=0.0)], {"one": 1}).sleep == ()


def test_no_node_goes_that_would_leave_the_pool_busy_and_a_busy_pool_wakes_one_more() -> None:
    nodes = [on("a", used=4), on("b", used=2), on("c", idle_since_s=0.0), off("d")]
    assert plan(nodes, busy=0.9, slack=0.2).sleep == ()  # 6 of 8 are more than 0.7
    assert plan(nodes, busy=1.0, slack=0.2).sleep == ("c",)
    busy = [on("a", used=4), off("d"), off("e")]
    assert plan(busy, busy=0.9).wake == ("d",)
    assert plan(busy, headroom_w={"": 499.0}, busy=0.9).wake == ()
    assert plan([on("a", used=4), off("d", since_s=900.0)], busy=0.9, hold_s=300.0).wake == ()


def test_over_a_budget_idle_nodes_go_at_once_as_many_as_it_takes() -> None:
    nodes = [on(name, idle_since_s=999.0, since_s=990.0) for name in "abc"]
    assert plan(nodes, headroom_w={"row": -400.0}).sleep == ("a", "b")
    assert plan(nodes, headroom_w={"other": -400.0}).sleep == ()


def test_a_pool_that_is_left_alone_comes_to_rest() -> None:
    """A day at a load that falls and rises: each node moves no more often than it may."""
    phases = dict.fromkeys("abcd", (Phase.ON, 0.0))
    idle: dict[str, float] = {}
    moves = {name: [0.0] for name in "abcd"}
    for minute in range(24 * 60):
        now_s = 60.0 * minute
        load = 2 if minute % 10 < 5 else 6  # swings faster than the pool may
        nodes, left = [], load
        for name, (phase, since_s) in phases.items():
            used = min(left, 4) if phase is Phase.ON else 0
            left -= used
            idle[name] = now_s if used else idle.get(name, now_s)
            waits = idle[name] if phase is Phase.ON and not used else None
            nodes.append(a_node(name, phase, gpus_used=used, idle_since_s=waits, since_s=since_s))
        found = plan(nodes, {"rest": left} if left else {}, now_s=now_s, hold_s=900.0)
        for name in found.wake + found.sleep:
            phases[name] = (Phase.ON if name in found.wake else Phase.OFF, now_s)
            moves[name].append(now_s)
    for times in moves.values():
        pauses = [later - one for one, later in itertools.pairwise(times)]
        assert all(pause >= 900.0 for pause in pauses[::2])  # from on to off
        assert all(pause >= 60.0 for pause in pauses)


@pytest.mark.parametrize("wrong", [{"busy": 0.0}, {"slack": 1.0}, {"hold_s": -1.0}])
def test_rules_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="makes no sense"):
        PoolRules(sleep=AfterIdle(after_s=1.0), **wrong)  # type: ignore[arg-type]
