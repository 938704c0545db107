"""Pollux as it is published: searches outside of the core, batch sizes left to jobs' agents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattherd.errors import UserError
from wattherd.jit import HAVE_JIT
from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import KIND, searcher
from wattherd.service.given import Given, Scheduler, SchedulerOf


def _pollux(given: Given) -> Scheduler:
    """For a core that plans in rounds.

    Raises:
        UserError: Numba is not installed; the search would take minutes for every round.
    """
    if not HAVE_JIT:
        raise UserError("Pollux' search needs Numba", hint="pip install 'wattherd[fast]'")
    return Scheduler(
        planner=Pollux(seed=given.seed, interval_s=None),
        computers={KIND: searcher(np.random.default_rng)},
        adapts_batch=True,
    )


POLLUX: Mapping[str, SchedulerOf] = {"pollux": _pollux}
