"""Virtual clusters (HiveD, OSDI'20): every tenant schedules on cells of his own, bound late.

A virtual cluster is a set of virtual cells. Guaranteed jobs are placed on those as if the tenant
were alone, so that no other tenant can ever be the reason for waiting; only then are the virtual
cells in use bound to physical ones, level by level, shunning bad nodes and opportunistic jobs. An
opportunistic job takes any idle GPU and leaves when a guaranteed one is bound there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.errors import UserError
from wattherd.policy.queue.cells import Journal, PhysicalCells
from wattherd.policy.queue.topology import Chain, Picks, Site, pack

VirtualGpu = tuple[int, int]
"""(number of the virtual cell, GPU within it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a job has: GPUs of the chain for each of its tasks, and virtual ones if guaranteed."""

    tenant: str
    priority: int
    tasks: tuple[tuple[int, ...], ...]
    virtual: tuple[VirtualGpu, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """All its GPUs, ascending."""
        return tuple(sorted(gpu for task in self.tasks for gpu in task))


@dataclass(frozen=True, slots=True)
class Granted:
    """A job was placed: who must leave for it, and who became opportunistic."""

    held: Held
    evicted: tuple[str, ...] = ()
    downgraded: tuple[str, ...] = ()


@dataclass(slots=True)
class _Cell:
    """One virtual cell: who uses its GPUs, how many are used in each cell below, what is bound."""

    level: int
    users: list[str | None]
    used: list[list[int]]
    bound: dict[tuple[int, int], int] = field(default_factory=dict)
    """Physical index of (level, index within this cell)."""


class Hive:
    """All jobs on the cells of one chain.

    `shares` gives each tenant's cells: level name to number. Changes made after `begin` are kept
    by `commit` or taken back by `rollback`.

    Raises:
        UserError: the shares do not fit into the chain together.
    """

    def __init__(self, chain: Chain, shares: Mapping[str, Mapping[str, int]]) -> None:
        """Start with nobody on any GPU."""
        self.chain = chain
        self.journal = Journal()
        self.physical = PhysicalCells(chain, self.journal)
        self.users: list[str | None] = [None] * chain.gpus
        """Job on every physical GPU."""
        self.jobs: dict[str, Held] = {}
        self._taken: dict[tuple[int, int], None] = {}
        """Physical cells that a virtual cell is bound to."""
        self.tenants: dict[str, list[_Cell]] = {}
        for tenant, cells in shares.items():
            self._found(tenant, cells)

    def _found(self, tenant: str, cells: Mapping[str, int]) -> None:
        levels = sorted(((self.chain.level(name), n) for name, n in cells.items()), reverse=True)
        for level, number in levels:
            self.physical.promise(level, number)
        self.tenants[tenant] = [self._new(level) for level, n in levels for _ in range(n)]
        short = [level for level, spare in enumerate(self.physical.splittable()) if spare < 0]
        if short:
            name = self.chain.levels[short[-1]]
            problem = f"there are not enough cells of level {name!r} for it and those before"
            where = f"virtual cluster {tenant}"
            raise UserError(problem, where=where, hint=f"chain {self.chain.name} is too small")

    def _new(self, level: int) -> _Cell:
        sizes = self.chain.sizes[: level + 1]
        return _Cell(level, [None] * sizes[-1], [[0] * (sizes[-1] // size) for size in sizes])

    def begin(self) -> None:
        """Record changes from here on."""
        self.journal.active = True

    def commit(self) -> None:
        """Keep what was done."""
        self.journal.keep()

    def rollback(self) -> None:
        """Undo everything since `begin`, exactly."""
        self.journal.undo()

    # Guaranteed jobs ------------------------------------------------------------------------------

    def place(
        self,
        job: str,
        tenant: str,
        tasks: Sequence[int],
        *,
        priority: int = 0,
        barred: Collection[VirtualGpu] = (),
        lazy: bool = True,
    ) -> Granted | None:
        """Place a gang on its tenant's cells, or None (and nothing changed) if it must wait.

        Lower priorities of the same tenant leave only if it does not fit otherwise; `lazy` lets
        them go on as opportunistic jobs until their GPUs are really needed.
        """
        caps = self._caps(tenant)
        for limit in self._limits(tenant, priority):
            while True:
                picks = self._picks(tenant, tasks, limit, caps, barred)
                if picks is None:
                    break
                blocked = self._try(job, tenant, picks, priority, lazy=lazy)
                if isinstance(blocked, Granted):
                    return blocked
                # The nodes of this cell cannot all be bound to healthy ones: use fewer of them.
                caps[blocked] -= 1
        return None

    def would_place(self, tenant: str, tasks: Sequence[int]) -> tuple[VirtualGpu, ...] | None:
        """Where a gang would go if its tenant had nothing else and every node were healthy."""
        sites = list(self._sites(tenant, None, {}, ()))
        picks = self._closest(sites, tasks, tenant)
        return None if picks is None else tuple(_virtual(picks))

    def _limits(self, tenant: str, priority: int) -> list[int | None]:
        """Below which priority others are asked to leave: nobody, then (if any) all lower ones."""
        lower = any(
            held.virtual and held.tenant == tenant and held.priority < priority
            for held in self.jobs.values()
        )
        none = min((held.priority for held in self.jobs.values()), default=0)
        return [none, priority] if lower else [none]

    def _caps(self, tenant: str) -> dict[int, int]:
        """How many unbound nodes of each virtual cell can be bound to healthy ones at most."""
        cells = self.tenants[tenant]
        many = {number: len(self.chain.nodes) for number in range(len(cells))}
        if not self.physical.bad:
            return many
        return {number: self._cap(cell) for number, cell in enumerate(cells)}

    def _cap(self, cell: _Cell) -> int:
        top = cell.bound.get((cell.level, 0))
        if top is None:
            return len(self.chain.nodes)  # the search for a cell to bind will tell
        unit = min(cell.level, self.chain.node_level)
        return sum(
            self.physical.healthy[unit][index] == self.chain.sizes[unit]
            for index in self._below(cell.level, top, unit)
            if (unit, index) not in self._taken
        )

    def _below(self, level: int, index: int, unit: int) -> range:
        width = self.chain.sizes[level] // self.chain.sizes[unit]
        return range(index * width, (index + 1) * width)

    def _sites(
        self,
        tenant: str,
        limit: int | None,
        caps: Mapping[int, int],
        barred: Collection[VirtualGpu],
    ) -> Iterator[Site]:
        """A tenant's virtual nodes; users below priority `limit` count as gone (None: all do)."""
        for number, cell in enumerate(self.tenants[tenant]):
            unit = min(cell.level, self.chain.node_level)
            size, left = self.chain.sizes[unit], caps.get(number, len(self.chain.nodes))
            for index in range(len(cell.used[unit])):
                bound = cell.bound.get((unit, index))
                if limit is not None and bound is None:
                    left -= 1
                    if left < 0:
                        continue
                if limit is not None and bound is not None and not self._is_healthy(unit, bound):
                    continue
                yield self._site(cell, (number, index), size, limit, barred)

    def _is_healthy(self, level: int, index: int) -> bool:
        return self.physical.healthy[level][index] == self.chain.sizes[level]

    def _site(
        self,
        cell: _Cell,
        key: tuple[int, int],
        size: int,
        limit: int | None,
        barred: Collection[VirtualGpu],
    ) -> Site:
        number, index = key
        free, costly = [], []
        for offset in range(size):
            gpu = index * size + offset
            user = cell.users[gpu]
            if (number, gpu) in barred:
                continue
            if user is None or limit is None:
                free.append(offset)
            elif self.jobs[user].priority < limit:
                costly.append(offset)
        return Site(key, size, free + costly, frozenset(costly), key)

    def _picks(
        self,
        tenant: str,
        tasks: Sequence[int],
        limit: int | None,
        caps: Mapping[int, int],
        barred: Collection[VirtualGpu],
    ) -> list[tuple[VirtualGpu, ...]] | None:
        sites = list(self._sites(tenant, limit, caps, barred))
        picks = self._closest(sites, tasks, tenant)
        if picks is None:
            return None
        return [
            tuple((key[0], key[1] * self._size(tenant, key[0]) + gpu) for gpu in gpus)
            for key, gpus in picks
        ]

    def _size(self, tenant: str, number: int) -> int:
        """GPUs of a virtual node."""
        level = self.tenants[tenant][number].level
        return self.chain.sizes[min(level, self.chain.node_level)]

    def _closest(
        self, sites: Sequence[Site], tasks: Sequence[int], tenant: str
    ) -> Picks | None:
        """Pack under the lowest virtual cell that holds the whole gang, else anywhere."""
        asked = sum(tasks)
        for level in range(self.chain.node_level, self.chain.top + 1):
            width = self.chain.sizes[level] // self.chain.sizes[self.chain.node_level]
            groups: dict[tuple[int, int], list[Site]] = {}
            for site in sites:
                if self.tenants[tenant][site.key[0]].level >= level:
                    groups.setdefault((site.key[0], site.key[1] // width), []).append(site)
            ranked = sorted((sum(len(s.open) for s in g), key) for key, g in groups.items())
            for room, key in ranked:
                if room >= asked:
                    picks = pack(tasks, groups[key], self.chain.fanout)
                    if picks is not None:
                        return picks
        return pack(tasks, sites, self.chain.fanout)
