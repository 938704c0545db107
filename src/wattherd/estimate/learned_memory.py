"""What is remembered of jobs that are over: what they taught their kinds and tenants.

Single jobs are no part of it: how far one is, and how fast it runs, is learned again while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattherd.estimate.learned_rates import JobSpeed, WayRun


@dataclass(frozen=True, slots=True)
class LearnedMemory:
    """All of it is in the order in which it was heard, the oldest first.

    `speeds` are the voices of a kind's jobs by way of running, `restarts_s` the seconds of its
    restarts, a job each; `services_gpu_s` are GPU seconds of jobs that succeeded, by tenant.
    """

    speeds: Mapping[str, Mapping[WayRun, tuple[JobSpeed, ...]]] = field(default_factory=dict)
    restarts_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    services_gpu_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
