"""One tenant's virtual cells (HiveD, OSDI'20): a private cluster that knows of nobody else.

Where a gang goes is decided here, on virtual nodes, from the tenant's own jobs alone. Which
physical cells stand behind virtual ones is decided later (`hive`), when they are first used; only
nodes that went bad shine through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.model.topology import Chain
from wattherd.policy.queue.cells import CellJournal
from wattherd.policy.queue.topology import TaskSite, pack_close

VirtualGpu = tuple[int, int]
"""(number of the virtual cell, GPU within it)."""
PriorityOf = Callable[[str], int]


@dataclass(slots=True)
class VirtualCell:
    """Who uses its GPUs, how many are used in each cell below it, and what these are bound to."""

    level: int
    users: list[str | None]
    used: list[list[int]]
    bound: dict[tuple[int, int], int]
    """Physical index of (level, index within this cell); exactly the cells in use are bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTerms:
    """How a gang may be placed.

    Users of a priority below `limit` count as gone. `caps` is how many nodes that are not yet
    bound may be used of each virtual cell, `shunned` the bound nodes that are bad, `barred` GPUs
    that are kept for others. Of each node that is not yet bound so many GPUs may be used as
    `widths` has of its cell.
    """

    limit: int | None = None
    caps: Mapping[int, int]
    shunned: Collection[tuple[int, int]] = ()
    barred: Collection[VirtualGpu] = ()
    widths: Mapping[int, int] = field(default_factory=dict)


class VirtualCells:
    """All virtual cells of one tenant, large ones first."""

    def __init__(self, chain: Chain, levels: Sequence[int], journal: CellJournal) -> None:
        """One cell of each of `levels`, nobody on it."""
        self.chain, self._journal = chain, journal
        self.cells = [self._new(level) for level in sorted(levels, reverse=True)]
        self.gpus = sum(len(cell.users) for cell in self.cells)
        """GPUs of all cells."""

    def _new(self, level: int) -> VirtualCell:
        sizes = self.chain.sizes[: level + 1]
        used = [[0] * (sizes[-1] // size) for size in sizes]
        return VirtualCell(level, [None] * sizes[-1], used, {})

    @property
    def idle_gpus(self) -> int:
        """GPUs that no guaranteed job uses."""
        return self.gpus - sum(cell.used[cell.level][0] for cell in self.cells)

    def unit(self, cell: VirtualCell) -> int:
        """The level of its nodes: that of whole nodes, or its own if it is smaller."""
        return min(cell.level, self.chain.node_level)

    def use(self, gpus: Sequence[VirtualGpu], user: str | None) -> None:
        """Give GPUs to a user, or (None) take them back."""
        for number, gpu in gpus:
            cell = self.cells[number]
            change = 1 if user is not None else -1
            self._journal.put(cell.users, gpu, user)
            for level, counts in enumerate(cell.used):
                index = gpu // self.chain.sizes[level]
                self._journal.put(counts, index, counts[index] + change)

    def place(
        self, tasks: Sequence[int], terms: GangTerms, priority_of: PriorityOf
    ) -> list[tuple[VirtualGpu, ...]] | None:
        """GPUs for each task of a gang, or None."""
        sites = list(self._sites(terms, priority_of))
        picks = pack_close(tasks, sites, self.chain, self._group)
        if picks is None:
            return None
        return [self._virtual(key, gpus) for key, gpus in picks]

    def _virtual(self, key: tuple[int, ...], gpus: Sequence[int]) -> tuple[VirtualGpu, ...]:
        number, index = key
        first = index * self.chain.sizes[self.unit(self.cells[number])]
        return tuple((number, first + gpu) for gpu in gpus)

    def place_somehow(self, tasks: Sequence[int]) -> list[tuple[VirtualGpu, ...]] | None:
        """GPUs of which as few as possible are in use, bad nodes or not; None if it never fits."""
        caps = dict.fromkeys(range(len(self.cells)), len(self.chain.nodes))
        return self.place(tasks, GangTerms(limit=1, caps=caps), lambda _: 0)

    def _group(self, site: TaskSite, level: int) -> tuple[int, ...] | None:
        number, index = site.key
        if self.cells[number].level < level:
            return None
        width = self.chain.sizes[level] // self.chain.sizes[self.chain.node_level]
        return number, index // width

    def _sites(self, terms: GangTerms, priority_of: PriorityOf) -> Iterator[TaskSite]:
        """Virtual nodes with what is open on each."""
        for number, cell in enumerate(self.cells):
            unit, left = self.unit(cell), terms.caps[number]
            for index in range(len(cell.used[unit])):
                if (unit, index) not in cell.bound:
                    left -= 1
                    if left < 0:
                        continue
                if (number, index) not in terms.shunned:
                    yield self._site(number, index, terms, priority_of)

    def _site(self, number: int, index: int, terms: GangTerms, priority_of: PriorityOf) -> TaskSite:
        cell = self.cells[number]
        unit = self.unit(cell)
        size = self.chain.sizes[unit]
        free, costly = [], []
        for offset in range(size):
            gpu = index * size + offset
            user = cell.users[gpu]
            if (number, gpu) in terms.barred:
                continue
            if user is None:
                free.append(offset)
            elif terms.limit is not None and priority_of(user) < terms.limit:
                costly.append(offset)
        if number in terms.widths and (unit, index) not in cell.bound:
            free = free[: terms.widths[number]]
        return TaskSite((number, index), size, free + costly, frozenset(costly))
