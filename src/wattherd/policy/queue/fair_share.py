"""Fair sharing of what is lent, by weights: whose turn it is, and who gives back (Kueue).

The share of a queue is what it holds beyond its guarantee, as a part of all that the queue above
may hold, divided by its weight. (Kueue takes the largest share of all resources; queues here
promise GPUs.) Who borrows nothing has the share 0. Two queues are compared where their ways from
the root part: by the shares of the two queues right below the last one that they have in common. So
what a queue above promises stays with those below it.

Jobs are taken from the queue of the largest share first, down from the root. Queues that borrow
nothing give nothing. A strategy says how far that goes:

* final-share: the claimant's share with its job may not exceed the victim's share without the
  stopped job (LessThanOrEqualToFinalShare).
* initial-share: the claimant's share with its job is less than the victim's before the stop
  (LessThanInitialShare), so that a wide job may go, too. As a second strategy it takes one job of a
  queue at most.

With either the largest of all shares that a stop changes falls, so that queues never take the same
devices from each other to and fro. A job within its queue's own guarantee may take from every queue
that borrows (FairSharingPreemptWithinNominal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from wattherd.policy.contract import JobView
from wattherd.policy.queue.gang import FreeRoom, GangShape
from wattherd.policy.queue.reclaim import ReclaimStops, gpus_of, ranked
from wattherd.policy.queue.tree import ROUNDING, QueuePlace, QueueTree

Share = tuple[bool, float]
"""Whether its weight is 0 while it borrows, and its share (unweighted then): the least comes first.

Of queues of weight 0, which come after all others, the one that borrows more counts as the larger.
"""
NO_SHARE: Share = (False, 0.0)


class Strategy(StrEnum):
    """When a job of another queue may be stopped (Kueue's preemptionStrategies)."""

    FINAL_SHARE = "final-share"
    INITIAL_SHARE = "initial-share"


@dataclass(frozen=True, slots=True)
class LeafHead:
    """The job that a leaf would start next."""

    gpus: int
    priority: int
    number: int


@dataclass(slots=True)
class FairShares:
    """Shares of all queues while they hold `used` GPUs of `total`."""

    tree: QueueTree
    total: int
    used: dict[str, float]

    def of(self, name: str, more: float = 0.0) -> Share:
        """The share of a queue that holds `more` GPUs than `used` says."""
        place = self.tree[name]
        borrowed = self.used.get(name, 0.0) + more - place.guaranteed * self.total
        if borrowed <= ROUNDING or len(place.ancestors) == 1:
            return NO_SHARE
        lendable = self.tree[place.ancestors[-2]].maximum * self.total
        part, weight = round(borrowed / lendable, 9), place.queue.weight
        return (False, round(part / weight, 9)) if weight > 0 else (True, part)

    def below_maximum(self, place: QueuePlace) -> dict[str, float]:
        """How many GPUs a leaf and each queue above it may hold more."""
        return {
            name: self.tree[name].maximum * self.total - self.used.get(name, 0.0)
            for name in place.ancestors
        }

    def add(self, place: QueuePlace, gpus: float) -> None:
        """A leaf holds so many more (or, negative, fewer)."""
        for name in place.ancestors:
            self.used[name] = self.used.get(name, 0.0) + gpus

    def next_leaf(self, heads: Mapping[str, LeafHead]) -> str | None:
        """The leaf whose job to start next: the least share with it, then priority, then age.

        Queues of one parent are compared by their own shares with the job that is first below them.
        """

        def find(name: str) -> tuple[str, LeafHead] | None:
            queue = self.tree[name].queue
            if not queue.children:
                return (name, heads[name]) if name in heads else None
            best: tuple[tuple[Share, int, int], str, LeafHead] | None = None
            for child in queue.children:
                found = find(child.name)
                if found is None:
                    continue
                leaf, head = found
                turn = self.of(child.name, head.gpus), -head.priority, head.number
                if best is None or turn < best[0]:
                    best = turn, leaf, head
            return None if best is None else best[1:]

        found = find(self.tree.root.name)
        return None if found is None else found[0]


def borrowed(tree: QueueTree, used: Mapping[str, float], total: int) -> dict[str, float]:
    """GPUs that leaves which others may take back from hold beyond their guarantees."""
    beyond = {
        place.queue.name: used.get(place.queue.name, 0) - place.guaranteed * total
        for place in tree.leaves
        if place.reclaimable
    }
    return {name: gpus for name, gpus in beyond.items() if gpus > ROUNDING}


@dataclass(frozen=True, slots=True, kw_only=True)
class FairClaim:
    """A gang of a leaf that may have jobs stopped: `others` of other leaves, `own` of its own.

    `at_work` is what all queues hold without it.
    """

    shape: GangShape
    place: QueuePlace
    others: Sequence[JobView]
    own: Sequence[JobView]
    at_work: FairShares
    strategies: tuple[str, ...]
    marks: Mapping[str, float] = field(default_factory=dict)


def fair_stops(room: FreeRoom, claim: FairClaim) -> ReclaimStops | None:
    """Whom to stop so that a gang fits into `room`, and where it then goes; None: that fails."""
    search = _FairSearch(room, claim)
    if not search.first(claim.strategies[0]) and len(claim.strategies) > 1:
        search.second()
    return search.filled_back()


class _FairSearch:
    """One walk through those who may go; shares count the claimant as started."""

    def __init__(self, room: FreeRoom, claim: FairClaim) -> None:
        self._room, self._claim = room, claim
        self._tree, self._name = claim.at_work.tree, claim.place.queue.name
        self._shares = FairShares(self._tree, claim.at_work.total, dict(claim.at_work.used))
        self._shares.add(claim.place, claim.shape.gpus)
        self._left: dict[str, list[JobView]] = {}
        for job in ranked((*claim.others, *claim.own), claim.marks):
            self._left.setdefault(self._leaf(job).queue.name, []).append(job)
        self._again: dict[str, list[JobView]] = {}
        """Jobs that the first strategy left alone."""
        self.stops: list[JobView] = []
        self.shares = self._fits()
        within = self._shares.used[self._name] <= claim.place.guaranteed * self._shares.total
        self._nominal = within

    def _leaf(self, job: JobView) -> QueuePlace:
        place = self._tree.leaf(job.spec.queue)
        assert place is not None  # noqa: S101 - only jobs of known leaves run
        return place

    def first(self, strategy: str) -> bool:
        """Take jobs while the strategy allows it, until the gang fits; whether it does."""
        while self.shares is None and (name := self._next()) is not None:
            if name == self._name:
                self._take(name)
                continue
            mine, theirs = self._apart(name)
            new, old = self._shares.of(mine), self._shares.of(theirs)
            while self._left[name]:
                left = self._shares.of(theirs, -gpus_of(self._left[name][0]))
                allowed = new <= left if strategy == Strategy.FINAL_SHARE else new < old
                if allowed or self._nominal:
                    self._take(name)
                    break  # shares are others now
                self._again.setdefault(name, []).append(self._left[name].pop(0))
        return self.shares is not None

    def second(self) -> None:
        """One more job of each queue whose share exceeds the claimant's, wide as it may be."""
        self._left = self._again
        while self.shares is None and (name := self._next()) is not None:
            mine, theirs = self._apart(name)
            if self._shares.of(mine) < self._shares.of(theirs):
                self._take(name)
            self._left[name] = []

    def _take(self, name: str) -> None:
        job = self._left[name].pop(0)
        self.stops.append(job)
        self._shares.add(self._leaf(job), -gpus_of(job))
        self.shares = self._fits()

    def _apart(self, name: str) -> tuple[str, str]:
        """The queues right below the last one above both the claimant and a leaf."""
        mine, theirs = self._claim.place.ancestors, self._tree[name].ancestors
        same = sum(1 for a, b in zip(mine, theirs, strict=False) if a == b)
        return mine[same], theirs[same]

    def _next(self) -> str | None:
        """The leaf to take from: down from the root, the child of the largest share.

        Of equal ones a queue with others below it, then the one whose job is the first to go.
        """
        turns = {name: jobs[0] for name, jobs in self._left.items() if jobs}

        def find(name: str) -> str | None:
            queue = self._tree[name].queue
            if not queue.children:
                return name if name in turns else None
            best: tuple[Share, bool, tuple[float, ...]] | None = None
            leaf = None
            for child in queue.children:
                share = self._shares.of(child.name)
                if share == NO_SHARE and child.name not in self._claim.place.ancestors:
                    continue  # it borrows nothing
                found = find(child.name)
                if found is None:
                    continue
                job = turns[found]
                turn = share, bool(child.children), (-job.spec.priority, job.number)
                if best is None or turn > best:
                    best, leaf = turn, found
            return leaf

        return find(self._tree.root.name)

    def _fits(self, without: JobView | None = None) -> ReclaimStops | None:
        """Where the gang goes once those that are to go are gone, all but `without`."""
        jobs = [job for job in self.stops if job is not without]
        left = self._claim.at_work.below_maximum(self._claim.place)
        for job in jobs:
            for name in self._leaf(job).ancestors:
                if name in left:
                    left[name] += gpus_of(job)
        if self._claim.shape.gpus > min(left.values()) + ROUNDING:
            return None
        soon = self._room.copy()
        for job in jobs:
            soon.give(job.wanted)
        shares = soon.left().place(self._claim.shape)
        return None if shares is None else ReclaimStops(tuple(jobs), tuple(shares))

    def filled_back(self) -> ReclaimStops | None:
        """Whoever need not go stays, those that were to go last first."""
        if self.shares is None:
            return None
        for job in reversed(self.stops[:]):
            enough = self._fits(job)
            if enough is not None:
                self.stops.remove(job)
                self.shares = enough
        return self.shares
