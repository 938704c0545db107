"""Whom a waiting job may have stopped beside those of queues that hold more than they are due.

Jobs of its own queue that it outranks, those of users above the user limit there, and jobs of other
queues that make way for a borrower.

The user limit counts all users who hold or ask for GPUs of a queue, not only those who ask (YARN
does so, too, for preemption inside a queue): else whoever was just stopped would be the only one to
ask, and might have it all back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.policy.contract import JobView
from wattherd.policy.queue.capacity import Usage, user_limit
from wattherd.policy.queue.fair_share import FairShares
from wattherd.policy.queue.reclaim import LeafExcess, gpus_of
from wattherd.policy.queue.tree import (
    ROUNDING,
    Preempts,
    PreemptsToBorrow,
    QueuePlace,
    QueueTree,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stoppable:
    """Running jobs that one waiting job may have stopped, whatever queues are owed.

    `outranked` and `above_limit` are jobs of its own queue; of the latter users may give no more
    than `user_excess` (GPUs by user). `lower` are jobs of other queues that it may stop to borrow.
    """

    outranked: Sequence[JobView] = ()
    above_limit: Sequence[JobView] = ()
    user_excess: Mapping[str, float] = field(default_factory=dict)
    lower: Sequence[JobView] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.outranked or self.above_limit or self.lower)

    def is_own(self, job: JobView) -> bool:
        """Whether a job is one of its own queue."""
        return any(one is job for one in self.outranked) or self.is_above_limit(job)

    def is_above_limit(self, job: JobView) -> bool:
        """Whether a job may be stopped since its user is above the user limit."""
        return any(one is job for one in self.above_limit)


@dataclass(frozen=True, slots=True)
class MayStop:
    """Who may be stopped in one plan: `jobs` that live, less those that are `going` already.

    Nobody is stopped for a borrower unless `to_borrow`. `coming` are GPUs of every (leaf, user) for
    whose jobs others will be stopped.
    """

    tree: QueueTree
    total: int
    usage: Usage
    jobs: Mapping[str, JobView]
    going: Mapping[str, JobView]
    to_borrow: bool
    coming: Counter[tuple[str, str]] = field(default_factory=Counter)
    _sharing: dict[str, int] = field(default_factory=dict)
    """By leaf, how many users hold or wait for something of it."""

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
        queue = place.queue
        own = queue.preempts != Preempts.NEVER or queue.preempts_above_user_limit
        return own or self._borrows(place)

    def stoppable(self, job: JobView, gpus: int, place: QueuePlace) -> Stoppable:
        """Whom a job of so many GPUs may have stopped by the rules of its queue."""
        outranked, above_limit = self.outranked(job, place), list[JobView]()
        excess = self.user_excess(job, gpus, place)
        if excess:
            ranked = {one.id for one in outranked}
            above_limit = [
                one
                for one in self.jobs.values()
                if one.wanted
                and one.spec.user in excess
                and one.id not in self.going
                and one.id not in ranked
                and self.leaf(one) == place.queue.name
            ]
        return Stoppable(
            outranked=outranked,
            above_limit=above_limit,
            user_excess=excess,
            lower=self.lower(job, place),
        )

    def user_excess(self, job: JobView, gpus: int, place: QueuePlace) -> dict[str, float]:
        """GPUs that users of a leaf hold beyond what they keep for a job of `gpus` GPUs.

        They keep the user limit, and no less than what the job's user will hold then. So the least
        that any of the two holds is more than before with each stop, and users never take the same
        devices from each other to and fro. Who is at his limit has nobody stopped.
        """
        if not place.queue.preempts_above_user_limit:
            return {}
        name, used = place.queue.name, self.usage.queues[place.queue.name]
        most = user_limit(place, self.total, used=used, asked=0, active=self._users_of(name))
        held = {user: n for (leaf, user), n in self.usage.users.items() if leaf == name}
        for one in self.going.values():
            if self.leaf(one) == name:
                held[one.spec.user] -= gpus_of(one)
        mine = held.get(job.spec.user, 0) + self.coming[name, job.spec.user]
        if mine >= most - ROUNDING:
            return {}
        kept = max(most, mine + gpus)
        return {user: n - kept for user, n in held.items() if n > kept + ROUNDING}

    def _users_of(self, name: str) -> int:
        known = self._sharing.get(name)
        if known is None:
            jobs = self.jobs.values()
            known = len({job.spec.user for job in jobs if self.leaf(job) == name})
            self._sharing[name] = known
        return known

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

    def at_work(self) -> FairShares:
        """Shares once all stops are made and those for whom they are made have started."""
        shares = FairShares(self.tree, self.total, dict(self.usage.queues))
        for job in self.going.values():
            shares.add(self.tree[self.leaf(job)], -gpus_of(job))
        for (name, _), gpus in self.coming.items():
            shares.add(self.tree[name], gpus)
        return shares

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
