"""Pollux by its published genetic search, and by our own greedy one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import searches
from wattherd.service.given import Given, Scheduler, SchedulerOf


def _pollux(search: str, given: Given) -> Scheduler:
    return Scheduler(
        planner=Pollux(search=search, seed=given.seed),
        computers=searches(np.random.default_rng),
        adapts_batch=True,
    )


POLLUX: Mapping[str, SchedulerOf] = {"pollux": partial(_pollux, "genetic")}
