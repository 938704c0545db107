"""Who is stopped for whom: the fewest works that matter less, none that does not help.

Without queues these are works of lower priority, the lowest and newest first; among queues
`QueueTurns` says who may be stopped. Whose going makes room is tried out on the account of the
cluster, which is put back as it was. A work for which others were stopped waits until they are
gone.

So does one that has room as soon as those are gone who are being deleted already, whoever deleted
them: a scheduler that was started anew stops nobody else for it. A pod that does not go in its
grace time and some more is not waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.account.queue_turns import QueueTurns
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.seating import Seating
from wattherd.kube.facts.stopping import WAIT_S
from wattherd.kube.facts.workload import Workload, grace_s
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, JobView, View


@dataclass(slots=True)
class Preemption:
    """Among `works`, by job id; `seating` says whether a work would find places.

    `pods` are as they were seen last: those of a work are as they were when it was made.
    """

    works: Mapping[str, Workload]
    seating: Seating
    pods: Mapping[str, Pod]
    _victims: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of each work that has others stopped: which pods."""
    _priority_of: dict[str, int] = field(default_factory=dict)
    """Of works that have their place, or had it and are not gone yet."""
    _priorities: Counter[int] = field(default_factory=Counter)
    _going_s: dict[str, float] = field(default_factory=dict)
    """Since when a pod was seen to be deleted."""
    _until_s: dict[str, float] = field(default_factory=dict)
    """How long a work waits for those who were being deleted anyway."""

    @property
    def _fleet(self) -> NodeFleet:
        return self.seating.chooser.fleet

    def forget(self, job_id: str) -> None:
        """A work is gone: it waits for nobody, and nobody is stopped for its place."""
        self._victims.pop(job_id, None)
        self._until_s.pop(job_id, None)
        self._falls(job_id)

    def stands(self, job: JobView) -> None:
        """It has its place, and may have to make room for more important ones."""
        self._falls(job.id)
        self._priority_of[job.id] = job.spec.priority
        self._priorities[job.spec.priority] += 1

    def _falls(self, job_id: str) -> None:
        before = self._priority_of.pop(job_id, None)
        if before is not None:
            self._priorities[before] -= 1
            if not self._priorities[before]:
                del self._priorities[before]

    def gives_up(self, now_s: float) -> bool:
        """Whether works are not waited for any more that should have gone by now."""
        late = [job_id for job_id, until_s in self._until_s.items() if now_s > until_s]
        for job_id in late:
            self._victims.pop(job_id, None)
            del self._until_s[job_id]
        return bool(late)

    def is_awaited(self, job_id: str) -> bool:
        """Whether works that make room for this one are not gone yet."""
        mine = self._victims.get(job_id, frozenset())
        there = mine & self._fleet.holdings.keys()
        if mine and not there:
            del self._victims[job_id]
        return bool(there)

    def make_room(self, job: JobView, view: View, draft: Draft, turns: QueueTurns | None) -> int:
        """Have others stopped for a work that then waits for that; how many pods."""
        work = self.works[job.id]
        if any(member.pod.spec.preemption_policy == "Never" for member in work.members):
            return 0
        may_stop = self._may_stop(job, view, turns)
        if not may_stop:
            return 0
        going = self._enough(job, work, self._going(job, view), view.now_s, turns)
        if going:
            uids = frozenset(uid for other in going for uid in self.works[other.id].uids)
            self._victims[job.id] = uids
            self._until_s[job.id] = min(self._late_s(one, view.now_s) for one in going)
            return len(uids)
        taken = self._enough(job, work, may_stop, view.now_s, turns)
        for other in taken:
            lower = other.spec.priority < job.spec.priority
            draft.stop(other, StopReason.PREEMPTED_FOR_PRIORITY if lower else StopReason.RECLAIMED)
        stopped = frozenset(uid for other in taken for uid in self.works[other.id].uids)
        if stopped:
            self._victims[job.id] = stopped
            self._until_s.pop(job.id, None)
        return len(stopped)

    def _may_stop(self, job: JobView, view: View, turns: QueueTurns | None) -> list[JobView]:
        """Who may be stopped for a work, in order."""
        if turns is not None:
            running = [one for one in view.live() if one.wanted and self._ours(one)]
            return turns.may_stop(job, running)
        if min(self._priorities, default=job.spec.priority) >= job.spec.priority:
            return []
        lower = [
            other
            for other in view.live()
            if other.wanted and other.spec.priority < job.spec.priority and self._ours(other)
        ]
        return sorted(lower, key=lambda other: (other.spec.priority, -other.number))

    def _going(self, job: JobView, view: View) -> list[JobView]:
        """Works that are being deleted, in time to be waited for, and for nobody else's sake."""
        now_s, there = view.now_s, dict[str, float]()
        claimed = {uid for name, uids in self._victims.items() if name != job.id for uid in uids}
        found = []
        for other in view.live():
            members = self.works[other.id].members if other.id in self.works else ()
            if not members or not all(self._is_deleted(one.uid) for one in members):
                continue
            since_s = {one.uid: self._going_s.get(one.uid, now_s) for one in members}
            there |= since_s
            if claimed.isdisjoint(since_s):
                found.append(other)
        self._going_s = there
        return [other for other in found if now_s <= self._late_s(other, now_s)]

    def _late_s(self, job: JobView, now_s: float) -> float:
        """From when on a work that is being deleted is not waited for any more."""
        return min(
            self._going_s.get(one.uid, now_s) + grace_s(one.pod) + WAIT_S
            for one in self.works[job.id].members
        )

    def _ours(self, job: JobView) -> bool:
        return not any(self._is_deleted(uid) for uid in self.works[job.id].uids)

    def _is_deleted(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and pod.metadata.deletion_timestamp is not None

    # Tried out on the account ---------------------------------------------------------------------

    def _enough(
        self,
        job: JobView,
        work: Workload,
        lower: list[JobView],
        now_s: float,
        turns: QueueTurns | None,
    ) -> list[JobView]:
        """Of `lower` those whose going makes room, tried out on the account and put back."""

        def helps(without: Iterable[JobView]) -> bool:
            quota = turns is None or turns.refused(job, without) is None
            return quota and self.seating.fits(work, now_s)

        gone: list[tuple[JobView, list[Holding]]] = []
        needed: list[JobView] = []
        fits = False
        for other in lower:
            held = self._held(other)
            self._release(held)
            gone.append((other, held))
            needed.append(other)
            fits = helps(needed)
            if fits:
                break
        if not fits:
            needed.clear()
        for other, held in reversed(gone[:-1] if fits else []):
            # The most important first: who need not go, stays.
            self._restore(held)
            others = [one for one in needed if one is not other]
            if helps(others):
                needed = others
            else:
                self._release(held)
        for _, held in gone:
            self._restore(held)
        return needed

    def _held(self, job: JobView) -> list[Holding]:
        holdings = self._fleet.holdings
        uids = sorted(self.works[job.id].uids)
        return [holdings[uid] for uid in uids if uid in holdings]

    def _release(self, held: Iterable[Holding]) -> None:
        for one in held:
            self._fleet.let_go(one.uid)

    def _restore(self, held: Iterable[Holding]) -> None:
        for one in held:
            self._fleet.hold(one)
