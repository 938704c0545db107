"""What a scheduling policy sees and how it proposes.

A planner reads a `View` and speaks to a `Draft`: every proposal is checked by the guard at once and
answered with None (done, in the draft) or the reason why not. Nothing reaches the world before the
whole plan is made, and a planner may take parts of it back: `Draft.mark`, `Draft.undo`.

What only a shell knows of where a job may run comes as `View.eligible`. `Draft.room` is 0 on all
other nodes; who places by `free_gpus` and the like takes the mask into account himself, and so does
who takes one job for another of the same needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_noise import StepWorth
from wattherd.estimate.learned_restarts import RestartTime
from wattherd.estimate.learned_services import PastServices
from wattherd.estimate.learned_steps import StepsLeft
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, StopReason
from wattherd.model.training import TrainingReport
from wattherd.policy.eligibility import NodeMask


class Share(NamedTuple):
    """`tasks` tasks of role number `role`, on node index `node`.

    Each gets what its role needs, or the given CPU and GPUs, within what the role can use.
    `gpus` names the GPUs to take, ascending; empty for those with the lowest free numbers.
    With `gpu_milli` each GPU is shared with others: that part of its memory is the job's, and who
    computes when is the device's affair. The job must need no more memory than that.
    """

    node: int
    tasks: int
    role: int = 0
    cpu_milli: int | None = None
    gpu_count: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_milli: int | None = None


class JobView(Protocol):
    """One job, to be read."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def spec(self) -> JobSpec:
        """What was submitted."""
        ...

    @property
    def number(self) -> int:
        """How many jobs were submitted before it: the last word among equals."""
        ...

    @property
    def wanted(self) -> tuple[Allocation, ...]:
        """What the plan so far gives it; empty if nothing."""
        ...

    @property
    def active(self) -> bool:
        """Whether it holds devices, as one that was told to stop does until it is gone."""
        ...

    @property
    def starting(self) -> bool:
        """Whether its run was ordered and has not begun to work."""
        ...

    @property
    def progress(self) -> float:
        """What it reported last, in its own unit."""
        ...

    @property
    def rate_per_s(self) -> float | None:
        """Progress per second as it reported last, if it did."""
        ...

    @property
    def loss(self) -> float | None:
        """The loss it reported last, if it did."""
        ...

    @property
    def report(self) -> TrainingReport | None:
        """What its agent reported last, if it has one."""
        ...

    def service_gpu_s(self, now_s: float) -> float:
        """GPU time it has received."""
        ...

    def service_s(self, now_s: float) -> float:
        """Time for which it held devices."""
        ...


class View(Protocol):
    """The state of things, to be read.

    `memory` is a planner's own, kept by the engine from cycle to cycle.
    """

    @property
    def now_s(self) -> float:
        """Time of the event that brought this cycle about."""
        ...

    @property
    def memory(self) -> dict[str, Any]:
        """Whatever the planner wants to remember; it must follow from earlier views alone."""
        ...

    def live(self) -> Sequence[JobView]:
        """Jobs that run or may run now, in order of submission."""
        ...

    def entered(self) -> Sequence[JobView]:
        """Of those, the ones that came since the last plan, or lost what it gave them."""
        ...

    def left(self) -> Sequence[JobView]:
        """Those that could run at the last plan and cannot now; they left before others came."""
        ...

    def replanned(self) -> Sequence[JobView]:
        """Those of `live` that are not given what the last plan found: by it, or since then.

        Also some whose part was changed and changed back.
        """
        ...

    def gpus_per_node(self) -> NDArray[np.int64]:
        """GPUs of each usable node (N,), 0 for lost ones."""
        ...

    def gpu_total(self) -> int:
        """GPUs of all usable nodes."""
        ...

    def usable(self) -> NDArray[np.bool_]:
        """Which nodes (N,) may be used; the others are lost."""
        ...

    def drained(self) -> Collection[tuple[int, int]]:
        """GPUs that nobody may be given any more, as (node, GPU)."""
        ...

    def nodes(self) -> Sequence[NodeSpec]:
        """All nodes in the order of their indices, lost ones too."""
        ...

    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        """Nodes (N,) on which the shell lets tasks of a role run, lost ones too; None: on all.

        The same for equal specifications at any time.
        """
        ...

    @property
    def rates(self) -> JobRates:
        """How fast jobs are on which devices, each number with its source."""
        ...

    def steps_left(self, job: JobView) -> StepsLeft | None:
        """How many steps a job still has to do, by what it reports; None while nothing tells."""
        ...

    def restart_time(self, job: JobView) -> RestartTime:
        """What a restart costs a job; a prior where nothing was learned."""
        ...

    def step_worth(self, job: JobView, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs; all alike where nothing tells."""
        ...

    def past_services(self) -> PastServices:
        """How much service jobs had received when they ended, as far as it was learned."""
        ...

    @property
    def stopped(self) -> Mapping[str, float]:
        """Queues from which nothing may be started, and since when (s)."""
        ...

    @property
    def woke(self) -> bool:
        """Whether this cycle is the one asked for by `Draft.wake_at`."""
        ...

    def computed(self, kind: str) -> Computed | None:
        """The answer to the latest question of this kind, None until it is there."""
        ...


class Draft(Protocol):
    """The plan in the making."""

    def free_gpus(self, least: int = 1) -> NDArray[np.int64]:
        """Wholly free GPUs of each usable node (N,) under the plan so far.

        Under a power tree those that can run at their floors; all, where these are fewer than
        `least`, so that the guard can say which domain has too few watts.
        """
        ...

    def free_gpu_total(self) -> int:
        """GPUs of `free_gpus` on all nodes together."""
        ...

    def room(self, job: JobView, role: int = 0) -> NDArray[np.int64]:
        """Tasks of one role of a job that each usable node (N,) could still take under the plan.

        None on nodes on which the role is not eligible.
        """
        ...

    def free_cpu_milli(self) -> NDArray[np.int64]:
        """Free milli-vCPU of each usable node (N,) under the plan so far."""
        ...

    def free_memory_mib(self) -> NDArray[np.int64]:
        """Free MiB of each usable node (N,) under the plan so far."""
        ...

    def start(self, job: JobView, shares: Sequence[Share]) -> Reason | None:
        """Give a job these shares (all or none); a running job is moved or resized."""
        ...

    def stop(self, job: JobView, why: StopReason) -> None:
        """Take everything from a job; it goes back to the queue."""
        ...

    def end(self, job: JobView, why: StopReason) -> Reason | None:
        """Call a trial of a search group off, for good; refused for any other job."""
        ...

    def wait(self, job: JobView, reason: Reason) -> None:
        """Say why a job gets nothing in this plan."""
        ...

    def wait_alike(self, jobs: Sequence[JobView], reason: Reason) -> None:
        """Say so of many jobs at once."""
        ...

    def tell(self, job: JobView, text: str) -> None:
        """Say in a job's story why the plan does with it what it does; one line a plan."""
        ...

    def mark(self) -> int:
        """Where the plan stands now, for `undo`; marks may be set within marks."""
        ...

    def undo(self, mark: int) -> None:
        """Take back all that was proposed since `mark`, as if it had never been.

        So a planner tries things out on the real books: stop some jobs, start another, and go back
        if that is refused. Marks set since then are gone, and so are reasons: why a job waits after
        a trial is for the planner to say again (`wait`).
        """
        ...

    def give_notice(self, job: JobView, why: StopReason, at_s: float) -> None:
        """Tell a running job that it will be stopped at that time unless things change."""
        ...

    def wake_at(self, at_s: float) -> None:
        """Ask for a cycle at that time, after all else that happens then; replaces the last one."""
        ...

    def compute(self, kind: str, payload: Any) -> str:
        """Have slow work done outside; a cycle follows when the answer is there.

        Payload and answer are plain data (as JSON has it). Returns the question's key; a question
        replaces an earlier one of its kind, whose answer is then ignored.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUse:
    """What a plan gives away so far: GPUs by (queue, user) of the jobs; `stopped` as in `View`."""

    now_s: float
    total_gpus: int
    gpus: Mapping[tuple[str, str], int] = field(default_factory=dict)
    stopped: Mapping[str, float] = field(default_factory=dict)


class Quota(Protocol):
    """Who may hold how much, whatever a planner thinks of it: the guard asks before it books."""

    def never(self, spec: JobSpec, gpus: int, total: int, now_s: float) -> Reason | None:
        """Why a job of at least `gpus` GPUs could never run where there are `total`, or None."""
        ...

    def admits(self, spec: JobSpec, gpus: int, use: PlanUse) -> Reason | None:
        """Why a job may not hold `gpus` GPUs beside what others hold by `use`, or None."""
        ...


class Planner(Protocol):
    """Decides who runs where and how large; one call makes one plan."""

    def plan(self, view: View, draft: Draft) -> None:
        """Propose through `draft`; what is not touched stays as it is."""
        ...
