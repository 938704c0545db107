"""What planners see of the core: jobs, what changed, nodes, what was learned and worked out.

Nothing can be changed through it. The roster has the jobs that run or may run, in order of
submission, and what changed among them since a plan: a planner that keeps its own order needs to
hear only of the changes, and a cycle then costs as much as happened, not as much as there is.

Of the jobs that run the core learns five things (`JobSpeeds`): how fast jobs are in which way of
running, what a step is worth there, how many steps they still have to do, what a restart costs
them, and how much service they had received when they ended. No watts follow from them, and nothing
that is safe or not: a report moves what planners believe of jobs of its own kind, and that alone.

Slow work is done outside of the core (`Questions`): a plan must not wait for a solver, so it asks,
and is made anew when the answer arrives as an event. Since answers are events, a replay has them
without working anything out again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.capacity import Book, DrainedDevices
from wattherd.engine.core.config import CoreConfig
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_memory import LearnedMemory
from wattherd.estimate.learned_noise import LearnedNoise, StepWorth
from wattherd.estimate.learned_rates import LearnedRates, WayRun
from wattherd.estimate.learned_restarts import PRIOR, LearnedRestarts, RestartTime
from wattherd.estimate.learned_services import LearnedServices, PastServices
from wattherd.estimate.learned_steps import LearnedSteps, StepsLeft
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Compute
from wattherd.model.event import Computed, JobProgressed
from wattherd.model.job import JobSpec
from wattherd.policy.contract import JobView
from wattherd.policy.eligibility import NodeMask

# --- What planners see ----------------------------------------------------------------------------


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


# --- What the plan gives to whom ------------------------------------------------------------------


# A draft, and a plan that is taken away, both change it where they change what a job is given. So
# no plan has to add up all jobs anew: it costs as much as changed since the last one. The sums are
# of integers: what is added and taken away again leaves no trace, and `core.invariants` compares
# them with a count from the start after every event of a test.
class PlannedUse:
    """GPUs that the plan gives to each (queue, user), and the jobs that it gives something else."""

    def __init__(self, jobs: Iterable[JobRecord] = ()) -> None:
        """Begin with what the plan gives to `jobs`."""
        self.gpus: Counter[tuple[str, str]] = Counter()
        self._changed: dict[str, JobRecord] = {}
        for job in jobs:
            if job.wanted:
                self.add(job, job.wanted, 1)

    # A job that waits may be edited into another queue; one with a plan may not. So what is taken
    # away is taken from whom it was given to.
    def add(self, job: JobRecord, allocations: Iterable[Allocation], sign: int) -> None:
        """The plan gives a job these (sign 1), or takes them from it (-1)."""
        gpus = 0
        for allocation in allocations:
            gpus += len(allocation.gpus)
        whose = job.spec.queue, job.spec.user
        self.gpus[whose] += sign * gpus
        if not self.gpus[whose]:
            del self.gpus[whose]
        self._changed[job.id] = job

    def take_changed(self) -> dict[str, JobRecord]:
        """Jobs that the plan may give something else than when this was last asked, by id."""
        changed, self._changed = self._changed, {}
        return changed


# A view holds references, not copies: a copy of all jobs at every plan would cost by jobs where
# most plans touch a few. It is safe because planners get read-only protocols (`policy.contract`),
# and because all that changes while they plan is changed by their own proposals.
@dataclass(frozen=True, slots=True, kw_only=True)
class CoreView:
    """Implements `policy.contract.View` on the parts of a core."""

    now_s: float
    memory: dict[str, Any]
    roster: Roster
    replanned_jobs: Mapping[str, JobRecord]
    planned: Book
    lost: Collection[int]
    devices: DrainedDevices
    stopped: Mapping[str, float]
    """Stopped queues, and since when."""
    questions: Questions
    config: CoreConfig
    speeds: JobSpeeds
    """What was learned of jobs."""
    jobs: Mapping[str, JobRecord]
    """Jobs that are not over, by id."""
    woke: bool

    def steps_left(self, job: JobView) -> StepsLeft | None:
        """How many steps a job still has to do, by what it reports; None while nothing tells."""
        record = self.jobs.get(job.id)
        if record is None:
            return None
        held_since_s = record.held_since_s if record.active else None
        return self.speeds.steps.left(job.id, self.now_s, held_since_s)

    def restart_time(self, job: JobView) -> RestartTime:
        """What a restart costs a job; a prior where nothing was learned."""
        record = self.jobs.get(job.id)
        return PRIOR if record is None else self.speeds.restarts.of(job.id, job_kind(record.spec))

    def step_worth(self, job: JobView, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs; all alike where nothing tells."""
        return self.speeds.noise.worth(job.id, gpus)

    def past_services(self) -> PastServices:
        """How much service jobs had received when they ended, as far as it was learned."""
        return self.speeds.services.known()

    @property
    def rates(self) -> JobRates:
        """How fast jobs are on which devices, each number with its source."""
        return self.speeds.rates(self.config)

    def live(self) -> Sequence[JobRecord]:
        """Jobs that run or may run now, in order of submission."""
        return self.roster.jobs()

    def entered(self) -> Sequence[JobRecord]:
        """Jobs that came, or lost their plan, since the last plan."""
        return list(self.roster.entered.values())

    def left(self) -> Sequence[JobRecord]:
        """Jobs that went since the last plan."""
        return list(self.roster.left.values())

    def replanned(self) -> Sequence[JobRecord]:
        """Jobs that run or may run, of which the plan may give something else than at the last."""
        return [job for job in self.replanned_jobs.values() if job.listed]

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
        eligible = self.config.eligible
        return None if eligible is None else eligible.nodes(spec, role)

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind."""
        return self.questions.answer(kind)


# --- What is learned of jobs that run -------------------------------------------------------------


# A part of the core and not a projection beside it: a replay of the journal teaches it the same,
# and a core that takes over has it. Speeds are steps by the core's own clock; the rate that a job
# tells of itself (`rate_per_s`) is any program's word, and is not learned from.
class JobSpeeds:
    """Hears what runs report and that they end; its parts are all that follows from it."""

    def __init__(self, live: Mapping[str, JobRecord]) -> None:
        """Nothing is known; `live` are the jobs that are not over, by id."""
        self._live = live
        self.learned = LearnedRates()
        self.steps = LearnedSteps()
        self.restarts = LearnedRestarts()
        self.services = LearnedServices()
        self.noise = LearnedNoise()

    def heard(
        self, job: JobRecord, config: CoreConfig, now_s: float,
        relative: Callable[[JobRecord], float], told: JobProgressed,
    ) -> None:  # fmt: skip
        """A job has reported; `relative` says how fast its power curves say it is at its cap.

        Of `told` count where its count ends, the noise of its gradient and its batch.
        """
        if not config.learns or job.state is not State.RUNNING:
            return
        # Each `forget` sweeps only where far more jobs are remembered than live, so that a report
        # does not cost by jobs.
        self.steps.forget(self._live, len(self._live))
        self.steps.heard(
            job.id, job.attempt, job.progress, now_s,
            loss=job.loss, total=told.total, target_loss=job.spec.target_loss,
        )  # fmt: skip
        # The first progress of an attempt ends its restart: until then devices were held and
        # nothing came of it.
        if job.progress > 0:
            self.restarts.forget(self._live, len(self._live))
            self.restarts.heard(job.id, job_kind(job.spec), job.attempt, now_s - job.held_since_s)
        self.noise.forget(self._live, len(self._live))
        self.noise.heard(job.id, job.gpus, told.noise_scale, told.batch)
        way = way_of(job, config.cluster)
        if way is None:
            return
        self.learned.forget(self._live, len(self._live))
        kind = job_kind(job.spec)
        self.learned.heard(
            job.id, kind, job.attempt, way, job.progress, now_s, relative=relative(job)
        )

    def succeeded(self, job: JobRecord, config: CoreConfig) -> None:
        """A job has come to its end; what it held is given back and booked."""
        if config.learns:
            self.services.ended(job.spec.tenant, job.attained_gpu_s)

    def of_jobs(self, live: Mapping[str, JobRecord]) -> JobSpeeds:
        """The same for a core that takes over: `live` are its jobs."""
        taken = JobSpeeds(live)
        taken.learned, taken.steps, taken.restarts = self.learned, self.steps, self.restarts
        taken.services, taken.noise = self.services, self.noise
        taken.restarts.taken_over()
        return taken

    def remembered(self) -> LearnedMemory:
        """What outlives a process: what kinds and tenants taught, and no single job's progress."""
        kinds, restarts = self.learned.of_kinds(), self.restarts.of_kinds()
        return LearnedMemory(kinds, restarts, self.services.of_tenants())

    def recall(self, memory: LearnedMemory) -> None:
        """What kinds and tenants taught is this; what single jobs showed stays."""
        self.learned.recall(memory.speeds)
        self.restarts.recall(memory.restarts_s)
        self.services.recall(memory.services_gpu_s)

    def rates(self, config: CoreConfig) -> JobRates:
        """How fast jobs are on which devices: as configured, and as learned."""
        return self.learned.rates(config.job_rates) if config.learns else config.job_rates


def way_of(job: JobRecord, cluster: ClusterSpec) -> WayRun | None:
    """How a run runs; None where what it does is no speed of whole GPUs of one model."""
    places = [one for one in job.allocations if one.gpus]
    models = {cluster.nodes[one.node].gpu_model for one in places}
    # In a mix of models the slowest sets the pace, and on a device that may be shared its
    # neighbours do: neither tells how fast such a GPU is.
    if len(models) != 1 or any(role.gpu_memory_mib is not None for role in job.spec.roles):
        return None
    gpus, batch, accumulation = job.gpus, job.spec.batch_size, None
    if batch is not None and job.micro_batch:
        # The batch is of all devices together; what one of them cannot take at once it takes in
        # turns.
        accumulation = max(1, math.ceil(batch / gpus / job.micro_batch))
    return WayRun(
        gpu_model=models.pop(), gpus=gpus, nodes=len({one.node for one in places}), batch=batch,
        accumulation=accumulation, cap_w=job.cap_w,
    )  # fmt: skip


# --- What planners ask to be worked out outside of the core ---------------------------------------


# The latest question of a kind is the only open one: an answer to an older one was worked out for a
# cluster that is no more. Keys are numbered, not drawn, so that a replay asks under the same names.
class Questions:
    """The latest question of every kind, and its answer."""

    def __init__(self) -> None:
        """Start with nothing asked."""
        self.plans = 0
        """Plans made so far."""
        self._asked = 0
        self._open: dict[str, str] = {}
        self._answers: dict[str, Computed] = {}

    def ask(self, kind: str, payload: Any) -> Compute:
        """Replace whatever was asked of this kind before."""
        self._asked += 1
        key = f"{kind}#{self._asked}"
        self._open[kind] = key
        self._answers.pop(kind, None)
        return Compute(kind=kind, key=key, payload=payload, version=self.plans)

    # For `GuardedDraft.undo`: asking is part of a plan, and is taken back with it, the number
    # included, or a trial would leave a gap in the keys.
    def saved(self) -> tuple[int, dict[str, str], dict[str, Computed]]:
        """What is asked and answered now, for `restore`."""
        return self._asked, dict(self._open), dict(self._answers)

    def restore(self, saved: tuple[int, dict[str, str], dict[str, Computed]]) -> None:
        """Nothing was asked since then."""
        self._asked, self._open, self._answers = saved

    # An answer that is late or told twice is dropped by its key; the plan that asked anew waits for
    # its own.
    def note(self, answer: Computed) -> bool:
        """Keep an answer; False for one that nobody waits for (late, or repeated)."""
        if self._open.get(answer.kind) != answer.key:
            return False
        del self._open[answer.kind]
        self._answers[answer.kind] = answer
        return True

    def answer(self, kind: str) -> Computed | None:
        """The answer to the latest question of a kind, if it is there."""
        return self._answers.get(kind)
