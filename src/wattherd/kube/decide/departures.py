"""Pods that are being deleted, whoever deleted them: their places are on their way, for a while.

The core hears of such a run as of one that was stopped: what it holds can be planned for others,
who start when it is gone, and nobody else is stopped for them. A pod that does not go in its grace
time and some more is not waited for: it runs on as somebody's whom nobody can move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.lifecycle import State
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.stopping import WAIT_S
from wattherd.kube.facts.workload import grace_s
from wattherd.model.event import Event, JobHeld


@dataclass(slots=True)
class Departures:
    """Of `pods`, by uid."""

    pods: Mapping[str, Pod]
    _since_s: dict[str, float] = field(default_factory=dict)
    """Since when each pod was seen to be deleted."""
    _told: set[str] = field(default_factory=set)
    """Pods of which the core heard."""
    _late: set[str] = field(default_factory=set)
    """Pods that are not waited for any more."""

    def forget_told(self) -> None:
        """Another core has heard nothing."""
        self._told.clear()

    def saw(self, pod: Pod, at_s: float) -> None:
        """A pod is there, and so."""
        if pod.metadata.deletion_timestamp is not None:
            self._since_s.setdefault(pod.metadata.uid, at_s)

    def gone(self, uid: str) -> None:
        """It is there no more."""
        self._since_s.pop(uid, None)
        self._told.discard(uid)
        self._late.discard(uid)

    def goes(self, uid: str) -> bool:
        """Whether it is being deleted, in time."""
        return uid in self._since_s and uid not in self._late

    def are_late(self, at_s: float) -> bool:
        """Whether a pod that the core takes for stopped should have been gone by now."""
        return any(self._is_late(uid, at_s) for uid in self._told - self._late)

    def _is_late(self, uid: str, at_s: float) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and at_s > self._since_s[uid] + grace_s(pod) + WAIT_S

    def events(self, core: Core, book: WorkloadIndex, at_s: float) -> list[Event]:
        """Runs of which all pods are being deleted, and that the core takes for running."""
        events = list[Event]()
        for uid in sorted(self._told - self._late):
            if self._is_late(uid, at_s):
                work = book.of(uid)
                self._late |= {uid} if work is None else work.uids
                events += [] if work is None else book.stays(work, core, at_s)
        for uid in sorted(self._since_s.keys() - self._told - self._late):
            work = book.of(uid)
            job = None if work is None else core.jobs.get(work.id)
            if (
                work is None
                or job is None
                or not work.seated
                or not work.uids <= self._since_s.keys()
            ):
                continue
            if job.state in (State.RUNNING, State.STARTING):
                self._told |= work.uids
                events.append(JobHeld(at_s=at_s, job_id=work.id, cause="its pods are deleted"))
        return events
