"""Gangs that cannot start now, found by counting what is free.

To seat a gang of hundreds of pods until one finds no place, and to let all of them go again, costs
as much as there are pods; where large gangs wait, that would be paid for every pod that ends. What
is free bounds how many find a place, whatever the policy does. So a gang whose wait was explained
is not tried again while that bound is too low, but for now and then, for its numbers to be true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.workload import Workload

TELL_AGAIN_S = 15.0
"""New numbers of the same reason are written half as often."""


@dataclass(slots=True)
class GangFeasibility:
    """What gangs may hope for on a fleet, and when each was tried in vain."""

    fleet: NodeFleet
    _asks: dict[str, tuple[tuple[PodRequest, int], ...]] = field(default_factory=dict)
    _tried_s: dict[str, float] = field(default_factory=dict)

    def forget(self, job_id: str) -> None:
        """A work waits no more."""
        self._asks.pop(job_id, None)
        self._tried_s.pop(job_id, None)

    def tried(self, job_id: str, now_s: float) -> None:
        """It found no place, and why was noted."""
        self._tried_s[job_id] = now_s

    def known_in_vain(self, work: Workload, now_s: float, closed: Mask | None) -> bool:
        """Whether a work that was tried lately would be so in vain again."""
        tried_s = self._tried_s.get(work.id)
        lately = tried_s is not None and now_s - tried_s < TELL_AGAIN_S
        return lately and self.lacks_room(work, closed)

    def lacks_room(self, work: Workload, closed: Mask | None) -> bool:
        """Whether too little is free for all members, of whom none may go to nodes that are closed.

        Right where it says so; where it does not, they may find no place all the same.
        """
        among = np.ones(len(self.fleet.order), dtype=np.bool_) if closed is None else ~closed
        return any(self.fleet.room_for(ask, among) < count for ask, count in self._kinds(work))

    def _kinds(self, work: Workload) -> Iterable[tuple[PodRequest, int]]:
        """What members ask for, and how many of them do."""
        if work.id not in self._asks:
            asks = {member.ask.key: member.ask for member in work.members}
            count = Counter(member.ask.key for member in work.members)
            self._asks[work.id] = tuple((asks[key], count[key]) for key in asks)
        return self._asks[work.id]
