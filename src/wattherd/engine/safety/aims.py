"""The slow loop: caps of most training progress, as wishes to the safety loop.

Every 10 to 60 s, and when a limit changes, a power policy shares the limits out by jobs' curves.
The safety loop stays the authority: it serves wishes first and whatever is left after them, within
what it counts as safe at that moment. All devices of a job get one cap, since the slowest rank of a
synchronous job sets the speed of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, Ints
from wattherd.errors import UserError
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.in_tree import SharesInTree
from wattherd.policy.power.limits import DomainRoom

EVERY_S = 30.0
NO_JOB = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CapWishes:
    """What a scheduler wants of every device (N,) in one cycle, in watts.

    `aim_w` are the caps that its jobs are best served with, the first that are given; no cap is
    above `most_w`, whatever the limits leave. `idle` devices have no job: they count at what their
    meters show and keep `most_w`, so whoever starts a job there says so, and waits for its cap.
    """

    aim_w: Floats
    most_w: Floats
    idle: Bools


class Aims:
    """Wishes for a fleet whose device i works for job `job[i]` (NO_JOB: for none, it gets no wish).

    Raises:
        UserError: a job's number of devices is not how many work for it.
    """

    def __init__(
        self, fleet: Fleet, asks: Sequence[PowerAsk], job: Ints, policy: SharesInTree,
        *, every_s: float = EVERY_S,
    ) -> None:  # fmt: skip
        """Nothing has been shared out yet."""
        self._fleet, self._asks, self._job, self._policy = fleet, asks, job, policy
        self._every_s = every_s
        self._limits = _limits(fleet, asks, job)
        self._made_at_s = -np.inf
        self._for_w: Floats = np.full(fleet.feeds + 1, np.nan)
        self._cap_w: Floats = fleet.max_w.copy()

    def caps(self, now_s: float, budget_w: Floats) -> Floats:
        """A cap to wish for each device (N,), for budgets (F + 1,) of all levels."""
        # A limit that moved is shared out at once: wishes made for the old one may be for watts
        # that are gone.
        due = now_s - self._made_at_s >= self._every_s
        if due or not np.array_equal(budget_w, self._for_w):
            self._cap_w = self._shared(budget_w)
            self._made_at_s, self._for_w = now_s, budget_w.copy()
        return self._cap_w

    # Devices without a job are kept at their floor in the sum: somebody may start there before the
    # next sharing.
    def _shared(self, budget_w: Floats) -> Floats:
        fleet, idle = self._fleet, self._job == NO_JOB
        room_w = budget_w - fleet.levels(np.where(idle, fleet.floor_w, 0.0))
        floor_w = np.array([ask.curve.floor_w * ask.devices for ask in self._asks])
        limits = self._limits.with_room(room_w)
        # Where even the floors do not fit a policy has nothing to share. Floors are wished for, and
        # what has to give way is the loop's to find.
        if not self._asks or (limits.load_w(floor_w) > room_w).any():
            return fleet.floor_w.copy()
        # NO_JOB is the index of this last entry, which nobody's cap is made of.
        caps = np.append(self._policy.share_in(self._asks, limits), 0.0)
        wished_w = np.where(idle, fleet.floor_w, caps[self._job])
        return np.asarray(np.clip(wished_w, fleet.floor_w, fleet.max_w))


def _limits(fleet: Fleet, asks: Sequence[PowerAsk], job: Ints) -> DomainRoom:
    """What a watt of each job takes from every level that it has devices below."""
    share = np.zeros((len(asks), fleet.feeds + 1))
    for number, ask in enumerate(asks):
        own = job == number
        if int(own.sum()) != ask.devices:
            raise UserError(
                f"{int(own.sum())} devices work for it, not {ask.devices}",
                where=f"job {ask.job_id}",
                field="devices",
            )
        # All devices of a job have one cap, so that of its watts a level has the share that it has
        # of them.
        share[number] = fleet.levels(own.astype(np.float64)) / ask.devices
    levels = np.arange(fleet.feeds + 1)
    names = tuple(f"level {number}" for number in range(fleet.feeds + 1))
    path = np.where(share > 0, levels, -1)
    return DomainRoom(np.zeros(fleet.feeds + 1), path, np.where(share > 0, share, 1.0), names)
