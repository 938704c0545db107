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

from wattherd.policy.queue.drf import Vector
from wattherd.policy.queue.tree import ROUNDING, CapacityQueue, QueuePlace, QueueTree

NOTHING = (0, 0, 0)


@dataclass(slots=True)
class Usage:
    """What the plan gives: GPUs of every queue (ancestors included) and of every (leaf, user)."""

    queues: Counter[str] = field(default_factory=Counter)
    users: Counter[tuple[str, str]] = field(default_factory=Counter)
    vectors: dict[tuple[str, str], Vector] = field(default_factory=dict)
    """All resources of every (leaf, user), in the order of `order.vector_of`."""

    def add(self, place: QueuePlace, user: str, gpus: int, vector: Vector) -> None:
        """Book `gpus` more (or, negative, fewer) in a leaf, and all resources in `vector`."""
        for name in place.ancestors:
            self.queues[name] += gpus
        key = place.queue.name, user
        self.users[key] += gpus
        before = self.vectors.get(key, NOTHING)
        self.vectors[key] = tuple(a + b for a, b in zip(before, vector, strict=True))

    def held_in(self, leaf: str) -> Callable[[str], Vector]:
        """What each user holds of a leaf."""
        return lambda user: self.vectors.get((leaf, user), NOTHING)


def weighted_max_min(
    amount: float, wants: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Share `amount` in proportion to `weights`, nobody getting more than he wants.

    Those of weight zero share evenly what all others leave.
    """
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


def ideal(tree: QueueTree, total: int, demand: Mapping[str, float]) -> dict[str, float]:
    """GPUs that every leaf should hold, given what each leaf holds or waits for.

    It depends on demand alone, not on who happens to run, so that taking from one queue to give
    to another never calls for taking it back.
    """
    result: dict[str, float] = {}
    wants = _wants(tree, tree.root, total, demand)
    _divide(tree, tree.root, min(wants[tree.root.name], total), wants, result)
    return result


def _wants(
    tree: QueueTree, queue: CapacityQueue, total: int, demand: Mapping[str, float]
) -> dict[str, float]:
    """Demand of a queue and all below it, cut to every maximum."""
    wants: dict[str, float] = {}
    for child in queue.children:
        wants.update(_wants(tree, child, total, demand))
    below = math.fsum(wants[child.name] for child in queue.children)
    own = below if queue.children else demand.get(queue.name, 0.0)
    wants[queue.name] = min(own, tree[queue.name].maximum * total)
    return wants


def _divide(
    tree: QueueTree,
    queue: CapacityQueue,
    amount: float,
    wants: Mapping[str, float],
    result: dict[str, float],
) -> None:
    if not queue.children:
        result[queue.name] = amount
        return
    parts = weighted_max_min(
        amount,
        [wants[child.name] for child in queue.children],
        [tree[child.name].guaranteed for child in queue.children],
    )
    for child, part in zip(queue.children, parts, strict=True):
        _divide(tree, child, part, wants, result)


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
    most = place.queue.user_limit_factor * guaranteed
    return min(math.ceil(max(even, floor) - ROUNDING), most)


def next_leaf(
    tree: QueueTree, usage: Usage, total: int, is_open: Callable[[str], bool]
) -> str | None:
    """The leaf to serve next: depth first, the most under-served queue of each level.

    Under-served is who uses the least part of his guarantee; those without a guarantee come last,
    and among equals the one declared first.
    """

    def find(queue: CapacityQueue) -> str | None:
        if not queue.children:
            return queue.name if is_open(queue.name) else None
        for child in sorted(queue.children, key=served):
            found = find(child)
            if found is not None:
                return found
        return None

    def served(queue: CapacityQueue) -> tuple[bool, float]:
        guaranteed = tree[queue.name].guaranteed * total
        used = usage.queues[queue.name]
        return guaranteed <= 0, used / guaranteed if guaranteed > 0 else float(used)

    return find(tree.root)


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
