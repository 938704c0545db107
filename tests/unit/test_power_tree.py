"""Power trees: files, how nodes hang on them, and what the guard says and does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.power.budgets import OFF
from wattherd.engine.power.feeds import PPM, Feeds
from wattherd.errors import UserError
from wattherd.experiments.schedule.power_tree import budget_events, power_tree
from wattherd.model.command import Command, SetCap, StartJob, StopJob
from wattherd.model.event import BudgetChanged, CapApplied, Event, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import BudgetStep, PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.fair import MaxMin, Nash, Tiers
from wattherd.policy.power.simple import ByPriority, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.scenario import DomainSpec

CLUSTER = parse_cluster("4x2:T4", known=GPUS)  # 10 W idle, 60 to 70 W busy
NODES = [node.name for node in CLUSTER.nodes]


def spec(*children: dict[str, Any], **fields: Any) -> DomainSpec:
    return DomainSpec.model_validate({"name": "site", "children": list(children), **fields})


def a_tree(*children: dict[str, Any], **fields: Any) -> PowerTree:
    tree = power_tree(spec(*children, **fields), CLUSTER)
    assert tree is not None
    return tree


def two_racks(a: str | None = None, b: str | None = None, **fields: Any) -> PowerTree:
    return a_tree(
        {"name": "rack-a", "budget": a, "nodes": NODES[:2]},
        {"name": "rack-b", "budget": b, "nodes": NODES[2:]},
        **fields,
    )


# --- hanging nodes on it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes",
    [NODES[:2], ["node-00000..node-00001"], ["node-0000[01]"], ["node-00000 .. node-00001"]],
)
def test_nodes_are_named_one_by_one_as_a_range_or_by_a_pattern(nodes: list[str]) -> None:
    tree = a_tree({"name": "a", "nodes": nodes}, {"name": "b", "nodes": NODES[2:]})
    assert [one.nodes for one in tree.domains] == [(), tuple(NODES[:2]), tuple(NODES[2:])]


def test_a_domain_called_like_a_node_feeds_it() -> None:
    tree = a_tree(*({"name": name, "budget": "140W"} for name in NODES))
    assert [one.nodes for one in tree.domains] == [(), *((name,) for name in NODES)]


@pytest.mark.parametrize(
    ("children", "words"),
    [
        ([{"name": "a", "nodes": NODES[:3]}], "no domain feeds node 'node-00003'"),
        ([{"name": "a", "nodes": ["node-*", "gpu-1"]}], "no node is called 'gpu-1'"),
        ([{"name": "a", "nodes": ["node-*"]}, {"name": "b", "nodes": NODES[:1]}], "as well"),
        ([{"name": "a", "nodes": ["node-*"], "budget": "0:9kW,0:8kW"}], "do not ascend"),
        ([{"name": "a", "nodes": ["node-*"], "budget": "lots"}], "is no power"),
        ([{"name": "a", "nodes": ["node-*"], "budget": 9, "signal": "0:7W"}], "the same time"),
    ],
)
def test_a_tree_that_does_not_suit_the_cluster_is_refused(
    children: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        a_tree(*children)
    assert "power_tree" in refused.value.where or "power_tree" in refused.value.line()
    assert refused.value.hint or refused.value.field == "nodes" or "ascend" in words


def test_a_tree_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(
        "name: site\nbudget: '0:600W,1h:500W'\nloss: 0.05\nchildren:\n"
        "- {name: a, level: rack, nodes: [node-*], signal: '2h:300W'}\n"
    )
    tree = power_tree(str(file), CLUSTER)
    assert tree is not None
    assert tree.root.budget_w == 600.0
    assert [(one.at_s, one.budget_w, one.announced) for one in tree.root.steps] == [
        (3600.0, 500.0, True)
    ]
    assert [(one.at_s, one.announced) for one in tree.domains[1].steps] == [(7200.0, False)]


def test_losses_multiply_on_the_way_up_and_never_round_down() -> None:
    domains = (
        TreeDomain(name="site", loss=0.05),
        TreeDomain(name="row", parent="site", loss=0.02),
        TreeDomain(name="rack", parent="row", nodes=tuple(NODES)),
    )
    path = Feeds(PowerTree(domains), CLUSTER).paths[0]
    assert [at for at, _ in path] == [2, 1, 0]
    factors = [ppm / PPM for _, ppm in path]
    assert factors == pytest.approx([1, 1 / 0.98, 1 / 0.98 / 0.95], abs=2e-6)
    assert all(f >= exact for f, exact in zip(factors, [1, 1 / 0.98, 1 / 0.98 / 0.95], strict=True))


# --- the guard -------------------------------------------------------------------------------


class Desk:
    """A core, told one thing after another."""

    def __init__(self, tree: PowerTree, power: PowerPolicy | None = None) -> None:
        self.core = Core(
            CoreConfig(
                cluster=CLUSTER, planner=Tiresias(), tree=tree, power=power or WaterFilling()
            )
        )
        self.now_s = 0.0

    def tell(self, event: Event) -> list[Command]:
        return self.core.handle(event)

    def submit(self, name: str, gpus: int, **fields: Any) -> list[Command]:
        job = JobSpec(id=name, submit_s=0.0, roles=(TaskRole(count=gpus),), **fields)
        commands = self.tell(JobSubmitted(at_s=self.now_s, job=job))
        for order in commands:
            if isinstance(order, StartJob):
                self.tell(JobStarted(at_s=self.now_s, job_id=name, attempt=order.attempt))
        return commands

    def cut(self, domain: str, watts: float | None) -> list[Command]:
        return self.tell(BudgetChanged(at_s=self.now_s, budget_w=watts, domain=domain))

    def caps(self) -> dict[str, float | None]:
        return {job.id: job.wanted_cap_w for job in self.core.jobs.values()}


def test_a_job_whose_floor_does_not_fit_a_rack_is_told_which_and_how_much() -> None:
    # A rack idles at 40 W; two GPUs at their floors need 100 W above that.
    desk = Desk(two_racks(a="150W", b="130W"))
    desk.submit("one", 2)
    commands = desk.submit("two", 2)
    assert not any(isinstance(order, StartJob) for order in commands)
    reason = desk.core.jobs["two"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_POWER
    assert (reason.asked, reason.in_use, reason.available) == (100.0, 140.0, 10.0)
    assert reason.unit == "W at rack-a"
    assert "rack-a is 150 W" in reason.unblocks


def test_a_job_goes_where_a_rack_has_watts_left() -> None:
    desk = Desk(two_racks(a="150W", b="140W"))
    desk.submit("one", 2)
    desk.submit("two", 2)
    racks = [job.wanted[0].node // 2 for job in desk.core.jobs.values()]
    assert racks == [0, 1]


def test_the_site_counts_what_is_lost_on_the_way() -> None:
    # 4 nodes idle at 80 W; one GPU at its floor adds 50 W: 130 W, at the site 144.4 W.
    for budget, starts in (("144W", False), ("145W", True)):
        desk = Desk(two_racks(budget=budget, loss=0.1))
        commands = desk.submit("one", 1)
        assert any(isinstance(order, StartJob) for order in commands) == starts


def test_one_job_has_one_level_on_all_its_ranks_across_racks() -> None:
    desk = Desk(two_racks(a="280W", b="264W"))
    desk.submit("wide", 8)
    assert desk.caps() == {"wide": 66.0}


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        # rack-a holds 252 W for 4 GPUs, rack-b all it can use.
        (Uniform(), {"a1": 63.0, "a2": 63.0, "b1": 70.0, "b2": 70.0}),
        (Proportional(), {"a1": 63.0, "a2": 63.0, "b1": 70.0, "b2": 70.0}),
        (ByPriority(), {"a1": 60.0, "a2": 66.0, "b1": 70.0, "b2": 70.0}),
        (WaterFilling(), {"a1": 63.0, "a2": 63.0, "b1": 70.0, "b2": 70.0}),
        (MaxMin(), {"a1": 63.0, "a2": 63.0, "b1": 70.0, "b2": 70.0}),
        (Nash(), {"a1": 63.0, "a2": 63.0, "b1": 70.0, "b2": 70.0}),
        (Tiers(), {"a1": 60.0, "a2": 66.0, "b1": 70.0, "b2": 70.0}),
    ],
)
def test_a_tight_rack_holds_back_only_those_below_it(
    power: PowerPolicy, expected: dict[str, float]
) -> None:
    desk = Desk(two_racks(a="252W"), power)
    for name, priority in (("a1", 0), ("a2", 1), ("b1", 0), ("b2", 0)):
        desk.submit(name, 2, priority=priority)
    found = desk.caps()
    where = {job.id: job.wanted[0].node // 2 for job in desk.core.jobs.values()}
    below = sorted(found[name] or 0.0 for name in found if where[name] == 0)
    assert sum(below) * 2 <= 252.0
    assert {found[name] for name in found if where[name] == 1} == {70.0}
    if not isinstance(power, WaterFilling | Nash):  # these serve piece by piece
        assert found == expected


def test_a_cut_of_one_rack_lowers_there_alone_and_raises_after_the_read_back() -> None:
    desk = Desk(two_racks(a="280W", b="280W", budget="530W"))
    for name in ("a1", "a2", "b1", "b2"):
        desk.submit(name, 2)
    before = dict(desk.caps())
    assert sum(2 * (cap or 0) for cap in before.values()) <= 530.0
    lower = [one for one in desk.cut("rack-a", 240.0) if isinstance(one, SetCap)]
    assert {order.job_id for order in lower} <= {"a1", "a2"}
    assert {order.cap_w for order in lower} == {60.0}
    raised: list[Command] = []
    for order in lower:
        raised += desk.tell(
            CapApplied(at_s=1.0, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        )
    assert {one.job_id for one in raised if isinstance(one, SetCap)} <= {"b1", "b2"}
    assert desk.caps()["b1"] == desk.caps()["b2"] == 70.0


def test_a_rack_that_cannot_carry_the_floors_loses_its_least_important_job_and_no_other() -> None:
    desk = Desk(two_racks())
    for name, priority in (("a1", 0), ("a2", 1), ("b1", -1), ("b2", 0)):
        desk.submit(name, 2, priority=priority)
    stops = [one for one in desk.cut("rack-a", 160.0) if isinstance(one, StopJob)]
    assert [(one.job_id, one.reason) for one in stops] == [("a1", StopReason.BUDGET_CUT)]


def test_the_site_budget_and_the_roots_own_hold_both() -> None:
    desk = Desk(two_racks(budget="400W"))
    desk.submit("one", 4)
    assert desk.caps() == {"one": 70.0}
    desk.tell(BudgetChanged(at_s=1.0, budget_w=300.0))
    assert desk.caps() == {"one": 65.0}
    desk.tell(BudgetChanged(at_s=2.0, budget_w=None))
    assert desk.caps() == {"one": 70.0}


def test_what_one_budget_gives_and_another_takes_in_one_instant_starts_nobody() -> None:
    """The site rises and a rack is cut: heard the other way round, a job would start and stop."""
    racks = (
        TreeDomain(
            name="rack-a",
            parent="site",
            steps=(BudgetStep(at_s=0.0, budget_w=1000.0), BudgetStep(at_s=3600.0, budget_w=200.0)),
        ),
        TreeDomain(
            name="rack-b",
            parent="site",
            steps=(BudgetStep(at_s=0.0, budget_w=1000.0), BudgetStep(at_s=3600.0, budget_w=2000.0)),
        ),
    )
    tree = PowerTree((TreeDomain(name="site"), *racks))
    site: list[tuple[float, float | None]] = [(0.0, 500.0), (3600.0, 900.0), (7200.0, None)]
    events = [(one.at_s, one.domain) for one in budget_events(site, tree, OFF)]
    assert events[3:] == [(3600.0, "rack-a"), (3600.0, ""), (3600.0, "rack-b"), (7200.0, "")]


def test_a_budget_of_a_domain_that_nobody_knows_changes_nothing() -> None:
    desk = Desk(two_racks(a="252W"))
    desk.submit("one", 4)
    caps = desk.caps()
    assert desk.cut("cellar", 1.0) == []
    assert desk.caps() == caps
