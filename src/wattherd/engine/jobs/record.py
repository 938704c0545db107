"""Every job the core knows: what was asked, where it stands, what it holds and has received."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from wattherd.engine.jobs.lifecycle import ACTIVE, State, Trigger, step
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason
from wattherd.model.training import TrainingReport

# Bounded: a job that is preempted every minute for a month would otherwise fill the memory and
# every snapshot.
STORY_LENGTH = 1000
"""Entries kept per job; a job that is moved more often loses its oldest ones."""


class StoryLine(NamedTuple):
    """One line of a job's story: when, what, and what brought it about."""

    at_s: float
    what: str
    cause: str = ""


_new = tuple.__new__
"""Makes an entry in half the time; every step of every job makes one."""


# Rules of its fields. `number` never changes and never repeats: it is the last word in every order.
# `attempt` counts runs, and news of another attempt is old. `allocations` follows the world,
# `wanted` the plan; they differ while orders are under way, and only then. `cap_w` is what may be
# drawn, `wanted_cap_w` what is meant.
@dataclass(slots=True)
class JobRecord:
    """A job as the core sees it; mutable, and changed by the core alone.

    `allocations` is what it holds now, `wanted` what the last plan gives it (empty: nothing);
    `cap_w` is the cap in force per device, `wanted_cap_w` the planned one (None: uncapped).
    `attained_gpu_s` is GPU time received in earlier runs; `held_since_s` begins the present one.
    """

    spec: JobSpec
    number: int
    state: State = State.QUEUED
    state_since_s: float = 0.0
    attempt: int = 0
    failures: int = 0
    preemptions: int = 0
    allocations: tuple[Allocation, ...] = ()
    wanted: tuple[Allocation, ...] = ()
    cap_w: float | None = None
    wanted_cap_w: float | None = None
    attained_gpu_s: float = 0.0
    attained_s: float = 0.0
    held_since_s: float = 0.0
    first_start_s: float | None = None
    finish_s: float | None = None
    progress: float = 0.0
    rate_per_s: float | None = None
    loss: float | None = None
    report: TrainingReport | None = None
    micro_batch: int | None = None
    """Samples at once, as its run says."""
    after_stop: Trigger = Trigger.REQUEUE
    reason: Reason | None = None
    aside: Reason | None = None
    """Why no budget in sight lets it run: planners do not see it, so that nobody waits for it."""
    waits_for: set[str] = field(default_factory=set)
    """Jobs that have not ended yet as it needs them to."""
    not_before_s: float | None = None
    """When it may start at the earliest, as long as that is still to come."""
    lines: tuple[str, ...] = ()
    """Lines of jobs (`engine.core.job_table`) in which its turn has not come."""
    story: deque[StoryLine] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    id: str = field(init=False)
    active: bool = field(init=False)
    """Whether it holds devices."""
    listed: bool = False
    """Whether it stands on the roster."""

    def __post_init__(self) -> None:
        """Keep at hand what is asked for all the time."""
        self.id = self.spec.id
        self.active = self.state in ACTIVE

    # Three things that keep a job, kept apart because each has its own end: an event of another
    # job, a time, a turn.
    @property
    def blocked(self) -> bool:
        """Whether other jobs or its begin time keep it from being planned."""
        return bool(self.waits_for) or self.not_before_s is not None or bool(self.lines)

    @property
    def starting(self) -> bool:
        """Whether its run was ordered and has not begun to work."""
        return self.state is State.STARTING

    @property
    def gpus(self) -> int:
        """GPUs it holds now."""
        gpus = 0
        for allocation in self.allocations:
            gpus += len(allocation.gpus)
        return gpus

    # Held, not used: a device that stands idle in a job's hands is a device others do not have,
    # which is what attained service is to make fair.
    def service_gpu_s(self, now_s: float) -> float:
        """GPU time received up to now (2D attained service, Tiresias, NSDI'19)."""
        return self.attained_gpu_s + self.gpus * (now_s - self.held_since_s if self.active else 0.0)

    def service_s(self, now_s: float) -> float:
        """Time for which it held devices, up to now."""
        return self.attained_s + (now_s - self.held_since_s if self.active else 0.0)

    # Called at the end of a run and when a part of it is lost: service up to then was received with
    # all of its devices.
    def settle(self, now_s: float, rest: tuple[Allocation, ...] = ()) -> None:
        """Book the present run's service; the devices, but for those of `rest`, are given back."""
        held_s = now_s - self.held_since_s if self.active else 0.0
        self.attained_gpu_s += self.gpus * held_s
        self.attained_s += held_s
        self.held_since_s = now_s
        self.allocations = rest

    def apply(self, trigger: Trigger, now_s: float, cause: str = "") -> None:
        """Take one step of the lifecycle and note it in the story.

        Raises:
            Bug: the lifecycle has no such step; the message carries the story.
        """
        try:
            self.state, told, self.active, final = step(self.state, trigger)
        except Bug as bug:
            raise Bug(f"job {self.id}: {bug}\n{self.told()}") from None
        self.state_since_s = now_s
        self.story.append(_new(StoryLine, (now_s, told, cause)))
        if final:
            self.finish_s = now_s

    # For messages of bugs: what brought a job where it is, in order.
    def told(self) -> str:
        """The story as text."""
        return "\n".join(f"{e.at_s:12.1f} s  {e.what}  {e.cause}".rstrip() for e in self.story)


# The one answer to "do planners see it", asked by the plan, the roster and the invariants; three
# answers would differ some day.
def may_run(job: JobRecord) -> bool:
    """Whether planners may give it devices.

    Not if it stops for its user or for good, and not if no budget in sight lets it run.
    """
    if job.aside is not None:
        return False
    # A job that was preempted may be planned again before it has stopped: its next run starts when
    # this one has ended and devices are free. One that is stopped for good may not.
    if job.state is State.STOPPING:
        return job.after_stop is Trigger.REQUEUE
    return job.active or job.state is State.QUEUED
