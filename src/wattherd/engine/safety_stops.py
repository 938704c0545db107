"""Jobs stopped for now: the backstop's milder half, before outlets are switched.

A stopped job's devices draw what their meters show and no more until it runs again. It runs again
once its devices fit at their worst, and after every stop it waits twice as long as before.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_caps import CapBook
from wattherd.engine.safety_terms import Bools, Fleet, Floats, SafetyConfig


class JobStops:
    """Devices (N,) whose jobs are stopped, and since when."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Every job runs."""
        self._fleet, self._config = fleet, config
        self.stopped: Bools = np.zeros(fleet.size, dtype=np.bool_)
        self._at_s: Floats = np.full(fleet.size, np.nan)
        self._tries = np.zeros(fleet.size)

    def ending(self, now_s: float) -> Bools:
        """Devices whose jobs were told to stop and may still be at it."""
        with np.errstate(invalid="ignore"):
            return self.stopped & (now_s - self._at_s < self._config.stop_s)

    def stop(self, chosen: Bools, now_s: float) -> None:
        """Stop the jobs of these devices as well."""
        self.stopped |= chosen
        self._at_s = np.where(chosen, now_s, self._at_s)
        self._tries = self._tries + chosen

    def resume(self, caps: CapBook, budget_w: Floats, now_s: float) -> None:
        """Let one device's job run again if it fits as if it had not been stopped."""
        wait_s = self._config.retry_s * 2.0 ** (self._tries - 1)
        with np.errstate(invalid="ignore"):
            due = self.stopped & (now_s - self._at_s >= wait_s)
        more_w = caps.running_w - caps.counted_w
        free_w = self._fleet.least(budget_w - self._fleet.levels(caps.counted_w))
        rows = np.flatnonzero(due & (more_w <= free_w))
        self.stopped[rows[:1]] = False
