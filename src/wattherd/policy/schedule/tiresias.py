"""Tiresias (Gu et al., NSDI'19): least attained service, discretised into queues.

A job's attained service is GPUs x time held. Jobs begin in the first queue and fall to the next
when their service passes its threshold; within a queue the order is that of arrival there. Jobs
are admitted in that order while GPUs last; one that does not fit is passed over. A job that has
waited `promote` times as long as it has run returns to the first queue (0: never).

The default is the setting of the Pollux artifact: one threshold at 16 GPU hours, service counted
at the width the user asked for, whole seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import inside
from wattherd.policy.schedule.node_choice import most_free

POLLUX_THRESHOLD_GPU_S = 57_600.0


@dataclass(slots=True)
class _Standing:
    """What Tiresias remembers of a job."""

    queue: int = 0
    since: int = 0
    executed_s: float = 0.0
    waited_s: float = 0.0
    checked_s: float = 0.0
    running: bool = False


@dataclass(slots=True)
class _Memory:
    standings: dict[str, _Standing] = field(default_factory=dict)
    arrivals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """2D-LAS with thresholds in GPU seconds, ascending."""

    rigid: ClassVar[bool] = True
    """Runs jobs at the width they were submitted with, never narrower."""
    thresholds_gpu_s: tuple[float, ...] = (POLLUX_THRESHOLD_GPU_S,)
    promote: float = 0.0

    def plan(self, view: View, draft: Draft) -> None:
        """Admit by queue and arrival; start what is admitted, stop what is not."""
        memory = view.memory.setdefault("tiresias", _Memory())
        jobs = {job.id: job for job in view.live()}
        for gone in [name for name in memory.standings if name not in jobs]:
            del memory.standings[gone]
        for job in jobs.values():
            self._update(memory, job, view.now_s)
        order = sorted(jobs.values(), key=lambda job: _key(memory.standings[job.id]))
        total = view.gpu_total()
        admitted = self._admit(order, memory, total, draft, view.now_s)
        refused = [job for job in admitted if not job.wanted and not _start(job, view, draft)]
        if refused:
            self._fill(view, order, refused, memory, draft)

    def _fill(
        self,
        view: View,
        order: Sequence[JobView],
        refused: Sequence[JobView],
        memory: _Memory,
        draft: Draft,
    ) -> None:
        """Give others what those admitted first did not get (for lack of watts)."""
        out = {job.id for job in refused}
        for job in order:
            tried = job.id in out or job.wanted
            memory.standings[job.id].running = bool(job.wanted) or (
                not tried and _start(job, view, draft)
            )

    def _update(self, memory: _Memory, job: JobView, now_s: float) -> None:
        standing = memory.standings.get(job.id)
        if standing is None:
            standing = memory.standings[job.id] = _Standing(checked_s=now_s)
            self._move(memory, standing, 0)
        passed, standing.checked_s = now_s - standing.checked_s, now_s
        if standing.running:
            standing.executed_s += passed
            served = standing.executed_s * job.spec.gpus
            queue = sum(served >= threshold for threshold in self.thresholds_gpu_s)
            if queue > standing.queue:
                self._move(memory, standing, queue)
        elif standing.executed_s > 0:
            standing.waited_s += passed
            starved = standing.waited_s >= standing.executed_s * self.promote
            if self.promote > 0 and standing.queue > 0 and starved:
                standing.executed_s = standing.waited_s = 0.0
                self._move(memory, standing, 0)

    def _move(self, memory: _Memory, standing: _Standing, queue: int) -> None:
        standing.queue, standing.since = queue, memory.arrivals
        memory.arrivals += 1

    def _admit(
        self,
        order: Sequence[JobView],
        memory: _Memory,
        gpus: int,
        draft: Draft,
        now_s: float,
    ) -> list[JobView]:
        admitted = []
        for job in order:
            running = job.spec.gpus <= gpus
            memory.standings[job.id].running = running
            if running:
                gpus -= job.spec.gpus
                admitted.append(job)
                continue
            draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)
            draft.wait(job, _waits(job, gpus, now_s))
        return admitted


def _start(job: JobView, view: View, draft: Draft) -> bool:
    free = inside(draft.free_gpus(job.spec.gpus), view.eligible(job.spec))
    shares = most_free(free, job.spec.gpus)
    return shares is not None and draft.start(job, shares) is None


def _key(standing: _Standing) -> tuple[int, int]:
    return standing.queue, standing.since


def _waits(job: JobView, available: int, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.gpus,
        available=available,
        unit="GPUs",
        unblocks="jobs with less attained service come first",
    )
