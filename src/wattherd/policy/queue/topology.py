"""Where in a hierarchy of cells the tasks of a gang go: close together, leaving whole cells whole.

A task stays on one node, on GPUs under the lowest cell that has enough of them; a gang stays
under the lowest cell that holds all of it. Levels count from 0, the single GPU, upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Cells of equal nodes: `fanout[l]` cells of level l make one of level l + 1.

    `levels` are names from the GPU to the top; `node_level` is that of whole nodes, `nodes` are
    their indices in the cluster, in the order in which they make up higher cells; `gpu_model` is
    what they are equipped with.

    Raises:
        UserError: levels, fan-outs and nodes do not fit together.
    """

    name: str
    levels: tuple[str, ...]
    fanout: tuple[int, ...]
    node_level: int
    nodes: tuple[int, ...]
    gpu_model: str = ""
    sizes: tuple[int, ...] = field(init=False)
    """GPUs in a cell of each level."""

    def __post_init__(self) -> None:
        """Check once what every formula relies upon."""
        if len(self.fanout) != len(self.levels) - 1 or not all(n >= 1 for n in self.fanout):
            raise self._bad("fanout", f"{self.fanout} do not join {len(self.levels)} levels")
        if not 0 <= self.node_level < len(self.levels):
            raise self._bad("node_level", f"{self.node_level} is none of {self.levels}")
        per_top = prod(self.fanout[self.node_level :])
        if not self.nodes or len(self.nodes) % per_top:
            problem = f"{len(self.nodes)} nodes do not fill cells of {per_top}"
            raise self._bad("nodes", problem)
        sizes = tuple(prod(self.fanout[:level]) for level in range(len(self.levels)))
        object.__setattr__(self, "sizes", sizes)

    def _bad(self, name: str, problem: str) -> UserError:
        hint = "levels from one GPU upwards, one fan-out between each two"
        return UserError(problem, where=f"cell chain {self.name}", field=name, hint=hint)

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.levels) - 1

    @property
    def gpus(self) -> int:
        """GPUs of the whole chain."""
        return len(self.nodes) * self.sizes[self.node_level]

    def count(self, level: int) -> int:
        """Cells of a level."""
        return self.gpus // self.sizes[level]

    def level(self, name: str) -> int:
        """A level by its name.

        Raises:
            UserError: there is none of that name.
        """
        if name not in self.levels:
            known = ", ".join(self.levels)
            where = f"cell chain {self.name}"
            raise UserError(
                f"no level {name!r}", where=where, field="level", hint=f"known: {known}"
            )
        return self.levels.index(name)


def chains_of(
    cluster: ClusterSpec,
    *,
    within: Mapping[int, Sequence[int]] | None = None,
    per_rack: int | None = None,
) -> list[Chain]:
    """A chain for each kind of node (model and number of GPUs), nodes in their order.

    `within` tells, by the number of GPUs, how a node is made up from the GPU upwards, such as
    {8: (2, 2, 2)}; otherwise all GPUs of a node are equally close. So many nodes as `per_rack`
    make a rack; those that do not fill one are a chain of their own.

    Raises:
        UserError: a node is not made up of as many GPUs as it has.
    """
    kinds: dict[tuple[str, int], list[int]] = {}
    for index, node in enumerate(cluster.nodes):
        if node.gpu_count:
            kinds.setdefault((node.gpu_model, node.gpu_count), []).append(index)
    chains = []
    for (model, gpus), nodes in kinds.items():
        fanout = tuple((within or {}).get(gpus, (gpus,)))
        if prod(fanout) != gpus:
            problem = f"{fanout} make {prod(fanout)} GPUs, the nodes have {gpus}"
            raise UserError(problem, where=f"nodes with {gpus} x {model}", field="within")
        whole = len(nodes) - len(nodes) % per_rack if per_rack else 0
        name = f"{model}x{gpus}"
        if whole and per_rack:
            chains.append(_chain(f"{name}-racks", model, nodes[:whole], fanout, per_rack))
        if whole < len(nodes):
            chains.append(_chain(name, model, nodes[whole:], fanout))
    return chains


def _chain(
    name: str, model: str, nodes: Sequence[int], fanout: tuple[int, ...], per_rack: int = 0
) -> Chain:
    inner = [f"{prod(fanout[:level])}-gpu" for level in range(1, len(fanout))]
    racks = ("rack",) if per_rack else ()
    return Chain(
        name=name,
        levels=("gpu", *inner, "node", *racks),
        fanout=(*fanout, per_rack) if per_rack else fanout,
        node_level=len(fanout),
        nodes=tuple(nodes),
        gpu_model=model,
    )


@dataclass(slots=True)
class Site:
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


def pack(tasks: Sequence[int], sites: Sequence[Site], fanout: Sequence[int]) -> Picks | None:
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


def _fit(site: Site, left: Sequence[int], gpus: int) -> tuple[int, ...]:
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
    sites: Sequence[Site],
    chain: Chain,
    group_of: Callable[[Site, int], tuple[int, ...] | None],
) -> Picks | None:
    """Pack under the lowest cell that holds the whole gang (the fullest such), else anywhere.

    `group_of` names the cell of a level that a site belongs to, None if there is none so high.
    """
    asked = sum(tasks)
    for level in range(chain.node_level, chain.top + 1):
        groups: dict[tuple[int, ...], list[Site]] = {}
        for site in sites:
            key = group_of(site, level)
            if key is not None:
                groups.setdefault(key, []).append(site)
        room = {key: sum(len(site.open) for site in group) for key, group in groups.items()}
        cost = {key: sum(len(site.cost) for site in group) for key, group in groups.items()}
        for key in sorted(groups, key=lambda key: (cost[key], room[key], key)):
            if room[key] >= asked:
                picks = pack(tasks, groups[key], chain.fanout)
                if picks is not None:
                    return picks
    return pack(tasks, sites, chain.fanout)
