"""Where in a hierarchy of cells the tasks of a gang go: close together, leaving whole cells whole.

A task stays on one node, on GPUs under the lowest cell that has enough of them; a gang stays
under the lowest cell that holds all of it. Levels count from 0, the single GPU, upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from wattherd.model.topology import Chain


@dataclass(slots=True)
class TaskSite:
    """A node, or a part of one, as a place for tasks.

    `open` are GPUs that may be taken, offsets from the first, free ones before those that someone
    must leave, which are in `cost`. Sites of lower `rank` are filled first.
    """

    key: tuple[int, ...]
    size: int
    open: list[int]
    cost: frozenset[int] = frozenset()
    rank: tuple[int, ...] = ()


Picks = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""For each task, in the order asked: the key of its site and its GPUs there."""


def pack(tasks: Sequence[int], sites: Sequence[TaskSite], fanout: Sequence[int]) -> Picks | None:
    """GPUs for tasks that need `tasks` GPUs each, or None if they do not all fit.

    Wide tasks first, each to the site where nobody need leave, then where least is left open.
    """
    left = {site.key: list(site.open) for site in sites}
    picks: Picks = [((), ())] * len(tasks)
    for number in sorted(range(len(tasks)), key=lambda i: (-tasks[i], i)):
        able = [site for site in sites if len(left[site.key]) >= tasks[number]]
        if not able:
            return None
        best = min(able, key=lambda site: _fit(site, left[site.key], tasks[number]))
        taken = closest(left[best.key], tasks[number], best.size, fanout, best.cost)
        left[best.key] = [gpu for gpu in left[best.key] if gpu not in taken]
        picks[number] = best.key, taken
    return picks


def _fit(site: TaskSite, left: Sequence[int], gpus: int) -> tuple[int, ...]:
    """Nobody leaves, then rank, then the fullest, then the first."""
    return (_leaving(left, gpus, site.cost), *site.rank, len(left), *site.key)


def _leaving(able: Sequence[int], gpus: int, cost: Collection[int]) -> int:
    """How many GPUs have to be left by their users."""
    return max(gpus - sum(gpu not in cost for gpu in able), 0)


def closest(
    able: Sequence[int],
    gpus: int,
    size: int,
    fanout: Sequence[int],
    cost: Collection[int] = (),
) -> tuple[int, ...]:
    """`gpus` of the `able` ones (free ones first) under the lowest cell that has enough of them.

    Of several such cells the one that fewest must leave, then with fewest to spare, then the first.
    """
    for block in _blocks(size, fanout):
        members: dict[int, list[int]] = {}
        for gpu in able if block >= gpus else ():
            members.setdefault(gpu // block, []).append(gpu)
        enough = [
            (_leaving(found, gpus, cost), len(found), cell)
            for cell, found in members.items()
            if len(found) >= gpus
        ]
        if enough:
            return tuple(sorted(members[min(enough)[2]][:gpus]))
    return ()


def _blocks(size: int, fanout: Sequence[int]) -> Iterator[int]:
    """Sizes of the cells within a site, from one GPU to all of it."""
    block = 1
    yield block
    for width in fanout:
        block *= width
        if block >= size:
            break
        yield block
    if size > 1:
        yield size


def pack_close(
    tasks: Sequence[int],
    sites: Sequence[TaskSite],
    chain: Chain,
    group_of: Callable[[TaskSite, int], tuple[int, ...] | None],
) -> Picks | None:
    """Pack under the lowest cell that holds the whole gang, else anywhere.

    Of several such cells the one that fewest must leave, then of the lowest rank, then the fullest.
    `group_of` names the cell of a level that a site belongs to, None if there is none so high.
    """
    asked = sum(tasks)
    for level in range(chain.node_level, chain.top + 1):
        groups: dict[tuple[int, ...], list[TaskSite]] = {}
        for site in sites:
            key = group_of(site, level)
            if key is not None:
                groups.setdefault(key, []).append(site)
        room = {key: sum(len(site.open) for site in group) for key, group in groups.items()}
        cost = {key: sum(len(site.cost) for site in group) for key, group in groups.items()}
        rank = {key: _ranks(group) for key, group in groups.items()}
        for key in sorted(groups, key=lambda key: (cost[key], *rank[key], room[key], key)):
            if room[key] >= asked:
                picks = pack(tasks, groups[key], chain.fanout)
                if picks is not None:
                    return picks
    return pack(tasks, sites, chain.fanout)


def _ranks(group: Sequence[TaskSite]) -> tuple[int, ...]:
    """The ranks of all sites of a cell together."""
    return tuple(map(sum, zip(*(site.rank for site in group), strict=True)))
