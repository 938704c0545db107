"""Room for whole gangs: where all tasks of a job fit together, and room kept for those that wait.

A gang takes few nodes: one node if any holds all of it (the fullest such), else the emptiest ones.
A hold keeps what a waiting gang needs on chosen nodes, free or not yet free, from those who may
not overtake it. Holds cost nobody a device that he has; as every run ends, a held gang starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import KnowsEligibility, eligibility_key, inside

Ints = NDArray[np.int64]
MANY = 1_000_000
"""Tasks that fit where a task needs nothing."""
GPU = 2
"""Column of GPUs in a room."""
KINDS = 1000
"""Kinds of jobs that are kept in mind beyond those there are."""


@dataclass(frozen=True, slots=True)
class GangShape:
    """A job at one width: so many tasks of each role, and GPUs in all."""

    spec: JobSpec
    counts: tuple[int, ...]
    gpus: int


def shapes(spec: JobSpec) -> tuple[GangShape, ...]:
    """As submitted, then (if that is less) as small as the job runs."""
    ranges = [spec.counts(number) for number in range(len(spec.roles))]
    least = tuple(counts.start for counts in ranges)
    most = tuple(
        min(max(role.count, counts.start), counts.stop - 1)
        for role, counts in zip(spec.roles, ranges, strict=True)
    )
    return tuple(_shape(spec, counts) for counts in dict.fromkeys((most, least)))


def _shape(spec: JobSpec, counts: tuple[int, ...]) -> GangShape:
    gpus = sum(n * role.gpu_count for n, role in zip(counts, spec.roles, strict=True))
    return GangShape(spec, counts, gpus)


def _need_of(shape: GangShape) -> tuple[Any, ...]:
    """Equal for shapes that find the same room."""
    roles = shape.spec.roles
    tasks = tuple((role.cpu_milli, role.memory_mib, role.gpu_count) for role in roles)
    return shape.counts, tasks, shape.spec.gpu_models


def _guarded_as(spec: JobSpec) -> tuple[Any, ...]:
    """Equal for jobs of the same needs that the guard refuses for the same reason."""
    whose = spec.queue, spec.tenant, spec.user
    draws = spec.profile, spec.power_profile, spec.batch_size, spec.micro_batches
    roles = tuple(replace(role, name="", command=()) for role in spec.roles)
    return whose, draws, roles, spec.min_width, spec.max_width, spec.gpu_models


class GangShapes:
    """The shapes of all live jobs, worked out once for each; kinds of jobs are numbered."""

    def __init__(self) -> None:
        """Start with no job."""
        self._known: dict[str, tuple[JobSpec, tuple[GangShape, ...]]] = {}
        """With the specification they are of, which may be edited while a job waits."""
        self._needs: dict[str, int] = {}
        self._kin: dict[str, int] = {}
        self._where: dict[str, tuple[bytes, ...]] = {}
        self._alike: dict[str, tuple[Any, ...]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._count = 0

    def __getitem__(self, job: JobView) -> tuple[GangShape, ...]:
        """The shapes of a job."""
        known = self._known.get(job.id)
        if known is None or known[0] is not job.spec:
            self._needs.pop(job.id, None)
            self._kin.pop(job.id, None)
            self._where.pop(job.id, None)
            self._alike.pop(job.id, None)
            known = self._known[job.id] = (job.spec, shapes(job.spec))
        return known[1]

    def needs(self, job: JobView) -> int:
        """Equal for jobs of which each would find the room that the others find."""
        own = self[job]
        found = self._needs.get(job.id)
        if found is None:
            found = self._needs[job.id] = self._number(tuple(map(_need_of, own)))
        return found

    def where(self, job: JobView, view: KnowsEligibility) -> tuple[bytes, ...]:
        """Which nodes a job may use, as `eligibility_key`, worked out once."""
        self[job]  # forgets what was known of the job before it was edited
        found = self._where.get(job.id)
        if found is None:
            found = self._where[job.id] = eligibility_key(view, job.spec)
        return found

    def alike(self, job: JobView, view: KnowsEligibility) -> tuple[Any, ...]:
        """What it `needs` and `where`; asked for at every look at a job."""
        known = self._known.get(job.id)
        if known is not None and known[0] is job.spec and job.id in self._alike:
            return self._alike[job.id]
        found = self._alike[job.id] = self.needs(job), *self.where(job, view)
        return found

    def kin(self, job: JobView, now_s: float) -> tuple[int, bool] | None:
        """Equal for jobs of one owner that the guard refuses alike on the same shares.

        None for a job that is refused for reasons of its own, its joules.
        """
        if job.spec.energy_budget_j is not None:
            return None
        self[job]  # forgets what was known of the job before it was edited
        found = self._kin.get(job.id)
        if found is None:
            found = self._kin[job.id] = self._number(_guarded_as(job.spec))
        return found, job.service_s(now_s) > 0  # who may still hold devices is not new to a plan

    def _number(self, kind: tuple[Any, ...]) -> int:
        """Numbers are quick to compare."""
        found = self._numbers.get(kind)
        if found is None:
            self._count += 1
            found = self._numbers[kind] = self._count
        return found

    def keep(self, live: Collection[str]) -> None:
        """Forget all jobs that do not live."""
        if len(self._known) > len(live):
            self._drop([job_id for job_id in self._known if job_id not in live])
        self._drop([])

    def forget(self, gone: Iterable[JobView]) -> None:
        """Forget jobs that are gone."""
        self._drop([job.id for job in gone])

    def _drop(self, gone: Iterable[str]) -> None:
        for job_id in gone:
            for known in (self._known, self._needs, self._kin, self._where, self._alike):
                known.pop(job_id, None)
        if len(self._numbers) > 2 * len(self._known) + KINDS:
            self._numbers = {}
            self._needs, self._kin, self._alike = {}, {}, {}


class FreeRoom:
    """What is free on each node: (N, 3) milli-vCPU, MiB, whole GPUs."""

    def __init__(
        self, free: Ints, nodes: Sequence[NodeSpec], who: KnowsEligibility | None = None
    ) -> None:
        """`free` is changed in place by `take` and `give`; `who` knows where jobs may run."""
        self.free = free
        self._nodes, self._who = nodes, who
        self._gpus: int | None = None

    @classmethod
    def of(cls, draft: Draft, view: View) -> FreeRoom:
        """What the plan so far leaves."""
        columns = (draft.free_cpu_milli(), draft.free_memory_mib(), draft.free_gpus())
        return cls(np.stack(columns, axis=1), view.nodes(), view)

    @classmethod
    def whole(cls, view: View) -> FreeRoom:
        """All usable nodes, as if nothing ran."""
        nodes = view.nodes()
        # Asked at nearly every plan, of nodes that stay the same.
        known: tuple[Sequence[NodeSpec], Ints] | None = view.memory.get("rows of nodes")
        if known is None or known[0] is not nodes:
            rows = [(node.cpu_milli, node.memory_mib, node.gpu_count) for node in nodes]
            known = view.memory["rows of nodes"] = nodes, np.array(rows, dtype=np.int64)
        free = known[1].copy()
        free[~view.usable()] = 0
        return cls(free, nodes, view)

    @property
    def gpus(self) -> int:
        """Free GPUs of all nodes."""
        # Asked at every look at a waiting job, of which most come between two changes.
        if self._gpus is None:
            self._gpus = int(self.free[:, GPU].sum())
        return self._gpus

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.free)

    def copy(self) -> FreeRoom:
        """The same room, to be changed alone."""
        return FreeRoom(self.free.copy(), self._nodes, self._who)

    def without(self, needs: Ints) -> FreeRoom:
        """What remains if `needs` (N, 3) are set aside."""
        return FreeRoom(np.maximum(self.free - needs, 0), self._nodes, self._who)

    def owing(self, needs: Ints) -> FreeRoom:
        """The same, to be changed alone, where what becomes free serves `needs` (N, 3) first."""
        return FreeRoom(self.free - needs, self._nodes, self._who)

    def left(self) -> FreeRoom:
        """What there is once all that is owed has been given."""
        return FreeRoom(np.maximum(self.free, 0), self._nodes, self._who)

    def take(self, spec: JobSpec, shares: Iterable[Share]) -> None:
        """Give shares away."""
        self._gpus = None
        for share in shares:
            self.free[share.node] -= share.tasks * _need(spec.roles[share.role])

    def give(self, allocations: Iterable[Allocation]) -> None:
        """Take allocations back."""
        self._gpus = None
        for one in allocations:
            request = one.request
            self.free[one.node] += (request.cpu_milli, request.memory_mib, len(one.gpus))

    def place(self, shape: GangShape, sooner: FreeRoom | None = None) -> list[Share] | None:
        """Shares for all tasks, or None if they do not fit together.

        Roles are tried in every order, since the first to choose may take what another one needs.
        Of nodes that hold equally many tasks it takes the one with most GPUs in `sooner`, if given.
        """
        if shape.gpus > self.gpus:
            return None
        for order in permutations(range(len(shape.counts))):
            shares = self._place_in(order, shape, sooner)
            if shares is not None:
                return sorted(shares, key=lambda share: share.role)
        return None

    def _place_in(
        self, order: Sequence[int], shape: GangShape, sooner: FreeRoom | None
    ) -> list[Share] | None:
        room = self.copy() if len(order) > 1 else self
        shares: list[Share] = []
        for number in order:
            fits = room.tasks(shape.spec, number)
            where = _fill(
                fits, shape.counts[number], None if sooner is None else sooner.free[:, GPU]
            )
            if where is None:
                return None
            placed = [Share(node, tasks, number) for node, tasks in where]
            shares.extend(placed)
            if len(order) > 1:
                room.take(shape.spec, placed)
        return shares

    def place_role(
        self, spec: JobSpec, number: int, count: int, near: Sequence[int] = ()
    ) -> list[Share] | None:
        """Take room for `count` tasks of one role, on nodes `near` if they fit there."""
        fits = self.tasks(spec, number)
        close = np.zeros_like(fits)
        close[list(near)] = fits[list(near)]
        where = _fill(close, count) or _fill(fits, count)
        if where is None:
            return None
        shares = [Share(node, tasks, number) for node, tasks in where]
        self.take(spec, shares)
        return shares

    def tasks(self, spec: JobSpec, number: int = 0) -> Ints:
        """How many tasks of a role fit on each node (N,), on those that it may use."""
        role, models = spec.roles[number], spec.gpu_models
        fits = np.full(len(self.free), MANY, dtype=np.int64)
        for column, need in enumerate((role.cpu_milli, role.memory_mib, role.gpu_count)):
            if need:
                free = self.free[:, column]
                fits = np.minimum(fits, free if need == 1 else free // need)
        if models and role.gpu_count:
            allowed = [node.gpu_model in models for node in self._nodes]
            fits = np.where(allowed, fits, 0)
        return fits if self._who is None else inside(fits, self._who.eligible(spec, number))


def _need(role: TaskRole) -> Ints:
    return np.array((role.cpu_milli, role.memory_mib, role.gpu_count), dtype=np.int64)


def _fill(fits: Ints, count: int, liked: Ints | None = None) -> list[tuple[int, int]] | None:
    """(node, tasks) for `count` tasks on few nodes.

    Ties to the node that is `liked` (N,) most, if that is told, then to the first one.
    """
    left, where = count, []
    fits = fits.copy()
    while left > 0:
        enough = np.where(fits >= left, fits, MANY + 1)
        if enough.min() > MANY:
            enough = -fits
        node = int(enough.argmin())
        if liked is not None:
            node = int(np.where(enough == enough[node], liked, -1).argmax())
        tasks = min(int(fits[node]), left)
        if tasks <= 0:
            return None
        where.append((node, tasks))
        fits[node] = 0
        left -= tasks
    return where


@dataclass(frozen=True, slots=True)
class GangHold:
    """Room kept for a waiting gang; a strong one is kept from everybody.

    `age` numbers holds as they are first made; a hold that moves keeps it.
    """

    shape: GangShape
    shares: tuple[Share, ...]
    queue: str = ""
    strong: bool = True
    age: int = 0

    def needs(self, nodes: int) -> Ints:
        """What it keeps on each node (N, 3)."""
        kept = np.zeros((nodes, 3), dtype=np.int64)
        for share in self.shares:
            kept[share.node] += share.tasks * _need(self.shape.spec.roles[share.role])
        return kept

    def missing(self, free: Ints) -> int:
        """GPUs that must still become free where `free` (N, 3) is so by now."""
        lacks = self.needs(len(free)) - free
        return int(np.maximum(lacks[:, GPU], 0).sum())

    def stands(self, job: JobView, usable: NDArray[np.bool_]) -> bool:
        """Whether all nodes of it are `usable` (N,), and the job has not been edited since."""
        spec = self.shape.spec
        same = spec is job.spec or spec == job.spec
        return same and all(bool(usable[share.node]) for share in self.shares)


class GangHolds:
    """All holds of a plan, and what a job must leave alone because of them.

    Within its own queue a job respects only holds that were confirmed in this plan, which are
    those of jobs ahead of it in line.
    """

    def __init__(self, holds: dict[str, GangHold], nodes: int) -> None:
        """`holds` by job, oldest first, is the planner's memory and is changed in place."""
        self._holds = holds
        self._confirmed: dict[str, None] = {}
        self._nothing = np.zeros((nodes, 3), dtype=np.int64)
        self._strong: dict[tuple[str, bool], Ints] = {}
        """What strong holds keep, by (queue, confirmed)."""
        self._gpus: Counter[tuple[str, bool]] = Counter()
        self._kept: dict[tuple[str, bool], Ints | None] = {}
        """Answers of `needs` since anything was changed."""
        self.changes = 0
        """How often anything about them was changed."""
        for job_id, hold in holds.items():
            self._note(job_id, hold, 1)

    def _note(self, job_id: str, hold: GangHold, sign: int) -> None:
        self.changes += 1
        self._kept = {}
        if hold.strong:
            key = hold.queue, job_id in self._confirmed
            needs = sign * hold.needs(len(self._nothing))
            self._strong[key] = self._strong.get(key, self._nothing) + needs
            self._gpus[key] += sign * hold.shape.gpus

    def begin(self) -> None:
        """Nothing is confirmed yet."""
        for job_id in list(self._confirmed):
            hold = self._holds[job_id]
            self._note(job_id, hold, -1)
            del self._confirmed[job_id]
            self._note(job_id, hold, 1)

    def confirm(self, job_id: str, hold: GangHold) -> None:
        """Hold room for a job, from now on or still."""
        self.drop(job_id)
        self._holds[job_id] = hold
        self._confirmed[job_id] = None
        self._note(job_id, hold, 1)

    def drop(self, job_id: str) -> None:
        """Give up a job's hold, if it has one."""
        hold = self._holds.pop(job_id, None)
        if hold is not None:
            self._note(job_id, hold, -1)
            self._confirmed.pop(job_id, None)

    def owed(self, queue: str) -> int:
        """GPUs of the confirmed strong holds of a queue."""
        return self._gpus[queue, True]

    def is_kept_in(self, queue: str) -> bool:
        """Whether a job of the queue has a confirmed hold."""
        return any(self._holds[job_id].queue == queue for job_id in self._confirmed)

    def needs(self, queue: str, *, borrows: bool) -> Ints | None:
        """What a job of `queue` must leave alone on each node (N, 3); None: nothing."""
        asked = queue, borrows
        if asked not in self._kept:
            self._kept[asked] = self._needs(queue, borrows=borrows)
        return self._kept[asked]

    def _needs(self, queue: str, *, borrows: bool) -> Ints | None:
        needs = None
        for key, kept in self._strong.items():
            if self._gpus[key] and key != (queue, False):
                needs = kept if needs is None else needs + kept
        for hold in self._weak(queue, borrows=borrows):
            kept = hold.needs(len(self._nothing))
            needs = kept if needs is None else needs + kept
        return needs

    def gpus(self, queue: str, *, borrows: bool) -> Counter[str]:
        """GPUs of the same holds by queue."""
        gpus: Counter[str] = Counter()
        for key, kept in self._gpus.items():
            if key != (queue, False):
                gpus[key[0]] += kept
        for hold in self._weak(queue, borrows=borrows):
            gpus[hold.queue] += hold.shape.gpus
        return gpus

    def _weak(self, queue: str, *, borrows: bool) -> Iterator[GangHold]:
        for job_id, hold in self._holds.items():
            if not hold.strong and (job_id in self._confirmed if hold.queue == queue else borrows):
                yield hold

    def all_needs(self) -> Ints:
        """What all holds keep on each node (N, 3)."""
        kept = (hold.needs(len(self._nothing)) for hold in self._holds.values() if not hold.strong)
        return sum(kept, self.strong_needs())

    def needs_ahead(self, comes_first: Callable[[GangHold], bool]) -> Ints:
        """What those strong holds keep on each node (N, 3) of which that is so."""
        nodes = len(self._nothing)
        ahead = (
            one.needs(nodes) for one in self._holds.values() if one.strong and comes_first(one)
        )
        return sum(ahead, self._nothing)

    def strong_needs(self) -> Ints:
        """What strong holds keep on each node (N, 3)."""
        return sum(self._strong.values(), self._nothing)
