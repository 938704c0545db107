"""Where devices are: cells of GPUs, from the single GPU over switches and sockets to racks.

Levels count from 0, the single GPU, upwards; `fanout` cells of one level make one of the next.
What lies close together talks fast (`estimate.locality`), and is promised as a whole (HiveD).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    leave: Collection[int] = (),
) -> list[Chain]:
    """A chain for each kind of node (model and number of GPUs), nodes in their order.

    `within` tells, by the number of GPUs, how a node is made up from the GPU upwards, such as
    {8: (2, 2, 2)}; otherwise all GPUs of a node are equally close. So many nodes as `per_rack`
    make a rack; those that do not fill one are a chain of their own. Nodes to `leave` are in none.

    Raises:
        UserError: a node is not made up of as many GPUs as it has.
    """
    kinds: dict[tuple[str, int], list[int]] = {}
    for index, node in enumerate(cluster.nodes):
        if node.gpu_count and index not in leave:
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


def stated_chain(
    cluster: ClusterSpec,
    name: str,
    levels: Mapping[str, int],
    nodes: Sequence[str],
) -> Chain:
    """A chain as stated: `levels` say how many cells of the one below make one of each.

    The lowest level is made of single GPUs, and one of them is called `node`. `nodes` are names of
    equal nodes of the cluster, in the order in which they make up the levels above.

    Raises:
        UserError: no level `node`, unknown or unequal nodes, or other GPUs than the levels say.
    """
    where = f"cell chain {name}"
    known = {node.name: number for number, node in enumerate(cluster.nodes)}
    strange = [node for node in nodes if node not in known]
    if strange:
        hint = f"known: {', '.join(list(known)[:3])}, ..."
        raise UserError(f"unknown node {strange[0]!r}", where=where, field="nodes", hint=hint)
    if "node" not in levels:
        hint = "name the level of whole nodes: node"
        raise UserError("no level is called 'node'", where=where, field="levels", hint=hint)
    names, fanout = list(levels), tuple(levels.values())
    node_level = names.index("node") + 1
    kinds = {
        (cluster.nodes[known[node]].gpu_model, cluster.nodes[known[node]].gpu_count): None
        for node in nodes
    }
    gpus = prod(fanout[:node_level])
    if len(kinds) != 1 or next(iter(kinds))[1] != gpus:
        found = ", ".join(f"{count} x {model}" for model, count in kinds) or "none"
        problem = f"its nodes have {found}, its levels make {gpus} GPUs of a node"
        raise UserError(problem, where=where, field="nodes", hint="one kind of node in a chain")
    return Chain(
        name=name,
        levels=("gpu", *names),
        fanout=fanout,
        node_level=node_level,
        nodes=tuple(known[node] for node in nodes),
        gpu_model=next(iter(kinds))[0],
    )


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


@dataclass(frozen=True, slots=True)
class Topology:
    """The chains of a cluster, to ask where devices meet."""

    chains: tuple[Chain, ...]
    _at: Mapping[int, tuple[int, int]] = field(init=False, repr=False, compare=False)
    """By node index: the number of its chain and its position there."""

    def __post_init__(self) -> None:
        """Look every node up once."""
        at = {
            node: (number, position)
            for number, chain in enumerate(self.chains)
            for position, node in enumerate(chain.nodes)
        }
        object.__setattr__(self, "_at", at)

    def meets(self, devices: Iterable[tuple[int, int]]) -> tuple[Chain, int] | None:
        """The lowest cell around all `devices` (node, GPU), as its chain and level.

        None where no cell holds them all: in different chains, or below no common top cell.

        Raises:
            KeyError: a node has no GPUs.
        """
        numbers, cells = set(), set()
        for node, gpu in devices:
            number, position = self._at[node]
            chain = self.chains[number]
            numbers.add(number)
            cells.add(position * chain.sizes[chain.node_level] + gpu)
        if len(numbers) != 1:
            return None
        chain = self.chains[numbers.pop()]
        for level, size in enumerate(chain.sizes):
            if len({cell // size for cell in cells}) == 1:
                return chain, level
        return None


def topology_of(
    cluster: ClusterSpec,
    *,
    within: Mapping[int, Sequence[int]] | None = None,
    per_rack: int | None = None,
) -> Topology:
    """The chains of `chains_of`, to be asked."""
    return Topology(tuple(chains_of(cluster, within=within, per_rack=per_rack)))
