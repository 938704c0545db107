"""Pollux by the published search and by our own; batch sizes are left to jobs' agents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from wattherd.errors import UserError
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, Given, SchedulerOf
from wattherd.jit import HAVE_JIT
from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import searchers


def _pollux(search: str, given: Given) -> BuiltScheduler:
    """For a core that plans in rounds.

    Raises:
        UserError: Numba is not installed; a search would take minutes for every round.
    """
    if not HAVE_JIT:
        raise UserError("Pollux' searches need Numba", hint="pip install 'wattherd[fast]'")
    return BuiltScheduler(
        planner=Pollux(search=search, seed=given.seed, interval_s=None),
        computers=searchers(np.random.default_rng),
        adapts_batch=True,
    )


POLLUX: Mapping[str, SchedulerOf] = {
    "pollux": partial(_pollux, "genetic"),
    "pollux-climb": partial(_pollux, "climb"),
}
