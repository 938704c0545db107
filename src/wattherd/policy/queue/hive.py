"""All tenants on the cells of one chain (HiveD, OSDI'20).

A guaranteed job is placed on its tenant's virtual cells as if the tenant were alone, so that no
other tenant can ever be the reason for waiting. Then the virtual cells in use are bound to
physical ones, level by level, shunning bad nodes and opportunistic jobs. An opportunistic job
takes any idle GPU, and leaves when a guaranteed one is bound there.

GPUs may be somebody's who is not known here. Cells are bound around them where that is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from wattherd.errors import Bug, UserError
from wattherd.model.topology import Chain
from wattherd.policy.queue.cells import CellJournal, PhysicalCells
from wattherd.policy.queue.topology import TaskSite, pack_close
from wattherd.policy.queue.virtual import GangTerms, VirtualCell, VirtualCells, VirtualGpu

OPPORTUNISTIC = -1
"""Priority of jobs that run on idle GPUs only; guaranteed ones have zero or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCells:
    """What a job has: GPUs of the chain for each of its tasks, and virtual ones if guaranteed."""

    tenant: str
    priority: int
    tasks: tuple[tuple[int, ...], ...]
    virtual: tuple[VirtualGpu, ...] = ()

    @property
    def gpus(self) -> list[int]:
        """All its GPUs."""
        return [gpu for task in self.tasks for gpu in task]


@dataclass(slots=True)
class Granted:
    """A gang was placed: who must leave for it, and who goes on as opportunistic."""

    tasks: tuple[tuple[int, ...], ...]
    evicted: list[str] = field(default_factory=list)
    downgraded: list[str] = field(default_factory=list)


class Hive:
    """`shares` gives each tenant's virtual cells as level name to number.

    `pins` are tenants that have one certain physical cell instead, as level and number of the cell
    on it (HiveD's pinned cells): nobody else is promised it, but guests may use it.

    Raises:
        UserError: the shares do not fit into the chain together, or two pins lie over each other.
        Bug: a promised cell could not be had although no node is bad.
    """

    def __init__(
        self,
        chain: Chain,
        shares: Mapping[str, Mapping[str, int]],
        pins: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Start with nobody on any GPU."""
        self.chain, self.journal = chain, CellJournal()
        self.physical = PhysicalCells(chain, self.journal)
        self.users: list[str | None] = [None] * chain.gpus
        """The job on every GPU."""
        self.version = 0
        """Grows with every change; while it stays, what was refused is refused again."""
        self.jobs: dict[str, HeldCells] = {}
        self.taken: dict[tuple[int, int], None] = {}
        """Physical cells that virtual ones are bound to, of all levels."""
        self.tenants: dict[str, VirtualCells] = {}
        self.pins = dict(pins or {})
        for tenant, (level, index) in self.pins.items():
            self._pin(tenant, level, index)
        for tenant, cells in shares.items():
            if tenant in self.pins:
                continue
            self._found(tenant, cells)

    def _pin(self, tenant: str, level: int, index: int) -> None:
        """Take a cell out of the free ones for good: nothing else is ever bound there."""
        at, around = level, index
        while at < self.chain.top and around not in self.physical.free[at]:
            around //= self.chain.fanout[at]
            at += 1
        if around not in self.physical.free[at]:
            name = self.chain.levels[level]
            problem = f"cell {index} of level {name!r} of chain {self.chain.name!r} is not free"
            hint = "pinned cells must not lie over each other; cells count from 0"
            raise UserError(problem, where=f"pinned cell {tenant}", hint=hint)
        self.physical.promise(level, 1)
        self.physical.take(level, index)
        self.tenants[tenant] = VirtualCells(self.chain, [level], self.journal)

    def _found(self, tenant: str, cells: Mapping[str, int]) -> None:
        levels = [self.chain.level(name) for name, number in cells.items() for _ in range(number)]
        for level in levels:
            self.physical.promise(level, 1)
        self.tenants[tenant] = VirtualCells(self.chain, levels, self.journal)
        short = [level for level, spare in enumerate(self.physical.splittable()) if spare < 0]
        if short:
            name = self.chain.levels[short[-1]]
            problem = f"there are not enough cells of level {name!r} for it and those before it"
            where = f"virtual cluster {tenant}"
            raise UserError(problem, where=where, hint=f"chain {self.chain.name!r} is too small")

    def set_health(self, node: int, *, healthy: bool) -> None:
        """A node, by its position in the chain, goes bad or is repaired; its jobs stay booked."""
        self.version += healthy != (node not in self.physical.bad)
        self.physical.set_health(node, healthy=healthy)

    def set_foreign(self, gpus: Collection[int]) -> None:
        """These GPUs of the chain are somebody's who is not known here; no others are."""
        for gpu in {*gpus, *self.physical.foreign}:
            self.version += (gpu in gpus) != (gpu in self.physical.foreign)
            self.physical.set_foreign(gpu, foreign=gpu in gpus)

    @contextmanager
    def confined(self, able: Collection[int]) -> Iterator[None]:
        """Nothing is placed but on nodes `able`, by their positions in the chain; then as before.

        The others are taken for bad as long: a gang is bound around them where that is possible,
        but no tenant has a promise of any one node.
        """
        physical = self.physical
        out = [node for node in range(len(self.chain.nodes)) if node not in able]
        out = [node for node in out if node not in physical.bad]
        for node in out:
            physical.set_health(node, healthy=False)
        try:
            yield
        finally:
            for node in out:
                physical.set_health(node, healthy=True)

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

        Lower priorities of the same tenant make room only if there is no other. With `lazy` they
        then go on as opportunistic jobs until their GPUs are really needed.
        """
        virtual, asked = self.tenants[tenant], sum(tasks)
        barred = {*barred, *self._closed(virtual)}
        lower = sum(
            len(held.virtual)
            for held in self.jobs.values()
            if held.virtual and held.tenant == tenant and held.priority < priority
        )
        for limit in (None, priority) if lower else (None,):
            if asked > virtual.idle_gpus + (lower if limit is not None else 0):
                continue
            caps = {number: self._cap(cell) for number, cell in enumerate(virtual.cells)}
            shunned, widths = self._bad(virtual), dict[int, int]()
            while True:
                terms = GangTerms(
                    limit=limit, caps=caps, shunned=shunned, barred=barred, widths=widths
                )
                picks = virtual.place(tasks, terms, self._priority)
                if picks is None:
                    break
                granted = self._grant(job, tenant, picks, priority, lazy=lazy)
                if isinstance(granted, tuple) and granted[1] > caps[granted[0]]:
                    # What those who make room had of this cell was bound to another one of these
                    # picks: let it have its own first.
                    granted = self._grant(job, tenant, picks, priority, lazy=lazy, first=granted[0])
                if isinstance(granted, Granted):
                    return granted
                if not self.physical.bad and not self.physical.foreign:
                    raise Bug(f"no cell for job {job} of {tenant}: a promise was broken")
                # So many nodes of this cell cannot all be bound to healthy ones: use fewer. Either
                # a cap falls or a node is shunned, so that this comes to an end. Where others have
                # GPUs, fewer of each node are tried before that.
                number, nodes = granted
                width = self._widest(virtual, number, picks)
                if self.physical.foreign and width > max(tasks):
                    widths[number] = width - 1
                elif 0 < nodes <= caps[number]:
                    caps[number] = nodes - 1
                    widths.pop(number, None)
                else:
                    shunned = [*shunned, *self._bound_nodes(virtual, number, picks)]
        return None

    def could_start(self, job: str, tenant: str, tasks: Sequence[int]) -> bool:
        """Whether a gang would start, were no other guaranteed job of its tenant there.

        It always would while all nodes are healthy and nobody else is there; nothing changes.
        """
        if not self.physical.bad and not self.physical.foreign:
            return True
        version, mark = self.version, self.journal.begin()
        for other, held in list(self.jobs.items()):
            if held.virtual and held.tenant == tenant:
                self.release(other)
        could = self.place(job, tenant, tasks) is not None
        self.journal.undo(mark)
        self.version = version
        return could

    def _priority(self, job: str) -> int:
        return self.jobs[job].priority

    def _cap(self, cell: VirtualCell) -> int:
        """How many nodes of a virtual cell may still be bound to healthy ones, at most."""
        top = cell.bound.get((cell.level, 0))
        if top is None or not self.physical.bad:
            return len(self.chain.nodes)
        return self._healthy_nodes(cell.level, top, idle=True)

    def _bad(self, virtual: VirtualCells) -> list[tuple[int, int]]:
        """Virtual nodes that are bound to bad ones."""
        if not self.physical.bad:
            return []
        return [
            (number, index)
            for number, cell in enumerate(virtual.cells)
            for (level, index), bound in cell.bound.items()
            if level == virtual.unit(cell) and not self._is_healthy(level, bound)
        ]

    def _closed(self, virtual: VirtualCells) -> set[VirtualGpu]:
        """Idle virtual GPUs behind which there is nothing: bound where others have GPUs."""
        found: set[VirtualGpu] = set()
        bound = (
            (level, number, index, physical)
            for number, cell in enumerate(virtual.cells)
            for (level, index), physical in cell.bound.items()
            if level <= virtual.unit(cell)
        )
        # From the smallest cells up: of what they have no room for, none is left for larger ones.
        for level, number, index, physical in sorted(bound) if self.physical.foreign else ():
            cell, size = virtual.cells[number], self.chain.sizes[level]
            left = self.physical.open[level][physical] - cell.used[level][index]
            inside = range(index * size, (index + 1) * size)
            idle = [(number, gpu) for gpu in inside if cell.users[gpu] is None]
            idle = [one for one in idle if one not in found]
            found.update(idle[max(0, left) :])
        return found

    def _is_healthy(self, level: int, index: int) -> bool:
        return self.physical.healthy[level][index] == self.chain.sizes[level]

    def _healthy_nodes(self, level: int, index: int, *, idle: bool = False) -> int:
        """Healthy nodes in a physical cell (1 or 0 for a part of a node); `idle`: unbound ones."""
        unit = min(level, self.chain.node_level)
        width = self.chain.sizes[level] // self.chain.sizes[unit]
        if not self.physical.bad and not idle:
            return width
        return sum(
            self._is_healthy(unit, node) and not (idle and (unit, node) in self.taken)
            for node in range(index * width, (index + 1) * width)
        )

    def _grant(
        self,
        job: str,
        tenant: str,
        picks: Sequence[tuple[VirtualGpu, ...]],
        priority: int,
        *,
        lazy: bool,
        first: int | None = None,
    ) -> Granted | tuple[int, int]:
        """Carry a placement out; else nothing changes: which cell failed to bind how many nodes.

        Cells are bound in order, but `first` before all others.
        """
        virtual, gpus = self.tenants[tenant], [gpu for task in picks for gpu in task]
        mark, granted = self.journal.begin(), Granted(())
        for victim in self._users(virtual, gpus):
            if lazy:
                self._downgrade(victim)
                granted.downgraded.append(victim)
            else:
                self.release(victim)
                granted.evicted.append(victim)
        virtual.use(gpus, job)
        for number in sorted({number for number, _ in gpus}, key=lambda one: (one != first, one)):
            inside = sorted(gpu for other, gpu in gpus if other == number)
            nodes = self._unbound_nodes(virtual, number, inside)
            if not self._bind(virtual.cells[number], inside, nodes, self.pins.get(tenant)):
                self.journal.undo(mark)
                return number, nodes
        tasks = tuple(
            tuple(virtual.cells[number].bound[0, gpu] for number, gpu in task) for task in picks
        )
        self._settle(
            job,
            HeldCells(tenant=tenant, priority=priority, tasks=tasks, virtual=tuple(gpus)),
            granted,
        )
        self.journal.end()
        return granted

    def _users(self, virtual: VirtualCells, gpus: Sequence[VirtualGpu]) -> list[str]:
        found = {virtual.cells[number].users[gpu]: None for number, gpu in gpus}
        return [user for user in found if user is not None]

    def _settle(self, job: str, held: HeldCells, granted: Granted) -> None:
        """Put a guaranteed job on its GPUs; whoever is there must leave."""
        self.version += 1
        for gpu in held.gpus:
            guest = self.users[gpu]
            if guest is not None:
                self.release(guest)
                granted.evicted.append(guest)
        # Who was downgraded and evicted at once is simply evicted.
        granted.downgraded = [one for one in granted.downgraded if one not in granted.evicted]
        granted.tasks = held.tasks
        for gpu in held.gpus:
            self.journal.put(self.users, gpu, job)
        self.journal.put(self.jobs, job, held)

    def _downgrade(self, job: str) -> None:
        """A guaranteed job becomes an opportunistic one where it is (lazy preemption)."""
        held = self.jobs[job]
        self._leave(held)
        for gpu in held.gpus:
            self.physical.count(self.physical.guests, gpu, 1)
        self.journal.put(self.jobs, job, replace(held, priority=OPPORTUNISTIC, virtual=()))

    # Binding --------------------------------------------------------------------------------------

    def _unbound_nodes(self, virtual: VirtualCells, number: int, gpus: Sequence[int]) -> int:
        """How many nodes of a virtual cell GPUs are on that are not bound yet."""
        cell = virtual.cells[number]
        unit = virtual.unit(cell)
        nodes = {gpu // self.chain.sizes[unit] for gpu in gpus}
        return sum((unit, node) not in cell.bound for node in nodes)

    def _widest(
        self, virtual: VirtualCells, number: int, picks: Sequence[tuple[VirtualGpu, ...]]
    ) -> int:
        """Of the nodes of a virtual cell that are not bound now: most GPUs of `picks` on one."""
        cell = virtual.cells[number]
        unit = virtual.unit(cell)
        size = self.chain.sizes[unit]
        on = Counter(gpu // size for task in picks for other, gpu in task if other == number)
        return max(
            (count for node, count in on.items() if (unit, node) not in cell.bound), default=0
        )

    def _bound_nodes(
        self, virtual: VirtualCells, number: int, picks: Sequence[tuple[VirtualGpu, ...]]
    ) -> list[tuple[int, int]]:
        """Nodes of a virtual cell that GPUs of `picks` are on and that are bound now."""
        cell = virtual.cells[number]
        unit = virtual.unit(cell)
        size = self.chain.sizes[unit]
        nodes = {gpu // size for task in picks for other, gpu in task if other == number}
        return [(number, node) for node in sorted(nodes) if (unit, node) in cell.bound]

    def _bind(
        self,
        cell: VirtualCell,
        gpus: Sequence[int],
        nodes: int,
        pin: tuple[int, int] | None,
    ) -> bool:
        """Bind a virtual cell and all cells within it that `gpus` are in; False if it fails."""
        opened = self.physical.open[cell.level]
        if (cell.level, 0) not in cell.bound and pin is not None:
            if self._healthy_nodes(cell.level, pin[1]) < nodes or opened[pin[1]] < len(gpus):
                return False
            self._tie(cell, cell.level, 0, pin[1])
        elif (cell.level, 0) not in cell.bound:
            unit = min(cell.level, self.chain.node_level)
            found = self.physical.find(
                cell.level,
                lambda index: (
                    self._healthy_nodes(cell.level, index) >= nodes and opened[index] >= len(gpus)
                ),
                nodes * self.chain.sizes[unit],
            )
            if found is None:
                return False
            self.physical.take(cell.level, found)
            self._tie(cell, cell.level, 0, found)
        return self._bind_below(cell, cell.level, 0, gpus)

    def _tie(self, cell: VirtualCell, level: int, index: int, physical: int) -> None:
        self.journal.put(cell.bound, (level, index), physical)
        self.journal.put(self.taken, (level, physical), None)

    def _bind_below(self, cell: VirtualCell, level: int, index: int, gpus: Sequence[int]) -> bool:
        """Bind the children that `gpus` are in: the most demanding first, to any that will do."""
        if level == 0:
            return True
        parts: dict[int, list[int]] = {}
        for gpu in gpus:
            parts.setdefault(gpu // self.chain.sizes[level - 1], []).append(gpu)
        needs = {child: self._nodes(level - 1, part) for child, part in parts.items()}
        below = self.physical.children(level, cell.bound[level, index])
        opened = self.physical.open[level - 1]
        if self.physical.foreign:  # then the widest finds least
            parts = dict(sorted(parts.items(), key=lambda one: -len(one[1])))
        for child in sorted(parts, key=lambda one: -needs[one]):
            if (level - 1, child) not in cell.bound:
                able = [
                    (self.physical.guests[level - 1][one], opened[one], one)
                    for one in below
                    if (level - 1, one) not in self.taken
                    and self._healthy_nodes(level - 1, one) >= needs[child]
                    and opened[one] >= len(parts[child])
                ]
                if not able:
                    return False
                self._tie(cell, level - 1, child, min(able)[2])
        return all(self._bind_below(cell, level - 1, child, part) for child, part in parts.items())

    def _nodes(self, level: int, gpus: Sequence[int]) -> int:
        unit = min(level, self.chain.node_level)
        return len({gpu // self.chain.sizes[unit] for gpu in gpus})

    def _leave(self, held: HeldCells) -> None:
        """Take virtual GPUs back and unbind every cell that nobody uses any more."""
        virtual = self.tenants[held.tenant]
        virtual.use(held.virtual, None)
        for number, gpu in held.virtual:
            cell = virtual.cells[number]
            for level in range(cell.level + 1):
                index = gpu // self.chain.sizes[level]
                if cell.used[level][index] == 0 and (level, index) in cell.bound:
                    physical = cell.bound[level, index]
                    self.journal.remove(cell.bound, (level, index))
                    self.journal.remove(self.taken, (level, physical))
                    if level == cell.level and held.tenant not in self.pins:
                        self.physical.give(level, physical)

    # Opportunistic jobs, and the end of all -------------------------------------------------------

    def borrow(self, job: str, tenant: str, tasks: Sequence[int]) -> Granted | None:
        """Place a gang on idle GPUs, away from guaranteed jobs; None if they do not suffice."""
        size = self.chain.sizes[self.chain.node_level]
        sites = [self._idle(node, size) for node in range(len(self.chain.nodes))]
        picks = pack_close(tasks, [s for s in sites if s.open], self.chain, self._group)
        if picks is None:
            return None
        placed = tuple(tuple(key[0] * size + gpu for gpu in gpus) for key, gpus in picks)
        held = HeldCells(tenant=tenant, priority=OPPORTUNISTIC, tasks=placed)
        self.version += 1
        for gpu in held.gpus:
            self.journal.put(self.users, gpu, job)
            self.physical.count(self.physical.guests, gpu, 1)
        self.journal.put(self.jobs, job, held)
        return Granted(placed)

    def _idle(self, node: int, size: int) -> TaskSite:
        """A physical node; those with few guaranteed and many opportunistic users come first."""
        first = node * size
        able = [] if node in self.physical.bad else range(size)
        open_ = [
            gpu
            for gpu in able
            if self.users[first + gpu] is None and first + gpu not in self.physical.foreign
        ]
        guests = self.physical.guests[self.chain.node_level][node]
        return TaskSite((node,), size, open_, rank=(size - len(open_) - guests, -guests))

    def _group(self, site: TaskSite, level: int) -> tuple[int, ...]:
        return (site.key[0] * self.chain.sizes[self.chain.node_level] // self.chain.sizes[level],)

    def release(self, job: str) -> None:
        """A job is gone from all its GPUs."""
        self.version += 1
        held = self.jobs[job]
        for gpu in held.gpus:
            self.journal.put(self.users, gpu, None)
            if not held.virtual:
                self.physical.count(self.physical.guests, gpu, -1)
        if held.virtual:
            self._leave(held)
        self.journal.remove(self.jobs, job)
