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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.schedule.gandiva_moves import Idle, defragment, gather, leave_crowds
from wattherd.policy.schedule.gandiva_nodes import (
    Asks,
    Homes,
    Resident,
    arriving_home,
    crowded_home,
    spread_home,
)
from wattherd.policy.schedule.gandiva_packing import PairPacking
from wattherd.policy.schedule.gandiva_turns import GandivaTurns


@dataclass(slots=True)
class _Memory:
    homes: Homes
    packing: PairPacking
    idle: Idle = field(default_factory=Idle)
    residents: dict[str, Resident] = field(default_factory=dict)
    queue: dict[str, Resident] = field(default_factory=dict)
    slice_s: float = -math.inf
    """When the present slice was begun."""
    next_s: float = -math.inf
    """When the next one begins."""
    restless: bool = False
    """Whether anything changed since then."""
    awaits: bool = False
    """Whether the next slice was asked for."""


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
            memory = _Memory(Homes(view.nodes()), PairPacking(self.least_gain))
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
            leave_crowds(residents, memory.homes, turns)
        if new_slice:
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
        lost = memory.homes.note(view.now_s, view.usable())
        for job in left:
            self._forget(memory, job)
        for resident in lost or ():
            if resident.job.id not in memory.residents:
                continue
            memory.homes.leave(resident)
            self._enqueue(memory, resident, view.now_s)
        for job in entered:
            self._enter(memory, job, view.now_s)
        return bool(left or entered) or lost is not None

    def _forget(self, memory: _Memory, job: JobView) -> None:
        memory.queue.pop(job.id, None)
        resident = memory.residents.pop(job.id, None)
        if resident is not None:
            memory.homes.leave(resident)

    def _enter(self, memory: _Memory, job: JobView, now_s: float) -> None:
        """A job came, or lost what it was given: then it may go elsewhere."""
        resident = memory.residents.get(job.id)
        if resident is None:
            width = memory.homes.widest(job.spec)
            resident = Resident(job, width, since_s=now_s, queued_s=now_s)
        elif job.wanted:
            return
        else:
            memory.homes.leave(resident)
        self._enqueue(memory, resident, now_s)

    def _enqueue(self, memory: _Memory, resident: Resident, now_s: float) -> None:
        if resident.running:
            resident.rest(now_s)
        resident.queued_s, resident.told = now_s, False
        memory.residents[resident.job.id] = resident
        memory.queue[resident.job.id] = resident

    # Homes ----------------------------------------------------------------------------------------

    def _admit(self, memory: _Memory, draft: Draft, now_s: float) -> None:
        """Homes for those who wait for one, in order of submission."""
        homes, hopeless, free = memory.homes, set[Asks](), _free(memory.homes)
        for resident in sorted(memory.queue.values(), key=lambda one: one.job.number):
            overdue = now_s - resident.queued_s >= self.patience_s
            if overdue or resident.asks not in hopeless:
                home = self._home(homes, resident, overdue=overdue)
                if home is not None:
                    homes.settle(resident, home)
                    del memory.queue[resident.job.id]
                    hopeless, free = set[Asks](), _free(homes)
                    continue
                hopeless.add(resident.asks)
            self._tell(resident, free, draft)
            if overdue:
                return

    def _home(self, homes: Homes, resident: Resident, *, overdue: bool) -> tuple[Share, ...] | None:
        home = arriving_home(homes, resident) or spread_home(homes, resident)
        return home or crowded_home(homes, resident, self.height, any_affinity=overdue)

    def _tell(self, resident: Resident, free: int, draft: Draft) -> None:
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
                unblocks="a node of its affinity takes one job less",
            )
        draft.wait(resident.job, why)

    def _awaits_slice(self, memory: _Memory) -> bool:
        """Whether time alone may change the plan."""
        if memory.restless or memory.queue:
            return True
        residents = memory.residents.values()
        if any(not one.running or one.partner is not None for one in residents):
            return True
        return self.growth and self._could_grow(memory)

    def _could_grow(self, memory: _Memory) -> bool:
        homes = memory.homes
        return any(
            one.width + one.grown < one.job.spec.most_width and homes.free_gpus(node) > 0
            for one in memory.residents.values()
            for node in one.needs
        )


def _free(homes: Homes) -> int:
    """GPUs that no resident of any node would take."""
    return sum(max(homes.free_gpus(node), 0) for node in range(len(homes.nodes)))
