"""Which jobs give back what their queue has borrowed, and how many at a time.

After YARN's ProportionalCapacityPreemptionPolicy, whose defaults these are, with gangs for
containers: a job is stopped whole, and only where a waiting gang will use what it gives back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattherd.errors import UserError
from wattherd.policy.contract import JobView, Share
from wattherd.policy.queue.gang import FreeRoom, GangShape
from wattherd.policy.queue.tree import ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """How lent capacity is taken back.

    A job is stopped `wait_s` after it was marked. Queues are left alone up to `dead_zone` above
    their guarantee. At most the share `per_cycle` of the cluster is marked at a time, and of a
    queue's excess only the share `natural`, since some of it ends by itself meanwhile; but always
    one whole gang. With `balance` queues that hold their guarantees take from each other, too,
    until what is beyond guarantees is shared in proportion to them (YARN's
    preemption-to-balance-queue-after-satisfied, off by default as there).

    Raises:
        UserError: a share outside of 0 to 1, or a negative time.
    """

    wait_s: float = 15.0
    per_cycle: float = 0.1
    dead_zone: float = 0.1
    natural: float = 0.2
    balance: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not (math.isfinite(self.wait_s) and self.wait_s >= 0):
            raise UserError(f"{self.wait_s} is no time", field="reclaim.wait_s", hint="seconds")
        for name, least in (("per_cycle", 0.0), ("dead_zone", -1.0), ("natural", 0.0)):
            value = getattr(self, name)
            if not least < value <= 1:
                field = f"reclaim.{name}"
                raise UserError(f"{value} is no share", field=field, hint="above 0, up to 1")


def budgets(reclaim: Reclaim, over: Mapping[str, float], total: int) -> dict[str, int]:
    """GPUs to take from each over-served leaf in one go, rounded up."""
    excess = math.fsum(over.values())
    scale = min(1.0, reclaim.per_cycle * total / excess) if excess > 0 else 0.0
    return {name: math.ceil(reclaim.natural * scale * beyond) for name, beyond in over.items()}


@dataclass(slots=True)
class LeafExcess:
    """What a leaf holds, what it should hold, and what it is promised (GPUs)."""

    used: float
    due: float
    guaranteed: float

    def copy(self) -> LeafExcess:
        """The same, to be changed alone."""
        return LeafExcess(self.used, self.due, self.guaranteed)

    @property
    def short(self) -> float:
        """GPUs that it lacks of its guarantee."""
        return max(self.guaranteed - self.used, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimingGang:
    """A gang that may have jobs stopped, and whose.

    `others` are jobs of over-served queues, of which `excess` tells by leaf; `own` are jobs of its
    own queue that it outranks. `limits` are how many GPUs its queue and those above it may hold
    more, and `below` tells which of them count a job, whose stop raises that. `due` is how many its
    queue may hold more if jobs of other queues are stopped because they are owed. `gain` is what
    its queue lacks of its guarantee, or of its part of that of a queue above it.

    `above_limit` are jobs of its own queue whose users may give `user_excess` GPUs each, what jobs
    of `own` give included.

    `lower` are jobs of other queues that it may have stopped even to borrow; `lent` tells by leaf
    what they hold, and how much of it a queue above them is promised.
    """

    shape: GangShape
    others: Sequence[JobView]
    own: Sequence[JobView]
    leaf_of: Callable[[JobView], str]
    excess: Mapping[str, LeafExcess]
    limits: Mapping[str, float]
    below: Callable[[JobView], Collection[str]]
    due: float
    gain: float
    above_limit: Sequence[JobView] = ()
    user_excess: Mapping[str, float] = field(default_factory=dict)
    lower: Sequence[JobView] = ()
    lent: Mapping[str, LeafExcess] = field(default_factory=dict)

    @property
    def of_queue(self) -> tuple[JobView, ...]:
        """All jobs of its own queue."""
        return (*self.own, *self.above_limit)

    def leaves(self) -> dict[str, LeafExcess]:
        """All leaves whose jobs it may have stopped, to be changed alone."""
        return {name: one.copy() for name, one in {**self.lent, **self.excess}.items()}


@dataclass(frozen=True, slots=True)
class ReclaimStops:
    """Jobs to stop, and where the gang then goes; `lower` of them make way for a borrower."""

    jobs: tuple[JobView, ...]
    shares: tuple[Share, ...]
    lower: frozenset[str] = frozenset()


def smallest_stops(
    room: FreeRoom, claim: ReclaimingGang, marks: Mapping[str, float]
) -> ReclaimStops | None:
    """The least to stop so that a gang fits into `room`; None if nothing suffices.

    As Kueue does: jobs of other queues before those of its own, low priorities first, then the
    newest, until it fits; then whoever need not go is left alone. Gangs differ in size, so the
    same is done with the small ones first and with the wide ones first, and the set wins that
    takes no queue below its guarantee, then the one of the lowest priorities, then the smallest.
    Jobs of other queues that make way for a borrower come after what is owed.

    A queue is taken below its guarantee only by its last job above it, and only if it then lacks
    less than the claimant did, or as much where the whole gang is within what its queue is promised
    (a promise comes before what is borrowed, with Kueue and KAI as well). So the shortfalls of all
    queues together fall with every stop, or stay while less is borrowed (or borrowed by a higher
    priority): queues never take the same devices from each other to and fro.
    """
    unequal = len({gpus_of(job) for job in (*claim.others, *claim.of_queue, *claim.lower)}) > 1
    only_owed = replace(claim, lower=(), lent={})
    ways = [only_owed, claim] if claim.lower else [claim]
    for own_too, way in ((own_too, way) for own_too in (False, True) for way in ways):
        if own_too and not claim.of_queue:
            continue
        search = _Search(room, way, own_too=own_too)
        found: list[tuple[tuple[float, ...], ReclaimStops]] = []
        for sign in (0, 1, -1) if unequal else (0,):
            stops = search.run(marks, sign)
            if stops is not None:
                found.append((search.cost(stops.jobs), stops))
        if found:
            return min(found, key=lambda one: one[0])[1]
    return None


def ranked(jobs: Sequence[JobView], marks: Mapping[str, float], sign: int = 0) -> list[JobView]:
    """Marked jobs, lest their notice be in vain; low priority; by size if asked; the newest."""

    def turn(job: JobView) -> tuple[bool, int, int, int]:
        return job.id not in marks, job.spec.priority, sign * gpus_of(job), -job.number

    return sorted(jobs, key=turn)


def within_excess(
    jobs: Sequence[JobView], user_excess: Mapping[str, float], gone: Sequence[JobView]
) -> list[JobView]:
    """Those of users above their limit, in turn, that leave each what he keeps once `gone` are."""
    left = dict(user_excess)
    for job in gone:
        if job.spec.user in left:
            left[job.spec.user] -= gpus_of(job)
    taken: list[JobView] = []
    for job in jobs:
        if gpus_of(job) <= left[job.spec.user] + ROUNDING:
            left[job.spec.user] -= gpus_of(job)
            taken.append(job)
    return taken


class _Search:
    """One greedy search, and its filling back."""

    def __init__(self, room: FreeRoom, claim: ReclaimingGang, *, own_too: bool) -> None:
        self._room, self._claim, self._own_too = room, claim, own_too
        self._own = frozenset(job.id for job in claim.of_queue)
        self._lower = frozenset(job.id for job in claim.lower)
        self._owed = frozenset[str]()
        """Jobs that could be taken as owed."""

    def run(self, marks: Mapping[str, float], sign: int) -> ReclaimStops | None:
        """The first jobs in order that suffice, less those that need not go."""
        claim = self._claim
        others, lower, own = (
            ranked(jobs, marks, sign) for jobs in (claim.others, claim.lower, claim.own)
        )
        mine = own
        if claim.above_limit:
            rest = ranked(claim.above_limit, marks, sign)
            mine = [*own, *within_excess(rest, claim.user_excess, own)]
        mine = mine if self._own_too else []
        freed = sum(map(gpus_of, mine))
        allowed = claim.shape.gpus <= claim.due + freed + ROUNDING
        pool = self._takeable(others, claim.excess) if allowed else []
        if lower:
            left = {name: one.copy() for name, one in claim.lent.items()}
            for job in pool:
                if claim.leaf_of(job) in left:
                    left[claim.leaf_of(job)].used -= gpus_of(job)
            self._owed = frozenset(job.id for job in pool)
            pool += self._takeable([one for one in lower if one.id not in self._owed], left)
        pool += mine
        stops = self._first(pool)
        if stops is None and self._own_too:
            pool = mine  # without other queues it may borrow
            stops = self._first(pool)
        return None if stops is None else self._filled_back(stops)

    def _takeable(
        self, ranked: Sequence[JobView], excess: Mapping[str, LeafExcess]
    ) -> list[JobView]:
        """In turn: who leaves his queue its due, its guarantee, or (one each) less than that."""
        left = {name: one.copy() for name, one in excess.items()}
        taken: list[JobView] = []
        for least in (_due, _guaranteed, _anything):
            rest = []
            for job in ranked:
                leaf = left[self._claim.leaf_of(job)]
                beyond = leaf.used > leaf.guaranteed + ROUNDING and leaf.used > leaf.due + ROUNDING
                if not beyond or leaf.used - gpus_of(job) < least(leaf) - ROUNDING:
                    rest.append(job)
                    continue
                leaf.used -= gpus_of(job)
                taken.append(job)
            ranked = sorted(rest, key=lambda job: self._below(job, left))
        return taken

    def _below(self, job: JobView, left: Mapping[str, LeafExcess]) -> float:
        """How far below its due a job's end takes its queue: the least comes first."""
        leaf = left[self._claim.leaf_of(job)]
        return max(leaf.due - (leaf.used - gpus_of(job)), 0.0)

    def _first(self, pool: Sequence[JobView]) -> ReclaimStops | None:
        """The shortest beginning of `pool` that suffices (the more are stopped, the more fits)."""
        whole = self._fits(pool)
        if whole is None:
            return None
        low, high = 0, len(pool)
        while low < high:
            middle = (low + high) // 2
            some = self._fits(pool[:middle])
            if some is None:
                low = middle + 1
            else:
                high, whole = middle, some
        return ReclaimStops(tuple(pool[:high]), whole)

    def _fits(self, stopped: Sequence[JobView]) -> tuple[Share, ...] | None:
        if not self._within(stopped):
            return None
        soon = self._room.copy()
        for job in stopped:
            soon.give(job.wanted)
        shares = soon.place(self._claim.shape)
        return None if shares is None else tuple(shares)

    def _within(self, stopped: Sequence[JobView]) -> bool:
        """Whether it may hold so much once these are stopped."""
        claim, own = self._claim, self._own
        if any(job.id not in own and job.id not in self._lower for job in stopped):
            freed = sum(gpus_of(job) for job in stopped if job.id in own)
            return claim.shape.gpus <= claim.due + freed + ROUNDING
        left = dict(claim.limits)
        for job in stopped:
            for name in claim.below(job):
                if name in left:
                    left[name] += gpus_of(job)
        return claim.shape.gpus <= min(left.values()) + ROUNDING

    def _filled_back(self, stops: ReclaimStops) -> ReclaimStops | None:
        """Whoever need not go stays, those that were to go last first."""
        nodes = {share.node for share in stops.shares}
        jobs = [job for job in stops.jobs if any(one.node in nodes for one in job.wanted)]
        shares = self._fits(jobs)
        if shares is None:  # jobs of its own queue may free quota on other nodes
            jobs, shares = list(stops.jobs), stops.shares
        for job in reversed(jobs[:]):
            without = [one for one in jobs if one is not job]
            enough = self._fits(without)
            if enough is not None:
                jobs, shares = without, enough
        lost = self._lost(jobs)
        if lost > ROUNDING and lost > self._worth(jobs):
            return None
        lower = (self._lower - self._owed).intersection(job.id for job in jobs)
        return ReclaimStops(tuple(jobs), shares, lower)

    def _worth(self, jobs: Sequence[JobView]) -> float:
        """How much others may then lack: what its queue gets of its promise by this gang.

        A little less where a part of the gang is borrowed: equal shortfalls are no reason then,
        unless all who go are less important.
        """
        own = self._own
        lacks = self._claim.gain + sum(gpus_of(job) for job in jobs if job.id in own)
        gpus = self._claim.shape.gpus
        if gpus <= lacks + ROUNDING:
            return gpus + ROUNDING
        lower = all(job.id in own or job.id in self._lower for job in jobs)
        return lacks + ROUNDING if lower else lacks - ROUNDING

    def _lost(self, jobs: Sequence[JobView]) -> float:
        """What other queues then lack of their guarantees, beyond what they lack now."""
        left = self._claim.leaves()
        before = math.fsum(one.short for one in left.values())
        for job in jobs:
            if job.id not in self._own:
                left[self._claim.leaf_of(job)].used -= gpus_of(job)
        return math.fsum(one.short for one in left.values()) - before

    def cost(self, jobs: Sequence[JobView]) -> tuple[float, ...]:
        """What speaks against stopping these jobs, the gravest first."""
        highest = max((job.spec.priority for job in jobs), default=0)
        return self._lost(jobs), highest, sum(map(gpus_of, jobs)), len(jobs)


def _due(leaf: LeafExcess) -> float:
    return max(leaf.due, leaf.guaranteed)


def _guaranteed(leaf: LeafExcess) -> float:
    return leaf.guaranteed


def _anything(leaf: LeafExcess) -> float:
    del leaf
    return 0.0


def gpus_of(job: JobView) -> int:
    """GPUs that the plan gives a job."""
    return sum(len(allocation.gpus) for allocation in job.wanted)
