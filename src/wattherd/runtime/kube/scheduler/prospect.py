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

from wattherd.runtime.kube.pods.fleet import Fleet, Mask
from wattherd.runtime.kube.pods.pod_ask import Ask
from wattherd.runtime.kube.scheduler.works import Work

TELL_AGAIN_S = 15.0
"""New numbers of the same reason are written half as often."""


@dataclass(slots=True)
class Prospect:
    """What gangs may hope for on a fleet, and when each was tried in vain."""

    fleet: Fleet
    _asks: dict[str, tuple[tuple[Ask, int], ...]] = field(default_factory=dict)
    _tried_s: dict[str, float] = field(default_factory=dict)

    def forget(self, job_id: str) -> None:
        """A work waits no more."""
        self._asks.pop(job_id, None)
        self._tried_s.pop(job_id, None)

    def tried(self, job_id: str, now_s: float) -> None:
        """It found no place, and why was noted."""
        self._tried_s[job_id] = now_s

    def known_in_vain(self, work: Work, now_s: float, closed: Mask | None) -> bool:
        """Whether a work that was tried lately would be so in vain again."""
        tried_s = self._tried_s.get(work.id)
        lately = tried_s is not None and now_s - tried_s < TELL_AGAIN_S
        return lately and self.lacks_room(work, closed)

    def lacks_room(self, work: Work, closed: Mask | None) -> bool:
        """Whether too little is free for all members, of whom none may go to nodes that are closed.

        Right where it says so; where it does not, they may find no place all the same.
        """
        among = np.ones(len(self.fleet.order), dtype=np.bool_) if closed is None else ~closed
        return any(self.fleet.room_for(ask, among) < count for ask, count in self._kinds(work))

    def _kinds(self, work: Work) -> Iterable[tuple[Ask, int]]:
        """What members ask for, and how many of them do."""
        if work.id not in self._asks:
            asks = {member.ask.key: member.ask for member in work.members}
            count = Counter(member.ask.key for member in work.members)
            self._asks[work.id] = tuple((asks[key], count[key]) for key in asks)
        return self._asks[work.id]
