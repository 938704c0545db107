"""Settings of published simulators: round length, restart pause, job model, planners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.optimus import Optimus
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.runtime.contract import Plant
from wattherd.runtime.sim.application_plant import RESTART_S, SLICE_S, ApplicationPlant
from wattherd.runtime.sim.speed import SpeedAt
from wattherd.service.workloads import Jobs
from wattherd.spelling import hint_for

PlannerOf = Callable[[Jobs], Planner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How a published simulator runs jobs."""

    about: str
    round_s: float | None
    restart_s: float
    plant: Callable[[Jobs, ClusterSpec, SpeedAt, float], Plant]
    planners: Mapping[str, PlannerOf]

    def planner(self, name: str, jobs: Jobs) -> Planner:
        """A planner by policy name."""
        if name not in self.planners:
            hint = hint_for(name, self.planners)
            raise UserError(f"unknown policy {name!r} here", field="--policy", hint=hint)
        return self.planners[name](jobs)


def _application_plant(
    jobs: Jobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float
) -> Plant:
    del cluster
    return ApplicationPlant(jobs.applications, restart_s=restart_s, speed_at=speed_at)


PRESETS: Mapping[str, Preset] = {
    "pollux-osdi21": Preset(
        about="measured applications, 60 s rounds, 30 s restarts (Pollux artifact, OSDI'21)",
        round_s=SLICE_S,
        restart_s=RESTART_S,
        plant=_application_plant,
        planners={
            "tiresias": lambda _: Tiresias(),
            "optimus": lambda jobs: Optimus(applications=jobs.applications),
        },
    ),
}


def preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        hint = hint_for(name, PRESETS)
        raise UserError(f"unknown preset {name!r}", field="--preset", hint=hint)
    return PRESETS[name]
