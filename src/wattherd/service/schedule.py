"""Simulated runs of training-job schedulers: from files and names to measured outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattherd.engine.core import Core, CoreConfig
from wattherd.engine.watts import prior
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import BudgetChanged, Event, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.simple import ByPriority, Pause, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.runtime.contract import Plant
from wattherd.runtime.sim.collector import Collector, Outcome
from wattherd.runtime.sim.meter import EnergyMeter
from wattherd.runtime.sim.speed import SpeedAt, by_curve
from wattherd.runtime.sim.world import Computer, Recording, World
from wattherd.service.schedule_summary import summary
from wattherd.service.workloads import Jobs
from wattherd.spelling import hint_for

POWER_POLICIES: dict[str, Callable[[], PowerPolicy]] = {
    "water-filling": WaterFilling,
    "uniform": Uniform,
    "proportional": Proportional,
    "priority": ByPriority,
    "pause": Pause,
}
Budget = tuple[tuple[float, float], ...]
"""Steps (from this second on, watts), ascending."""


def power_policy(name: str) -> PowerPolicy:
    """A power policy by name."""
    if name not in POWER_POLICIES:
        hint = hint_for(name, POWER_POLICIES)
        raise UserError(f"unknown power policy {name!r}", field="--power", hint=hint)
    return POWER_POLICIES[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all policies of one comparison share; a preset fixes the first four."""

    round_s: float | None
    restart_s: float
    plant: Callable[[Jobs, ClusterSpec, SpeedAt, float], Plant]
    planner: Callable[[str, Jobs], Planner]
    cluster: ClusterSpec
    jobs: Jobs
    budget: Budget = ()
    power: str = "water-filling"
    record: bool = False
    computers: Mapping[str, Computer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy's run."""

    policy: str
    row: dict[str, object]
    outcomes: list[Outcome]
    meter: EnergyMeter = field(repr=False)
    recording: Recording = field(repr=False)


def simulate(setting: Setting, policy: str) -> Result:
    """Run one policy to the end."""
    cluster, jobs = setting.cluster, setting.jobs
    planner = setting.planner(policy, jobs)
    core = Core(core_config(cluster, planner, setting.round_s, setting.power))
    plant = setting.plant(jobs, cluster, by_curve(cluster, prior), setting.restart_s)
    meter, collector = EnergyMeter(core, restart_s=setting.restart_s), Collector(core)
    world = World(
        core,
        plant,
        _given(setting, rigid=getattr(planner, "rigid", False)),
        watchers=[meter, collector],
        record=setting.record,
        computers=setting.computers,
    )
    began = time.process_time()
    recording = world.run()
    cpu_s = time.process_time() - began
    outcomes = list(collector.outcomes.values())
    gpus = sum(node.gpu_count for node in cluster.nodes)
    row = summary(policy, outcomes, meter, gpus=gpus, cpu_s=cpu_s)
    return Result(policy=policy, row=row, outcomes=outcomes, meter=meter, recording=recording)


def core_config(
    cluster: ClusterSpec, planner: Planner, round_s: float | None, power: str
) -> CoreConfig:
    """A core's configuration, the same for a run and for its replay."""
    return CoreConfig(cluster=cluster, planner=planner, round_s=round_s, power=power_policy(power))


def _given(setting: Setting, *, rigid: bool) -> list[Event]:
    budget: Sequence[Event] = [
        BudgetChanged(at_s=at_s, budget_w=watts) for at_s, watts in setting.budget
    ]
    specs = [_at_full_width(spec) if rigid else spec for spec in setting.jobs.specs]
    return [*budget, *(JobSubmitted(at_s=spec.submit_s, job=spec) for spec in specs)]


def _at_full_width(spec: JobSpec) -> JobSpec:
    """The job for a policy that never resizes: what does not fit whole never fits."""
    return replace(spec, min_width=None, max_width=None)
