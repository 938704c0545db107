"""Hierarchical capacity queues: who is promised how much, and how much anybody may borrow.

The semantics are those of Hadoop YARN's CapacityScheduler. Every queue is promised a share of its
parent (`guaranteed_pct`) and may grow to another one (`maximum_pct`) while others leave capacity
idle. Jobs live in leaves. Percentages of the cluster are products along the path; GPUs are counted
on the nodes that are usable at the moment, so that a lost node costs every queue its share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import PlanUse
from wattherd.policy.queue.order import ORDERS
from wattherd.spelling import hint_for
from wattherd.units import counted

ROUNDING = 1e-9
"""Slack of comparisons between GPUs and shares of them; GPUs are whole, shares are not."""
FAIR_SHARING = (
    ("final-share", "initial-share"),
    ("final-share",),
    ("initial-share",),
)
"""Strategies of fair sharing that may stand together, in their order (as Kueue has it)."""
NO_FACTOR = -1.0
"""A user limit factor that sets no limit (as YARN writes it)."""


class Preempts(StrEnum):
    """Which running jobs of its own queue a waiting job may stop (Kueue: withinClusterQueue)."""

    NEVER = "never"
    LOWER_PRIORITY = "lower-priority"
    LOWER_OR_NEWER = "lower-or-newer"
    """Of lower priority, or of equal priority and submitted later."""


class Reclaims(StrEnum):
    """From which jobs of other queues a queue takes back what it is owed (reclaimWithinCohort)."""

    ANY = "any"
    LOWER_PRIORITY = "lower-priority"
    NEVER = "never"


class PreemptsToBorrow(StrEnum):
    """Which jobs of other queues a job that must borrow may stop (borrowWithinCohort)."""

    NEVER = "never"
    LOWER_PRIORITY = "lower-priority"


_CHOICES: Mapping[str, type[StrEnum]] = {
    "preempts": Preempts,
    "reclaims": Reclaims,
    "preempts_to_borrow": PreemptsToBorrow,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQueue:
    """One queue; percentages are of its parent.

    `user_limit_pct` is what each of many users of a leaf can still count on, `user_limit_factor`
    the most that one user may hold, as a multiple of the leaf's guarantee, -1 for no limit (YARN's
    minimum-user-limit-percent and user-limit-factor, defaults alike). A queue of guarantee 0 runs
    on what others leave; a multiple of nothing limits nobody in it.

    With `half_life_s` what is lent among its children goes first to those who had least lately: by
    GPU time that fades by half in so long (Kueue's Admission Fair Sharing, KEP-4136). Who has less
    than he is promised comes before all others in any case.

    `priority` is among the queues of one parent (YARN's queue priority, with the ordering policy
    priority-utilization): of those that lack what they are promised the highest is served first,
    and what is beyond promises goes to the highest, too.

    `preempts` and `reclaims` say whom its waiting jobs may stop: jobs of the queue itself, and jobs
    with which other queues exceed what they are due. Nothing is reclaimed from a queue that is not
    `reclaimable`, nor from those below it (YARN's disable_preemption). With `preempts_to_borrow` a
    job may exceed what its queue is due, too, at the cost of jobs of lower priority with which
    other queues exceed theirs; only of those up to the priority `preempts_to_borrow_up_to`, if
    that is given (Kueue's maxPriorityThreshold).

    `fair_sharing` of the root names strategies by which what is lent is shared in proportion to
    `weight`, among the queues of each parent, instead of to guarantees (Kueue's fair sharing; see
    `fair_share`). A queue of weight 0 comes last.

    With `preempts_above_user_limit` waiting jobs of a user below the user limit may stop jobs of
    users above it, whatever their priorities (YARN's userlimit_first).
    """

    name: str
    guaranteed_pct: float = 100.0
    maximum_pct: float = 100.0
    children: tuple[CapacityQueue, ...] = ()
    user_limit_pct: float = 100.0
    user_limit_factor: float = 1.0
    order: str = "fifo"
    preempts: str = Preempts.NEVER
    reclaims: str = Reclaims.ANY
    reclaimable: bool = True
    half_life_s: float | None = None
    priority: int = 0
    preempts_to_borrow: str = PreemptsToBorrow.NEVER
    preempts_to_borrow_up_to: int | None = None
    preempts_above_user_limit: bool = False
    weight: float = 1.0
    fair_sharing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what promises nothing sensible.

        Raises:
            UserError: names the queue and the field.
        """
        if not self.name or "." in self.name:
            raise self._bad("name", f"{self.name!r} is no queue name", "not empty, no dots")
        for name in ("guaranteed_pct", "maximum_pct", "user_limit_pct"):
            if not 0 <= getattr(self, name) <= 100:
                raise self._bad(name, f"{getattr(self, name)} is no percentage", "0 to 100")
        if self.maximum_pct < self.guaranteed_pct:
            problem = f"maximum {self.maximum_pct:g} % is below the guarantee"
            raise self._bad("maximum_pct", problem, f"at least {self.guaranteed_pct:g}")
        factor = self.user_limit_factor
        if not (math.isfinite(factor) and factor > 0) and factor != NO_FACTOR:
            raise self._bad("user_limit_factor", f"{factor} is no factor", "above 0")
        for name, kinds in _CHOICES.items():
            value, known = getattr(self, name), [str(one) for one in kinds]
            if value not in known:
                raise self._bad(name, f"unknown choice {value!r}", hint_for(value, known))
        self._check_borrowing()
        self._check_sharing()
        if self.half_life_s is not None and not 0 < self.half_life_s < math.inf:
            raise self._bad("half_life", f"{self.half_life_s:g} s is no half-life", "above 0s")
        if self.order not in ORDERS:
            problem = f"unknown order {self.order!r}"
            raise self._bad("order", problem, hint_for(self.order, ORDERS))
        promised = math.fsum(child.guaranteed_pct for child in self.children)
        if self.children and abs(promised - 100) > 1e-6:
            raise self._bad("children", f"their guarantees add up to {promised:g} %", "100 %")

    def _check_sharing(self) -> None:
        """Weights and strategies of fair sharing.

        Raises:
            UserError: names the queue and the field.
        """
        if not 0 <= self.weight < math.inf:
            raise self._bad("weight", f"{self.weight} is no weight", "0 or more")
        if self.fair_sharing and self.fair_sharing not in FAIR_SHARING:
            known = " or ".join(f"[{', '.join(one)}]" for one in FAIR_SHARING)
            problem = f"unknown strategies [{', '.join(self.fair_sharing)}]"
            raise self._bad("fair_sharing", problem, known)

    def _check_borrowing(self) -> None:
        """What a queue may not take back to its due, it may not take beyond that (as Kueue has it).

        Raises:
            UserError: names the queue and the field.
        """
        borrows = self.preempts_to_borrow != PreemptsToBorrow.NEVER
        if borrows and self.reclaims == Reclaims.NEVER:
            problem, hint = "it reclaims nothing even to its due", "reclaims: lower-priority or any"
            raise self._bad("preempts_to_borrow", problem, hint)
        if not borrows and self.preempts_to_borrow_up_to is not None:
            hint = f"preempts_to_borrow: {PreemptsToBorrow.LOWER_PRIORITY}"
            raise self._bad("preempts_to_borrow_up_to", "it preempts nobody to borrow", hint)

    def _bad(self, name: str, problem: str, hint: str) -> UserError:
        return UserError(problem, where=f"queue {self.name}", field=name, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """A queue where it stands in the tree; shares (0 to 1) are of the whole cluster."""

    queue: CapacityQueue
    path: str
    ancestors: tuple[str, ...]
    """Names from the root to the queue itself."""
    guaranteed: float
    maximum: float
    reclaimable: bool = True
    """Whether neither it nor a queue above it forbids reclaim."""
    half_life_s: float | None = None
    """Of the queue right above it: how fast its use fades."""
    ranks: tuple[int, ...] = ()
    """Priorities of the queues from the root to it, negative: the least comes first."""

    @property
    def is_leaf(self) -> bool:
        """Whether jobs may be submitted to it."""
        return not self.queue.children

    def user_most(self, total: int) -> float:
        """GPUs of `total` that one user may hold in it, however idle the cluster is.

        Where a leaf is promised less than one GPU, the factor counts from one GPU (YARN: "allow
        progress for queues with minuscule capacity").
        """
        factor = self.queue.user_limit_factor
        if factor == NO_FACTOR or self.guaranteed <= 0:
            return math.inf
        return factor * max(self.guaranteed * total, 1.0)


@dataclass(frozen=True, slots=True)
class QueueTree:
    """All queues below `root`; the guard's quota, whoever plans.

    Raises:
        UserError: two queues carry the same name.
    """

    root: CapacityQueue
    _places: dict[str, QueuePlace] = field(init=False, repr=False, compare=False)
    _leaves: dict[str, QueuePlace] = field(init=False, repr=False, compare=False)
    _depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Walk the tree once."""
        places: dict[str, QueuePlace] = {}
        for place in _walk(self.root, None):
            name = place.queue.name
            if name in places:
                hint = "a queue is known by its name alone; choose another one"
                raise UserError("the name appears twice", where=f"queue {name}", hint=hint)
            if place.queue.fair_sharing and len(place.ancestors) > 1:
                hint = f"state it of {self.root.name!r}, the queue above all others"
                problem = "it shares for the whole tree"
                raise UserError(problem, where=f"queue {name}", field="fair_sharing", hint=hint)
            places[name] = place
        leaves = {one.queue.name: one for one in places.values() if one.is_leaf}
        leaves.update({one.path: one for one in places.values() if one.is_leaf})
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_depth", max(len(one.ranks) for one in places.values()))
        object.__setattr__(self, "_leaves", leaves)

    def __getitem__(self, name: str) -> QueuePlace:
        """A queue by its name."""
        return self._places[name]

    def leaf(self, queue: str) -> QueuePlace | None:
        """The leaf that a job names, by name or by dotted path, or None."""
        return self._leaves.get(queue)

    @property
    def places(self) -> Collection[QueuePlace]:
        """All queues, depth first."""
        return self._places.values()

    @property
    def leaves(self) -> list[QueuePlace]:
        """All leaves, depth first, in the order in which they were declared."""
        return [place for place in self._places.values() if place.is_leaf]

    def rank(self, queue: str) -> tuple[int, ...]:
        """Priorities on the way to a queue, to sort by: of two, the one that counts more first."""
        ranks = self._places[queue].ranks
        return ranks + (0,) * (self._depth - len(ranks))

    # Quota, as the guard asks for it --------------------------------------------------------------

    def never(self, spec: JobSpec, gpus: int, total: int, now_s: float) -> Reason | None:
        """Why a gang of at least `gpus` GPUs could not run, were the cluster of `total` empty."""
        place = self.leaf(spec.queue)
        if place is None:
            return self.unknown(spec.queue, now_s)
        refusal = self._beyond(place, spec, gpus, PlanUse(now_s=now_s, total_gpus=total))
        if refusal is None:
            return None
        return Reason(
            code=ReasonCode.NEVER_FITS,
            since_s=now_s,
            asked=gpus,
            available=refusal.available,
            unit="GPUs",
            unblocks=refusal.unblocks,
        )

    def admits(self, spec: JobSpec, gpus: int, use: PlanUse) -> Reason | None:
        """Why a job may not hold `gpus` GPUs beside what `use` says, or None if it may.

        Raises nothing and promises nothing: only what no plan may exceed is looked at here, which
        is every maximum on the path and the user limit factor.
        """
        place = self.leaf(spec.queue)
        if place is None:
            return self.unknown(spec.queue, use.now_s)
        return self.stopped(place, use.stopped) or self._beyond(place, spec, gpus, use)

    def stopped(self, place: QueuePlace, stopped: Mapping[str, float]) -> Reason | None:
        """Why nothing may be started from a leaf now (it or one above it is stopped), or None."""
        for name in place.ancestors:
            if name in stopped:
                why = f"queue {name!r} is stopped; start it"
                return Reason(code=ReasonCode.QUEUE_STOPPED, since_s=stopped[name], unblocks=why)
        return None

    def unknown(self, queue: str, now_s: float) -> Reason:
        """Why a job of an unknown queue is not served."""
        known = ", ".join(one.queue.name for one in self.leaves)
        why = f"no leaf queue is called {queue!r}; there are {known}"
        return Reason(code=ReasonCode.UNKNOWN_QUEUE, since_s=now_s, unblocks=why)

    def _beyond(self, place: QueuePlace, spec: JobSpec, gpus: int, use: PlanUse) -> Reason | None:
        for name in place.ancestors:
            queue = self._places[name]
            most = queue.maximum * use.total_gpus
            held = sum(use.gpus[key] for key in use.gpus if self._is_below(key[0], name))
            if held + gpus > most + ROUNDING:
                why = f"queue {name!r} may hold {counted(most, 'GPU')} at most; raise its maximum"
                return quota_exceeded(gpus, held, most, why, use.now_s)
        most, factor = place.user_most(use.total_gpus), place.queue.user_limit_factor
        held = sum(
            use.gpus[key] for key in use.gpus if key[1] == spec.user and self.leaf(key[0]) is place
        )
        if held + gpus > most + ROUNDING:
            why = (
                f"user limit factor {factor:g} allows user {spec.user!r} {counted(most, 'GPU')} "
                f"of queue {place.queue.name!r}; raise it or use another queue"
            )
            return quota_exceeded(gpus, held, most, why, use.now_s)
        return None

    def _is_below(self, queue: str, ancestor: str) -> bool:
        leaf = self.leaf(queue)
        return leaf is not None and ancestor in leaf.ancestors


def quota_exceeded(asked: int, held: float, most: float, why: str, now_s: float) -> Reason:
    """The reason for being over a quota of `most` GPUs, of which `held` are in use."""
    return Reason(
        code=ReasonCode.QUOTA_EXCEEDED,
        since_s=now_s,
        asked=asked,
        in_use=held,
        available=max(most - held, 0.0),
        unit="GPUs",
        unblocks=why,
    )


def _walk(queue: CapacityQueue, parent: QueuePlace | None) -> Iterator[QueuePlace]:
    """The queue and all below it, depth first."""
    here = QueuePlace(
        queue=queue,
        path=f"{parent.path}.{queue.name}" if parent else queue.name,
        ancestors=(*(parent.ancestors if parent else ()), queue.name),
        guaranteed=queue.guaranteed_pct / 100 * (parent.guaranteed if parent else 1.0),
        maximum=queue.maximum_pct / 100 * (parent.maximum if parent else 1.0),
        reclaimable=queue.reclaimable and (parent.reclaimable if parent else True),
        half_life_s=parent.queue.half_life_s if parent else None,
        ranks=(*(parent.ranks if parent else ()), -queue.priority),
    )
    yield here
    for child in queue.children:
        yield from _walk(child, here)


def equal_queues(names: Sequence[str]) -> QueueTree:
    """A flat tree: equal guarantees, everything else left to borrowing."""
    share, most = 100 / len(names), float(len(names))
    children = (
        CapacityQueue(name=name, guaranteed_pct=share, user_limit_factor=most)
        for name in sorted(names)
    )
    return QueueTree(CapacityQueue(name="root", children=tuple(children)))
