"""Schedulers that run on any workload, by the names users know."""

from __future__ import annotations

from collections.abc import Mapping

from wattherd.errors import UserError
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    Given,
    SchedulerOf,
    plain,
)
from wattherd.model.topology import Chain, chains_of
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.hived import HiveD, Shares, everything_for


def _capacity(given: Given) -> BuiltScheduler:
    tree = given.tree()
    return BuiltScheduler(planner=CapacityScheduler(tree=tree), quota=tree, rigid=True)


def _hived(given: Given) -> BuiltScheduler:
    cells = given.cells
    chains = chains_of(given.cluster, within=cells.within, per_rack=cells.per_rack)
    shares = cells.shares if cells.shares is not None else _equal_shares(given, chains)
    hived = HiveD(chains=chains, shares=shares)
    return BuiltScheduler(planner=hived, quota=hived, rigid=True)


def _equal_shares(given: Given, chains: list[Chain]) -> Shares:
    """Every queue is a virtual cluster with an equal number of the largest cells of each chain."""
    names = given.queue_names
    if len(names) == 1:
        return everything_for(names[0], chains)
    each = {one.name: one.count(one.top) // len(names) for one in chains}
    if not all(each.values()):
        raise UserError(
            f"{len(names)} virtual clusters cannot have whole cells each",
            field="cells.shares",
            hint="say in the scenario what each of them has",
        )
    return {name: {one.name: {one.levels[-1]: each[one.name]} for one in chains} for name in names}


def _gandiva(given: Given) -> Gandiva:
    """Slices of a minute, or longer where jobs last for days: a hundredth of the mean."""
    known_s = [spec.duration_s for spec in given.jobs.specs if spec.duration_s]
    quantum_s = max(60.0, sum(known_s) / len(known_s) / 100) if known_s else 60.0
    return Gandiva(quantum_s=quantum_s, within=given.cells.within)


GENERAL: Mapping[str, SchedulerOf] = {
    "drf": plain(lambda _: Drf(), rigid=True),
    "capacity": _capacity,
    "hived": _hived,
    "gandiva": plain(_gandiva),
}
