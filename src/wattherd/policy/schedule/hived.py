"""HiveD (Zhao et al., OSDI'20): virtual clusters on buddy cells, as a scheduler.

A job's queue names its virtual cluster. Jobs of priority 0 and more are guaranteed: they start on
their virtual cluster's cells as if it stood alone, and whoever is in the way leaves. Jobs of
negative priority are opportunistic: they take whatever GPUs are idle. Within a virtual cluster
jobs are served by priority, then in order of submission; for the first that must wait its cells
are held, so that narrower jobs cannot overtake it for ever. Where lost nodes, not those jobs, keep
it from starting, nothing is held for it until they are back.

A job that is eligible on some nodes only is bound around all others, as if they were lost. Cells
are promised, nodes are not: it waits until its own nodes are free of guaranteed jobs, and roles
with GPUs need nodes that all of them may use.

GPUs that are out of use, or that jobs have who were not given them here, are in nobody's cells:
cells are bound around them where that is possible. So a promise holds as far as it is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from wattherd.errors import UserError
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.model.topology import Chain
from wattherd.policy.contract import Draft, JobView, PlanUse, Share, View
from wattherd.policy.eligibility import common_mask
from wattherd.policy.queue.gang import FreeRoom, GangShape, GangShapes, shapes
from wattherd.policy.queue.hive import Granted, Hive
from wattherd.policy.queue.tree import ROUNDING, QueueTree
from wattherd.policy.queue.virtual import VirtualGpu
from wattherd.units import counted

_Ahead = tuple[str, str, frozenset[VirtualGpu]]
"""A job that waits first in its virtual cluster, its chain, and the virtual GPUs kept for it."""
MOST_NAMED = 3
"""Nodes that a reason names."""
Shares = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Virtual cluster, chain and level to the number of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCell:
    """One certain cell: the one of that `index`, from 0, among those of its level in a chain."""

    chain: str
    level: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveD:
    """`chains` are the cells of the cluster, `shares` what each virtual cluster has of them.

    `pins` are virtual clusters that consist of one certain cell (`PinnedCell`), by name.

    `lazy` lets jobs that must make way for a higher priority of their own virtual cluster go on as
    opportunistic ones, until their GPUs are really needed.

    Raises:
        UserError: shares of an unknown chain or level, or more than there is.
    """

    chains: Sequence[Chain]
    shares: Shares
    pins: Mapping[str, PinnedCell] = field(default_factory=dict)
    lazy: bool = True
    _empty: Mapping[str, Hive] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find out now what could not be served later."""
        known = [chain.name for chain in self.chains]
        for name, pin in self.pins.items():
            if name in self.shares:
                hint = "give the pinned cell another name"
                raise UserError(
                    "is a virtual cluster as well", where=f"pinned cell {name}", hint=hint
                )
            if not 0 <= pin.index < self._level_count(name, pin):
                problem = f"there is no cell {pin.index} of level {pin.level!r}"
                hint = f"the first is 0, the last {self._level_count(name, pin) - 1}"
                raise UserError(problem, where=f"pinned cell {name}", hint=hint)
        pinned = {name: {pin.chain: {pin.level: 1}} for name, pin in self.pins.items()}
        object.__setattr__(self, "shares", {**self.shares, **pinned})
        for tenant, of_chains in self.shares.items():
            for name in of_chains:
                if name not in known:
                    where, hint = f"virtual cluster {tenant}", f"known: {', '.join(known)}"
                    raise UserError(f"unknown cell chain {name!r}", where=where, hint=hint)
        object.__setattr__(self, "_empty", self.hives())

    def _level_count(self, name: str, pin: PinnedCell) -> int:
        """How many cells of a pin's level there are."""
        found = [chain for chain in self.chains if chain.name == pin.chain]
        if not found:
            hint = f"known: {', '.join(chain.name for chain in self.chains)}"
            where = f"pinned cell {name}"
            raise UserError(f"unknown cell chain {pin.chain!r}", where=where, hint=hint)
        return found[0].count(found[0].level(pin.level))

    def hives(self) -> dict[str, Hive]:
        """The cells of all chains, with nobody on them."""
        return {
            chain.name: Hive(
                chain,
                {tenant: of.get(chain.name, {}) for tenant, of in self.shares.items()},
                {
                    name: (chain.level(pin.level), pin.index)
                    for name, pin in self.pins.items()
                    if pin.chain == chain.name
                },
            )
            for chain in self.chains
        }

    def chains_for(self, spec: JobSpec) -> list[str]:
        """Chains whose GPUs a job accepts, in their order."""
        wanted = spec.gpu_models
        return [one.name for one in self.chains if not wanted or one.gpu_model in wanted]

    # As the guard's quota -------------------------------------------------------------------------

    def unknown(self, queue: str, now_s: float) -> Reason:
        """Why a guaranteed job of no virtual cluster is not served."""
        why = f"no virtual cluster is called {queue!r}; there are {', '.join(self.shares)}"
        return Reason(code=ReasonCode.UNKNOWN_QUEUE, since_s=now_s, unblocks=why)

    def never(self, spec: JobSpec, gpus: int, total: int, now_s: float) -> Reason | None:
        """Why a job could not run if its virtual cluster were empty, or None."""
        del total
        if spec.priority >= 0 and spec.queue not in self.shares:
            return self.unknown(spec.queue, now_s)
        for name in self.chains_for(spec):
            hive = self._empty[name]
            for shape in shapes(spec):
                tasks = _tasks(shape)
                if spec.priority < 0:
                    mark = hive.journal.begin()
                    found = hive.borrow(spec.id, spec.queue, tasks) is not None
                    hive.journal.undo(mark)
                else:
                    found = hive.tenants[spec.queue].place_somehow(tasks) is not None
                if found:
                    return None
        cells = ", ".join(
            f"{number} x {level} of {chain}"
            for chain, levels in self.shares.get(spec.queue, {}).items()
            for level, number in levels.items()
        )
        why = f"virtual cluster {spec.queue!r} has {cells}" if cells else "no node has as many"
        return Reason(
            code=ReasonCode.NEVER_FITS, since_s=now_s, asked=gpus, unit="GPUs", unblocks=why
        )

    def admits(self, spec: JobSpec, gpus: int, use: PlanUse) -> Reason | None:
        """Only a stopped virtual cluster refuses: cells are counted by the planner itself."""
        del gpus
        return _stopped(spec, use.stopped, use.now_s)

    def plan(self, view: View, draft: Draft) -> None:
        """Start guaranteed jobs on their cells, then opportunistic ones on what is idle."""
        _Cycle(self, view, draft).run()


@dataclass(slots=True)
class _Memory:
    hives: dict[str, Hive]
    where: dict[str, str]
    """Chain of every job that runs."""
    holds: dict[str, _Ahead]
    """Per virtual cluster."""
    shapes: GangShapes = field(default_factory=GangShapes)
    never: dict[str, Reason | None] = field(default_factory=dict)
    """Whether a job that was refused can run at all."""
    failed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What things were like when a job was refused last."""


class _Cycle:
    """One plan."""

    def __init__(self, planner: HiveD, view: View, draft: Draft) -> None:
        self.planner, self.view, self.draft = planner, view, draft
        known = view.memory.get("hived")
        self.memory = known or _Memory(planner.hives(), {}, {})
        view.memory["hived"] = self.memory
        self.jobs = {job.id: job for job in view.live()}
        self.refused: dict[str, None] = {}
        """Jobs for which there are cells, but something else is missing."""

    def run(self) -> None:
        self._follow()
        guaranteed: dict[str, list[JobView]] = {name: [] for name in self.planner.shares}
        guests = []
        for job in self.jobs.values():
            if job.wanted:
                continue
            stopped = _stopped(job.spec, self.view.stopped, self.view.now_s)
            if stopped is not None:
                self.draft.wait(job, stopped)
            elif job.spec.priority < 0:
                guests.append(job)
            elif job.spec.queue in guaranteed:
                guaranteed[job.spec.queue].append(job)
            else:
                self.draft.wait(job, self.planner.unknown(job.spec.queue, self.view.now_s))
        for tenant, jobs in guaranteed.items():
            self._serve(tenant, sorted(jobs, key=lambda job: (-job.spec.priority, job.number)))
        # Those who had to leave just now ask again, behind the others.
        for job in guests:
            self._lend(job)

    def _follow(self) -> None:
        """Bring the cells up to what happened: nodes lost and returned, jobs gone."""
        usable = self.view.usable()
        for hive in self.memory.hives.values():
            for position, node in enumerate(hive.chain.nodes):
                hive.set_health(position, healthy=bool(usable[node]))
        for job_id, chain in list(self.memory.where.items()):
            job = self.jobs.get(job_id)
            if job is None or not job.wanted:
                self._forget(job_id, chain)
        self._follow_others()
        self.memory.shapes.keep(self.jobs)
        edited = {job.id for job in self.view.left()}  # or gone for good
        for known in (self.memory.never, self.memory.failed):
            for gone in [one for one in known if one not in self.jobs or one in edited]:
                del known[gone]
        for tenant, (job_id, _, _) in list(self.memory.holds.items()):
            if job_id not in self.jobs or self.jobs[job_id].wanted or job_id in edited:
                del self.memory.holds[tenant]

    def _follow_others(self) -> None:
        """GPUs that are out of use, and those of jobs that were not given them here."""
        taken = set(self.view.drained())
        for job in self.jobs.values():
            if job.wanted and job.id not in self.memory.where:
                taken.update((one.node, gpu) for one in job.wanted for gpu in one.gpus)
        for hive in self.memory.hives.values():
            if taken or hive.physical.foreign:
                size, at = hive.chain.sizes[hive.chain.node_level], hive.chain.nodes
                first = {node: position * size for position, node in enumerate(at)}
                hive.set_foreign({first[node] + gpu for node, gpu in taken if node in first})

    def _forget(self, job_id: str, chain: str) -> None:
        del self.memory.where[job_id]
        self.memory.hives[chain].release(job_id)

    # Guaranteed jobs ------------------------------------------------------------------------------

    def _serve(self, tenant: str, jobs: Sequence[JobView]) -> None:
        ahead: _Ahead | None = None
        old = self.memory.holds.pop(tenant, None)
        for job in jobs:
            if not self._is_as_before(job, ahead):
                if self._start(job, tenant, ahead) or job.id in self.refused:
                    continue
                self._note_failure(job, ahead)
                self.draft.wait(job, self._never(job) or self._full(job, tenant))
            if ahead is None and self._never(job) is None:
                ahead = self._hold(job, tenant, old if old and old[0] == job.id else None)
        if ahead is not None:
            self.memory.holds[tenant] = ahead

    def _never(self, job: JobView) -> Reason | None:
        known = self.memory.never
        if job.id not in known:
            gpus = job.spec.least_gpus
            known[job.id] = self.planner.never(job.spec, gpus, 0, self.view.now_s)
        return known[job.id]

    def _versions(self) -> tuple[int, ...]:
        return tuple(hive.version for hive in self.memory.hives.values())

    def _is_as_before(self, job: JobView, ahead: _Ahead | None = None) -> bool:
        """Whether nothing has changed since the job was refused, its reason included."""
        return self.memory.failed.get(job.id) == (self._versions(), ahead)

    def _note_failure(self, job: JobView, ahead: _Ahead | None = None) -> None:
        self.memory.failed[job.id] = self._versions(), ahead

    def _start(self, job: JobView, tenant: str, ahead: _Ahead | None) -> bool:
        for shape in self.memory.shapes[job]:
            for name in self.planner.chains_for(job.spec):
                hive = self.memory.hives[name]
                barred = ahead[2] if ahead and ahead[1] == name else frozenset()
                mark = hive.journal.begin()
                with self._confined(job, hive):
                    granted = hive.place(
                        job.id,
                        tenant,
                        _tasks(shape),
                        priority=job.spec.priority,
                        barred=barred,
                        lazy=self.planner.lazy,
                    )
                if granted is not None and self._carry_out(job, shape, hive, granted):
                    hive.journal.end()
                    return True
                hive.journal.undo(mark)
        return False

    def _confined(self, job: JobView, hive: Hive) -> AbstractContextManager[None]:
        """Cells are chosen on nodes that every role with GPUs may use."""
        mask = common_mask(self.view, job.spec, gpus_only=True)
        if mask is None:
            return nullcontext()
        return hive.confined({at for at, node in enumerate(hive.chain.nodes) if mask[node]})

    def _carry_out(self, job: JobView, shape: GangShape, hive: Hive, granted: Granted) -> bool:
        """Have the evicted leave and the job start; if the guard refuses, all stays as it was."""
        before = {one: self.jobs[one].wanted for one in granted.evicted}
        for one in granted.evicted:
            self.draft.stop(self.jobs[one], StopReason.PREEMPTED_FOR_PRIORITY)
        shares = self._shares(shape, hive.chain, granted)
        refusal = None if shares is None else self.draft.start(job, shares)
        if shares is None:
            why = "its tasks without GPUs find no CPU or memory"
            self._wait(job, ReasonCode.FRAGMENTED, why)
        if shares is None or refusal is not None:
            self.refused[job.id] = None
            for one, wanted in before.items():
                self.draft.start(self.jobs[one], [_again(allocation) for allocation in wanted])
            return False
        self.memory.where[job.id] = hive.chain.name
        for one in granted.evicted:
            del self.memory.where[one]
            why = f"job {job.id} of virtual cluster {job.spec.queue!r} needs its cells"
            self._wait(self.jobs[one], ReasonCode.LOWER_PRIORITY, why)
        return True

    def _shares(self, shape: GangShape, chain: Chain, granted: Granted) -> list[Share] | None:
        """Shares for all tasks; those without GPUs go wherever there is room for them."""
        size = chain.sizes[chain.node_level]
        parts: dict[tuple[int, int], list[int]] = {}
        counts: dict[tuple[int, int], int] = {}
        for role, gpus in zip(_roles(shape), granted.tasks, strict=True):
            key = role, chain.nodes[gpus[0] // size]
            parts.setdefault(key, []).extend(gpu % size for gpu in gpus)
            counts[key] = counts.get(key, 0) + 1
        shares = [
            Share(node, counts[role, node], role, gpus=tuple(sorted(gpus)))
            for (role, node), gpus in sorted(parts.items())
        ]
        return _with_cpu_tasks(shape, shares, FreeRoom.of(self.draft, self.view))

    def _hold(self, job: JobView, tenant: str, old: _Ahead | None) -> _Ahead | None:
        """The virtual GPUs that will be free soonest, were everybody asked to leave.

        What was held before stays, unless so many nodes were lost that it is of no use.
        """
        for shape in self.memory.shapes[job]:
            for name in self.planner.chains_for(job.spec):
                hive = self.memory.hives[name]
                if not hive.could_start(job.id, tenant, _tasks(shape)):
                    continue
                if old is not None and old[1] == name:
                    return old
                picks = hive.tenants[tenant].place_somehow(_tasks(shape))
                if picks is not None:
                    return job.id, name, frozenset(gpu for task in picks for gpu in task)
        return None

    def _full(self, job: JobView, tenant: str) -> Reason:
        names = self.planner.chains_for(job.spec)
        cells = [self.memory.hives[name].tenants[tenant] for name in names]
        idle, whole = sum(one.idle_gpus for one in cells), sum(one.gpus for one in cells)
        bad = sum(len(self.memory.hives[name].physical.bad) for name in names)
        why = f"virtual cluster {tenant!r} has no cells free for it"
        why += self._those_of_others(names)
        return Reason(
            code=ReasonCode.QUOTA_EXCEEDED,
            since_s=self.view.now_s,
            asked=job.spec.least_gpus,
            in_use=whole - idle,
            available=idle,
            unit="GPUs",
            unblocks=f"{why}; {counted(bad, 'node')} lost" if bad else why,
        )

    def _those_of_others(self, names: Sequence[str]) -> str:
        """GPUs of these chains that are in nobody's cells, by node."""
        on: dict[int, int] = {}
        for hive in (self.memory.hives[name] for name in names):
            size = hive.chain.sizes[hive.chain.node_level]
            for gpu in sorted(hive.physical.foreign):
                node = hive.chain.nodes[gpu // size]
                on[node] = on.get(node, 0) + 1
        if not on:
            return ""
        nodes = [f"{self.view.nodes()[node].name} ({count})" for node, count in on.items()]
        more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
        held = f"{counted(sum(on.values()), 'GPU')} of others, or out of use, in no cell"
        return f"; {held}: {', '.join(nodes[:MOST_NAMED])}{more}"

    # Opportunistic jobs ---------------------------------------------------------------------------

    def _lend(self, job: JobView) -> None:
        if self._is_as_before(job):
            return
        idle = 0
        for shape in self.memory.shapes[job]:
            for name in self.planner.chains_for(job.spec):
                hive = self.memory.hives[name]
                free = sum(user is None for user in hive.users)
                idle = max(idle, free - len(hive.physical.foreign))
                mark = hive.journal.begin()
                with self._confined(job, hive):
                    granted = hive.borrow(job.id, job.spec.queue, _tasks(shape))
                if granted is not None and self._carry_out(job, shape, hive, granted):
                    hive.journal.end()
                    return
                hive.journal.undo(mark)
        if job.id in self.refused:
            return
        self._note_failure(job)
        reason = Reason(
            code=ReasonCode.WAITING_FOR_GPUS,
            since_s=self.view.now_s,
            asked=job.spec.least_gpus,
            available=idle,
            unit="GPUs",
            unblocks="GPUs that nobody uses: the job is opportunistic",
        )
        self.draft.wait(job, reason)

    def _wait(self, job: JobView, code: ReasonCode, why: str) -> None:
        asked = job.spec.least_gpus
        self.draft.wait(
            job,
            Reason(code=code, since_s=self.view.now_s, asked=asked, unit="GPUs", unblocks=why),
        )


def _stopped(spec: JobSpec, stopped: Mapping[str, float], now_s: float) -> Reason | None:
    if spec.queue not in stopped:
        return None
    why = f"virtual cluster {spec.queue!r} is stopped; start it"
    since_s = min(stopped[spec.queue], now_s)
    return Reason(code=ReasonCode.QUEUE_STOPPED, since_s=since_s, unblocks=why)


def _roles(shape: GangShape) -> list[int]:
    """The role of every task that needs GPUs."""
    roles = enumerate(zip(shape.counts, shape.spec.roles, strict=True))
    return [i for i, (count, role) in roles if role.gpu_count for _ in range(count)]


def _tasks(shape: GangShape) -> list[int]:
    """GPUs of every task that needs any."""
    return [shape.spec.roles[role].gpu_count for role in _roles(shape)]


def _with_cpu_tasks(shape: GangShape, shares: list[Share], room: FreeRoom) -> list[Share] | None:
    """`shares`, and room for the tasks that need no GPU, on the same nodes if possible."""
    room.take(shape.spec, shares)
    for number, (count, role) in enumerate(zip(shape.counts, shape.spec.roles, strict=True)):
        if role.gpu_count == 0 and count:
            placed = room.place_role(shape.spec, number, count, [share.node for share in shares])
            if placed is None:
                return None
            shares = [*shares, *placed]
    return shares


def _again(allocation: Allocation) -> Share:
    """The share that gives exactly this allocation."""
    tasks, request = allocation.tasks, allocation.request
    return Share(
        allocation.node,
        tasks,
        allocation.role,
        cpu_milli=request.cpu_milli // tasks,
        gpu_count=request.gpu_count // tasks,
        gpus=allocation.gpus,
    )


def promised_shares(queues: QueueTree, chains: Sequence[Chain]) -> Shares:
    """Every leaf queue is a virtual cluster of as many GPUs of each chain as it is promised.

    It gets the largest cells first: half of an odd number of nodes is some nodes and half of one. A
    promise of less than one GPU is no cell; guaranteed jobs of that queue never run.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for leaf in queues.leaves:
        of = found[leaf.queue.name] = {}
        for chain in chains:
            left, cells = int(leaf.guaranteed * chain.gpus + ROUNDING), {}
            for size, level in sorted(zip(chain.sizes, chain.levels, strict=True), reverse=True):
                count, left = divmod(left, size)
                if count:
                    cells[level] = count
            of[chain.name] = cells
    return found


def everything_for(tenant: str, chains: Sequence[Chain]) -> Shares:
    """Shares of a cluster that has a single virtual cluster."""
    return {tenant: {one.name: {one.levels[-1]: one.count(one.top)} for one in chains}}
