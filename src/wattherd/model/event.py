"""What happened: facts from the world, in the order in which the core learns of them.

Events are never refused. Those about one run of a job carry its `attempt`, so that a late or
repeated message about an earlier run is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattherd.model.job import JobSpec
from wattherd.model.quick import maker, quick
from wattherd.model.training import TrainingReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something at `at_s` seconds since the run's epoch; `cause` is what brought it about."""

    at_s: float
    cause: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """A user handed in a job."""

    job: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEdited(Event):
    """A user or operator changed what a job asks for; None: that stays as it is.

    Of a job that holds devices only the time limit may change, and only be lowered. `gpus` are the
    least and the most devices of a job of one role.
    """

    job_id: str
    priority: int | None = None
    queue: str | None = None
    time_limit_s: float | None = None
    gpus: tuple[int, int] | None = None
    begin_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayLimited(Event):
    """So many tasks of an array may run at a time from now on; None lifts the limit."""

    array: str
    most: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(Event):
    """A user or operator wants it not to be started."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(Event):
    """The hold is over."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(Event):
    """A user wants it gone, running or not."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Event):
    """Something about run number `attempt` of a job."""

    job_id: str
    attempt: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(RunEvent):
    """All its tasks run."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed(RunEvent):
    """It reported `progress` of `total`, in units of its own (steps, epochs), and its loss.

    `noise_scale` is that of its gradient and `batch` what a step takes, both in samples.
    """

    progress: float
    rate_per_s: float | None = None
    loss: float | None = None
    total: float | None = None
    noise_scale: float | None = None
    batch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasured(RunEvent):
    """Its agent reported how fast it is and what its gradients allow."""

    report: TrainingReport


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped(RunEvent):
    """It stopped as it was asked to, its checkpoint written; `progress` is what is kept."""

    progress: float | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class JobExited(RunEvent):
    """It ended by itself; 0 is success, 143 asks to be queued again (docs: stopping a job)."""

    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntered(RunEvent):
    """Somebody runs `command` beside the task of that rank, or (empty) gives the run input.

    Nothing is decided by it: it is for the job's story and for the audit.
    """

    rank: int
    command: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class CapApplied(RunEvent):
    """A cap was set and read back on every device of the run; None: no cap."""

    cap_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApplied(RunEvent):
    """The run says that it computes `micro_batch` samples at once."""

    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDrew(RunEvent):
    """Each device of the run drew `watts` on average of late, at this micro-batch and speed.

    `duty` is the part of the time in which it was let compute. Told of runs whose draw no device
    limits by itself, and whose training may be steered instead.
    """

    watts: float
    duty: float
    micro_batch: int | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandMeasured(RunEvent):
    """Each device of the run has a use for a cap of `most_w`; None: for the highest there is.

    Told only where trusted meters say so, of devices that were below their caps for a while.
    """

    most_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLagged(RunEvent):
    """One rank of `ranks` needs `slowdown` times what the others need for their part of a step."""

    rank: int
    ranks: int
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDrained(Event):
    """GPU number `gpu` of a node is to be used no more; its jobs checkpoint and wait again."""

    node: str
    gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReturned(Event):
    """A drained GPU may be used again."""

    node: str
    gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """A node no longer answers; what ran there is gone."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(Event):
    """A lost node is back, empty."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsleep(Event):
    """A node is off, as it was told to be."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAwake(Event):
    """A node that slept answers again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStopped(Event):
    """Nothing more may be started from a queue or those below it; what runs may end."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStarted(Event):
    """A stopped queue is open again."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesChanged(Event):
    """From now on the site has these queues: a tree as plain data, as a configuration writes it."""

    queues: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimited(Event):
    """Jobs of a tenant may hold so many GPUs together from now on; None lifts the limit."""

    tenant: str
    most_gpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged(Event):
    """A domain of the power tree may draw this much from now on; None lifts the budget.

    Without a `domain` it is the site's. Each `source` (empty: the operators) states a budget of its
    own; the lowest of them counts.
    """

    budget_w: float | None
    domain: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAnnounced(Event):
    """A domain (the site) may draw `budget_w` from `begins_s` on; `BudgetChanged` will follow.

    None takes back what the same `source` announced for that time.
    """

    begins_s: float
    budget_w: float | None
    domain: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed(Event):
    """The answer to `Compute(kind, key)`: plain data, or None where no answer was found."""

    kind: str
    key: str
    result: Any


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Woke(Event):
    """The time asked for by `WakeAt(key)` has come."""

    key: str


job_started = maker(JobStarted)
job_stopped = maker(JobStopped)
job_exited = maker(JobExited)
cap_applied = maker(CapApplied)
woke = maker(Woke)
