"""A hyper-parameter search, simulated: trials with loss curves, and how soon the best is known.

Loss follows 1 / (b0 k + b1) + b2 (Optimus, EuroSys'18), with a floor and a pace for each trial by
chance; a good pace and a low floor are independent of each other, so that early losses mislead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.job_work import constant
from wattherd.estimate.steps import LossCurve
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner
from wattherd.sim.collector import Collector
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.world import SimWorld

REPORT_S = 30.0
RESUME_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search came to: when its best trial was through, when that was known, how good it is.

    It is known to be the best when no other trial is left. `rank` is its place among all (1: the
    true best), `gpu_s` the GPU time of all.
    """

    best_s: float
    known_s: float
    rank: int
    loss: float
    gpu_s: float
    finished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGroup:
    """Trials that come at once, each of `work_s` seconds on one GPU."""

    curves: Mapping[str, LossCurve]
    work_s: float

    def specs(self) -> list[JobSpec]:
        """The trials as jobs of one group."""
        return [
            JobSpec(
                id=name, submit_s=0.0, roles=(TaskRole(),), duration_s=self.work_s, group="search"
            )
            for name in self.curves
        ]

    def run(self, planner: Planner, cluster: ClusterSpec) -> SearchResult:
        """Simulate to the end."""
        core = Core(CoreConfig(cluster=cluster, planner=planner, round_s=0.0))
        plant = DurationPlant(cost=constant(RESUME_S), report_s=REPORT_S, loss_at=self.loss_at)
        collector = Collector(core)
        given = [JobSubmitted(at_s=0.0, job=spec) for spec in self.specs()]
        SimWorld(core, plant, given, watchers=[collector], record=False).run()
        return self._found(collector)

    def loss_at(self, spec: JobSpec, work_s: float) -> float:
        """Loss of a trial after so much work."""
        return self.curves[spec.id].loss(work_s)

    def _found(self, collector: Collector) -> SearchResult:
        final = {name: curve.loss(self.work_s) for name, curve in self.curves.items()}
        outcomes = collector.outcomes
        through = [name for name, one in outcomes.items() if one.jct_s is not None]
        best = min(through, key=final.__getitem__)
        return SearchResult(
            best_s=outcomes[best].finish_s or 0.0,
            known_s=max(one.finish_s or 0.0 for one in outcomes.values()),
            rank=1 + sum(loss < final[best] for loss in final.values()),
            loss=final[best],
            gpu_s=sum(one.gpu_s for one in outcomes.values()),
            finished=len(through),
        )


def a_search(count: int, work_s: float, chance: np.random.Generator) -> SearchGroup:
    """`count` trials; pace over a factor of 16, floors of 0.1 to 1, first loss 3."""
    paces = 2.0 ** chance.uniform(-2.0, 2.0, size=count)
    floors = chance.uniform(0.1, 1.0, size=count)
    curves = {
        f"trial-{number}": LossCurve(
            b0=float(20.0 * pace / work_s), b1=float(1 / (3.0 - floor)), b2=float(floor), error=0.0
        )
        for number, (pace, floor) in enumerate(zip(paces, floors, strict=True))
    }
    return SearchGroup(curves=curves, work_s=work_s)
