"""The plan in the making, guarded: no proposal can over-commit a device or split a gang.

The draft books on the *planned* state: what every job will hold once all orders are carried out.
What devices are held at this moment is the core's business; see `engine.core`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.ledger import JobRecord
from wattherd.engine.questions import Questions
from wattherd.engine.state import ClusterState
from wattherd.engine.watts import Watts
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.command import Compute, WakeAt
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.model.request import Request
from wattherd.policy.contract import JobView, Share

WAKE = "plan"
"""Key of the wake-ups that planners ask for."""


class GuardedDraft:
    """Implements `policy.contract.Draft` on the planned cluster state."""

    def __init__(
        self,
        planned: ClusterState,
        jobs: Mapping[str, JobRecord],
        lost: set[int],
        watts: Watts,
        questions: Questions,
        now_s: float,
    ) -> None:
        """`lost` are the indices of nodes that must not be used."""
        self._planned = planned
        self._jobs = jobs
        self._watts = watts
        self._questions = questions
        self._room_mw = watts.room_mw(jobs.values())
        self._lost = lost
        self._now_s = now_s
        self.stops: dict[str, StopReason] = {}
        self.reasons: dict[str, Reason] = {}
        self.orders: list[WakeAt | Compute] = []

    def free_gpus(self) -> NDArray[np.int64]:
        """Wholly free GPUs of each usable node."""
        nodes = self._planned.world.nodes
        free: NDArray[np.int64] = nodes.gpu_count - nodes.active
        free[list(self._lost)] = 0
        return free

    def start(self, job: JobView, shares: Sequence[Share]) -> Reason | None:
        """All shares or none; what the job held in the plan before is given back first."""
        record = self._jobs[job.id]
        before = job.wanted
        for allocation in before:
            self._planned.release(allocation)
        self._spend(record, before, -1)
        booked = self._book(record, shares)
        if isinstance(booked, Reason):
            for allocation in before:
                self._planned.place(allocation)
            self._spend(record, before, 1)
            self.reasons[job.id] = booked
            return booked
        record.wanted = booked
        self._spend(record, booked, 1)
        if before and before != booked:
            self.stops.setdefault(job.id, _why_moved(before, booked))
        return None

    def _spend(self, record: JobRecord, allocations: tuple[Allocation, ...], sign: int) -> None:
        """Take (sign 1) or return the least watts that a job needs on `allocations`."""
        if self._room_mw is not None:
            self._room_mw -= sign * self._watts.needs_mw(record, allocations)

    def _powered(self, record: JobRecord, allocations: tuple[Allocation, ...]) -> Reason | None:
        if self._room_mw is None:
            return None
        need_mw = self._watts.needs_mw(record, allocations)
        if need_mw <= self._room_mw:
            return None
        return self._watts.refusal(need_mw, self._room_mw, self._now_s)

    def over_budget(self) -> bool:
        """Whether the plan needs more watts than there are, every job at its least."""
        return self._room_mw is not None and self._room_mw < 0

    def _book(self, record: JobRecord, shares: Sequence[Share]) -> tuple[Allocation, ...] | Reason:
        spec = record.spec
        mark = self._planned.checkpoint()
        booked: list[Allocation] = []
        refusal = self._gang(spec, shares)
        for share in () if refusal else shares:
            allocation = self._fit(spec, share)
            if isinstance(allocation, Reason):
                refusal = allocation
                break
            self._planned.place(allocation)
            booked.append(allocation)
        refusal = refusal or self._powered(record, tuple(booked))
        if refusal:
            self._planned.rollback(mark)
        self._planned.commit()
        return refusal or tuple(booked)

    def _gang(self, spec: JobSpec, shares: Sequence[Share]) -> Reason | None:
        """All tasks of every role, the first role within its elastic widths."""
        placed = [0] * len(spec.roles)
        for share in shares:
            placed[share.role] += share.tasks
        fixed = all(
            count == role.count for count, role in zip(placed[1:], spec.roles[1:], strict=True)
        )
        if fixed and spec.least_width <= placed[0] <= spec.most_width:
            return None
        return Reason(
            code=ReasonCode.WAITING_FOR_GANG,
            since_s=self._now_s,
            asked=spec.least_width,
            available=placed[0],
            unit="tasks",
        )

    def _fit(self, spec: JobSpec, share: Share) -> Allocation | Reason:
        role, nodes = spec.roles[share.role], self._planned.world.nodes
        request = role_request(role, share.tasks, spec.gpu_models)
        free = nodes.gpu_free[share.node, : nodes.gpu_count[share.node]]
        roomy = np.flatnonzero(free >= request.gpu_milli)
        gpus = tuple(roomy[: request.gpu_count].tolist())
        model = self._planned.cluster.nodes[share.node].gpu_model
        if share.node in self._lost or not request.allows(model):
            return self._refuse(ReasonCode.WAITING_FOR_GPUS, request.gpu_count, 0, "GPUs")
        if len(gpus) < request.gpu_count:
            return self._refuse(ReasonCode.WAITING_FOR_GPUS, request.gpu_count, len(gpus), "GPUs")
        for asked, available, unit in (
            (request.cpu_milli, nodes.cpu_free[share.node], "milli-vCPU"),
            (request.memory_mib, nodes.memory_free[share.node], "MiB"),
        ):
            if asked > available:
                return self._refuse(ReasonCode.FRAGMENTED, asked, int(available), unit)
        return Allocation(request, share.node, gpus)

    def _refuse(self, code: ReasonCode, asked: int, available: int, unit: str) -> Reason:
        return Reason(code=code, since_s=self._now_s, asked=asked, available=available, unit=unit)

    def stop(self, job: JobView, why: StopReason) -> None:
        """Take everything from a job."""
        for allocation in job.wanted:
            self._planned.release(allocation)
        if job.wanted:
            self.stops[job.id] = why
        self._spend(self._jobs[job.id], job.wanted, -1)
        self._jobs[job.id].wanted = ()

    def wait(self, job: JobView, reason: Reason) -> None:
        """Note why a job gets nothing."""
        if job.wanted:
            raise Bug(f"job {job.id} is said to wait for {reason.code} while the plan runs it")
        self.reasons[job.id] = reason

    def wake_at(self, at_s: float) -> None:
        """Ask for a cycle at that time."""
        self.orders.append(WakeAt(at_s=max(at_s, self._now_s), key=WAKE))

    def compute(self, kind: str, payload: Any) -> str:
        """Have slow work done outside; returns the question's key."""
        order = self._questions.ask(kind, payload)
        self.orders.append(order)
        return order.key


def role_request(role: TaskRole, tasks: int, models: tuple[str, ...]) -> Request:
    """What `tasks` tasks of a role need together on one node."""
    gpus = role.gpu_count * tasks
    return Request(
        cpu_milli=role.cpu_milli * tasks,
        memory_mib=role.memory_mib * tasks,
        gpu_count=gpus,
        gpu_milli=role.gpu_milli if gpus else 0,
        models=models if gpus else (),
    )


def _why_moved(before: tuple[Allocation, ...], after: tuple[Allocation, ...]) -> StopReason:
    same_size = sum(len(a.gpus) for a in before) == sum(len(a.gpus) for a in after)
    return StopReason.MIGRATED if same_size else StopReason.RESIZED
