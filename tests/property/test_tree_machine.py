"""Random trees and jobs, lost nodes, late read-backs, cuts: no domain above its budget."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_core_machine import CLUSTER, FLAT, SHARED, WIDE, CoreMachine, machine
from tree_shell import TreeShell

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.engine.power.budgets import OFF, CapRules
from wattherd.model.event import BudgetAnnounced, BudgetChanged
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.fair import MaxMin, Nash, Tiers
from wattherd.policy.power.simple import ByPriority, Pause, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.queue.tree import equal_queues
from wattherd.policy.rebalance.sleep import AfterIdle, SleepPolicy
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.tiresias import Tiresias

DOMAINS = ("site", "feed-a", "feed-b", "rack-a", "rack-b", "rack-c")
BUDGETS_W = st.sampled_from([None, None, 60.0, 100.0, 150.0, 211.3, 290.0, 340.0, 700.0])


class Plain:
    """A policy that has never heard of trees: the guard cuts what it proposes."""

    all_or_nothing = False

    def share(self, asks, watts):
        return [ask.curve.max_w for ask in asks]


SHARING = [WaterFilling(), Nash(), MaxMin(), Tiers(), Uniform(), Proportional(), ByPriority()]
POWER = st.sampled_from([*SHARING, Pause(), Plain()])


RULES = st.sampled_from(
    [
        OFF,
        CapRules(change_w=4.0, hold_s=30.0),
        CapRules(ramp_up_w_s=5.0, ramp_down_w_s=5.0),
        CapRules(ahead_s=10.0, refuse_s=100.0),
    ]
)


@st.composite
def trees(draw: st.DrawFn) -> PowerTree:
    """Any shape of six domains; every node hangs on any of them."""
    parents = {name: draw(st.sampled_from(DOMAINS[:at])) for at, name in enumerate(DOMAINS) if at}
    feeders = [draw(st.sampled_from(DOMAINS)) for _ in CLUSTER.nodes]
    return PowerTree(
        tuple(
            TreeDomain(
                name=name,
                parent=parents.get(name),
                budget_w=draw(BUDGETS_W),
                loss=draw(st.sampled_from([0.0, 0.0, 0.03, 0.1])),
                nodes=tuple(
                    node.name
                    for node, feeder in zip(CLUSTER.nodes, feeders, strict=True)
                    if feeder == name
                ),
            )
            for name in DOMAINS
        )
    )


class TreeMachine(CoreMachine):
    @initialize(
        round_s=st.sampled_from([None, 60.0]),
        sleep=st.sampled_from([None, AfterIdle(after_s=20.0)]),
        tree=trees(),
        power=POWER,
        rules=RULES,
    )
    def begin(  # type: ignore[override]
        self,
        round_s: float | None,
        sleep: SleepPolicy | None,
        tree: PowerTree,
        power: PowerPolicy,
        rules: CapRules,
    ) -> None:
        config = CoreConfig(
            cluster=self.cluster,
            planner=self.planner(),
            quota=self.quota,
            round_s=round_s,
            sleep=sleep,
            power=power,
            tree=tree,
            rules=rules,
        )
        self.shell = TreeShell(config, tree)

    @rule(name=st.sampled_from([*DOMAINS, "unheard-of"]), budget_w=BUDGETS_W)
    def change_budget_of(self, name: str, budget_w: float | None) -> None:
        event = BudgetChanged(at_s=self.shell.now_s, budget_w=budget_w, domain=name)
        self.shell.deliver(event)

    @rule(
        name=st.sampled_from(["", *DOMAINS]),
        in_s=st.sampled_from([0.0, 5.0, 50.0]),
        budget_w=st.sampled_from([None, 60.0, 211.3, 340.0]),
    )
    def announce(self, name: str, in_s: float, budget_w: float | None) -> None:
        """A change that may never come, or come as another one."""
        now_s = self.shell.now_s
        event = BudgetAnnounced(at_s=now_s, begins_s=now_s + in_s, budget_w=budget_w, domain=name)
        self.shell.deliver(event)


QUEUES = equal_queues(["default", "a", "b"])
PLANNERS = {
    "tiresias": machine(Tiresias, FLAT, elastic=False, kind=TreeMachine),
    "capacity": machine(
        lambda: CapacityScheduler(tree=QUEUES), FLAT, WIDE, quota=QUEUES, kind=TreeMachine
    ),
    "gandiva": machine(Gandiva, FLAT, SHARED, SHARED, kind=TreeMachine),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_no_domain_is_ever_above_its_budget(name: str) -> None:
    PLANNERS[name].TestCase.settings = settings(max_examples=times(120), stateful_step_count=50)
    PLANNERS[name].TestCase().runTest()
