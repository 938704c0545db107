"""What capacity queues owe whom: fair amounts, user limits, and whose turn it is.

Pure arithmetic on GPUs. The ideal assignment is that of YARN's ProportionalCapacityPreemption:
every queue gets its guarantee as far as it has demand, and what is left is shared among those who
want more, in proportion to their guarantees, up to their maximum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.model.reason import Reason
from wattherd.policy.queue.drf import Vector
from wattherd.policy.queue.tree import (
    ROUNDING,
    CapacityQueue,
    QueuePlace,
    QueueTree,
    quota_exceeded,
)
from wattherd.units import counted

NOTHING = (0, 0, 0)


@dataclass(slots=True)
class Usage:
    """What the plan gives: GPUs of every queue (ancestors included) and of every (leaf, user)."""

    queues: Counter[str] = field(default_factory=Counter)
    users: Counter[tuple[str, str]] = field(default_factory=Counter)
    vectors: dict[tuple[str, str], Vector] = field(default_factory=dict)
    """All resources of every (leaf, user), in the order of `order.vector_of`."""
    limits: dict[tuple[str, int, int, int, int], tuple[float, float]] | None = None
    """What users of a leaf may hold, alike for all, as far as it was asked of one tree; None: kept
    nowhere."""

    def add(self, place: QueuePlace, user: str, gpus: int, vector: Vector) -> None:
        """Book `gpus` more (or, negative, fewer) in a leaf, and all resources in `vector`."""
        for name in place.ancestors:
            self.queues[name] += gpus
        key = place.queue.name, user
        self.users[key] += gpus
        before = self.vectors.get(key, NOTHING)
        self.vectors[key] = tuple(a + b for a, b in zip(before, vector, strict=True))

    def refused(
        self,
        place: QueuePlace,
        total: int,
        user: str,
        gpus: int,
        active: int,
        now_s: float,
        *,
        at_limit: bool,
    ) -> Reason | None:
        """Why one of `active` users may hold no `gpus` GPUs more of a leaf, or None.

        Whoever is at his limit, not above it, may where `at_limit`.
        """
        name = place.queue.name
        used, own = self.queues[name], self.users[name, user]
        asked = name, total, used, gpus, active
        known = None if self.limits is None else self.limits.get(asked)
        if known is None:
            limit = user_limit(place, total, used=used, asked=gpus, active=active)
            known = place.user_most(total), limit
            if self.limits is not None:
                self.limits[asked] = known
        most, limit = known
        if own + gpus > most + ROUNDING:
            factor = place.queue.user_limit_factor
            why = f"user limit factor {factor:g} allows {user!r} {counted(most, 'GPU')}"
        elif own < limit - ROUNDING or (at_limit and own <= limit + ROUNDING):
            return None
        else:
            users = "user shares" if active == 1 else "users share"
            why = f"{active} {users} the queue; each may hold {counted(limit, 'GPU')}"
        return quota_exceeded(gpus, own, min(limit, most), f"{why} of queue {name!r}", now_s)

    def held_in(self, leaf: str) -> Callable[[str], Vector]:
        """What each user holds of a leaf."""
        return lambda user: self.vectors.get((leaf, user), NOTHING)


def weighted_max_min(
    amount: float,
    wants: Sequence[float],
    weights: Sequence[float],
    floors: Sequence[float] | None = None,
    *,
    priorities: Sequence[int] = (),
    promised: Sequence[float] = (),
) -> list[float]:
    """Share `amount` in proportion to `weights`, nobody getting more than he wants.

    Those of weight zero share evenly what all others leave. Nobody gets less than his floor,
    where there are `floors`; together they must not exceed `amount`.

    Where `priorities` differ, only those of one priority share: the highest have what they are
    promised first, then the others; then the highest have all that they want (YARN).
    """
    if not priorities or len(set(priorities)) == 1:
        priorities = [0] * len(wants)
    promised = promised or [0.0] * len(wants)
    given = _by_priority(amount, wants, weights, priorities, promised)
    low = [i for i, floor in enumerate(floors or ()) if given[i] < floor - ROUNDING]
    if floors is None or not low:
        return given
    # Whoever is raised to his floor stays there: what the others share only shrinks by that.
    fixed: dict[int, float] = {}
    while low:
        fixed.update((i, floors[i]) for i in low)
        open_ = [i for i in range(len(wants)) if i not in fixed]
        parts = _by_priority(
            max(amount - math.fsum(fixed.values()), 0.0),
            [wants[i] for i in open_],
            [weights[i] for i in open_],
            [priorities[i] for i in open_],
            [promised[i] for i in open_],
        )
        given = [fixed.get(i, 0.0) for i in range(len(wants))]
        for i, part in zip(open_, parts, strict=True):
            given[i] = part
        low = [i for i in open_ if given[i] < floors[i] - ROUNDING]
    return given


def _by_priority(
    amount: float,
    wants: Sequence[float],
    weights: Sequence[float],
    priorities: Sequence[int],
    promised: Sequence[float],
) -> list[float]:
    """Promises first, then the rest, each by falling priority."""
    if len(set(priorities)) <= 1:
        return _shared(amount, wants, weights)
    given = [0.0] * len(wants)
    least = [min(want, mine) for want, mine in zip(wants, promised, strict=True)]
    for most in (least, wants):
        for priority in sorted(set(priorities), reverse=True):
            those = [i for i, one in enumerate(priorities) if one == priority]
            lacks = [max(most[i] - given[i], 0.0) for i in those]
            left = max(amount - math.fsum(given), 0.0)
            parts = _shared(left, lacks, [weights[i] for i in those])
            for i, part in zip(those, parts, strict=True):
                given[i] += part
    return given


def _shared(amount: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    given = [0.0] * len(wants)
    heavy = [i for i, weight in enumerate(weights) if weight > 0]
    left = _fill(amount, [i for i in heavy if wants[i] > 0], wants, weights, given)
    light = [i for i, weight in enumerate(weights) if weight <= 0 and wants[i] > 0]
    _fill(left, light, wants, [1.0] * len(wants), given)
    return given


def _fill(
    left: float,
    open_: list[int],
    wants: Sequence[float],
    weights: Sequence[float],
    given: list[float],
) -> float:
    """Raise the common level until all are content or nothing is left; returns what is left."""
    open_ = sorted(open_, key=lambda i: (wants[i] / weights[i], i))
    weight = math.fsum(weights[i] for i in open_)
    for position, i in enumerate(open_):
        level = left / weight
        if wants[i] > level * weights[i] + ROUNDING:
            for j in open_[position:]:
                given[j] = level * weights[j]
            return 0.0
        given[i] = wants[i]
        left -= wants[i]
        weight = math.fsum(weights[j] for j in open_[position + 1 :])
    return max(left, 0.0)


def ideal(
    tree: QueueTree,
    total: int,
    demand: Mapping[str, float],
    used: Mapping[str, float] | None = None,
    held: Mapping[str, float] | None = None,
    lately: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """GPUs that every leaf should hold, given what each leaf holds or waits for.

    Without `used` by demand alone: queues that are satisfied are balanced, too. With it no leaf is
    due more than its guarantee or what it has (YARN's default), since what is beyond guarantees is
    whoever's came first; and a leaf that is not to be reclaimed keeps what it has. What a queue
    above is guaranteed, and nobody below it has or claims, is due to those below it that ask for
    more, before others may have it ("shared among the sub-queues of an organization before other
    queues are allowed to use free resources", YARN; the hierarchical advantage of Kueue's cohorts).

    With what queues have `held` until now, and `lately`, those below a queue with a half-life are
    not balanced either: what is lent there goes to who had least lately, and would else be taken
    back for who had most. What the queues above lend to others is due to them as ever.

    Where the root has `fair_sharing`, what is beyond guarantees is shared by weights.
    """
    result: dict[str, float] = {}
    due = _Due(tree, total, demand, used, held, lately or {})
    due.divide(tree.root, min(due.wants[tree.root.name], total), result)
    return result


class _Due:
    """What queues of one tree want, and what they keep in any case."""

    def __init__(
        self,
        tree: QueueTree,
        total: int,
        demand: Mapping[str, float],
        used: Mapping[str, float] | None,
        held: Mapping[str, float] | None,
        lately: Mapping[str, float],
    ) -> None:
        self._tree, self._total, self._demand, self._used = tree, total, demand, used
        self._held, self._lately = held, lately
        self.wants: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        """What each queue would take if it were promised all, cut to every maximum."""
        self._floors: dict[str, float] = {}
        self._walk(tree.root)

    def _walk(self, queue: CapacityQueue) -> None:
        """Demand of a queue and all below it, cut to every maximum; floors are never cut."""
        for child in queue.children:
            self._walk(child)
        most = self._tree[queue.name].maximum * self._total
        if queue.children:
            want = math.fsum(self.wants[child.name] for child in queue.children)
            asked = math.fsum(self._asked[child.name] for child in queue.children)
            floor = math.fsum(self._floors[child.name] for child in queue.children)
        else:
            asked = self._demand.get(queue.name, 0.0)
            want, floor = self._leaf(self._tree[queue.name])
        self._asked[queue.name] = min(asked, most)
        self.wants[queue.name] = max(min(want, most), floor)
        self._floors[queue.name] = floor
        if queue.children and queue is not self._tree.root:
            unclaimed = self._tree[queue.name].guaranteed * self._total - want
            more = min(unclaimed, self._asked[queue.name] - want)
            if more > ROUNDING:
                self._claim(queue, more)

    def _claim(self, queue: CapacityQueue, more: float) -> None:
        """A queue wants more, and those below it that ask for it share it."""
        self.wants[queue.name] += more
        names = [child.name for child in queue.children]
        unmet = [max(self._asked[name] - self.wants[name], 0.0) for name in names]
        weights = [self._tree[name].guaranteed for name in names]
        parts = weighted_max_min(more, unmet, weights, priorities=_priorities(queue))
        for child, part in zip(queue.children, parts, strict=True):
            if part > 0:
                self._claim(child, part)

    def _leaf(self, place: QueuePlace) -> tuple[float, float]:
        asked = self._demand.get(place.queue.name, 0.0)
        if self._used is None:
            return asked, 0.0
        used, guaranteed = self._used.get(place.queue.name, 0), place.guaranteed * self._total
        floor = min(used, guaranteed) if place.reclaimable else float(used)
        return min(asked, max(guaranteed, used)), floor

    def divide(self, queue: CapacityQueue, amount: float, result: dict[str, float]) -> None:
        """Share the amount of a queue out among those below it."""
        if not queue.children:
            result[queue.name] = amount
            return
        names = [child.name for child in queue.children]
        kept = self._kept(queue, amount)
        wants = [self.wants[name] for name in names]
        promised = [self._tree[name].guaranteed * self._total for name in names]
        if not kept and self._tree.root.fair_sharing:
            kept = _by_weight(amount, wants, promised, [one.weight for one in queue.children])
        parts = kept or weighted_max_min(
            amount,
            wants,
            [self._tree[name].guaranteed for name in names],
            [self._floors[name] for name in names] if self._used is not None else None,
            priorities=_priorities(queue),
            promised=promised,
        )
        for child, part in zip(queue.children, parts, strict=True):
            self.divide(child, part, result)

    def _kept(self, queue: CapacityQueue, amount: float) -> list[float]:
        """Parts where use fades: what is promised, what is held, then by use; none elsewhere."""
        if self._held is None or queue.half_life_s is None:
            return []
        names = [child.name for child in queue.children]
        weights = [self._tree[name].guaranteed for name in names]
        wants = [self.wants[name] for name in names]
        holds = [float(self._held.get(name, 0)) for name in names]
        parts = [min(w, g * self._total) for w, g in zip(wants, weights, strict=True)]
        if math.fsum(parts) > amount + ROUNDING:
            return []
        left = max(0.0, amount - math.fsum(parts))
        lent = [max(0.0, min(w, h) - p) for w, h, p in zip(wants, holds, parts, strict=True)]
        ranks = _priorities(queue)
        more = weighted_max_min(left, lent, weights, priorities=ranks)
        parts = [part + one for part, one in zip(parts, more, strict=True)]
        left = max(0.0, amount - math.fsum(parts))
        had = [self._had(name, weight) for name, weight in zip(names, weights, strict=True)]
        for at in sorted(range(len(names)), key=lambda at: (-ranks[at], had[at])):
            more_at = min(left, max(0.0, wants[at] - parts[at]))
            parts[at] += more_at
            left -= more_at
        return parts

    def _had(self, name: str, guaranteed: float) -> float:
        had = self._lately.get(name, 0.0)
        return had / (guaranteed * self._total) if guaranteed > 0 and self._total else math.inf


def _by_weight(
    amount: float, wants: Sequence[float], promised: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Promises first, as far as they are wanted; then the rest by weights."""
    mine = [min(want, most) for want, most in zip(wants, promised, strict=True)]
    if math.fsum(mine) > amount + ROUNDING:
        return weighted_max_min(amount, mine, promised)
    lacks = [want - have for want, have in zip(wants, mine, strict=True)]
    more = weighted_max_min(max(amount - math.fsum(mine), 0.0), lacks, weights)
    return [have + one for have, one in zip(mine, more, strict=True)]


def _priorities(queue: CapacityQueue) -> list[int]:
    return [child.priority for child in queue.children]


def user_limit(place: QueuePlace, total: int, *, used: int, asked: int, active: int) -> float:
    """GPUs that one of `active` users of a leaf may hold, while the leaf holds `used`.

    max(present capacity / active users, present capacity x minimum-user-limit-percent), whole
    GPUs rounded up, and never more than the user limit factor allows. The present capacity is the
    guarantee, or what the leaf holds and is asked for where it borrows (YARN, UsersManager).
    """
    guaranteed = place.guaranteed * total
    present = guaranteed if used < guaranteed - ROUNDING else float(used + asked)
    even = present / max(active, 1)
    floor = present * place.queue.user_limit_pct / 100
    return min(math.ceil(max(even, floor) - ROUNDING), place.user_most(total))


def next_leaf(
    tree: QueueTree,
    usage: Usage,
    total: int,
    is_open: Callable[[str], bool],
    lately: Mapping[str, float] | None = None,
) -> str | None:
    """The leaf to serve next: depth first, the most under-served queue of each level.

    Under-served is who uses the least part of his guarantee; those without a guarantee come last,
    and among equals the one declared first. Priorities come before that: first among those who hold
    less than they are promised, then among all others. Below a queue with a half-life those who
    have what they are promised are told apart by the GPUs that they had `lately`.
    """

    def find(queue: CapacityQueue) -> str | None:
        if not queue.children:
            return queue.name if is_open(queue.name) else None
        faded = lately is not None and queue.half_life_s is not None
        for child in sorted(queue.children, key=had_lately if faded else served):
            found = find(child)
            if found is not None:
                return found
        return None

    def use(queue: CapacityQueue) -> tuple[bool, float]:
        guaranteed = tree[queue.name].guaranteed * total
        used = usage.queues[queue.name]
        return guaranteed <= 0, used / guaranteed if guaranteed > 0 else float(used)

    def served(queue: CapacityQueue) -> tuple[bool, int, bool, float]:
        last, now = use(queue)
        return last or now >= 1 - ROUNDING, -queue.priority, last, now

    def had_lately(queue: CapacityQueue) -> tuple[bool, int, float, bool, float]:
        over, first, last, now = served(queue)
        if not over:
            return False, first, now, last, now
        had = (lately or {}).get(queue.name, 0.0)
        guaranteed = tree[queue.name].guaranteed * total
        return (
            True,
            first,
            had / guaranteed if guaranteed > 0 else math.inf,
            last,
            now if not last else had,
        )

    return find(tree.root)


@dataclass(slots=True)
class FadingUse:
    """GPUs that queues held lately: a mean over time in which what was long ago fades."""

    gpus: dict[str, float] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _at_s: float | None = None

    def look(self, tree: QueueTree, now_s: float) -> None:
        """What was held since the last plan has been used until now."""
        before_s, self._at_s = self._at_s, now_s
        if before_s is None or now_s <= before_s:
            return
        for place in tree.places:
            half_life_s = place.half_life_s
            if half_life_s is None:
                continue
            name = place.queue.name
            kept = 0.5 ** ((now_s - before_s) / half_life_s)
            had = self.gpus.get(name, 0.0)
            self.gpus[name] = had * kept + self._held.get(name, 0) * (1.0 - kept)

    def holds(self, usage: Usage) -> None:
        """The plan is made: so many GPUs are held from now on."""
        self._held = dict(usage.queues)

    def recall(self, queue: str, gpus: float) -> None:
        """So many were noted of a queue by who planned before; nothing, once a plan was made."""
        if self._at_s is None:
            self.gpus[queue] = gpus


def over_served(
    tree: QueueTree,
    usage: Usage,
    ideals: Mapping[str, float],
    total: int,
    *,
    dead_zone: float,
) -> dict[str, float]:
    """Leaves that hold more than is ideal and than guarantee x (1 + dead zone), and how much."""
    over: dict[str, float] = {}
    for place in tree.leaves:
        name = place.queue.name
        used, allowed = usage.queues[name], place.guaranteed * total * (1 + dead_zone)
        beyond = used - ideals.get(name, 0.0)
        if used > allowed + ROUNDING and beyond > ROUNDING:
            over[name] = beyond
    return over
