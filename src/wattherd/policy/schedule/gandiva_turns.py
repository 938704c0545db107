"""Whose turn it is: residents that do not all fit run one after the other (time slicing).

The least served go first, as many as fit on their homes; at the end of each slice everybody is
looked at anew, in between only what is idle is given away. Two partners on one GPU are one unit.
Suspending and resuming is a stop and a start: the guard books both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.catalog.gpus import GPUS
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, Share
from wattherd.policy.queue.topology import closest
from wattherd.policy.schedule.gandiva_nodes import GandivaJob, GandivaNodes, Need, task_need


def memory_part_milli(spec: JobSpec, gpu_model: str) -> int | None:
    """The part of a GPU's memory that a job of a single GPU needs; None if it cannot share one."""
    if gpu_model not in GPUS:  # a part of a processor, or a model nobody has described
        return None
    role = spec.roles[0]
    single = len(spec.roles) == 1 and role.count == role.gpu_count == 1
    if not single or role.gpu_memory_mib is None or role.gpu_milli != WHOLE_GPU_MILLI:
        return None
    device_mib = GPUS[gpu_model].memory_mib
    part = max(-(-role.gpu_memory_mib * WHOLE_GPU_MILLI // device_mib), 1)
    # Rounded up, the part holds what is needed; the guard rounds the MiB of a part down.
    part += device_mib * part // WHOLE_GPU_MILLI < role.gpu_memory_mib
    return part if part < WHOLE_GPU_MILLI else None


@dataclass(slots=True)
class GandivaTurns:
    """One plan's turns. `fanouts` tell, by a node's GPUs, how they are grouped (`Chain.fanout`)."""

    homes: GandivaNodes
    draft: Draft
    now_s: float
    sharing: bool
    fanouts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    _refusal: Reason | None = None

    def give(self, residents: Iterable[GandivaJob], *, new_slice: bool) -> None:
        """Stop those whose turn is over, start those whose turn it is."""
        asking, left = residents, dict[int, Need]()
        if not (new_slice or self.homes.resized):
            asking, left = self._asking()
        self.homes.touched, self.homes.resized = set(), False
        units = [_unit(one) for one in asking if one.home and _leads(one)]
        units.sort(key=lambda unit: self._key(unit, new_slice=new_slice))
        chosen, others = self._choose(units, left)
        for unit in others:
            for one in unit:
                self.suspend(one)
        waiting = [unit for unit in chosen if not all(one.running for one in unit)]
        for unit in waiting:
            self._shrink_around(unit)
        for unit in waiting:
            self._start_unit(unit, chosen if new_slice else [])
            for one in unit:
                if not one.running:
                    self.homes.touched.update(one.needs)

    def _asking(self) -> tuple[Iterable[GandivaJob], dict[int, Need]]:
        """Who may get a turn within a slice, and what those who run leave of their nodes.

        Who runs goes on, and fits. So a turn can be another one only on nodes where somebody came
        or left, or was refused what was free.
        """
        on = self.homes.on
        asking = {
            name: one
            for node in self.homes.touched
            for name, one in on[node].items()
            if not all(partner.running for partner in _unit(one))
        }
        left: dict[int, Need] = {}
        for node in {node for one in asking.values() for node in one.needs}:
            left[node] = self.homes.capacity[node]
            for name, one in on[node].items():
                if name not in asking and one.running:
                    left[node] = _less(left[node], one.needs[node], follows=not _leads(one))
        return asking.values(), left

    def _key(self, unit: list[GandivaJob], *, new_slice: bool) -> tuple[bool, float, int]:
        # A run that has not begun to work keeps its turn: were starts as long as slices, runs
        # would be stopped for each other for ever, and none would get anywhere.
        runs = any(one.running and (not new_slice or one.job.starting) for one in unit)
        served_s = min(one.service_s(self.now_s) for one in unit)
        return not runs, served_s, unit[0].job.number

    def _choose(
        self, units: list[list[GandivaJob]], left: dict[int, Need]
    ) -> tuple[list[list[GandivaJob]], list[list[GandivaJob]]]:
        """Units that fit side by side in what is `left`, first ones first, and the others.

        Of nodes that `left` does not name all is left.
        """
        chosen, others = [], []
        for unit in units:
            rest = self._rest(unit, left)
            if rest is None:
                others.append(unit)
            else:
                left.update(rest)
                chosen.append(unit)
        return chosen, others

    def _rest(self, unit: list[GandivaJob], left: Mapping[int, Need]) -> dict[int, Need] | None:
        """What a unit would leave on its nodes, None if it does not fit."""
        rest: dict[int, Need] = {}
        for position, one in enumerate(unit):
            for node, need in one.needs.items():
                have = rest.get(node) or left.get(node) or self.homes.capacity[node]
                after = _less(have, need, follows=position > 0)
                if after[0] < 0 or after[1] < 0 or after[2] < 0:
                    return None
                rest[node] = after
        return rest

    # Stopping ---------------------------------------------------------------------------------

    def suspend(self, resident: GandivaJob) -> None:
        """Take its devices until it is its turn again."""
        if resident.running:
            self.draft.stop(resident.job, StopReason.TIME_SLICE)
            resident.rest(self.now_s)
        if resident.told or resident.job.wanted:
            return
        resident.told = True
        node = min(resident.needs)
        reason = Reason(
            code=ReasonCode.WAITING_FOR_TURN,
            since_s=resident.since_s,
            asked=resident.gpus,
            in_use=self.homes.demand[node][0],
            available=self.homes.capacity[node][0],
            unit=f"GPUs on {self.homes.nodes[node].name}",
            unblocks="the turns of the other jobs on this node end",
        )
        self.draft.wait(resident.job, reason)

    def _shrink_around(self, unit: list[GandivaJob]) -> None:
        """Those who grew on these nodes give back what they did not ask for."""
        for node in {node for one in unit for node in one.needs}:
            for other in self.homes.on[node].values():
                if other.grown and self._begin(other, self._shares(other)):
                    other.grown = 0

    # Starting ---------------------------------------------------------------------------------

    def _start_unit(self, unit: list[GandivaJob], chosen: list[list[GandivaJob]]) -> None:
        """Start a unit, partners on the same GPU; for want of watts, later ones must stop."""
        first = next((one for one in unit if one.running), unit[0])
        if not first.running and not self._start(first, self._shares(first), chosen):
            return
        for one in unit:
            if one is not first:
                gpus = first.job.wanted[0].gpus
                self._start(one, [self._part(one, one.home[0])._replace(gpus=gpus)], chosen)

    def _start(
        self, resident: GandivaJob, shares: list[Share], chosen: list[list[GandivaJob]]
    ) -> bool:
        if self._begin(resident, shares):
            return True
        served_s = resident.service_s(self.now_s)
        for victim in (one for unit in reversed(chosen) for one in reversed(unit) if one.running):
            if not self._lacks_watts or victim.service_s(self.now_s) <= served_s:
                return False
            self.suspend(victim)
            self.homes.touched.update(victim.needs)
            if self._begin(resident, shares):
                return True
        return False

    @property
    def _lacks_watts(self) -> bool:
        return self._refusal is not None and self._refusal.code is ReasonCode.WAITING_FOR_POWER

    def _begin(self, resident: GandivaJob, shares: list[Share]) -> bool:
        self._refusal = self.draft.start(resident.job, shares)
        if self._refusal is None and not resident.running:
            resident.run(self.now_s)
        return self._refusal is None

    def move(self, resident: GandivaJob, home: Sequence[Share]) -> None:
        """Give a resident a new home and, if it runs, take it there."""
        self.homes.settle(resident, home)
        if resident.running:
            resident.grown = 0
            if not self._begin(resident, self._shares(resident)):
                self.suspend(resident)

    def grow(self, resident: GandivaJob, tasks: int) -> bool:
        """Run with `tasks` more than asked for, all of them on its one node."""
        (share,) = resident.home
        wider = share._replace(tasks=share.tasks + tasks)
        if not self._begin(resident, [wider]):
            return False
        resident.grown = tasks
        return True

    def widen(self, resident: GandivaJob) -> None:
        """Give back what a budget took, where there are watts for it again.

        Its GPUs were kept for it all the while: they are part of what its home has promised.
        """
        if self._begin(resident, self._shares(resident)):
            resident.grown = 0

    # Devices ----------------------------------------------------------------------------------

    def _part(self, resident: GandivaJob, share: Share) -> Share:
        """The share as a part of its GPU, where the job can share one."""
        model = self.homes.nodes[share.node].gpu_model
        part = memory_part_milli(resident.job.spec, model) if self.sharing and model else None
        return share._replace(gpu_milli=part)

    def _shares(self, resident: GandivaJob) -> list[Share]:
        """Its home, with GPUs that nobody uses, close to each other."""
        taken: dict[int, set[int]] = {}
        shares = []
        for share in resident.home:
            role = resident.job.spec.roles[share.role]
            gpus = task_need(role)[0] * share.tasks
            picked = self._pick(resident, share.node, gpus, taken) if gpus else ()
            if gpus and role.gpu_milli == WHOLE_GPU_MILLI and len(picked) == gpus:
                shares.append(self._part(resident, share)._replace(gpus=picked))
            else:
                shares.append(share)  # the guard says what is missing
        return shares

    def _pick(
        self, resident: GandivaJob, node: int, gpus: int, taken: dict[int, set[int]]
    ) -> tuple[int, ...]:
        size = self.homes.nodes[node].gpu_count
        used = taken.setdefault(node, self._used(resident, node))
        free = [gpu for gpu in range(size) if gpu not in used]
        picked = closest(free, gpus, size, self.fanouts.get(size, ()))
        used.update(picked)
        return picked

    def _used(self, resident: GandivaJob, node: int) -> set[int]:
        """GPUs of a node that others have under the plan, or that nobody may have."""
        return self.homes.closed.get(node, set()) | {
            gpu
            for other in self.homes.on[node].values()
            if other is not resident
            for one in other.job.wanted
            if one.node == node
            for gpu in one.gpus
        }


def _less(have: Need, need: Need, *, follows: bool) -> Need:
    """What is left without what a resident takes; who follows a partner uses that one's GPU."""
    return have[0] - (0 if follows else need[0]), have[1] - need[1], have[2] - need[2]


def _leads(resident: GandivaJob) -> bool:
    """Whether it stands for its unit."""
    return resident.partner is None or resident.job.number < resident.partner.job.number


def _unit(resident: GandivaJob) -> list[GandivaJob]:
    return [resident] if resident.partner is None else [resident, resident.partner]
