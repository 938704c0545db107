"""Who is stopped for whom: the fewest works that matter less, none that does not help.

Without queues these are works of lower priority, the lowest and newest first; among queues `Turns`
says who may be stopped. Whose going makes room is tried out on the account of the cluster, which is
put back as it was. A work for which others were stopped waits until they are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.runtime.kube.pods.fleet import Fleet, Holding
from wattherd.runtime.kube.queues.turns import Turns
from wattherd.runtime.kube.scheduler.seating import Seating
from wattherd.runtime.kube.scheduler.works import Work


@dataclass(slots=True)
class Preemption:
    """Among `works`, by job id; `seating` says whether a work would find places."""

    works: Mapping[str, Work]
    seating: Seating
    _victims: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of each work that has others stopped: which pods."""
    _priority_of: dict[str, int] = field(default_factory=dict)
    """Of works that have their place, or had it and are not gone yet."""
    _priorities: Counter[int] = field(default_factory=Counter)

    @property
    def _fleet(self) -> Fleet:
        return self.seating.chooser.fleet

    def forget(self, job_id: str) -> None:
        """A work is gone: it waits for nobody, and nobody is stopped for its place."""
        self._victims.pop(job_id, None)
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

    def is_awaited(self, job_id: str) -> bool:
        """Whether works that were stopped for this one are not gone yet."""
        mine = self._victims.get(job_id, frozenset())
        there = mine & self._fleet.holdings.keys()
        if mine and not there:
            del self._victims[job_id]
        return bool(there)

    def make_room(self, job: JobView, view: View, draft: Draft, turns: Turns | None) -> int:
        """Have others stopped for a work that then waits for that; how many pods."""
        work = self.works[job.id]
        if any(member.pod.spec.preemption_policy == "Never" for member in work.members):
            return 0
        taken = self._enough(job, work, self._may_stop(job, view, turns), view.now_s, turns)
        for other in taken:
            lower = other.spec.priority < job.spec.priority
            draft.stop(other, StopReason.PREEMPTED_FOR_PRIORITY if lower else StopReason.RECLAIMED)
        stopped = frozenset(uid for other in taken for uid in self.works[other.id].uids)
        if stopped:
            self._victims[job.id] = stopped
        return len(stopped)

    def _may_stop(self, job: JobView, view: View, turns: Turns | None) -> list[JobView]:
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

    def _ours(self, job: JobView) -> bool:
        return all(member.pod.metadata.deletion_timestamp is None
                   for member in self.works[job.id].members)  # fmt: skip

    # Tried out on the account ---------------------------------------------------------------------

    def _enough(
        self, job: JobView, work: Work, lower: list[JobView], now_s: float, turns: Turns | None
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
