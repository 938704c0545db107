"""Schedulers of real jobs on a service: those of the preset `none`, and those that learn.

What the others read off a workload or off sample runs, these learn from what jobs report
(`policy.schedule.live_forecast`), and from how they ended. In a simulation they would know nothing,
as simulated cores do not learn; what is simulated under their names has models of its own
(presets).
"""

from __future__ import annotations

from collections.abc import Mapping

from wattherd.errors import UserError
from wattherd.experiments.schedule.ordered import gittins_of_past
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    SchedulerContext,
    SchedulerOf,
    plain,
)
from wattherd.experiments.schedule.simulators import preset
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.spelling import hint_for

LEARNING: Mapping[str, SchedulerOf] = {
    "aiturbo": plain(lambda _: AITurbo(foresight=LiveForecast())),
    "aiturbo-told": plain(lambda _: AITurbo(foresight=LiveForecast(), sizes_all=False)),
    "optimus": plain(lambda _: OptimusEstimated(foresight=LiveForecast())),
    "tiresias-gittins": gittins_of_past,
}
"""Those that act on what the service has learned of its jobs."""


def live_schedulers() -> Mapping[str, SchedulerOf]:
    """All that a service can be told to use, by name."""
    return {**preset("none").schedulers, **LEARNING}


def live_scheduler(name: str, given: SchedulerContext) -> BuiltScheduler:
    """A scheduler for a service.

    Raises:
        UserError: there is none of that name, or it lacks something that no service knows.
    """
    known = live_schedulers()
    if name not in known:
        problem = f"unknown policy {name!r} here"
        raise UserError(problem, field="--policy", hint=hint_for(name, known))
    return known[name](given)
