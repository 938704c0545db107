"""What must always hold of a hive: checked after every change in tests and on demand."""

from __future__ import annotations

from collections import Counter

from wattherd.errors import Bug
from wattherd.policy.queue.hive import Hive
from wattherd.policy.queue.virtual import VirtualCell


def check_safety(hive: Hive) -> None:
    """The safety invariant alone: every promised cell can be had.

    Raises:
        Bug: it is broken.
    """
    spare = hive.physical.splittable()
    if min(spare) < 0:
        raise Bug(f"promises are broken: splittable cells by level {spare}")


def validate(hive: Hive) -> None:
    """All invariants, everything counted afresh.

    Raises:
        Bug: one is broken; names it.
    """
    check_safety(hive)
    for name, holds in (
        ("free and bound cells cover every GPU once", _covers(hive)),
        ("free cells are merged", _merged(hive)),
        ("promises are the unbound virtual cells", _promises(hive)),
        ("virtual cells are bound while they are in use", _bindings(hive)),
        ("jobs and GPUs agree", _users(hive)),
        ("counts of guests, health and others add up", _counts(hive)),
    ):
        if not holds:
            raise Bug(f"it does not hold that {name}")


def _cells(hive: Hive) -> list[VirtualCell]:
    return [cell for virtual in hive.tenants.values() for cell in virtual.cells]


def _shared_cells(hive: Hive) -> list[VirtualCell]:
    """Those that may be bound anywhere."""
    tenants = ((name, one) for name, one in hive.tenants.items() if name not in hive.pins)
    return [cell for _, virtual in tenants for cell in virtual.cells]


def _covers(hive: Hive) -> bool:
    covered: Counter[int] = Counter()
    bound = [
        (cell.level, cell.bound[cell.level, 0])
        for cell in _shared_cells(hive)
        if (cell.level, 0) in cell.bound
    ]
    for level, index in [*hive.physical.free_cells(), *bound, *hive.pins.values()]:
        size = hive.chain.sizes[level]
        covered.update(range(index * size, (index + 1) * size))
    return covered == Counter(range(hive.chain.gpus))


def _merged(hive: Hive) -> bool:
    free, physical = hive.physical.free, hive.physical
    return not any(
        all(child in free[level - 1] for child in physical.children(level, index))
        for level in range(1, hive.chain.top + 1)
        for index in range(hive.chain.count(level))
    )


def _promises(hive: Hive) -> bool:
    unbound = Counter(
        cell.level for cell in _shared_cells(hive) if (cell.level, 0) not in cell.bound
    )
    return all(unbound[level] == n for level, n in enumerate(hive.physical.promised))


def _bindings(hive: Hive) -> bool:
    taken: Counter[tuple[int, int]] = Counter()
    for cell in _cells(hive):
        taken.update((level, bound) for (level, _), bound in cell.bound.items())
        for level, used in enumerate(cell.used):
            size = hive.chain.sizes[level]
            for index, count in enumerate(used):
                users = cell.users[index * size : (index + 1) * size]
                if count != sum(user is not None for user in users):
                    return False
                if (count > 0) != ((level, index) in cell.bound) or not _nests(
                    hive, cell, level, index
                ):
                    return False
    return taken == Counter(list(hive.taken))


def _nests(hive: Hive, cell: VirtualCell, level: int, index: int) -> bool:
    """A bound cell lies within what its parent is bound to."""
    if level == cell.level or (level, index) not in cell.bound:
        return True
    width = hive.chain.fanout[level]
    return cell.bound[level, index] // width == cell.bound[level + 1, index // width]


def _users(hive: Hive) -> bool:
    expected: list[str | None] = [None] * hive.chain.gpus
    for job, held in hive.jobs.items():
        for gpu in held.gpus:
            if expected[gpu] is not None:
                return False
            expected[gpu] = job
        virtual = hive.tenants[held.tenant] if held.virtual else None
        for (number, gpu), physical in zip(held.virtual, held.gpus, strict=bool(held.virtual)):
            cell = virtual.cells[number] if virtual else None
            if cell is None or cell.users[gpu] != job or cell.bound[0, gpu] != physical:
                return False
    return expected == hive.users


def _counts(hive: Hive) -> bool:
    guests = {gpu for held in hive.jobs.values() if not held.virtual for gpu in held.gpus}
    node = hive.chain.sizes[hive.chain.node_level]
    bad = {gpu for gpu in range(hive.chain.gpus) if gpu // node in hive.physical.bad}
    for level, size in enumerate(hive.chain.sizes):
        for index in range(hive.chain.count(level)):
            inside = range(index * size, (index + 1) * size)
            if hive.physical.guests[level][index] != sum(gpu in guests for gpu in inside):
                return False
            others = sum(gpu in hive.physical.foreign for gpu in inside)
            if hive.physical.open[level][index] != size - others:
                return False
            if hive.physical.healthy[level][index] != sum(gpu not in bad for gpu in inside):
                return False
    return True
