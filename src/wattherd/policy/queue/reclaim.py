"""Which jobs give back what their queue has borrowed, and how many at a time.

After YARN's ProportionalCapacityPreemptionPolicy, whose defaults these are, with gangs for
containers: a job is stopped whole, and only where a waiting gang will use what it gives back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.policy.contract import JobView
from wattherd.policy.queue.gang import FreeRoom, GangHold


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """How lent capacity is taken back.

    A job is stopped `wait_s` after it was marked. Queues are left alone up to `dead_zone` above
    their guarantee. At most the share `per_cycle` of the cluster is marked at a time, and of a
    queue's excess only the share `natural`, since some of it ends by itself meanwhile; but always
    one whole gang.

    Raises:
        UserError: a share outside of 0 to 1, or a negative time.
    """

    wait_s: float = 15.0
    per_cycle: float = 0.1
    dead_zone: float = 0.1
    natural: float = 0.2

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


def victims(
    room: FreeRoom,
    holds: Sequence[GangHold],
    able: Sequence[JobView],
    leaf_of: Callable[[JobView], str],
    limits: Mapping[str, int],
) -> list[JobView]:
    """Jobs to stop so that `holds` fill up, as far as every leaf's limit goes; `able` is ranked.

    A job counts only if it is on a node where a hold lacks something. The last one of a leaf may
    exceed the limit, for a gang cannot be stopped in part.
    """
    lacking = sum((hold.needs(len(room)) for hold in holds), room.free * 0) - room.free
    left = dict(limits)
    chosen: list[JobView] = []
    for job in able:
        name = leaf_of(job)
        helps = any((lacking[one.node] > 0).any() for one in job.wanted)
        if not helps or left[name] <= 0:
            continue
        chosen.append(job)
        for one in job.wanted:
            request = one.request
            lacking[one.node] -= (request.cpu_milli, request.memory_mib, len(one.gpus))
            left[name] -= len(one.gpus)
    return chosen


def rank(job: JobView, marks: Mapping[str, float]) -> tuple[bool, int, int]:
    """Marked jobs go first, lest their notice be in vain; then low priority, then the newest."""
    return job.id not in marks, job.spec.priority, -job.number
