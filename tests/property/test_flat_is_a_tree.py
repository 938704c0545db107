"""A single budget and a tree of one domain are the same account: equal commands, event by event.

Jobs come, start, are capped, cut, shared with others, stopped and lost under both; budgets that
were announced come or do not. Nothing is ever booked below idling. That nothing rises above a
budget is held by `test_held_watts` and `test_tree_machine`.
"""

from __future__ import annotations

from typing import Any

import pytest
from core_shell import Shell
from hypothesis import given, settings
from hypothesis import strategies as st
from test_held_watts import ACTIONS, BUDGETS_W, CLUSTER, IDLE_W, act

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.engine.power.budgets import OFF, CapRules
from wattherd.model.event import BudgetAnnounced, BudgetChanged
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.fair import MaxMin, Nash, Tiers
from wattherd.policy.power.simple import ByPriority, Pause, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.tiresias import Tiresias

POLICIES = (
    WaterFilling(), Tiers(), Nash(), MaxMin(), Uniform(), Proportional(), ByPriority(), Pause()
)  # fmt: skip
RULES = (
    OFF,
    CapRules(change_w=4.0, hold_s=30.0),
    CapRules(ahead_s=10.0, refuse_s=100.0),
    CapRules(ramp_up_w_s=5.0, ramp_down_w_s=5.0),
)
ONE = PowerTree((TreeDomain(name="hall", nodes=tuple(one.name for one in CLUSTER.nodes)),))
COMING = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0.0, 5.0, 50.0]), st.sampled_from(BUDGETS_W)),
    max_size=4,
)


def shells(planner: Any, power: Any, rules: CapRules) -> tuple[Shell, Shell]:
    def of(tree: PowerTree | None) -> Shell:
        return Shell(
            CoreConfig(cluster=CLUSTER, planner=planner(), power=power, tree=tree, rules=rules)
        )

    return of(None), of(ONE)


@settings(max_examples=times(60), deadline=None)
@given(
    actions=ACTIONS,
    coming=COMING,
    planner=st.sampled_from([Tiresias, Gandiva]),
    power=st.sampled_from(POLICIES),
    rules=st.sampled_from(RULES),
    first_w=st.sampled_from(BUDGETS_W),
)
def test_commands_are_equal_under_a_budget_and_under_a_tree_of_one_domain(
    actions: list[tuple[str, int]],
    coming: list[tuple[int, float, float | None]],
    planner: Any,
    power: Any,
    rules: CapRules,
    first_w: float | None,
) -> None:
    flat, tree = shells(planner, power, rules)
    for shell in (flat, tree):
        shell.deliver(BudgetChanged(at_s=0.0, budget_w=first_w))
    for count, (what, number) in enumerate(actions):
        for shell in (flat, tree):
            for at, in_s, budget_w in coming:
                if at == count:
                    begins_s = shell.now_s + in_s
                    shell.deliver(
                        BudgetAnnounced(at_s=shell.now_s, begins_s=begins_s, budget_w=budget_w)
                    )
            act(shell, what, number, count)
        assert flat.commands == tree.commands
        assert flat.core.watts.drawn_mw == tree.core.watts.drawn_mw
        assert flat.core.watts.run_w == tree.core.watts.run_w
        assert flat.core.watts.room_mw() == tree.core.watts.room_mw()
        for shell in (flat, tree):
            account = shell.core.watts
            assert account.drawn_mw >= round(IDLE_W * 1000), "below what everything draws idle"
            assert min(account._plan.nw) >= 0
            assert min(account._held.nw) >= 0


def test_whoever_leaves_takes_exactly_what_he_brought() -> None:
    """After the last job both books are as before the first, shared devices included."""
    shell, _ = shells(Gandiva, WaterFilling(), OFF)
    shell.deliver(BudgetChanged(at_s=0.0, budget_w=IDLE_W + 420))
    for count in range(8):
        act(shell, "submit", count, count)
        act(shell, "confirm", 0, count)
    assert shell.core.watts.drawn_mw > round(IDLE_W * 1000)
    for number in range(8):
        act(shell, "cancel", number, 8)
    for run in shell.with_status("stopping"):
        shell.stopped(run)
    for run in shell.with_status("ordered"):
        shell.started(run)
    for run in shell.with_status("stopping", "running"):
        shell.stopped(run)
    account = shell.core.watts
    assert not any(job.active for job in shell.core.jobs.values())
    assert (account.drawn_mw, account.run_w) == (round(IDLE_W * 1000), 0.0)
    assert account.room_mw() == 420_000
    assert account.free_w == pytest.approx(IDLE_W)
