"""Synchronous jobs across GPU models: one cap that all of them can keep, and that is counted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.power_curve import prior_curve, under_one_cap
from wattherd.model.command import StartJob
from wattherd.model.event import BudgetChanged, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
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
    core.handle(BudgetChanged(at_s=0.0, budget_w=2000.0))
    job = JobSpec(id="gang", submit_s=1.0, roles=(TaskRole(count=8),), duration_s=10.0)
    started = [
        one for one in core.handle(JobSubmitted(at_s=1.0, job=job)) if isinstance(one, StartJob)
    ]
    cap_w = started[0].cap_w
    assert cap_w is not None
    assert V100.floor_w <= cap_w < V100.max_w
    nodes_w = sum(node.idle_w for node in CLUSTER.nodes)
    most_w = nodes_w + 4 * T4.max_w + 4 * cap_w
    assert most_w <= core.watts.drawn_mw / 1000 <= 2000.0
    assert core.watts.speed(core.jobs["gang"]) > 0
