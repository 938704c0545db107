"""EASY backfill: the first job that waits gets a reservation, others may pass if they respect it.

The reservation is for the earliest time at which the job fits if nothing new starts and all
running jobs end when expected. What passes must be through by then, or keep off the devices that
are reserved (Feitelson and Weil, IPPS'98; Lifka's EASY).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.schedule.node_choice import Place
from wattherd.policy.schedule.priorities import JobStanding
from wattherd.policy.schedule.shares import whole_tasks


@dataclass(slots=True)
class Reservation:
    """From `at_s` on, others may use `spare` GPUs of each node."""

    at_s: float
    spare: NDArray[np.int64]

    def ends_before(self, standing: JobStanding, now_s: float) -> bool:
        """Whether a job that starts now is through in time."""
        return now_s + standing.pause_s + standing.left_s <= self.at_s

    def take(self, standing: JobStanding, shares: Sequence[Share]) -> bool:
        """Let a job stay on `shares` past the time, if they are spare then."""
        roles = standing.job.spec.roles
        needs = [(share.node, share.tasks * roles[share.role].gpu_count) for share in shares]
        if any(self.spare[node] < gpus for node, gpus in needs):
            return False
        for node, gpus in needs:
            self.spare[node] -= gpus
        return True


def reserve(
    standing: JobStanding, view: View, draft: Draft, running: Iterable[JobStanding], place: Place
) -> Reservation:
    """The reservation for a job that does not fit beside those who are `running`.

    A job that would not fit even then (another resource than its first role's is short) reserves
    nothing: everybody may pass it.
    """
    now_s, role = view.now_s, standing.job.spec.roles[0]
    gpus, free, room = view.gpus_per_node(), draft.free_gpus(), draft.room(standing.job)
    whole, each = whole_tasks(role, gpus, room), max(role.gpu_count, 1)
    for end_s, one in _ends(running, now_s):
        for allocation in one.job.wanted:
            free[allocation.node] += len(allocation.gpus)
            room[allocation.node] += len(allocation.gpus) // each
        shares = place(room, whole, role.count)
        if shares is not None:
            for share in shares:
                free[share.node] -= share.tasks * role.gpu_count
            return Reservation(end_s, free)
    return Reservation(math.inf, gpus.copy())


def _ends(running: Iterable[JobStanding], now_s: float) -> list[tuple[float, JobStanding]]:
    """Jobs by expected end; some may only start now."""
    ends = [(_works_s(one, now_s) + one.remaining_s(now_s), one) for one in running]
    return sorted(ends, key=lambda end: (end[0], end[1].job.number))


def _works_s(standing: JobStanding, now_s: float) -> float:
    """From when on it works, now or later."""
    return max(now_s, standing.works_from_s) if standing.running else now_s + standing.pause_s
