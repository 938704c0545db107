"""Schedulers of real jobs on a service: those of the preset `none`, and those that learn.

What the others read off a workload or off sample runs, these learn from what jobs report
(`policy.schedule.live_forecast`), and from how they ended. In a simulation they would know nothing,
as simulated cores do not learn; what is simulated under their names has models of its own
(presets).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from wattherd.errors import ClusterError, UserError
from wattherd.experiments.schedule.ordered import gittins_of_past
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    SchedulerContext,
    SchedulerOf,
    plain,
)
from wattherd.experiments.schedule.simulators import preset
from wattherd.jit import HAVE_JIT
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.gavel_goals import FIFO
from wattherd.policy.schedule.gavel_live import LiveGavel
from wattherd.policy.schedule.gavel_lp import GOALS, KIND, solver
from wattherd.policy.schedule.gavel_solvers import best_solver
from wattherd.policy.schedule.job_progress import ReportedProgress
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.policy.schedule.pollux_live import LivePollux
from wattherd.policy.schedule.pollux_search import searchers
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.sim.world import Computer
from wattherd.spelling import hint_for


def _solved(best: str) -> Computer:
    """By the best solver, and by simplex where that gives up."""
    first, second = solver(best), solver("highs")

    def answer(payload: Any) -> Any:
        try:
            return first(payload)
        except ClusterError:
            return second(payload)

    return answer


def _gavel(goal: str, given: SchedulerContext) -> BuiltScheduler:
    """Shares of time on each type of GPUs; programs are solved beside the core (`Compute`)."""
    del given
    computers = {} if goal == FIFO else {KIND: _solved(best_solver())}
    return BuiltScheduler(planner=LiveGavel(goal=goal), computers=computers, rigid=True)


def _pollux(search: str, given: SchedulerContext) -> BuiltScheduler:
    """Goodput by reports; the search runs beside the core (`Compute`).

    Raises:
        UserError: Numba is not installed; a search would take minutes.
    """
    if not HAVE_JIT:
        raise UserError("Pollux' searches need Numba", hint="pip install 'wattherd[fast]'")
    planner = LivePollux(search=search, seed=given.seed)
    return BuiltScheduler(planner=planner, computers=searchers(np.random.default_rng))


LEARNING: Mapping[str, SchedulerOf] = {
    "aiturbo": plain(lambda _: AITurbo(foresight=LiveForecast())),
    "aiturbo-told": plain(lambda _: AITurbo(foresight=LiveForecast(), sizes_all=False)),
    "optimus": plain(lambda _: OptimusEstimated(foresight=LiveForecast())),
    "wattherd": plain(lambda _: ProgressPerWatt(progress=ReportedProgress())),
    "tiresias-gittins": gittins_of_past,
    "pollux": partial(_pollux, "genetic"),
    "pollux-climb": partial(_pollux, "climb"),
    **{f"gavel-{goal}": partial(_gavel, goal) for goal in (*GOALS, FIFO)},
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
