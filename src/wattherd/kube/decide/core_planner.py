"""Any scheduler of the core, planning pods.

Between a planner of `policy.schedule` and the core stands what only Kubernetes knows. Pods on nodes
are facts: their jobs are seated before the planner is asked, and it finds them running. Pods that
others bound, and pods that are on their way out, hold devices and are nobody's to move: the planner
does not see them. Nor does one that stops jobs for a better plan see those that run and that
nothing makes anew: they would not be moved by it, but lost. On which nodes a pod may run at all
(taints, affinity, selectors, volumes, ports, cordons, fencing) is told as masks
(`policy.eligibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.learned_noise import StepWorth
from wattherd.estimate.learned_restarts import RestartTime
from wattherd.estimate.learned_services import PastServices
from wattherd.estimate.learned_steps import StepsLeft
from wattherd.kube.account.fleet import Mask
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.decide.seating import Seating
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.workload import Workload, WorkloadPod, queue_of
from wattherd.model.cluster import NodeSpec
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, JobView, Planner, View
from wattherd.policy.eligibility import NodeMask


@dataclass(slots=True)
class WorkloadEligibility:
    """Implements `policy.eligibility.Eligibility` for `works`, the jobs by id.

    `open_to` are the nodes (N,) that take a member. Masks are of the moment, and kept for one plan:
    between plans nothing is bound to any node, so that no job is turned away for good because of a
    taint that may go.
    """

    works: Mapping[str, Workload]
    open_to: Callable[[WorkloadPod], Mask]
    of_gang: Callable[[Workload], Sequence[NodeMask | None]] = lambda _: ()
    """Masks for each member of a gang whose places depend on each other; else none."""
    kind_of: Callable[[Pod], bytes | None] = lambda _: None
    """Equal for pods that suit the same nodes; None of one for which that depends on others."""
    planning: bool = False
    _known: dict[tuple[str, int], NodeMask | None] = field(default_factory=dict)
    _by_kind: dict[object, Mask] = field(default_factory=dict)

    def begin(self) -> None:
        """A plan is being made."""
        self.planning = True
        self._known.clear()
        self._by_kind.clear()

    def end(self) -> None:
        """It is made."""
        self.planning = False
        self._known.clear()
        self._by_kind.clear()

    def nodes(self, spec: JobSpec, role: int) -> NodeMask | None:
        """Nodes (N,) on which tasks of role number `role` may run; None: on all of them."""
        if not self.planning:
            return None
        key = spec.id, role
        if key not in self._known:
            self._known[key] = self._found(spec, role)
        return self._known[key]

    def _found(self, spec: JobSpec, role: int) -> NodeMask | None:
        work = self.works.get(spec.id)
        if work is None:
            return None
        at, masks = 0, self.of_gang(work)
        for number, one in enumerate(work.spec.roles if masks else ()):
            self._known[spec.id, number] = _with_own(masks[at], work, number)
            at += one.count
        if masks:
            return self._known[spec.id, role]
        member = work.members[sum(one.count for one in spec.roles[:role])]
        mask = self._open_to(member)
        return None if mask.all() else _with_own(mask, work, role)

    def _open_to(self, member: WorkloadPod) -> Mask:
        suits = self.kind_of(member.pod)
        if suits is None:
            return self.open_to(member)
        kind = suits, member.ask.key, queue_of(member.pod)
        if kind not in self._by_kind:
            self._by_kind[kind] = self.open_to(member)
        return self._by_kind[kind]


def _with_own(mask: NodeMask | None, work: Workload, role: int) -> NodeMask | None:
    """Where pods are they may stay, whatever became of the node."""
    own = [one.node for one in work.shares if one.role == role] if work.seated else []
    if mask is not None and not mask[own].all():
        mask = mask.copy()
        mask[own] = True
    return mask


@dataclass(slots=True)
class CorePlanner:
    """`scheduler` plans those of `works` that are ours; `is_ours` says of a work whether it is."""

    scheduler: Planner
    works: Mapping[str, Workload]
    is_ours: Callable[[Workload], bool]
    eligible: WorkloadEligibility
    diagnosis: Diagnosis
    allowed: Callable[[WorkloadPod], Mask]
    seating: Seating | None = None
    """Where it finds places on an account of ours, that account."""
    stays: Callable[[str], bool] = lambda _: False
    """Whether a job, by its id, is nobody's to move once it runs."""
    changed: bool = True
    """Whether anything happened that may have made room; whoever knows sets it."""
    only_seats: bool = False
    """Whether nobody is to be planned yet but who is on a node."""
    unseated: dict[str, JobView] = field(default_factory=dict)
    """Works whose pods are on nodes, for which the guard finds too little."""
    _aside: dict[str, JobView] = field(default_factory=dict)
    """Works that hold devices and are nobody's to move."""
    _may_settle: dict[str, JobView] = field(default_factory=dict)
    """Works that the scheduler may start, and then not stop again."""
    _lost: dict[str, JobView] = field(default_factory=dict)
    """Those whose planned places turned out to be taken, or that the scheduler has not seen."""
    _shown: dict[str, None] = field(default_factory=dict)
    """Jobs that the scheduler knows of."""

    def plan(self, view: View, draft: Draft) -> None:
        """Seat those who are on nodes, then let the scheduler plan."""
        self.changed = False
        if self.seating is not None:
            self.seating.planned.renew()
        for known in (self.unseated, self._aside, self._may_settle):
            for job_id in [one for one in known if one not in self.works]:
                del known[job_id]
        for job in view.left():
            for known in (self.unseated, self._aside, self._may_settle):
                known.pop(job.id, None)
            self._follow(job)
        entered = [job for job in view.entered() if self._is_for_scheduler(job)]
        for job in view.entered():
            self._follow(job)
        entered += self._sit_down(view, draft)
        entered += [job for job in self._lost.values() if job not in entered]
        self._lost.clear()
        if self.only_seats:
            self._lost.update((job.id, job) for job in entered)
            return
        left = [*(job for job in view.left() if job.id in self._shown), *self._settled()]
        for job in left:
            self._shown.pop(job.id, None)
        self._shown.update(dict.fromkeys(job.id for job in entered))
        self._may_settle.update((job.id, job) for job in entered if self.stays(job.id))
        self.eligible.begin()
        hidden = self.unseated | self._aside
        seen: View = view if not hidden and len(entered) == len(view.entered()) else _PodView(
            view, hidden, tuple(entered), tuple(left)
        )  # fmt: skip
        try:
            self.scheduler.plan(seen, draft)
        finally:
            self.eligible.end()

    def _settled(self) -> list[JobView]:
        """Those that the scheduler has started and is not to stop: it sees no more of them."""
        settled = [job for job in self._may_settle.values() if job.active]
        for job in settled:
            del self._may_settle[job.id]
            self._aside[job.id] = job
        return settled

    def _is_for_scheduler(self, job: JobView) -> bool:
        """Whether a job that came waits, or runs as planned; others are seated first.

        One that holds devices is known to the core, which counts its watts. If it was told to stop,
        and set aside meanwhile for a budget that it would never fit, it comes back here when that
        budget rises: to seat it would count its watts twice, and stop others for them.
        """
        work = self.works.get(job.id)
        if job.id in self._aside and (job.wanted or job.active or not self.stays(job.id)):
            return False  # all jobs are told of anew
        self._aside.pop(job.id, None)  # it was started, and never bound
        if work is None or not work.seated or job.wanted or job.active:
            return True
        if job.id in self._shown:  # it lost its plan, to a budget for instance
            return True
        self.unseated[job.id] = job
        return False

    def _sit_down(self, view: View, draft: Draft) -> list[JobView]:
        """Pods on nodes are facts; the guard may not find room for all. Those that are ours."""
        ours, there = [], {job_id: self.works[job_id] for job_id in self.unseated}
        for job in sorted(self.unseated.values(), key=_most_important_first):
            work = self.works[job.id]
            refused = draft.start(job, work.shares)
            if refused is not None and self._take_back(view, draft, work):
                refused = draft.start(job, work.shares)
            if refused is not None:
                draft.wait(job, replace(refused, since_s=view.now_s))
                continue
            del self.unseated[job.id]
            if self.is_ours(work) and not self.stays(job.id):
                ours.append(job)
            else:
                self._aside[job.id] = job
        if self.seating is not None:
            self.seating.planned.stay(there)
        return ours

    def _take_back(self, view: View, draft: Draft, work: Workload) -> bool:
        """Places that were planned where pods are, facts as they are; whether there were any."""
        nodes = {share.node for share in work.shares}
        planned = [
            job
            for job in view.live()
            if job.wanted and (job.id not in self.works or not self.works[job.id].seated)
            if any(one.node in nodes for one in job.wanted)
        ]
        for job in planned:
            draft.stop(job, StopReason.RESIZED)
            self._follow(job)
            self._lost[job.id] = job
        return bool(planned)

    def _follow(self, job: JobView) -> None:
        if self.seating is not None:
            self.seating.follow(job)

    def finding(self, member: WorkloadPod, job_id: str) -> PodFinding | None:
        """Why a pod that waits finds no place, if that is so; else it is for the core to say."""
        found = None if self.seating is None else self.seating.findings.get(job_id)
        if found is not None or self.allowed(member).any():
            return found
        return self.diagnosis.of(member)


def _most_important_first(job: JobView) -> tuple[int, int]:
    return -job.spec.priority, job.number


@dataclass(frozen=True, slots=True)
class _PodView:
    """A view without the jobs that are nobody's to move, nor what they hold."""

    view: View
    hidden: Mapping[str, JobView]
    came: Sequence[JobView]
    went: Sequence[JobView]

    @property
    def now_s(self) -> float:
        return self.view.now_s

    @property
    def memory(self) -> dict[str, Any]:
        return self.view.memory

    def live(self) -> Sequence[JobView]:
        return [job for job in self.view.live() if job.id not in self.hidden]

    def entered(self) -> Sequence[JobView]:
        return self.came

    def left(self) -> Sequence[JobView]:
        return self.went

    def replanned(self) -> Sequence[JobView]:
        return [job for job in self.view.replanned() if job.id not in self.hidden]

    def gpus_per_node(self) -> NDArray[np.int64]:
        gpus = self.view.gpus_per_node()
        for node, _ in self._taken() - {*self.view.drained()}:
            gpus[node] = max(0, gpus[node] - 1)
        return gpus

    def _taken(self) -> set[tuple[int, int]]:
        return {
            (one.node, gpu)
            for job in self.hidden.values()
            for one in job.wanted
            for gpu in one.gpus
        }

    def gpu_total(self) -> int:
        return int(self.gpus_per_node().sum())

    def usable(self) -> NDArray[np.bool_]:
        return self.view.usable()

    def drained(self) -> Collection[tuple[int, int]]:
        return {*self.view.drained(), *self._taken()}

    def nodes(self) -> Sequence[NodeSpec]:
        return self.view.nodes()

    def eligible(self, spec: JobSpec, role: int = 0) -> NodeMask | None:
        return self.view.eligible(spec, role)

    @property
    def rates(self) -> JobRates:
        return self.view.rates

    def steps_left(self, job: JobView) -> StepsLeft | None:
        return self.view.steps_left(job)

    def restart_time(self, job: JobView) -> RestartTime:
        return self.view.restart_time(job)

    def step_worth(self, job: JobView, gpus: int) -> StepWorth:
        """What a step of a job is worth on so many GPUs."""
        return self.view.step_worth(job, gpus)

    def past_services(self) -> PastServices:
        return self.view.past_services()

    @property
    def stopped(self) -> Mapping[str, float]:
        return self.view.stopped

    @property
    def woke(self) -> bool:
        return self.view.woke

    def computed(self, kind: str) -> Computed | None:
        return self.view.computed(kind)
