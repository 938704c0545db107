"""What the guard says is drawn is what the caps in force allow, counted by somebody else.

Jobs come, start, are capped, narrowed, shared with others, stopped and lost; after every event all
devices are counted anew in exact fractions, from allocations, caps and the catalogue alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from core_shell import Shell
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import CoreConfig
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import BudgetChanged, JobCancelled, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.tiresias import Tiresias

CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=64_000, memory_mib=64_000, gpu_count=gpus, gpu_model=model,
                 idle_w=idle_w)
        for name, gpus, model, idle_w in (("n0", 2, "T4", 5.0), ("n1", 2, "V100M16", 0.0))
    )
)  # fmt: skip
IDLE_W = sum(node.idle_w + node.gpu_count * GPUS[node.gpu_model].idle_w for node in CLUSTER.nodes)
TREE = PowerTree(
    (
        TreeDomain(name="site", budget_w=2_000.0),
        TreeDomain(name="row", parent="site", loss=0.05, nodes=("n0",)),
        TreeDomain(name="other", parent="site", nodes=("n1",)),
    )
)
FACTORS = {"site": (Fraction(1_052_632, 1_000_000), 1), "row": (Fraction(1_052_632, 1_000_000), 0),
           "other": (0, 1)}  # fmt: skip
ROLES = (
    TaskRole(count=1),
    TaskRole(count=2),
    TaskRole(count=1, gpu_memory_mib=3_000),
    TaskRole(count=1, gpu_milli=500),
    TaskRole(count=1, gpu_count=0, cpu_milli=1000),
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit"] * 4 + ["confirm"] * 6 + ["cap"] * 3 + ["budget"] * 2
            + ["cancel", "exit", "lose", "return"]
        ),
        st.integers(0, 11),
    ),
    min_size=5,
    max_size=40,
)  # fmt: skip
BUDGETS_W = (None, IDLE_W + 60, IDLE_W + 130, IDLE_W + 260, IDLE_W + 420, IDLE_W - 10)


def capped(shell: Shell, number: int) -> None:
    orders = [run for run in shell.runs.values() if run.cap_order is not None]
    if orders:
        shell.capped(orders[number % len(orders)])


def confirmed(shell: Shell, number: int) -> None:
    runs = shell.with_status("ordered", "stopping")
    if runs:
        run = runs[number % len(runs)]
        (shell.started if run.status == "ordered" else shell.stopped)(run)


def act(shell: Shell, what: str, number: int, count: int) -> None:
    shell.now_s += 1.0
    match what:
        case "submit":
            name, role = f"j{count}", ROLES[number % len(ROLES)]
            models = ((), ("T4",), ("V100M16",))[number % 3]
            shell.submit(JobSpec(id=name, submit_s=shell.now_s, roles=(role,), gpu_models=models))
        case "confirm":
            confirmed(shell, number)
        case "cap":
            capped(shell, number)
        case "exit":
            runs = shell.with_status("running")
            if runs:
                shell.exited(runs[number % len(runs)])
        case "cancel":
            shell.deliver(JobCancelled(at_s=shell.now_s, job_id=f"j{number}"))
        case "budget":
            budget_w = BUDGETS_W[number % len(BUDGETS_W)]
            shell.deliver(BudgetChanged(at_s=shell.now_s, budget_w=budget_w))
        case "lose":
            shell.deliver(NodeLost(at_s=shell.now_s, node=f"n{number % 2}"))
        case "return":
            shell.deliver(NodeReturned(at_s=shell.now_s, node=f"n{number % 2}"))
    if shell.wakes and min(shell.wakes.values()) <= shell.now_s:
        shell.wake()


def node_w(shell: Shell) -> list[Fraction]:
    """What each node draws at most, every device at the highest cap in force there.

    A job across GPU models has one cap for all; no device draws more than its own model can.
    """
    devices: dict[tuple[int, int], Fraction] = {}
    run_w = Fraction(0)
    for job in shell.core.jobs.values():
        places = [(one.node, gpu) for one in job.allocations for gpu in one.gpus]
        for place in places:
            own_w = GPUS[CLUSTER.nodes[place[0]].gpu_model].max_w
            cap_w = Fraction(own_w if job.cap_w is None else min(job.cap_w, own_w))
            devices[place] = max(devices.get(place, Fraction(0)), cap_w)
    found = []
    for number, node in enumerate(CLUSTER.nodes):
        idle_w = Fraction(GPUS[node.gpu_model].idle_w)
        drawn = [max(devices.get((number, gpu), idle_w), idle_w) for gpu in range(node.gpu_count)]
        run_w += sum(w for gpu, w in enumerate(drawn) if (number, gpu) in devices)
        found.append(Fraction(node.idle_w) + sum(drawn))
    if not shell.core.watts.by_domain:
        assert shell.core.watts.run_w == pytest.approx(float(run_w))
        free_w = shell.core.watts.run_w + shell.core.watts.free_w
        assert free_w == pytest.approx(float(sum(found, Fraction(0))))
    return found


def check(shell: Shell, before: Fraction | None) -> Fraction:
    """The guard's account is the recount; what is held rises above no budget."""
    watts, drawn = shell.core.watts, node_w(shell)
    total = sum(drawn, Fraction(0))
    if watts.by_domain:
        carried = watts.carried_nw()
        for domain, (of_first, of_second) in FACTORS.items():
            mine = drawn[0] * of_first + drawn[1] * of_second
            assert carried[watts.feeds.number[domain]] == mine * 1_000_000_000
        total = drawn[0] * FACTORS["site"][0] + drawn[1]
        assert watts.drawn_mw == int(total * 1000)
    else:
        assert watts.drawn_mw == total * 1000
    if watts.budget_w is not None:
        over = total > Fraction(watts.budget_w)
        assert watts.exceeded() == over
        if before is not None and over:
            assert total <= before, "it rose while it was above the budget"
    return total


def live(shell: Shell, actions: Sequence[tuple[str, int]]) -> None:
    total: Fraction | None = None
    for count, (what, number) in enumerate(actions):
        act(shell, what, number, count)
        total = check(shell, total)
    budget_w = shell.core.watts.budget_w
    for _ in range(200):
        if not any(run.cap_order for run in shell.runs.values()) and not shell.with_status(
            "stopping"
        ):
            break
        capped(shell, 0)
        for run in shell.with_status("stopping"):
            shell.stopped(run)
        total = check(shell, total)
    settled = check(shell, None)
    least_w = Fraction(IDLE_W) * (FACTORS["site"][0] if shell.core.watts.by_domain else 1)
    assert budget_w is None or settled <= max(Fraction(budget_w), least_w), "never settles below"


def config(planner: Any, *, tree: bool) -> CoreConfig:
    return CoreConfig(
        cluster=CLUSTER, planner=planner, round_s=None, tree=TREE if tree else None, narrow=True
    )


@pytest.mark.parametrize("tree", [False, True], ids=["flat", "tree"])
@pytest.mark.parametrize("planner", [Tiresias, Gandiva])
@settings(max_examples=times(60), deadline=None)
@given(actions=ACTIONS)
def test_the_account_of_what_is_drawn_is_that_of_an_outsider(
    planner: Any, tree: bool, actions: list[tuple[str, int]]
) -> None:
    live(Shell(config(planner(), tree=tree)), actions)
