"""Optimus (Peng et al., EuroSys'18): resources go where they shorten training most.

Every job begins with one worker; then, again and again, the job whose remaining time one more
worker shortens most gets it, until no job gains or no GPU is left. This is the form in which the
Pollux artifact (OSDI'21) runs it: with true step times and true remaining iterations, which makes
it an upper bound of what Optimus' own models could reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattherd.estimate.application import Application
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import inside
from wattherd.policy.schedule.node_choice import most_free

GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus:
    """Marginal gain on measured applications; `node_gpus` packs hypothetical placements."""

    applications: Mapping[str, Application]
    node_gpus: int = GPUS_PER_NODE

    def plan(self, view: View, draft: Draft) -> None:
        """Size all jobs anew, then place those whose size changed, small ones first."""
        jobs = view.live()
        widths = self._widths(jobs, view.gpu_total())
        for job in jobs:
            if job.wanted and _gpus(job) != widths[job.id]:
                why = StopReason.RESIZED if widths[job.id] else StopReason.PREEMPTED_FOR_PRIORITY
                draft.stop(job, why)
        for job in sorted(jobs, key=lambda job: widths[job.id]):
            if widths[job.id] == 0:
                draft.wait(job, _waits(job, view.now_s))
            elif not job.wanted:
                _start(job, widths[job.id], view, draft)

    def _widths(self, jobs: Sequence[JobView], gpus: int) -> dict[str, int]:
        widths: dict[str, int] = {}
        gains: dict[str, float] = {}
        named = {job.id: job for job in jobs}
        for job in jobs:
            widths[job.id] = min(1, gpus)
            gpus -= widths[job.id]
            gains[job.id] = self._gain(job, 1) if widths[job.id] else 0.0
        while gpus > 0 and gains:
            best = max(gains, key=gains.__getitem__)
            if gains[best] <= 0:
                break
            widths[best] += 1
            gpus -= 1
            gains[best] = self._gain(named[best], widths[best])
        return widths

    def _gain(self, job: JobView, width: int) -> float:
        """Seconds of training that one more worker would save."""
        if width + 1 > job.spec.most_width:
            return 0.0
        faster = self._step_s(job, width) - self._step_s(job, width + 1)
        return faster * self._remaining(job)

    def _remaining(self, job: JobView) -> float:
        application, epoch = self.applications[job.spec.profile], int(job.progress)
        batch, last = job.spec.batch_size or application.initial_batch, application.last_epoch
        if last <= epoch:
            return 1.0
        return application.iterations(batch, last) - application.iterations(batch, epoch)

    def _step_s(self, job: JobView, width: int) -> float:
        """Time of one iteration at this width, packed on as few nodes as possible."""
        application = self.applications[job.spec.profile]
        full, rest = divmod(width, self.node_gpus)
        placement = (self.node_gpus,) * full + ((rest,) if rest else ())
        batch = job.spec.batch_size or application.initial_batch
        plan = application.batch_plan(batch, width)
        step_s, sync_s = application.step_times(placement, plan.local)
        seconds = step_s + (step_s - sync_s) * plan.accumulation
        return seconds if math.isfinite(seconds) else 0.0


def _start(job: JobView, width: int, view: View, draft: Draft) -> None:
    """Start it at this width, or as near below as the guard allows (watts may be short)."""
    free = inside(draft.free_gpus(), view.eligible(job.spec))
    for narrower in range(width, job.spec.least_width - 1, -1):
        shares = most_free(free, narrower)
        if shares is not None and draft.start(job, shares) is None:
            return


def _gpus(job: JobView) -> int:
    return sum(len(allocation.gpus) for allocation in job.wanted)


def _waits(job: JobView, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_width,
        available=0,
        unit="GPUs",
        unblocks="every running job already has a single worker",
    )
