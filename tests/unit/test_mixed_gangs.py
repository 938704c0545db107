"""Synchronous jobs across GPU models: one cap, and each device counts at what its model draws."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.estimate.power_curve import by_mean_draw, prior_curve, under_one_cap
from wattherd.experiments.schedule.run import POWER_POLICIES, power_policy
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import BudgetChanged, CapApplied, Event, JobStopped, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.ordered import Ordered
from wattherd.policy.schedule.priorities import LeastAttained
from wattherd.workload.cluster_text import parse_cluster

T4, V100 = (prior_curve(GPUS[name]) for name in ("T4", "V100M16"))
CLUSTER = parse_cluster("1x4:T4,1x4:V100M16", known=GPUS)
NAMES = tuple(node.name for node in CLUSTER.nodes)
TREE = PowerTree((TreeDomain(name="site", budget_w=2000.0, nodes=NAMES),))


@pytest.mark.parametrize("curves", [(T4, V100), (V100, T4)], ids=["t4-first", "v100-first"])
def test_the_cap_is_one_that_every_model_can_keep(curves: tuple) -> None:
    both = under_one_cap(curves)
    assert (both.floor_w, both.max_w) == (V100.floor_w, V100.max_w)
    for watts, rate in zip(both.watts, both.rates, strict=True):
        slowest = min(T4.rate(watts) / T4.rates[-1], V100.rate(watts) / V100.rates[-1])
        assert rate == pytest.approx(slowest)
        assert rate > 0
    slopes = [slope for slope, _ in both.segments()]
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(slopes))


@pytest.mark.parametrize("tree", [None, TREE], ids=["site", "tree"])
def test_a_gang_across_models_is_capped_above_all_floors_and_counted_there(
    tree: PowerTree | None,
) -> None:
    planner = Ordered(rules=RankingRules(order=LeastAttained()))
    core = Core(CoreConfig(cluster=CLUSTER, planner=planner, tree=tree))
    core.handle(BudgetChanged(at_s=0.0, budget_w=1200.0))
    job = JobSpec(id="gang", submit_s=1.0, roles=(TaskRole(count=8),), duration_s=10.0)
    started = [
        one for one in core.handle(JobSubmitted(at_s=1.0, job=job)) if isinstance(one, StartJob)
    ]
    cap_w = started[0].cap_w
    assert cap_w is not None
    assert V100.floor_w <= cap_w < V100.max_w
    nodes_w = sum(node.idle_w for node in CLUSTER.nodes)
    most_w = nodes_w + 4 * T4.max_w + 4 * cap_w
    assert core.watts.drawn_mw / 1000 == pytest.approx(most_w)
    assert most_w <= 1200.0
    assert core.watts.speed(core.jobs["gang"]) > 0


def gang(core: Core, tasks: int = 8) -> StartJob:
    job = JobSpec(id="gang", submit_s=1.0, roles=(TaskRole(count=tasks),), duration_s=10.0)
    found = core.handle(JobSubmitted(at_s=1.0, job=job))
    return next(one for one in found if isinstance(one, StartJob))


POWER = sorted(POWER_POLICIES)
RACKS = PowerTree(
    (
        TreeDomain(name="site", budget_w=None, parent=None),
        TreeDomain(name="small", budget_w=None, parent="site", nodes=NAMES[:1]),
        TreeDomain(name="large", budget_w=None, parent="site", nodes=NAMES[1:]),
    )
)
TOPS_W = 4 * T4.max_w + 4 * V100.max_w
NODES_W = sum(node.idle_w for node in CLUSTER.nodes)


def config(power: str, tree: PowerTree | None) -> CoreConfig:
    planner = Ordered(rules=RankingRules(order=LeastAttained()))
    return CoreConfig(cluster=CLUSTER, planner=planner, tree=tree, power=power_policy(power))


def test_without_a_budget_each_device_draws_its_own_most() -> None:
    core = Core(config("water-filling", None))
    gang(core)
    assert core.watts.run_w == core.watts.held_w("gang") == pytest.approx(TOPS_W)


def test_runs_of_the_time_before_count_every_device_at_the_cap() -> None:
    core = Core(replace(config("water-filling", None), own_tops=False))
    gang(core)
    assert core.watts.run_w == pytest.approx(8 * V100.max_w)


@pytest.mark.parametrize("tree", [None, TREE, RACKS], ids=["site", "tree", "racks"])
@pytest.mark.parametrize("power", POWER)
def test_a_gang_is_not_throttled_where_there_are_watts_for_all(
    power: str, tree: PowerTree | None
) -> None:
    core = Core(config(power, tree))
    core.handle(BudgetChanged(at_s=0.0, budget_w=NODES_W + TOPS_W))
    cap_w = gang(core).cap_w
    assert cap_w is None or cap_w >= V100.max_w
    assert core.watts.run_w == pytest.approx(TOPS_W)


@pytest.mark.parametrize("power", sorted({*POWER} - {"pause"}))
def test_each_rack_is_used_as_far_as_its_own_models_go(power: str) -> None:
    """The small rack has enough for its T4s at their most, the large one not for its V100s."""
    core = Core(config(power, RACKS))
    nodes_w = [node.idle_w for node in CLUSTER.nodes]
    core.handle(BudgetChanged(at_s=0.0, budget_w=nodes_w[0] + 4 * T4.max_w, domain="small"))
    core.handle(BudgetChanged(at_s=0.0, budget_w=nodes_w[1] + 4 * 200.0, domain="large"))
    assert gang(core).cap_w == 200.0
    assert core.watts.drawn_by["large"] == round((nodes_w[1] + 800.0) * 1000)
    assert core.watts.drawn_by["small"] == round((nodes_w[0] + 4 * T4.max_w) * 1000)


def test_a_gang_that_only_its_own_tops_let_run_is_not_set_aside() -> None:
    """At its floor: four T4 at 70 W, four V100 at theirs; counted at the cap it would not fit."""
    core = Core(config("water-filling", None))
    core.handle(BudgetChanged(at_s=0.0, budget_w=NODES_W + 4 * T4.max_w + 4 * V100.floor_w))
    assert gang(core).cap_w == V100.floor_w


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    tops=st.lists(st.sampled_from(["T4", "V100M16", "A100"]), min_size=4, max_size=4),
    share=st.floats(0.0, 1.2),
)
def test_caps_and_means_lead_to_each_other(
    counts: list[int], tops: list[str], share: float
) -> None:
    models = dict(zip(tops, counts, strict=False))
    curves = tuple(prior_curve(GPUS[name]) for name in models)
    parts = tuple((count, GPUS[name].max_w) for name, count in models.items())
    plain = under_one_cap(curves)
    mixed = by_mean_draw(plain, parts)
    cap_w = min(plain.floor_w + share * (plain.max_w - plain.floor_w), plain.max_w)
    drawn_w = sum(count * min(cap_w, top_w) for count, top_w in parts)
    assert mixed.cap_w(drawn_w / sum(models.values())) == pytest.approx(cap_w)
    assert mixed.cap_w(mixed.floor_w) == plain.floor_w
    assert mixed.cap_w(mixed.max_w) == plain.max_w
    slopes = [slope for slope, _ in mixed.segments()]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(slopes))


class Everywhere:
    """Starts each job on nodes that the world chose for it, one task a device."""

    def __init__(self, places: dict[str, list[Share]]) -> None:
        self._places = places

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if not job.wanted:
                draft.start(job, self._places[job.id])


WORLD = parse_cluster("2x4:T4,2x4:V100M16,2x4:A100", known=GPUS)
WORLD_NAMES = tuple(node.name for node in WORLD.nodes)
WORLD_TREE = PowerTree(
    (
        TreeDomain(name="site", budget_w=None, parent=None),
        TreeDomain(name="a", budget_w=None, parent="site", nodes=WORLD_NAMES[:3], loss=0.03),
        TreeDomain(name="b", budget_w=None, parent="site", nodes=WORLD_NAMES[3:]),
    )
)


def answer(core: Core, event: Event) -> None:
    """Tell a core, and that all it orders is done at once."""
    ahead = [event]
    while ahead:
        for one in core.handle(ahead.pop(0)):
            run = {"at_s": event.at_s, "job_id": getattr(one, "job_id", "")}
            if isinstance(one, SetCap):
                ahead.append(CapApplied(**run, attempt=one.attempt, cap_w=one.cap_w))
            elif isinstance(one, StopJob):
                ahead.append(JobStopped(**run, attempt=one.attempt))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), power=st.sampled_from(POWER), in_tree=st.booleans())
def test_what_is_counted_is_what_each_model_can_draw_and_within_budgets(
    data: st.DataObject, power: str, in_tree: bool
) -> None:
    places: dict[str, list[Share]] = {}
    core = Core(
        CoreConfig(
            cluster=WORLD,
            planner=Everywhere(places),
            tree=WORLD_TREE if in_tree else None,
            power=power_policy(power),
        )
    )
    nodes_w = sum(node.idle_w + 4 * GPUS[node.gpu_model].idle_w for node in WORLD.nodes)
    domains = ["", "a", "b"] if in_tree else [""]
    limits: dict[str, float] = {}
    for at in range(data.draw(st.integers(1, 8))):
        now_s = float(at)
        if data.draw(st.booleans()):
            name, width = f"j{at}", data.draw(st.integers(1, 5))
            nodes = data.draw(st.lists(st.integers(0, 5), min_size=width, max_size=width))
            places[name] = [Share(node, count) for node, count in Counter(nodes).items()]
            roles = (TaskRole(count=width),)
            job = JobSpec(id=name, submit_s=now_s, roles=roles, duration_s=1e6)
            answer(core, JobSubmitted(at_s=now_s, job=job))
        else:
            domain = data.draw(st.sampled_from(domains))
            limits[domain] = 1.05 * nodes_w + data.draw(st.floats(0.0, 6000.0))
            answer(core, BudgetChanged(at_s=now_s, budget_w=limits[domain], domain=domain))
        drawn_w = 0.0
        for one in core.jobs.values():
            mine_w = sum(
                len(part.gpus)
                * min(
                    GPUS[WORLD.nodes[part.node].gpu_model].max_w,
                    math.inf if one.cap_w is None else one.cap_w,
                )
                for part in one.allocations
            )
            assert core.watts.held_w(one.id) == pytest.approx(mine_w, abs=0.01)
            drawn_w += mine_w
        assert core.watts.run_w == pytest.approx(drawn_w, abs=0.01)
        drawn = core.watts.drawn_by
        for domain, limit_w in limits.items():
            assert drawn[domain] <= limit_w * 1000 + 1
    validate(core)
