"""Jobs with short names first: who waits longest for a name, waits longest."""

from __future__ import annotations

from wattherd.estimate.speed import asked_shape
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gang_placement import GangRoom


class ShortNamesFirst:
    """Whole gangs, the shortest id first; who does not fit lets others pass."""

    def plan(self, view: View, draft: Draft) -> None:
        """Start whoever waits and fits."""
        room = GangRoom.of(draft)
        for job in sorted(view.live(), key=lambda job: (len(job.id), job.spec.submit_s, job.id)):
            if job.wanted:
                continue
            shape = asked_shape(job.spec)
            shares = room.place(shape, role_masks(view, job.spec))
            if shares is None or draft.start(job, shares) is not None:
                reason = Reason(
                    code=ReasonCode.WAITING_FOR_GPUS,
                    since_s=view.now_s,
                    asked=shape.gpus,
                    available=sum(room.gpus),
                    unit="GPUs",
                    unblocks="devices that others give back",
                )
                draft.wait(job, reason)


def make(given: SchedulerContext) -> ShortNamesFirst:
    """Shortest id first; who does not fit lets others pass."""
    del given
    return ShortNamesFirst()
