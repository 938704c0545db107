"""Random trees under schedules: whoever knows of a fall beforehand is under it at its very second.

Caps take their time; jobs, nodes lost and power policies are drawn. Time above a budget is counted
from the instant in which it changes, without any allowance.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.power.budgets import CapRules
from wattherd.experiments.schedule.run import POWER_POLICIES, ComparedRun, ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.event import NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import BudgetStep, PowerTree, TreeDomain
from wattherd.workload.cluster_text import parse_cluster

CLUSTER = parse_cluster("4x2:T4", known=GPUS)  # 10 W idle, 60 to 70 W busy
NODES = [node.name for node in CLUSTER.nodes]


@st.composite
def schedules(draw: st.DrawFn, least_w: float, most_w: float) -> tuple[BudgetStep, ...]:
    times = sorted(draw(st.sets(st.integers(50, 900), max_size=4)))
    return tuple(
        BudgetStep(at_s=float(at_s), budget_w=float(draw(st.integers(int(least_w), int(most_w)))))
        for at_s in times
    )


@st.composite
def trees(draw: st.DrawFn) -> PowerTree:
    """Two racks of two nodes; idle a rack takes 40 W, busy 280 W."""
    domains = [
        TreeDomain(
            name="site",
            budget_w=draw(st.sampled_from([None, 600.0])),
            loss=draw(st.sampled_from([0.0, 0.05])),
            steps=draw(schedules(90, 620)),
        )
    ]
    for name, nodes in (("rack-a", NODES[:2]), ("rack-b", NODES[2:])):
        domains.append(
            TreeDomain(
                name=name,
                parent="site",
                nodes=tuple(nodes),
                budget_w=draw(st.sampled_from([None, 280.0])),
                steps=draw(schedules(45, 300)),
            )
        )
    return PowerTree(tuple(domains))


jobs = st.lists(
    st.tuples(st.integers(0, 800), st.integers(1, 6), st.integers(10, 500)), min_size=1, max_size=8
)
delays = st.sampled_from([0.0, 1.0, 7.0, 30.0])


def run(
    tree: PowerTree | None,
    drawn: list[tuple[int, int, int]],
    rules: CapRules,
    delay_s: float,
    *,
    power: str = "water-filling",
    policy: str = "tiresias",
    lost_s: int | None = None,
    budget: tuple[tuple[float, float], ...] = (),
) -> ComparedRun:
    specs = tuple(
        JobSpec(
            id=f"j{at}",
            submit_s=float(submit_s),
            roles=(TaskRole(count=gpus),),
            duration_s=float(lasts_s),
        )
        for at, (submit_s, gpus, lasts_s) in enumerate(sorted(drawn))
    )
    faults = ()
    if lost_s is not None:
        faults = (
            NodeLost(at_s=float(lost_s), node=NODES[0]),
            NodeReturned(at_s=lost_s + 100.0, node=NODES[0]),
        )
    return simulate(
        ComparisonSetup(
            preset=preset("none"),
            given=SchedulerContext(jobs=ReadJobs(specs=specs), cluster=CLUSTER),
            budget=budget,
            power=power,
            tree=tree,
            rules=rules,
            cap_delay_s=delay_s,
            faults=faults,
            until_s=5000.0,
        ),
        policy,
    )


def over_s(result: ComparedRun) -> float:
    levels = result.row["levels"]
    assert isinstance(levels, list)
    return sum(one["over_budget_s"] for one in levels)


@settings(max_examples=times(150))
@given(
    tree=trees(),
    drawn=jobs,
    delay_s=delays,
    power=st.sampled_from(sorted(POWER_POLICIES)),
    lost_s=st.sampled_from([None, 60, 333]),
    ramp_w_s=st.sampled_from([None, 5.0, 40.0]),
    hold_s=st.sampled_from([0.0, 45.0]),
    refuse_s=st.sampled_from([0.0, 120.0]),
)
def test_known_falls_are_met_in_time(
    tree: PowerTree,
    drawn: list[tuple[int, int, int]],
    delay_s: float,
    power: str,
    lost_s: int | None,
    ramp_w_s: float | None,
    hold_s: float,
    refuse_s: float,
) -> None:
    rules = CapRules(
        ahead_s=delay_s or 0.001,
        refuse_s=refuse_s,
        ramp_down_w_s=ramp_w_s,
        ramp_up_w_s=ramp_w_s,
        hold_s=hold_s,
        change_w=3.0 if hold_s else 0.0,
    )
    result = run(tree, drawn, rules, delay_s, power=power, lost_s=lost_s)
    assert over_s(result) == pytest.approx(0.0, abs=1e-6)


def a_fall(to_w: float) -> PowerTree:
    step = (BudgetStep(at_s=100.0, budget_w=to_w),)
    return PowerTree((TreeDomain(name="site", nodes=tuple(NODES), budget_w=600.0, steps=step),))


WIDE = [(0, 8, 400)]


def test_without_looking_ahead_slow_caps_are_late() -> None:
    """The meter's allowance is for surprises; here nobody is told, and it takes the caps' delay."""
    late = run(a_fall(500.0), WIDE, CapRules(), 7.0)
    assert over_s(late) == 0.0, "a surprise has the caps' delay"
    untold = run(a_fall(500.0), WIDE, CapRules(refuse_s=1.0), 7.0)
    assert over_s(untold) == pytest.approx(7.0)
    in_time = run(a_fall(500.0), WIDE, CapRules(ahead_s=7.0), 7.0)
    assert over_s(in_time) == 0.0


def test_no_job_is_started_that_a_known_fall_would_stop() -> None:
    many = [(0, 4, 200), (40, 4, 200)]
    stopped = run(a_fall(300.0), many, CapRules(ahead_s=1.0), 1.0)
    assert stopped.row["preemptions"] == 1
    refused = run(a_fall(300.0), many, CapRules(ahead_s=1.0, refuse_s=80.0), 1.0)
    assert refused.row["preemptions"] == 0
    assert over_s(stopped) == over_s(refused) == 0.0
    starts = [one.start_s for one in refused.outcomes]
    assert starts[0] == 0.0
    assert starts[1] is not None
    assert starts[1] >= 200.0
    # Longer before the fall it is not looked at.
    early = run(a_fall(300.0), many, CapRules(ahead_s=1.0, refuse_s=50.0), 1.0)
    assert [one.start_s for one in early.outcomes] == [0.0, 40.0]
