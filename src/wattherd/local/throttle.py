"""Duty: the part of its time for which a run may compute, where no cap of watts can be set.

By quota where the kernel keeps one; otherwise the run is frozen for the rest of every period.

A run on GPUs is always frozen: a quota of the processor says nothing of them. A training that kept
an H100 at 655 W with one processor of 16 did so at a duty of 0.4, too (benchmarks/measured). What
was handed to a GPU before is still computed, mostly the rest of a step, so the period is as long
as meters average over (NVML: 1 s), and no longer.
"""

from __future__ import annotations

import time

from wattherd.local.cgroups import Group

PERIOD_S = 0.2
GPU_PERIOD_S = 1.0
LEAST_DUTY = 0.01


class Throttle:
    """Keeps one group to its duty; without a quota this takes a call of `sleep` all the time."""

    def __init__(self, group: Group, *, on_gpus: bool = False) -> None:
        """All of the time; `on_gpus` says that the run computes there."""
        self._group, self._on_gpus = group, on_gpus
        self.duty = 1.0
        self._by_quota = True

    def set(self, duty: float) -> None:
        """A new duty, from 0 (nothing at all) to 1.

        Raises:
            OSError: it may not be in force; to be set once more.
        """
        self.duty = min(1.0, max(0.0, duty))
        able = not self._on_gpus and self.duty >= LEAST_DUTY
        self._by_quota = able and self._group.share_cpu(self.duty)
        self._group.freeze(frozen=self.duty < LEAST_DUTY)

    def sleep(self, pause_s: float) -> None:
        """Let `pause_s` or one period pass, the run frozen for what it is not owed of it.

        Raises:
            OSError: it may still be frozen; the next call lets it go.
        """
        if self._by_quota or self.duty in (0.0, 1.0) or self.duty < LEAST_DUTY:
            time.sleep(pause_s)
            return
        period_s = GPU_PERIOD_S if self._on_gpus else PERIOD_S
        time.sleep(period_s * self.duty)
        self._group.freeze(frozen=True)
        time.sleep(period_s * (1 - self.duty))
        self._group.freeze(frozen=False)
