"""Which jobs live on which nodes, and where the next one goes: Gandiva's reactive mode.

A *resident* has a home: nodes on which it runs whenever it is its turn. Homes may be promised to
more residents than fit at a time; those take turns. A node's *affinity* is the number of GPUs of
the job that came first while nobody lived there, so that one-GPU jobs share nodes and wider ones
find nodes with room of their size (Gandiva, OSDI'18, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.model.cluster import NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason
from wattherd.policy.contract import JobView, Share
from wattherd.policy.eligibility import NodeMask, RoleMasks, mask_keys

Need = tuple[int, int, int]
"""GPUs, milli-vCPU, MiB."""
NOTHING: Need = (0, 0, 0)
Columns = NDArray[np.int64]
"""As `Need`, of each node: (3, N)."""
Asks = tuple[tuple[int, ...], tuple[Need, ...], tuple[str, ...], tuple[bytes, ...]]
"""Tasks of each role, what each takes, models and nodes: who asks for the same finds the same."""


@dataclass(slots=True, eq=False)
class GandivaJob:
    """A job as Gandiva sees it; it waits for a home while `home` is empty.

    `ran_s` is its running time until `since_s`, counted from that of its neighbours when it came;
    `solo_rate` the progress per second it reported when alone on its devices, `seen` its progress
    when last looked at. A `grown` one has that many tasks more than it asked for.
    """

    job: JobView
    width: int
    since_s: float
    queued_s: float
    masks: RoleMasks = ()
    home: tuple[Share, ...] = ()
    needs: dict[int, Need] = field(default_factory=dict)
    ran_s: float = 0.0
    running: bool = False
    partner: GandivaJob | None = None
    solo_rate: float | None = None
    seen: float = 0.0
    grown: int = 0
    told: bool = False
    """Whether it was said since it last ran what it waits for."""

    need: Need = field(init=False)
    """What all its tasks take at the width it runs with."""
    asks: Asks = field(init=False)
    why: Reason | None = None
    """What it was last said to wait for a home for."""

    def __post_init__(self) -> None:
        """Add up once what is asked for all the time."""
        spec = self.job.spec
        self.need = _plus(needs_of(spec, self.width))
        tasks = tuple(task_need(role) for role in spec.roles)
        self.asks = (
            tuple(counts_of(spec, self.width)),
            tasks,
            spec.gpu_models,
            mask_keys(self.masks),
        )

    @property
    def gpus(self) -> int:
        """GPUs at the width it runs with."""
        return self.need[0]

    @property
    def narrowed(self) -> bool:
        """Whether a budget has taken tasks from it since its turn began."""
        if not self.running or not self.job.wanted:
            return False
        tasks = sum(one.tasks for one in self.job.wanted if one.role == 0)
        return tasks < self.width + self.grown

    def run(self, now_s: float) -> None:
        """It runs from now on."""
        self.running, self.since_s, self.told = True, now_s, False

    def rest(self, now_s: float) -> None:
        """It runs no longer, and has what it asked for."""
        self.ran_s = self.service_s(now_s)
        self.running, self.since_s, self.grown = False, now_s, 0

    def service_s(self, now_s: float) -> float:
        """What decides whose turn it is: the least served come first."""
        return self.ran_s + (now_s - self.since_s if self.running else 0.0)

    def live_in(self, home: Sequence[Share]) -> None:
        """Take a home."""
        self.home, self.needs = tuple(home), {}
        for share in home:
            need = _times(task_need(self.job.spec.roles[share.role]), share.tasks)
            self.needs[share.node] = _add(self.needs.get(share.node, NOTHING), need)


def task_need(role: TaskRole) -> Need:
    """What one task takes."""
    return role.gpu_count, role.cpu_milli, role.memory_mib


def counts_of(spec: JobSpec, width: int) -> list[int]:
    """Tasks of each role when the first has `width`."""
    return [width, *(role.count for role in spec.roles[1:])]


def needs_of(spec: JobSpec, width: int) -> list[Need]:
    """What the tasks of each role take together."""
    counts = counts_of(spec, width)
    return [_times(task_need(role), n) for role, n in zip(spec.roles, counts, strict=True)]


def _plus(needs: Iterable[Need]) -> Need:
    total = NOTHING
    for need in needs:
        total = _add(total, need)
    return total


def _add(one: Need, other: Need) -> Need:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _times(need: Need, count: int) -> Need:
    return need[0] * count, need[1] * count, need[2] * count


NOBODY = -1
"""Affinity of a node on which nobody lives, in `GandivaNodes.affinities`."""

Find = Callable[["GandivaNodes", GandivaJob], "tuple[Share, ...] | None"]
"""Finds a home."""


class GandivaNodes:
    """The nodes of a cluster, who lives there, and what they would take all together."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        """Nobody lives anywhere; all nodes may be used."""
        self.nodes = nodes
        self.capacity: list[Need] = [(n.gpu_count, n.cpu_milli, n.memory_mib) for n in nodes]
        self.usable: list[bool] = [True] * len(nodes)
        self.closed: dict[int, set[int]] = {}
        """By node, GPUs that nobody here may be given."""
        self._seen: tuple[bytes, bytes, frozenset[tuple[int, int]]] | None = None
        self.demand: list[Need] = [NOTHING] * len(nodes)
        self.affinity: list[int | None] = [None] * len(nodes)
        self.on: list[dict[str, GandivaJob]] = [{} for _ in nodes]
        self.now_s = 0.0
        self._clocks = [(0.0, 0.0)] * len(nodes)
        # The same once more as columns: where the next job goes is asked of all nodes at once, and
        # who lives on one node is looked up one by one, which arrays are slow at.
        self._capacities: Columns = np.array(self.capacity, dtype=np.int64).reshape(-1, 3).T.copy()
        self._demands: Columns = np.zeros_like(self._capacities)
        self._usables = np.ones(len(nodes), dtype=np.bool_)
        self.affinities = np.full(len(nodes), NOBODY, dtype=np.int64)
        """Affinity of each node (N,)."""
        # Room that only becomes less makes nobody fit who did not: what found nothing is not looked
        # for again before there is more of it somewhere.
        self.hopeless: set[Asks] = set()
        """Who asks for this finds no home, by the rules for those who have not waited for long."""
        self.nowhere_whole: set[Asks] = set()
        """Who asks for this finds no single node with room."""
        self.touched: set[int] = set()
        """Nodes on which turns may be others than when they were last given."""
        self.resized = True
        """Whether nodes have been lost, returned or changed their size since then."""

    def note(
        self,
        now_s: float,
        usable: NDArray[np.bool_],
        gpus: NDArray[np.int64],
        closed: Collection[tuple[int, int]],
    ) -> list[GandivaJob] | None:
        """Take note of the time, of lost and returned nodes (N,), and of GPUs there.

        Of `gpus` on each usable node, those that are `closed` (node, GPU) are left out already.
        Returns residents whose home is lost, or too small for what they wait for; None if there is
        no such news.
        """
        self.now_s = now_s
        now = usable.tobytes(), gpus.tobytes(), frozenset(closed)
        if now == self._seen:
            return None
        self._seen, self.usable, self.closed = now, usable.tolist(), {}
        self._usables, self.resized = usable.copy(), True
        self._room_grew()
        for node, gpu in closed:
            self.closed.setdefault(node, set()).add(gpu)
        gone: dict[str, GandivaJob] = {}
        for node, able in enumerate(self.usable):
            if not able:
                gone.update(self.on[node])
                continue
            self._virtual_s(node)
            self.capacity[node] = (int(gpus[node]), *self.capacity[node][1:])
            self._capacities[0, node] = gpus[node]
            gone |= {
                name: one
                for name, one in self.on[node].items()
                if not one.running and one.needs[node][0] > self.capacity[node][0]
            }
        return list(gone.values())

    def _virtual_s(self, node: int) -> float:
        """Service that a resident from the beginning would have had by now, in fair turns.

        The virtual time of fair queueing: it runs slower the more take turns. Who comes later is
        taken to have had as much, so that neither he nor those before him are held up.
        """
        gpus, asked = self.capacity[node][0], self.demand[node][0]
        at_s, virtual_s = self._clocks[node]
        virtual_s += (self.now_s - at_s) * min(gpus / asked if asked else 1.0, 1.0)
        self._clocks[node] = self.now_s, virtual_s
        return virtual_s

    def _ask(self, node: int, need: Need) -> None:
        self._virtual_s(node)
        self.demand[node] = _add(self.demand[node], need)
        self._demands[:, node] = self.demand[node]
        self.touched.add(node)
        if min(need) < 0:
            self._room_grew()

    def _room_grew(self) -> None:
        self.hopeless.clear()
        self.nowhere_whole.clear()

    def _attract(self, node: int, gpus: int | None) -> None:
        """Jobs of so many GPUs belong on a node from now on, None: all do."""
        self.affinity[node] = gpus
        self.affinities[node] = NOBODY if gpus is None else gpus

    # Who lives where ------------------------------------------------------------------------------

    def settle(self, resident: GandivaJob, home: Sequence[Share]) -> None:
        """Give a resident a (new) home, where it takes its turns like those who were there."""
        self.leave(resident)
        resident.live_in(home)
        virtual_s = min(self._virtual_s(node) for node in resident.needs)
        resident.ran_s = virtual_s - (self.now_s - resident.since_s if resident.running else 0.0)
        self._reside(resident)

    def freely(self, resident: GandivaJob, find: Find) -> tuple[Share, ...] | None:
        """What `find` says if the resident itself were nowhere."""
        home, affinity = resident.home, {node: self.affinity[node] for node in resident.needs}
        self.leave(resident)
        found = find(self, resident)
        resident.live_in(home)
        self._reside(resident)
        for node, gpus in affinity.items():
            self._attract(node, gpus)
        return found

    def _reside(self, resident: GandivaJob) -> None:
        for node, need in resident.needs.items():
            if not self.on[node]:
                self._attract(node, resident.gpus)
            self.on[node][resident.job.id] = resident
            self._ask(node, need)

    def leave(self, resident: GandivaJob) -> None:
        """Give its home up, and its partner."""
        self.part(resident)
        for node, need in resident.needs.items():
            del self.on[node][resident.job.id]
            self._ask(node, _times(need, -1))
            if not self.on[node]:
                self._attract(node, None)
        resident.home, resident.needs = (), {}

    def pair(self, one: GandivaJob, other: GandivaJob) -> None:
        """Two residents of one GPU each share a GPU from now on."""
        one.partner, other.partner = other, one
        self._gpus(one, -1)

    def part(self, resident: GandivaJob) -> None:
        """Two partners have a GPU each again."""
        partner = resident.partner
        if partner is not None:
            partner.partner = resident.partner = None
            self._gpus(resident, 1)

    def _gpus(self, resident: GandivaJob, change: int) -> None:
        (node,) = resident.needs
        self._ask(node, (change, 0, 0))

    # Room -----------------------------------------------------------------------------------------

    def free_gpus(self, node: int) -> int:
        """GPUs that no resident would take, negative where they take turns."""
        return self.capacity[node][0] - self.demand[node][0] if self.usable[node] else 0

    def free_by_node(self) -> NDArray[np.int64]:
        """The same of each node (N,)."""
        free: NDArray[np.int64] = self._capacities[0] - self._demands[0]
        return np.where(self._usables, free, 0)

    def crowded(self, node: int) -> bool:
        """Whether its residents do not all fit at a time."""
        return any(d > c for d, c in zip(self.demand[node], self.capacity[node], strict=True))

    def loads(self) -> NDArray[np.float64]:
        """GPUs asked for over GPUs there, of each node (N,)."""
        loads: NDArray[np.float64] = self._demands[0] / np.maximum(self._capacities[0], 1)
        return loads

    def free_shares(self) -> NDArray[np.float64]:
        """Free GPUs over GPUs there (N,); below any share where nobody lives or may be moved."""
        able = self._usables & (self._capacities[0] > 0) & (self.affinities != NOBODY)
        shares = self.free_by_node() / np.maximum(self._capacities[0], 1)
        return np.where(able, shares, -np.inf)

    def able(self, spec: JobSpec) -> NodeMask:
        """Usable nodes (N,) with the right GPUs."""
        models = spec.gpu_models
        if not models:
            return self._usables.copy()
        right = np.array([node.gpu_model in models for node in self.nodes], dtype=np.bool_)
        return self._usables & right

    def rooms(self, height: float) -> NDArray[np.float64]:
        """What a job could be given of each node (3, N), of `height` times as much as there is."""
        promised: NDArray[np.float64] = np.multiply(height, self._capacities, dtype=np.float64)
        return np.minimum(promised - self._demands, self._capacities)

    def together(self, resident: GandivaJob, height: float = 1.0) -> NDArray[np.intp]:
        """Nodes that take the whole job, with `height` times as much promised as there is."""
        able = self.able(resident.job.spec)
        for mask in resident.masks:
            if mask is not None:
                able &= mask
        need = np.array(resident.need, dtype=np.int64)[:, np.newaxis]
        fits = need <= self.rooms(height)
        return (able & fits.all(axis=0)).nonzero()[0]

    def widest(self, spec: JobSpec, masks: RoleMasks) -> int:
        """The width asked for, or the next lower one that all nodes together could run."""
        counts, role = spec.counts(0), spec.roles[0]
        asked = min(max(role.count, counts.start), counts.stop - 1)
        mask = masks[0] if masks else None
        tasks = tasks_by_node(self._capacities, task_need(role))
        room = int((tasks if mask is None else tasks[mask]).sum())
        return min(asked, max(room, counts.start))


def tasks_by_node(rooms: NDArray[Any], need: Need) -> NDArray[np.int64]:
    """How many tasks fit in what each node (3, N) has."""
    limits = [have // each for have, each in zip(rooms, need, strict=True) if each]
    if not limits:
        return np.full(rooms.shape[1], 1 << 30, dtype=np.int64)
    fit: NDArray[np.int64] = np.maximum(np.minimum.reduce(limits), 0).astype(np.int64)
    return fit


def whole_home(spec: JobSpec, width: int, node: int) -> tuple[Share, ...]:
    """All tasks on one node."""
    return tuple(Share(node, n, role) for role, n in enumerate(counts_of(spec, width)) if n)


def arriving_home(homes: GandivaNodes, resident: GandivaJob) -> tuple[Share, ...] | None:
    """A home with room: on nodes of its affinity, of none, of another; least loaded first."""
    if resident.asks in homes.nowhere_whole:
        return None
    nodes = homes.together(resident)
    if not nodes.size:
        homes.nowhere_whole.add(resident.asks)
        return None
    affinities = homes.affinities[nodes]
    for liked in (affinities == resident.gpus, affinities == NOBODY):
        if liked.any():
            nodes = nodes[liked]
            break
    return whole_home(resident.job.spec, resident.width, _least_loaded(homes, nodes))


def _least_loaded(homes: GandivaNodes, nodes: NDArray[np.intp]) -> int:
    """Of `nodes`, ascending, the first with the least load."""
    return int(nodes[homes.loads()[nodes].argmin()])


def spread_home(
    homes: GandivaNodes, resident: GandivaJob, height: float = 1.0
) -> tuple[Share, ...] | None:
    """A home on several nodes: the emptiest first, as many tasks on each as it takes."""
    spec = resident.job.spec
    able = homes.able(spec).nonzero()[0]
    nodes = able[homes.loads()[able].argsort(kind="stable")]
    rooms = homes.rooms(height)[:, nodes]
    shares: list[Share] = []
    for role, count in enumerate(counts_of(spec, resident.width)):
        need = task_need(spec.roles[role])
        fit = tasks_by_node(rooms, need)
        mask = resident.masks[role] if resident.masks else None
        if mask is not None:
            fit[~mask[nodes]] = 0
        if fit.sum() < count:
            return None
        given = np.diff(np.minimum(fit.cumsum(), count), prepend=0)
        shares += [Share(int(nodes[at]), int(given[at]), role) for at in given.nonzero()[0]]
        rooms -= np.array(need, dtype=np.int64)[:, np.newaxis] * given
    return tuple(shares)


def crowded_home(
    homes: GandivaNodes, resident: GandivaJob, height: float, *, any_affinity: bool
) -> tuple[Share, ...] | None:
    """A home whose residents take turns: on nodes of its affinity, or on any; least loaded."""
    nodes = homes.together(resident, height)
    if not any_affinity:
        nodes = nodes[homes.affinities[nodes] == resident.gpus]
    if nodes.size:
        return whole_home(resident.job.spec, resident.width, _least_loaded(homes, nodes))
    return spread_home(homes, resident, height) if any_affinity else None
