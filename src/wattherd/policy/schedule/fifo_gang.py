"""First in, first out, as plain clusters run jobs: whole gangs, as asked for, never stopped."""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.estimate.speed import asked_shape
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gang_placement import GangRoom


@dataclass(frozen=True, slots=True)
class FifoGang:
    """The first job that does not fit holds up all behind it."""

    def plan(self, view: View, draft: Draft) -> None:
        """Start waiting jobs in order of submission."""
        room = GangRoom.of(draft)
        blocked = False
        for job in view.live():
            if job.wanted:
                continue
            shape = asked_shape(job.spec)
            shares = None if blocked else room.place(shape, role_masks(view, job.spec))
            blocked = shares is None or draft.start(job, shares) is not None
            if blocked:
                draft.wait(
                    job,
                    Reason(
                        code=ReasonCode.WAITING_FOR_GPUS,
                        since_s=view.now_s,
                        asked=shape.gpus,
                        available=sum(room.gpus),
                        unit="GPUs",
                        unblocks="jobs that came first",
                    ),
                )
