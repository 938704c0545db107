"""Gandiva (Xiao et al., OSDI'18): over-subscribe, look at how jobs do, and put it right.

*Reactive*: an arriving job goes to nodes of its affinity, then to those of none, then of another,
then on several nodes; where nothing is free it joins nodes of its affinity whose jobs take turns,
and if these are full it waits. *Introspective*: at the end of every slice turns change, pairs of
jobs are packed on one GPU and judged by their measured rates, jobs are moved out of crowds and off
mostly free nodes, split gangs are brought together, and idle GPUs are lent to jobs that can grow.

The paper bounds no job's waiting; here one that has waited for `patience_s` may join nodes of any
affinity, and holds up those behind it, so that nobody starves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gandiva_nodes import (
    NOBODY,
    Asks,
    GandivaJob,
    GandivaNodes,
    arriving_home,
    crowded_home,
    spread_home,
    whole_home,
)
from wattherd.policy.schedule.gandiva_turns import GandivaTurns, memory_part_milli

# --- Two jobs on one GPU, tried where residents take turns and kept while it pays.
#
# Only what jobs report counts: their progress rates when each had a GPU for itself, and when
# packed. A pair stays while the sum of packed over solo rates is above what taking turns gives,
# which is 1; otherwise it is taken apart and not tried again (Gandiva, OSDI'18, section 4.2). What
# was measured of two profiles holds for all jobs of these profiles.

Pair = tuple[str, str]


@dataclass(slots=True)
class PairPacking:
    """What is known of pairs: `gains` are sums of packed over solo rates, by profiles."""

    least_gain: float
    gains: dict[Pair, float] = field(default_factory=dict)

    def look(
        self,
        residents: Iterable[GandivaJob],
        homes: GandivaNodes,
        turns: GandivaTurns,
        since_s: float,
    ) -> None:
        """Read the rates of the slice that began at `since_s`; take pairs apart that do not pay."""
        residents = list(residents)
        for one in residents:
            other = one.partner
            if other is None:
                if _measured(one, since_s):
                    one.solo_rate = one.job.rate_per_s
            elif one.job.number < other.job.number:
                self._judge(one, other, homes, turns, since_s)
        for one in residents:
            one.seen = one.job.progress

    def _judge(
        self,
        one: GandivaJob,
        other: GandivaJob,
        homes: GandivaNodes,
        turns: GandivaTurns,
        since_s: float,
    ) -> None:
        (node,) = one.needs
        if _measured(one, since_s) and _measured(other, since_s):
            self.gains[_pair(one, other)] = _relative_rate(one) + _relative_rate(other)
        pays = self.gains.get(_pair(one, other), self.least_gain) >= self.least_gain
        if not pays or homes.free_gpus(node) > 0:
            homes.part(one)
            if one.running and other.running:
                turns.suspend(other)

    def form(self, homes: GandivaNodes, turns: GandivaTurns) -> None:
        """Pair residents wherever some wait for their turn, while that leaves fewer waiting."""
        for node in (homes.free_by_node() < 0).nonzero()[0].tolist():
            able = {
                one: part
                for one in homes.on[node].values()
                if one.partner is None and (part := _part(homes, one, node)) is not None
            }
            while homes.free_gpus(node) < 0:
                best = self._best(able)
                if best is None:
                    break
                self._join(*best, homes, turns)
                del able[best[0]], able[best[1]]

    def _join(
        self, one: GandivaJob, other: GandivaJob, homes: GandivaNodes, turns: GandivaTurns
    ) -> None:
        homes.pair(one, other)
        if one.running and other.running:
            turns.suspend(other)

    def _best(self, able: dict[GandivaJob, int]) -> tuple[GandivaJob, GandivaJob] | None:
        """The pair with the best known gain, then the first that nobody tried."""
        ones = sorted(able, key=lambda one: one.job.number)
        found = [
            (-self.gains.get(_pair(one, other), self.least_gain), a, b)
            for a, one in enumerate(ones)
            for b, other in enumerate(ones[a + 1 :], start=a + 1)
            if able[one] + able[other] <= 1000
            and self.gains.get(_pair(one, other), self.least_gain) >= self.least_gain
        ]
        if not found:
            return None
        _, a, b = min(found)
        return ones[a], ones[b]


def _measured(resident: GandivaJob, since_s: float) -> bool:
    """Whether it ran through the whole slice, and reported within it."""
    job = resident.job
    ran = resident.running and resident.since_s <= since_s
    return ran and job.rate_per_s is not None and job.progress != resident.seen


def _relative_rate(resident: GandivaJob) -> float:
    return (resident.job.rate_per_s or 0.0) / (resident.solo_rate or float("inf"))


def _part(homes: GandivaNodes, resident: GandivaJob, node: int) -> int | None:
    """Its part of a GPU, None if it cannot share one or its solo rate is not known yet."""
    if not resident.solo_rate:
        return None
    return memory_part_milli(resident.job.spec, homes.nodes[node].gpu_model)


def _pair(one: GandivaJob, other: GandivaJob) -> Pair:
    names = sorted((_name(one), _name(other)))
    return names[0], names[1]


def _name(resident: GandivaJob) -> str:
    """Profile of the job, its id where it has none."""
    return resident.job.spec.profile or f"job {resident.job.id}"


# --- Jobs are moved to where they do better: out of crowds, together, and off half-empty nodes.
#
# Defragmentation: the node with most free GPUs, if it is mostly free and not idle, is emptied onto
# fuller ones, so that wide jobs find whole nodes (Gandiva, OSDI'18, section 4.3). Widths: jobs that
# can use more GPUs than they asked for get idle ones of their node, and give them back on demand
# (section 4.4).


_LEAST = np.iinfo(np.int64).min
UpTo = Callable[[int], Iterable[GandivaJob]]


def leave_crowds(up_to: UpTo, homes: GandivaNodes, turns: GandivaTurns) -> None:
    """Those who wait for their turn go where there is room, least served first.

    `up_to` tells residents of so many GPUs at most: mostly no node has any free.
    """
    most = int(homes.free_by_node().max(initial=_LEAST))
    if most < 0:
        return
    waiting = [
        one
        for one in up_to(most)
        if not one.running and one.home and one.partner is None and one.gpus <= most
    ]
    for one in sorted(waiting, key=lambda one: (one.service_s(turns.now_s), one.job.number)):
        if any(homes.crowded(node) for node in one.needs):
            home = arriving_home(homes, one)
            if home is not None:
                turns.move(one, home)


def gather(residents: Iterable[GandivaJob], homes: GandivaNodes, turns: GandivaTurns) -> None:
    """Gangs that sit on several nodes go to one that has room for all of it."""
    apart = [one for one in residents if len(one.needs) > 1]
    for one in sorted(apart, key=lambda one: one.job.number):
        home = homes.freely(one, arriving_home)
        if home is not None:
            turns.move(one, home)


def defragment(homes: GandivaNodes, turns: GandivaTurns, free_share: float) -> None:
    """Empty nodes of whose GPUs at least `free_share` is free, as far as fuller ones take it."""
    stuck: set[int] = set()
    while True:
        source = _source(homes, free_share, stuck)
        if source is None:
            return
        for one in sorted(homes.on[source].values(), key=lambda one: one.job.number):
            target = _target(homes, one, source)
            if target is not None:
                turns.move(one, whole_home(one.job.spec, one.width, target))
        stuck.add(source)


def _source(homes: GandivaNodes, free_share: float, stuck: set[int]) -> int | None:
    """The node with the largest share of free GPUs among those where someone lives."""
    shares = homes.free_shares()
    shares[list(stuck)] = -np.inf
    most = shares.max(initial=-np.inf)
    return int((shares == most).nonzero()[0][-1]) if most >= free_share else None


def _target(homes: GandivaNodes, resident: GandivaJob, source: int) -> int | None:
    """The fullest other node with room, of the same affinity if possible; None: none is fuller."""
    if len(resident.needs) > 1 or resident.partner is not None:
        return None
    free, affinities = homes.free_by_node(), homes.affinities
    nodes = homes.together(resident)
    lived_in = affinities[nodes] != NOBODY
    nodes = nodes[lived_in & (nodes != source) & (free[nodes] <= free[source])]
    if not nodes.size:
        return None
    liked = affinities[nodes] == resident.gpus
    nodes = nodes[liked] if liked.any() else nodes
    return int(nodes[free[nodes].argmin()])


@dataclass(slots=True)
class IdleGpus:
    """Free GPUs of each node when last looked at: only what stays idle for a slice is lent."""

    gpus: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def lend(self, homes: GandivaNodes, turns: GandivaTurns) -> None:
        """Give what was idle through the last slice to jobs that can use it, first jobs first."""
        now = np.maximum(homes.free_by_node(), 0)
        idle = np.minimum(now, self.gpus) if self.gpus.size else np.zeros_like(now)
        for node in idle.nonzero()[0].tolist():
            lent = sum(one.grown * _gpus_per_task(one) for one in homes.on[node].values())
            spare = int(idle[node]) - lent
            for one in sorted(homes.on[node].values(), key=lambda one: one.job.number):
                tasks = min(spare // _gpus_per_task(one), _appetite(one))
                if tasks > 0 and turns.grow(one, one.grown + tasks):
                    spare -= tasks * _gpus_per_task(one)
        self.gpus = now


def _gpus_per_task(resident: GandivaJob) -> int:
    return max(resident.job.spec.roles[0].gpu_count, 1)


def _appetite(resident: GandivaJob) -> int:
    """Tasks that it could use besides those it has, where it may have them."""
    spec = resident.job.spec
    simple = len(spec.roles) == 1 and spec.roles[0].gpu_count and len(resident.home) == 1
    if not (simple and resident.running and resident.partner is None):
        return 0
    return max(spec.counts(0).stop - 1 - resident.width - resident.grown, 0)


@dataclass(slots=True)
class _Memory:
    homes: GandivaNodes
    packing: PairPacking
    idle: IdleGpus = field(default_factory=IdleGpus)
    residents: dict[str, GandivaJob] = field(default_factory=dict)
    by_gpus: dict[int, dict[str, GandivaJob]] = field(default_factory=dict)
    """The same by their GPUs, which stay as they are."""
    queue: dict[str, GandivaJob] = field(default_factory=dict)
    slice_s: float = -math.inf
    """When the present slice was begun."""
    next_s: float = -math.inf
    """When the next one begins."""
    restless: bool = False
    """Whether anything changed since then."""
    awaits: bool = False
    """Whether the next slice was asked for."""

    def up_to(self, gpus: int) -> Iterator[GandivaJob]:
        """Residents of so many GPUs at most, in any order."""
        return (
            one for each, alike in self.by_gpus.items() if each <= gpus for one in alike.values()
        )

    def put(self, resident: GandivaJob) -> None:
        """Somebody is there, from now on or still."""
        self.residents[resident.job.id] = resident
        self.by_gpus.setdefault(resident.gpus, {})[resident.job.id] = resident

    def drop(self, job_id: str) -> GandivaJob | None:
        """A job is gone; what there was of it."""
        resident = self.residents.pop(job_id, None)
        if resident is not None:
            del self.by_gpus[resident.gpus][job_id]
        return resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva:
    """Time slicing, packing, migration and growth.

    Args:
        quantum_s: length of a time slice; slices begin at whole multiples of it.
        height: GPUs promised on a node over GPUs there, at most: 1 never over-subscribes.
        patience_s: after this long in the queue a job may join nodes of any affinity, and no
            later one overtakes it.
        packing: try pairs of single-GPU jobs whose GPU memory is known on one GPU.
        least_gain: keep a pair while its packed over solo rates add up to this; turns give 1.
        migration: move jobs out of crowds, together, and off mostly free nodes.
        free_share: a node with this share of its GPUs free is emptied onto fuller ones.
        growth: lend GPUs that were idle for a slice to jobs with a larger `max_width`.
        within: how a node is made up, by its number of GPUs, as in `model.topology.chains_of`;
            the GPUs of a gang are taken under the lowest cell that has enough.
    """

    quantum_s: float = 60.0
    height: float = 8.0
    patience_s: float = 600.0
    packing: bool = True
    least_gain: float = 1.05
    migration: bool = True
    free_share: float = 0.75
    growth: bool = True
    within: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def plan(self, view: View, draft: Draft) -> None:
        """Hear what changed; give homes and turns."""
        memory: _Memory | None = view.memory.get("gandiva")
        if memory is None:
            memory = _Memory(GandivaNodes(view.nodes()), PairPacking(self.least_gain))
            view.memory["gandiva"] = memory
        changed = self._hear(memory, view)
        new_slice = view.now_s >= memory.next_s
        if not (changed or new_slice):
            if memory.awaits:  # a cycle for something else has taken the place of that wake-up
                draft.wake_at(memory.next_s)
            return
        memory.restless = changed or not new_slice
        turns = GandivaTurns(memory.homes, draft, view.now_s, self.packing, self.within)
        residents = memory.residents.values()
        if new_slice and self.packing:
            memory.packing.look(residents, memory.homes, turns, memory.slice_s)
        self._admit(memory, draft, view.now_s)
        if self.migration:
            leave_crowds(memory.up_to, memory.homes, turns)
        if new_slice:
            for one in residents:
                if one.narrowed:
                    turns.widen(one)
            self._improve(memory, turns)
            self._admit(memory, draft, view.now_s)
            memory.slice_s, memory.next_s = view.now_s, self._after(view.now_s)
        turns.give(residents, new_slice=new_slice)
        if new_slice and self.growth and not memory.queue:
            memory.idle.lend(memory.homes, turns)
        memory.awaits = self._awaits_slice(memory)
        if memory.awaits:
            draft.wake_at(memory.next_s)

    def _after(self, now_s: float) -> float:
        """The next whole multiple of the quantum; rounding must not make it this one."""
        number = now_s // self.quantum_s + 1
        next_s = number * self.quantum_s
        return next_s if next_s > now_s else (number + 1) * self.quantum_s

    def _improve(self, memory: _Memory, turns: GandivaTurns) -> None:
        """What is done once a slice: pack, bring together, defragment."""
        if self.packing:
            memory.packing.form(memory.homes, turns)
        if self.migration:
            gather(memory.residents.values(), memory.homes, turns)
            defragment(memory.homes, turns, self.free_share)

    # What happened --------------------------------------------------------------------------------

    def _hear(self, memory: _Memory, view: View) -> bool:
        """Bring residents and queue up to date; whether there is anything new."""
        left, entered = view.left(), view.entered()
        lost = memory.homes.note(view.now_s, view.usable(), view.gpus_per_node(), view.drained())
        for job in left:
            self._forget(memory, job)
        for resident in lost or ():
            if resident.job.id not in memory.residents:
                continue
            memory.homes.leave(resident)
            self._enqueue(memory, resident, view.now_s)
        for job in entered:
            self._enter(memory, job, view)
        return bool(left or entered) or lost is not None

    def _forget(self, memory: _Memory, job: JobView) -> None:
        memory.queue.pop(job.id, None)
        resident = memory.drop(job.id)
        if resident is not None:
            memory.homes.leave(resident)

    def _enter(self, memory: _Memory, job: JobView, view: View) -> None:
        """A job came, or lost what it was given: then it may go elsewhere."""
        resident, now_s = memory.residents.get(job.id), view.now_s
        if resident is None:
            masks = role_masks(view, job.spec)
            width = memory.homes.widest(job.spec, masks)
            resident = GandivaJob(job, width, since_s=now_s, queued_s=now_s, masks=masks)
        elif job.wanted:
            return
        else:
            memory.homes.leave(resident)
        self._enqueue(memory, resident, now_s)

    def _enqueue(self, memory: _Memory, resident: GandivaJob, now_s: float) -> None:
        if resident.running:
            resident.rest(now_s)
        resident.queued_s, resident.told = now_s, False
        memory.put(resident)
        memory.queue[resident.job.id] = resident

    # Homes ----------------------------------------------------------------------------------------

    def _admit(self, memory: _Memory, draft: Draft, now_s: float) -> None:
        """Homes for those who wait for one, in order of submission."""
        homes, free, several = memory.homes, _free(memory.homes), set[Asks]()
        for resident in sorted(memory.queue.values(), key=lambda one: one.job.number):
            overdue = now_s - resident.queued_s >= self.patience_s
            # Roles are laid out one after the other: less room may lead to another order of nodes,
            # and that to a home. So several of them are hopeless only until somebody moves in.
            hopeless = homes.hopeless if len(resident.job.spec.roles) == 1 else several
            if overdue or resident.asks not in hopeless:
                home = self._home(homes, resident, overdue=overdue)
                if home is not None:
                    homes.settle(resident, home)
                    del memory.queue[resident.job.id]
                    free, several = _free(homes), set[Asks]()
                    continue
                hopeless.add(resident.asks)
            self._tell(resident, free, draft)
            if overdue:
                return

    def _home(
        self, homes: GandivaNodes, resident: GandivaJob, *, overdue: bool
    ) -> tuple[Share, ...] | None:
        home = arriving_home(homes, resident) or spread_home(homes, resident)
        return home or crowded_home(homes, resident, self.height, any_affinity=overdue)

    def _tell(self, resident: GandivaJob, free: int, draft: Draft) -> None:
        """Say what a job without a home waits for, while so many GPUs are free."""
        if resident.job.wanted:
            return
        why = resident.why
        if why is None or (why.since_s, why.available) != (resident.queued_s, free):
            why = resident.why = Reason(
                code=ReasonCode.WAITING_FOR_GPUS,
                since_s=resident.queued_s,
                asked=resident.gpus,
                available=free,
                unit="GPUs",
                unblocks="a job leaves a node of its affinity",
            )
        draft.wait(resident.job, why)

    def _awaits_slice(self, memory: _Memory) -> bool:
        """Whether time alone may change the plan."""
        if memory.restless or memory.queue:
            return True
        residents = memory.residents.values()
        if any(not one.running or one.partner is not None or one.narrowed for one in residents):
            return True
        return self.growth and self._could_grow(memory)

    def _could_grow(self, memory: _Memory) -> bool:
        homes = memory.homes
        return any(
            one.width + one.grown < one.job.spec.most_width and homes.free_gpus(node) > 0
            for one in memory.residents.values()
            for node in one.needs
        )


def _free(homes: GandivaNodes) -> int:
    """GPUs that no resident of any node would take."""
    return int(np.maximum(homes.free_by_node(), 0).sum())
