"""What to do: the core's orders to a shell. Every outcome comes back as an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattherd.model.allocation import Allocation
from wattherd.model.quick import maker, quick
from wattherd.model.reason import Reason, StopReason


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Start run number `attempt` on these allocations, each device capped at `cap_w`."""

    job_id: str
    attempt: int
    allocations: tuple[Allocation, ...]
    cap_w: float | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Ask run `attempt` to checkpoint and stop within `grace_s`, then end it."""

    job_id: str
    attempt: int
    reason: StopReason
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveNotice:
    """Tell run `attempt` that it will be asked to stop at `at_s`, should nothing change.

    It may write a checkpoint in time, or stop by itself (docs: stopping a job).
    """

    job_id: str
    attempt: int
    reason: StopReason
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectJob:
    """The job can never run, or is not valid; tell its user why."""

    job_id: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendJob:
    """From now on the job asks for this; later runs are ordered by it.

    `gpus` are the least and the most devices, None where these stay as they are.
    """

    job_id: str
    priority: int
    queue: str
    time_limit_s: float | None
    begin_s: float | None
    gpus: tuple[int, int] | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """The job has reached a final state; tell its user."""

    job_id: str
    state: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SetCap:
    """Cap each device of a running job at `cap_w`; None removes the cap."""

    job_id: str
    attempt: int
    cap_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBatch:
    """Have a run compute `micro_batch` samples at once from its next step on.

    Its devices were seen to draw `full_w` at most with that (None: not known, count the most they
    can): where a duty has to keep the cap, it follows from this.
    """

    job_id: str
    attempt: int
    micro_batch: int
    full_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepNode:
    """Switch off a node on which nothing runs."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeNode:
    """Switch a sleeping node on."""

    node: str


# Two kinds of wake-ups make plans, and they are told apart because rounds go on by themselves while
# a planner's own wish is for once.
WAKE = "plan"
"""Key of the wake-ups that planners ask for."""
ROUND = "round"
"""Key of the wake-ups at which rounds begin."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Send `Woke(key)` at `at_s`; a later WakeAt with the same key replaces this one."""

    at_s: float
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work out `payload` outside of the core and send `Computed(kind, key)` with the result.

    Payload and result are plain data (as JSON has it). `key` is never used twice; a later question
    of the same kind replaces this one. `version` counts the plans made before it was asked.
    """

    kind: str
    key: str
    payload: Any
    version: int


Command = (
    StartJob
    | StopJob
    | GiveNotice
    | RejectJob
    | AmendJob
    | FinishJob
    | SetCap
    | SetBatch
    | SleepNode
    | WakeNode
    | WakeAt
    | Compute
)

start_job = maker(StartJob)
stop_job = maker(StopJob)
finish_job = maker(FinishJob)
set_cap = maker(SetCap)
wake_at = maker(WakeAt)
