"""Jobs are moved to where they do better: out of crowds, together, and off half-empty nodes.

Defragmentation: the node with most free GPUs, if it is mostly free and not idle, is emptied onto
fuller ones, so that wide jobs find whole nodes (Gandiva, OSDI'18, section 4.3). Widths: jobs that
can use more GPUs than they asked for get idle ones of their node, and give them back on demand
(section 4.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wattherd.policy.schedule.gandiva_nodes import (
    Homes,
    Resident,
    arriving_home,
    whole_home,
)
from wattherd.policy.schedule.gandiva_turns import GandivaTurns


def leave_crowds(residents: Iterable[Resident], homes: Homes, turns: GandivaTurns) -> None:
    """Those who wait for their turn go where there is room, least served first."""
    most = max(map(homes.free_gpus, range(len(homes.nodes))), default=0)
    waiting = [
        one
        for one in residents
        if one.home and not one.running and one.partner is None and one.gpus <= most
    ]
    for one in sorted(waiting, key=lambda one: (one.service_s(turns.now_s), one.job.number)):
        if any(homes.crowded(node) for node in one.needs):
            home = arriving_home(homes, one)
            if home is not None:
                turns.move(one, home)


def gather(residents: Iterable[Resident], homes: Homes, turns: GandivaTurns) -> None:
    """Gangs that sit on several nodes go to one that has room for all of it."""
    for one in sorted(residents, key=lambda one: one.job.number):
        if len(one.needs) > 1:
            home = homes.freely(one, arriving_home)
            if home is not None:
                turns.move(one, home)


def defragment(homes: Homes, turns: GandivaTurns, free_share: float) -> None:
    """Empty nodes of whose GPUs at least `free_share` is free, as far as fuller ones take it."""
    stuck: set[int] = set()
    while True:
        source = _source(homes, free_share, stuck)
        if source is None:
            return
        for one in sorted(homes.on[source].values(), key=lambda one: one.job.number):
            target = _target(homes, one, source)
            if target is not None:
                turns.move(one, whole_home(one.job.spec, one.width, target))
        stuck.add(source)


def _source(homes: Homes, free_share: float, stuck: set[int]) -> int | None:
    """The node with the largest share of free GPUs among those where someone lives."""
    able = [
        (homes.free_gpus(node) / homes.capacity[node][0], node)
        for node, residents in enumerate(homes.on)
        if residents and homes.usable[node] and homes.capacity[node][0] and node not in stuck
    ]
    able = [one for one in able if one[0] >= free_share]
    return max(able)[1] if able else None


def _target(homes: Homes, resident: Resident, source: int) -> int | None:
    """The fullest other node with room, of the same affinity if possible; None: none is fuller."""
    if len(resident.needs) > 1 or resident.partner is not None:
        return None
    able = [
        (homes.affinity[node] != resident.gpus, homes.free_gpus(node), node)
        for node in homes.together(resident)
        if node != source and homes.on[node] and homes.free_gpus(node) <= homes.free_gpus(source)
    ]
    return min(able)[2] if able else None


@dataclass(slots=True)
class Idle:
    """Free GPUs of each node when last looked at: only what stays idle for a slice is lent."""

    gpus: dict[int, int] = field(default_factory=dict)

    def lend(self, homes: Homes, turns: GandivaTurns) -> None:
        """Give what was idle through the last slice to jobs that can use it, first jobs first."""
        now = {node: max(homes.free_gpus(node), 0) for node in range(len(homes.nodes))}
        for node, free in now.items():
            lent = sum(one.grown * _gpus_per_task(one) for one in homes.on[node].values())
            spare = min(free, self.gpus.get(node, 0)) - lent
            for one in sorted(homes.on[node].values(), key=lambda one: one.job.number):
                tasks = min(spare // _gpus_per_task(one), _appetite(one))
                if tasks > 0 and turns.grow(one, one.grown + tasks):
                    spare -= tasks * _gpus_per_task(one)
        self.gpus = now


def _gpus_per_task(resident: Resident) -> int:
    return max(resident.job.spec.roles[0].gpu_count, 1)


def _appetite(resident: Resident) -> int:
    """Tasks that it could use besides those it has, where it may have them."""
    spec = resident.job.spec
    simple = len(spec.roles) == 1 and spec.roles[0].gpu_count and len(resident.home) == 1
    if not (simple and resident.running and resident.partner is None):
        return 0
    return max(spec.counts(0).stop - 1 - resident.width - resident.grown, 0)
