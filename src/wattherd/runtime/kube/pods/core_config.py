"""The core's view of a cluster: nodes, and power domains as a tree with losses of nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core import CoreConfig
from wattherd.estimate.power_curve import PowerCurve
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.model.power_tree import PowerDomain, PowerTree
from wattherd.policy.contract import Planner
from wattherd.runtime.kube.pods.node_facts import NodeFacts
from wattherd.runtime.kube.power.domain_tree import SITE
from wattherd.runtime.kube.power.domains import Domains

ROOT = "site"
"""The name of the whole tree; people and budgets call it by no name."""
ONCE_PER_INSTANT = 0.0


@dataclass(frozen=True, slots=True)
class Uncapped:
    """Every device at its maximum: nothing on the nodes would keep a lower cap.

    A gang counts the hungriest of the models it may be spread over on all of its devices.
    """

    models: tuple[str, ...]

    def __call__(self, spec: JobSpec, gpu_model: str) -> PowerCurve:
        """One point, so that there is nothing to trade."""
        single = len(spec.roles) == 1 and spec.roles[0].count == 1
        may = [gpu_model] if single else [
            model for model in self.models if not spec.gpu_models or model in spec.gpu_models
        ]  # fmt: skip
        most_w = max(GPUS[model].max_w for model in {*may, gpu_model})
        return PowerCurve((most_w,), (1.0,))


def core_config(
    nodes: Sequence[NodeFacts], domains: Domains, budgets_w: Mapping[str, float], planner: Planner
) -> CoreConfig:
    """Nodes in the engine's order; a tree where any node is of a domain."""
    cluster = ClusterSpec(tuple(facts.spec for facts in nodes))
    return CoreConfig(
        cluster=cluster,
        planner=planner,
        round_s=ONCE_PER_INSTANT,
        curve_of=Uncapped(cluster.gpu_models),
        tree=_tree(nodes, domains, budgets_w),
        sets_aside=False,  # budgets here leave out what others draw, and pass: they may say never
    )


def _tree(
    nodes: Sequence[NodeFacts], domains: Domains, budgets_w: Mapping[str, float]
) -> PowerTree | None:
    """All domains that feed nodes, or other domains."""
    path = domains.tree.path
    own = {facts.domain for facts in nodes}
    known = sorted({name for one in own for name in path(one)} - {SITE})
    if not known and not domains.budgets_mw:
        return None
    fed: dict[str, list[str]] = {name: [] for name in (SITE, *known)}
    for facts in nodes:
        fed[facts.domain].append(facts.name)
    return PowerTree(
        tuple(
            PowerDomain(
                name=domain_name(name),
                parent=None if name == SITE else domain_name(path(name)[1]),
                budget_w=budgets_w.get(name),
                nodes=tuple(fed[name]),
            )
            for name in (SITE, *known)
        )
    )


def domain_name(domain: str) -> str:
    """In the tree: a domain may be called like its root."""
    return ROOT if domain == SITE else f"domain {domain}"
