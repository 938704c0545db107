"""Whom a waiting job may have stopped beside those of queues that hold more than they are due.

Jobs of its own queue that it outranks, and jobs of other queues that make way for a borrower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattherd.policy.contract import JobView
from wattherd.policy.queue.capacity import Usage
from wattherd.policy.queue.reclaim import LeafExcess, gpus_of
from wattherd.policy.queue.tree import Preempts, PreemptsToBorrow, QueuePlace, QueueTree


@dataclass(frozen=True, slots=True)
class MayStop:
    """Who may be stopped in one plan: `jobs` that live, less those that are `going` already.

    Nobody is stopped for a borrower unless `to_borrow`.
    """

    tree: QueueTree
    total: int
    usage: Usage
    jobs: Mapping[str, JobView]
    going: Mapping[str, JobView]
    to_borrow: bool

    def leaf(self, job: JobView) -> str:
        """The name of a job's leaf; empty: there is none."""
        place = self.tree.leaf(job.spec.queue)
        return place.queue.name if place else ""

    def above(self, job: JobView) -> tuple[str, ...]:
        """The queues that a job counts in."""
        place = self.tree.leaf(job.spec.queue)
        return () if place is None else place.ancestors

    def anybody_for(self, place: QueuePlace) -> bool:
        """Whether jobs of a leaf may have others stopped by its rules."""
        return place.queue.preempts != Preempts.NEVER or self._borrows(place)

    def outranked(self, job: JobView, place: QueuePlace) -> list[JobView]:
        """Running jobs of its own queue that it may have stopped."""
        kind = place.queue.preempts
        if kind == Preempts.NEVER:
            return []
        rank = job.spec.priority
        newer = kind == Preempts.LOWER_OR_NEWER
        return [
            one
            for one in self.jobs.values()
            if one.wanted
            and self.leaf(one) == place.queue.name
            and (
                one.spec.priority < rank
                or (newer and one.spec.priority == rank and one.number > job.number)
            )
        ]

    def _borrows(self, place: QueuePlace) -> bool:
        return self.to_borrow and place.queue.preempts_to_borrow != PreemptsToBorrow.NEVER

    def lower(self, job: JobView, place: QueuePlace) -> list[JobView]:
        """Jobs of other queues that may be stopped for it even if it borrows."""
        if not self._borrows(place):
            return []
        below, highest = job.spec.priority, place.queue.preempts_to_borrow_up_to
        if highest is not None:
            below = min(below, highest + 1)
        return [
            one
            for one in self.jobs.values()
            if one.wanted
            and one.spec.priority < below
            and one.id not in self.going
            and (leaf := self.tree.leaf(one.spec.queue)) is not None
            and leaf is not place
            and leaf.reclaimable
        ]

    def lent(self, place: QueuePlace) -> dict[str, LeafExcess]:
        """What other leaves hold, and how much of it no borrower of `place` may take.

        That is what they are promised, or what a queue above them is, as far up as the queue that
        has both below it (Kueue stops nobody whose cohort borrows nothing).
        """
        held = dict(self.usage.queues)
        for gone in self.going.values():
            for name in self.above(gone):
                held[name] -= gpus_of(gone)
        lent: dict[str, LeafExcess] = {}
        for leaf in self.tree.leaves:
            apart = [name for name in leaf.ancestors if name not in place.ancestors]
            beyond = [held.get(name, 0) - self.tree[name].guaranteed * self.total for name in apart]
            used = held.get(leaf.queue.name, 0)
            kept = used - min(beyond, default=0.0)
            lent[leaf.queue.name] = LeafExcess(used, kept, kept)
        return lent
