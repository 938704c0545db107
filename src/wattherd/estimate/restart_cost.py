"""What restarts cost a job: time in which it holds its devices and gets nowhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from wattherd.model.job import JobSpec


def nothing(spec: JobSpec) -> float:
    """Restarts that cost nothing."""
    del spec
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """`pause_s` of a job is the time (s) from getting its devices to the first step of training.

    It is paid at the beginning of every run. Some simulators (Muri's, SIGCOMM'22 artifact) place
    all jobs anew whenever anything happens, and let every running job pay at every such event:
    `every_event`.
    """

    pause_s: Callable[[JobSpec], float] = nothing
    every_event: bool = False


FREE = RestartCost()


def constant(seconds: float) -> RestartCost:
    """The same pause for every job, at the beginning of each run."""

    def pause_s(spec: JobSpec) -> float:
        del spec
        return seconds

    return RestartCost(pause_s=pause_s)


def kept(spec: JobSpec, work_s: float) -> float:
    """Work (s) that is kept of `work_s` when a run is stopped.

    A job with a checkpoint period goes back to its last checkpoint, any other one loses nothing.
    """
    if not spec.checkpoint_s:
        return work_s
    return math.floor(work_s / spec.checkpoint_s) * spec.checkpoint_s
