"""Tiresias (2D-LAS, see `tiresias`) for jobs of several roles, counting GPUs and cores.

Jobs run in the shape that was asked for. The queue follows from the GPU time a job has held; within
a queue the order is that of submission. One that does not fit is passed over. Plans are made when
jobs come and go and when a running job passes a threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.estimate.speed import asked_shape
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.resize import ShapeDevices, cost_of
from wattherd.policy.schedule.tiresias import POLLUX_THRESHOLD_GPU_S

_LATER_S = 1e-3
"""Past the threshold, so that rounding does not bring the same moment about again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiresiasGang:
    """Thresholds in GPU seconds, ascending."""

    thresholds_gpu_s: tuple[float, ...] = (POLLUX_THRESHOLD_GPU_S,)

    def plan(self, view: View, draft: Draft) -> None:
        """Admit by queue and submission; stop who is not admitted, then place."""
        now_s = view.now_s
        order = sorted(view.live(), key=lambda job: (self._queue(job, now_s), job.number))
        admitted = self._admit(order, _whole(view), draft)
        room = GangRoom.of(draft)
        for job in order:
            if job.wanted:
                continue
            shape = asked_shape(job.spec)
            shares = room.place(shape, role_masks(view, job.spec)) if job.id in admitted else None
            if shares is None or draft.start(job, shares) is not None:
                draft.wait(job, _waits(shape.gpus, sum(room.gpus), now_s))
        crossings = [at_s for job in order if (at_s := self._crosses_s(job, now_s)) is not None]
        if crossings:
            draft.wake_at(min(crossings))

    def _queue(self, job: JobView, now_s: float) -> int:
        served = job.service_gpu_s(now_s)
        return sum(served >= threshold for threshold in self.thresholds_gpu_s)

    def _crosses_s(self, job: JobView, now_s: float) -> float | None:
        """When a running job falls to the next queue."""
        gpus = sum(len(allocation.gpus) for allocation in job.wanted)
        queue = self._queue(job, now_s)
        if not gpus or queue == len(self.thresholds_gpu_s):
            return None
        left = self.thresholds_gpu_s[queue] - job.service_gpu_s(now_s)
        return now_s + left / gpus + _LATER_S

    def _admit(self, order: Sequence[JobView], free: ShapeDevices, draft: Draft) -> set[str]:
        admitted: set[str] = set()
        for job in order:
            cost = cost_of(asked_shape(job.spec))
            if cost.within(free):
                free = free - cost
                admitted.add(job.id)
            elif job.wanted:
                draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
        return admitted


def _whole(view: View) -> ShapeDevices:
    cores = sum(node.cpu_milli for node in view.nodes()) / 1000
    return ShapeDevices(view.gpu_total(), cores)


def _waits(asked: int, available: int, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=asked,
        available=available,
        unit="GPUs",
        unblocks="jobs with less attained service come first",
    )
