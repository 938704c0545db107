"""What a core is built from, as plain data: kept in the store, so that decisions can be repeated.

The journal says what happened; which orders followed depends on policy, queues and devices too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from wattherd.catalog.gpus import GpuModel
from wattherd.engine.core.config import RULES, CoreConfig
from wattherd.engine.power.budgets import CapRules
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.power_curve import PowerCurve, prior_curve
from wattherd.experiments.schedule.live import live_scheduler
from wattherd.experiments.schedule.ordered import IN_TURN
from wattherd.experiments.schedule.run import power_policy
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.setup import cells_of, queue_of, queue_spec
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.local.devices import Machine
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.queue.tree import QueueTree
from wattherd.server.limits.site_limits import NO_RAMPS, StartRamps, start_ramps
from wattherd.server.settings.config import ServeConfig
from wattherd.workload.scenario import CellsSpec, QueueField

AHEAD_S = 4.0
"""Before a fall that was announced caps are lowered: they are set and read back within one second,
and what the meter says is a mean over up to two."""


KEEP_BOOKS = frozenset({"hived"})
"""Policies that know by themselves who has which device: nobody else takes one from a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One machine and how its jobs are scheduled."""

    policy: str
    power: str
    queues: QueueField | None
    cells: CellsSpec
    node: NodeSpec
    gpu: GpuModel
    rules: int = 0
    """By which the core decides (`engine.core.config.RULES`)."""
    ramps: StartRamps = NO_RAMPS
    """How fast starts and stops may change the draw."""
    parts: tuple[NodeSpec, ...] = ()
    """Where its slots are of several types: a node for each (`local.devices.Machine`)."""

    @classmethod
    def of(cls, config: ServeConfig, machine: Machine) -> Blueprint:
        """What a service is told to manage."""
        return cls(
            policy=config.policy,
            power=config.power,
            # One way to write each time: a tree that was changed at work is compared with this one.
            queues=config.queues and queue_spec(queue_of(config.queues)),
            cells=config.cells,
            node=machine.node,
            gpu=machine.gpu,
            rules=RULES,
            ramps=start_ramps(config.site),
            parts=machine.parts,
        )

    @classmethod
    def read(cls, text: str) -> Blueprint:
        """What `text` wrote.

        Raises:
            pydantic.ValidationError: it is something else.
        """
        found: Blueprint = _ADAPTER.validate_json(text)
        return found

    def text(self) -> str:
        """JSON; equal blueprints have equal texts."""
        document: dict[str, Any] = {
            "policy": self.policy,
            "power": self.power,
            "queues": self.queues and _as_before(self.queues.model_dump(mode="json")),
            "cells": _as_before(self.cells.model_dump(mode="json")),
            "node": asdict(self.node),
            "gpu": asdict(self.gpu),
        }
        if self.rules:  # stores of the time before have none
            document |= {"rules": self.rules}
        if self.ramps != NO_RAMPS:
            document |= {"ramps": asdict(self.ramps)}
        if self.parts:
            document |= {"parts": [asdict(one) for one in self.parts]}
        return json.dumps(document, sort_keys=True)

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The machine as schedulers see it."""
        return self.parts or (self.node,)

    @property
    def gpus(self) -> dict[str, GpuModel]:
        """What draws how much, by model: slots of all types are equal parts of one processor."""
        models = dict.fromkeys([self.gpu.name, *(one.gpu_model for one in self.parts)])
        return {name: replace(self.gpu, name=name) for name in models}

    def with_queues(self, queues: Any) -> Blueprint:
        """The same with other queues, which come as plain data.

        Raises:
            pydantic.ValidationError: they are no tree of queues.
        """
        return replace(self, queues=QueueField.model_validate(queues))

    def follows_gently(self, before: Blueprint) -> bool:
        """Whether this differs from what was before in nothing that what runs would notice.

        Before there were rules, every change had runs begin anew, and so it is replayed.
        """
        like = replace(before, rules=self.rules, policy=self.policy, ramps=self.ramps)
        same = like.text() == self.text()
        in_turn = {before.policy, self.policy} <= IN_TURN
        return self.rules >= 1 and same and (in_turn or before.policy == self.policy)

    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def scheduler(self) -> BuiltScheduler:
        """Planner, quota, and who answers the planner's questions.

        Raises:
            UserError: no such policy, or one that lacks something.
        """
        return live_scheduler(self.policy, self.given(ReadJobs(specs=())))

    def given(self, jobs: ReadJobs) -> SchedulerContext:
        """The workload, the machine and its queues, as schedulers get them."""
        cluster = ClusterSpec(self.nodes)
        return SchedulerContext(
            jobs=jobs,
            cluster=cluster,
            queues=QueueTree(queue_of(self.queues)) if self.queues else None,
            cells=cells_of(self.cells, cluster),
            equal_cells=self.rules < 3,
        )

    def core_config(self, scheduler: BuiltScheduler) -> CoreConfig:
        """The configuration of a core; every slot draws as its GPU model says."""
        curve, cluster = prior_curve(self.gpu), ClusterSpec(self.nodes)

        def curve_of(spec: JobSpec, model: str) -> PowerCurve:
            del spec, model
            return curve

        def requeue(queues: Any) -> tuple[Planner, Quota | None]:
            changed = self.with_queues(queues).scheduler()
            return changed.planner, changed.quota

        return CoreConfig(
            cluster=cluster,
            planner=scheduler.planner,
            quota=scheduler.quota,
            round_s=0.0,
            power=power_policy(self.power),
            curve_of=curve_of,
            gpus=self.gpus,
            job_rates=JobRates(models=cluster.gpu_models, unknown_equal=True),
            learns=True,
            rules=CapRules(
                ahead_s=AHEAD_S,
                ramp_up_w_s=self.ramps.up_w_s,
                ramp_down_w_s=self.ramps.down_w_s,
                ramp_window_s=self.ramps.window_s,
            ),
            narrow=self.policy.partition(":")[0] not in KEEP_BOOKS,
            requeue=requeue if isinstance(scheduler.quota, QueueTree) else None,
            sets_aside=self.rules >= 1,
            spares=self.rules >= 2,
            plans_first=self.rules >= 3,
            own_tops=self.rules >= 2,
            asks_again=self.rules >= 3,
        )


_ADDED: Mapping[str, Any] = {
    "preempts": "never", "reclaims": "any", "reclaimable": True, "half_life": None,  # of a queue
    "priority": 0, "preempts_to_borrow": "never", "preempts_to_borrow_up_to": None,
    "preempts_above_user_limit": False, "weight": 1.0, "fair_sharing": [],
    "chains": [], "pinned": {},  # of cells
}  # fmt: skip
"""Fields that came after the first stores, and what held before there were any."""


def _as_before(document: dict[str, Any]) -> dict[str, Any]:
    """Without fields that say what always held: snapshots are found again by the text's digest."""
    kept = {
        name: value
        for name, value in document.items()
        if name not in _ADDED or value != _ADDED[name]
    }
    if "children" in kept:
        kept["children"] = [_as_before(child) for child in kept["children"]]
    return kept


_ADAPTER: TypeAdapter[Blueprint] = TypeAdapter(Blueprint)
