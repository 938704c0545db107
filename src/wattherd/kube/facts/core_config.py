"""The core's view of a cluster: nodes, every device at its maximum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import CoreConfig
from wattherd.estimate.power_curve import PowerCurve
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner

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


def core_config(nodes: Sequence[NodeFacts], planner: Planner) -> CoreConfig:
    """Nodes in the engine's order, without any budget: watts are weighed by who chooses.

    A guard of the core's own would count by what the core was told, which is of another moment than
    the account: it once ended those who had nothing to do with a cut.
    """
    cluster = ClusterSpec(tuple(facts.spec for facts in nodes))
    return CoreConfig(
        cluster=cluster,
        planner=planner,
        round_s=ONCE_PER_INSTANT,
        curve_of=Uncapped(cluster.gpu_models),
        sets_aside=False,  # without budgets nobody waits for watts that never come
    )
