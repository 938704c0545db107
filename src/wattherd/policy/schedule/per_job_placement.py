"""Jobs as they come, each placed by a placement policy: the scheduler of a GPU-sharing cluster.

Every job is tried when it comes. One that finds no room waits, and is tried again, in order of
submission, once something was given back; one that has room but is refused (watts, quotas) is tried
again with every plan. Nothing is preempted and nothing reserved: on the published traces (FGD,
ATC'23) this is the whole scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec, Request
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import eligibility_key
from wattherd.policy.place.contract import PlacementDesk

_MEMORY = "placed"


@dataclass(frozen=True, slots=True)
class PerJobPlacement:
    """First come, first tried, on the nodes and GPUs that a placement policy names.

    `desk` makes the policy's own account of an empty cluster; it follows the plan from there on.
    Jobs are pods: one role, one task.
    """

    desk: Callable[[], PlacementDesk]

    def plan(self, view: View, draft: Draft) -> None:
        """Hear who left, then try those who came, or everybody who waits where there is room."""
        counter: _Counter = view.memory.setdefault(_MEMORY, _Counter(self.desk()))
        for job in view.left():
            counter.leave(job)
        for job in view.entered():
            counter.enter(job)
        counter.mark(view)
        counter.serve(view, draft)


@dataclass(slots=True)
class _Counter:
    """Who waits, and what everybody else holds by the desk's account."""

    desk: PlacementDesk
    given: dict[str, Allocation] = field(default_factory=dict)
    waiting: dict[str, JobView] = field(default_factory=dict)
    fresh: list[JobView] = field(default_factory=list)
    refused: dict[str, JobView] = field(default_factory=dict)
    """Those of `waiting` for whom there was room, but not all that the guard asks for."""
    lost: tuple[int, ...] = ()
    drained: tuple[tuple[int, int], ...] = ()
    room: bool = False
    """Whether something was given back since those who wait were tried."""

    def mark(self, view: View) -> None:
        """Close what is lost or drained, and open what is back."""
        usable, drained = view.usable(), tuple(sorted(view.drained()))
        lost = () if usable.all() else tuple((~usable).nonzero()[0].tolist())
        if drained or (lost, drained) != (self.lost, self.drained):
            back = not set(self.lost) <= set(lost) or not set(self.drained) <= set(drained)
            self.room |= back
            self.lost, self.drained = lost, drained
            self.desk.close(lost, drained)

    def leave(self, job: JobView) -> None:
        """Take back what a job had."""
        self.waiting.pop(job.id, None)
        self.refused.pop(job.id, None)
        self._take_back(job.id)

    def enter(self, job: JobView) -> None:
        """A job came, or lost its plan."""
        self._take_back(job.id)
        if not job.wanted:
            self.waiting[job.id] = job
            self.fresh.append(job)

    def _take_back(self, job_id: str) -> None:
        before = self.given.pop(job_id, None)
        if before is not None:
            self.desk.release(before)
            self.room = True

    def serve(self, view: View, draft: Draft) -> None:
        """Try those who came or were refused; where there is room again, all who wait, in order."""
        turn = self.fresh
        if self.room:
            turn = sorted(self.waiting.values(), key=_number)
        elif self.refused:
            turn = sorted((self.refused | {job.id: job for job in turn}).values(), key=_number)
        self.room, self.fresh = False, []
        hopeless: dict[_Alike, Reason] = {}
        for job in turn:
            alike = _alike(job.spec, view) if job.id in self.refused else None
            if alike is not None and alike in hopeless:
                draft.wait(job, hopeless[alike])
                continue
            refusal = self._try(job, view, draft)
            if refusal is not None and alike is not None:
                hopeless[alike] = refusal

    def _try(self, job: JobView, view: View, draft: Draft) -> Reason | None:
        """Start a job; or say that it waits, and why if it is refused for all its room."""
        request = pod_request(job.spec)
        allocation = self.desk.place_one(request, view.eligible(job.spec))
        if allocation is None:
            draft.wait(job, _no_room(request, view, draft))
            self.refused.pop(job.id, None)
            return None
        share = Share(allocation.node, 1, gpus=allocation.gpus)
        refusal = draft.start(job, [share])
        if refusal is None:
            self.given[job.id] = allocation
            del self.waiting[job.id]
            self.refused.pop(job.id, None)
        else:
            self.desk.release(allocation)
            self.refused[job.id] = job
        return refusal


_Alike = tuple[object, ...]


def _alike(spec: JobSpec, view: View) -> _Alike | None:
    """Equal for jobs that the guard refuses for the same reason; None: for one of its own."""
    if spec.energy_budget_j is not None:
        return None
    of_whom = (spec.queue, spec.tenant, spec.user)
    draws = spec.profile, spec.power_profile
    return (pod_request(spec), *of_whom, *draws, *eligibility_key(view, spec))


def _number(job: JobView) -> int:
    return job.number


def pod_request(spec: JobSpec) -> Request:
    """What a job of a single task asks for."""
    role = spec.roles[0]
    return Request(
        cpu_milli=role.cpu_milli,
        memory_mib=role.memory_mib,
        gpu_count=role.gpu_count,
        gpu_milli=role.gpu_milli if role.gpu_count else 0,
        models=spec.gpu_models if role.gpu_count else (),
    )


def _no_room(request: Request, view: View, draft: Draft) -> Reason:
    free = draft.free_gpu_total()
    fragmented = free >= request.gpu_count and request.gpu_count > 0
    return Reason(
        code=ReasonCode.FRAGMENTED if fragmented else ReasonCode.WAITING_FOR_GPUS,
        since_s=view.now_s,
        asked=request.gpu_count,
        available=free,
        unit="GPUs",
        unblocks="a node with enough of everything it asks for",
    )
