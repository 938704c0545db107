"""What planners see of the core: jobs that may run, what changed, nodes, what they remember.

Nothing can be changed through it. The roster has the jobs that run or may run, in order of
submission, and what changed among them since a plan: a planner that keeps its own order needs to
hear only of the changes, and a cycle then costs as much as happened, not as much as there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.cluster.capacity import Book
from wattherd.engine.cluster.drained import DrainedDevices
from wattherd.engine.core.job_speeds import ToldOfJobs
from wattherd.engine.jobs.questions import Questions
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.job_rate import ALIKE, JobRates
from wattherd.estimate.learned_noise import ALIKE_STEPS, StepWorth
from wattherd.estimate.learned_restarts import PRIOR, RestartTime
from wattherd.estimate.learned_services import NONE_ENDED, PastServices
from wattherd.estimate.learned_steps import StepsLeft
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.policy.contract import JobView
from wattherd.policy.eligibility import Eligibility, NodeMask


# Why changes and not only a list. A planner that keeps an order (`policy.schedule.job_order`) would
# have to compare ten thousand jobs with what it knew to find the three that are new. Told of
# changes, a cycle costs as much as happened. The price is the contract that nothing is forgotten,
# which `core.invariants._check_roster` and `introduce` are for.
class Roster:
    """The jobs a planner may plan for."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: list[int] = []
        self._jobs: list[JobRecord] = []
        self._known: set[str] = set()
        """Jobs that the last plan saw."""
        self.entered: dict[str, JobRecord] = {}
        """Jobs that came, or lost their plan without the planner's doing, since the last plan."""
        self.left: dict[str, JobRecord] = {}
        """Jobs that the last plan saw and that may not run any more."""

    def jobs(self) -> list[JobRecord]:
        """All of them, in order of submission."""
        return self._jobs.copy()

    def put(self, job: JobRecord, *, eligible: bool) -> None:
        """Note whether `job` runs or may run now."""
        # The flag is on the record, so that the common answer, no change, costs no search.
        if eligible == job.listed:
            return
        job.listed = eligible
        at = bisect_left(self._numbers, job.number)
        if eligible:
            self._numbers.insert(at, job.number)
            self._jobs.insert(at, job)
            self.entered[job.id] = job
            return
        del self._numbers[at], self._jobs[at]
        self.entered.pop(job.id, None)
        # Whoever came and went between two plans was never seen, and need not be said to have left.
        if job.id in self._known:
            self._known.discard(job.id)
            self.left[job.id] = job

    # A planner that keeps its own order believes that the job runs; it must hear that it does not,
    # though the job never left.
    def unplanned(self, job: JobRecord) -> None:
        """Note that an eligible job's plan was taken away."""
        if job.id in self._known:
            self.entered[job.id] = job

    # A planner that takes over at work has seen nothing: all jobs come to it as newcomers, in the
    # order in which they were submitted.
    def introduce(self) -> None:
        """Another planner takes over: all jobs are new to it."""
        self._known = set()
        self.entered = {job.id: job for job in self._jobs}
        self.left = {}

    def planned(self) -> None:
        """A plan was made: it knows everything."""
        self._known.update(self.entered)
        self.entered = {}
        self.left = {}


# A view holds references, not copies: a copy of all jobs at every plan would cost by jobs where
# most plans touch a few. It is safe because planners get read-only protocols (`policy.contract`),
# and because all that changes while they plan is changed by their own proposals.
@dataclass(frozen=True, slots=True, kw_only=True)
class CoreView:
    """Implements `policy.contract.View` on the parts of a core."""

    now_s: float
    memory: dict[str, Any]
    roster: Roster
    planned: Book
    lost: Collection[int]
    devices: DrainedDevices
    stopped: Mapping[str, float]
    """Stopped queues, and since when."""
    questions: Questions
    woke: bool = False
    eligibility: Eligibility | None = None
    told: ToldOfJobs | None = None
    """What was learned of jobs; None: nothing."""

    def steps_left(self, job: JobView) -> StepsLeft | None:
        """How many steps a job still has to do, by what it reports; None while nothing tells."""
        return None if self.told is None else self.told.steps_left(job.id)

    def restart_time(self, job: JobView) -> RestartTime:
        """What a restart costs a job; a prior where nothing was learned."""
        return PRIOR if self.told is None else self.told.restart_time(job.id)

    def step_worth(self, job: JobView, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs; all alike where nothing tells."""
        return ALIKE_STEPS if self.told is None else self.told.step_worth(job.id, gpus)

    def past_services(self) -> PastServices:
        """How much service jobs had received when they ended, as far as it was learned."""
        return NONE_ENDED if self.told is None else self.told.past_services()

    @property
    def rates(self) -> JobRates:
        """How fast jobs are on which devices, each number with its source."""
        return ALIKE if self.told is None else self.told.rates

    def live(self) -> Sequence[JobRecord]:
        """Jobs that run or may run now, in order of submission."""
        return self.roster.jobs()

    def entered(self) -> Sequence[JobRecord]:
        """Jobs that came, or lost their plan, since the last plan."""
        return list(self.roster.entered.values())

    def left(self) -> Sequence[JobRecord]:
        """Jobs that went since the last plan."""
        return list(self.roster.left.values())

    # Drained devices are left out as lost nodes are: a planner that packs an empty cluster must not
    # pack onto them.
    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node."""
        count = self.planned.usable_gpus()
        if self.lost:
            count[list(self.lost)] = 0
        return count

    def gpu_total(self) -> int:
        """GPUs of all usable nodes."""
        return self.planned.usable_gpu_total(self.lost)

    def usable(self) -> NDArray[np.bool_]:
        """Which nodes are not lost."""
        usable = np.ones(len(self.nodes()), dtype=np.bool_)
        # A drained device closes no node: the others of its node may still be used.
        usable[list(self.lost)] = False
        return usable

    def drained(self) -> Collection[tuple[int, int]]:
        """GPUs that are out of use."""
        return self.devices.out

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices."""
        return self.planned.cluster.nodes

    # Asked of the shell's mask as it is: what the core knows itself (models, lost and drained
    # nodes) planners see elsewhere.
    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        """Nodes on which the shell lets tasks of a role run; None: on all."""
        return None if self.eligibility is None else self.eligibility.nodes(spec, role)

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind."""
        return self.questions.answer(kind)
