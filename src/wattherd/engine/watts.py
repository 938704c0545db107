"""The power side of the guard: what devices may draw at most, now and under the plan.

Counted are caps, not measured draw, because draw can jump within any control delay: a device of a
running job counts at the cap in force until a lower one has been read back, a free device at its
idle watts, a shared one once (`engine.sharing`). Integer milliwatts, so that sums are exact and do
not depend on order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.asking import Asking, whole_watts
from wattherd.engine.budgets import Fall
from wattherd.engine.demands import Demands
from wattherd.engine.ledger import JobRecord
from wattherd.engine.power_reasons import new_to_plan, too_late, too_little
from wattherd.engine.prices import Prices
from wattherd.engine.ramp import Ramps, Refusal
from wattherd.engine.sharing import SharedDevices, shared_devices
from wattherd.estimate.power_curve import CurveOf, PowerCurve, under_one_cap
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason
from wattherd.policy.power.contract import Ask, PowerPolicy, SharesByClass


def _mw(watts: float) -> int:
    return round(watts * 1000)


class Watts:
    """The budget, and everything that counts against it."""

    by_domain: ClassVar[bool] = False
    """Whether nodes are fed by domains with budgets of their own."""

    def __init__(
        self,
        cluster: ClusterSpec,
        policy: PowerPolicy,
        curve_of: CurveOf,
        gpus: Mapping[str, GpuModel] = GPUS,
    ) -> None:
        """Without a budget nothing is refused and nothing is capped."""
        self.policy = policy
        self.gpus = gpus
        self.budget_w: float | None = None
        """What the guard holds the site to."""
        self.stated_w: float | None = None
        """The site's budget."""
        self._soon: dict[str, Fall] = {}
        """Budgets that are to come, within which new jobs must fit."""
        self.curve_of = curve_of
        self._models = [node.gpu_model for node in cluster.nodes]
        self._idle_mw = [
            _mw(gpus[node.gpu_model].idle_w) if node.gpu_count else 0 for node in cluster.nodes
        ]
        self.base_mw = sum(
            idle * node.gpu_count + _mw(node.idle_w)
            for idle, node in zip(self._idle_mw, cluster.nodes, strict=True)
        )
        """What the cluster draws while nothing runs."""
        self._held: dict[str, tuple[int, int]] = {}
        """Draw of each job's unshared devices, and what these would draw idle."""
        self._run_mw = 0
        self._covered_mw = 0
        self._planned: dict[str, _Planned] = {}
        self._needs_mw = 0
        self._planned_idle_mw = 0
        self._asking = Asking()
        self._sharing = SharedDevices(self._idle_mw)
        self._plan_sharing = SharedDevices(self._idle_mw)
        self.demands = Demands()
        self.prices = Prices(self._models, curve_of)
        self._due = False
        """Whether the plan or the budget changed since the watts were shared out."""

    @property
    def limited(self) -> bool:
        """Whether any budget holds."""
        return self.budget_w is not None

    def set_budget(
        self, budget_w: float | None, jobs: Iterable[JobRecord], domain: str = ""
    ) -> None:
        """A new budget for the plan of `jobs`; None lifts it. Only trees have other domains."""
        if domain:
            return
        self.budget_w = budget_w
        self._planned, self._needs_mw, self._planned_idle_mw, self._due = {}, 0, 0, True
        self._asking = Asking()
        self._plan_sharing = SharedDevices(self._idle_mw)
        for job in jobs:
            self.plan(job)

    def state(self, budget_w: float | None, domain: str = "") -> None:
        """What a domain is said to be allowed; the guard may already hold it to less."""
        if not domain:
            self.stated_w = budget_w

    def expect(self, domain: str, fall: Fall | None) -> None:
        """A budget that new jobs must fit into because it comes soon."""
        self._soon.pop(domain, None)
        if fall is not None:
            self._soon[domain] = fall

    def too_many(self, fall: Fall) -> bool:
        """Whether a fall would leave less than the least needs of all planned jobs."""
        needs_mw = self.base_mw + self._needs_mw + self._plan_sharing.above_idle_mw
        return not fall.domain and needs_mw > _mw(fall.budget_w)

    def doomed(self, job: JobRecord, need_mw: int, room_mw: int, now_s: float) -> Reason | None:
        """Why a job must not be started now that a fall would soon leave without its floor."""
        fall = self._soon.get("")
        if fall is None or not new_to_plan(job) or self.budget_w is None:
            return None
        room_mw -= max(_mw(self.budget_w) - _mw(fall.budget_w), 0)
        return too_late(need_mw, room_mw, fall, now_s) if need_mw > room_mw else None

    def plan(self, job: JobRecord) -> None:
        """Book anew what the plan gives a job; nothing needs to be booked without a budget."""
        if not self.limited:
            return
        before = self._planned.pop(job.id, None)
        if before is not None:
            self._needs_mw -= before.needs_mw
            self._planned_idle_mw -= before.idle_mw
            self._asking.drop(job)
        self._plan_sharing.drop(job.id)
        self._due = True
        curve = self.curve(job.spec, job.wanted)
        if curve is None:
            return
        least_w = self.least_w(curve)
        curve = self.demands.within(job.id, curve)
        whole = [one for one in job.wanted if _is_whole(one)]
        devices = sum(len(allocation.gpus) for allocation in whole)
        ask = Ask(job_id=job.id, devices=devices, curve=curve, priority=job.spec.priority)
        idle_mw = sum(len(one.gpus) * self._idle_mw[one.node] for one in whole)
        planned = _Planned(ask, self._above_idle_mw(whole, least_w), idle_mw)
        self._planned[job.id] = planned
        self._needs_mw += planned.needs_mw
        self._planned_idle_mw += idle_mw
        if devices:
            self._asking.put(job, ask)
        if len(whole) < len(job.wanted):
            self._plan_sharing.put(job.id, shared_devices(job.wanted), _mw(least_w))

    def curve(self, spec: JobSpec, allocations: Iterable[Allocation]) -> PowerCurve | None:
        """The job's curve where it is placed, None if it holds no GPU.

        Across GPU models it is that of the one cap for all of them (`under_one_cap`).
        """
        first = ""
        others: dict[str, None] = {}
        for one in allocations:
            if one.gpus and self._models[one.node] != first:
                if first:
                    others[self._models[one.node]] = None
                else:
                    first = self._models[one.node]
        if not first:
            return None
        curve = self.curve_of(spec, first)
        if others:
            curve = under_one_cap((curve, *(self.curve_of(spec, model) for model in others)))
        return self.prices.within(spec.id, curve)

    def speed(self, job: JobRecord) -> float:
        """Speed of a running job at its cap, relative to full draw; its slowest device counts."""
        curves = [
            self.curve_of(job.spec, self._models[one.node]) for one in job.allocations if one.gpus
        ]
        if job.cap_w is None or not curves:
            return 1.0
        return min(one.rate(job.cap_w) / one.rates[-1] for one in curves)

    def _above_idle_mw(self, allocations: Iterable[Allocation], per_device_w: float) -> int:
        """Draw above idle if every unshared device of `allocations` draws `per_device_w`."""
        return sum(
            len(one.gpus) * (_mw(per_device_w) - self._idle_mw[one.node])
            for one in allocations
            if _is_whole(one)
        )

    def least_w(self, curve: PowerCurve) -> float:
        """The least per device with which the policy lets a job run."""
        return curve.max_w if self.policy.all_or_nothing else curve.floor_w

    def needs_mw(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> int:
        """The least above idle with which the policy lets a job run there.

        Of a device that it shares, only what it adds to the others of the plan.
        """
        curve = self.curve(job.spec, allocations)
        if curve is None:
            return 0
        least_w = self.least_w(curve)
        added_mw = self._plan_sharing.rise_mw(job.id, shared_devices(allocations), _mw(least_w))
        return self._above_idle_mw(allocations, least_w) + added_mw

    def room_mw(self) -> int | None:
        """What the plan leaves above the least needs of all planned jobs; None: no budget."""
        if self.budget_w is None:
            return None
        shared_mw = self._plan_sharing.above_idle_mw
        return _mw(self.budget_w) - self.base_mw - self._needs_mw - shared_mw

    def powered(self, gpus: NDArray[np.int64], least: int) -> NDArray[np.int64]:
        """Of free `gpus` (N,) those that a power tree could carry at their floors, all at once.

        Where these are fewer than `least` it is all of them: the guard will say what they lack.
        """
        del least
        return gpus

    def refused(
        self, job: JobRecord, allocations: tuple[Allocation, ...], now_s: float
    ) -> Reason | None:
        """Why a domain of a power tree could not carry a job there beside the plan's others."""
        del job, allocations, now_s
        return None

    def overloaded(self, job: JobRecord | None = None) -> bool:
        """Whether the plan's least needs are too much for a domain (one that feeds `job`)."""
        del job
        return False

    def refusal(self, need_mw: int, room_mw: int, now_s: float) -> Reason:
        """Why a job must wait for watts."""
        return too_little(need_mw, room_mw, self.budget_w or 0.0, now_s)

    def note(self, job: JobRecord) -> None:
        """Book anew what a job's devices may draw now: it started, stopped, or its cap changed."""
        before = self._held.pop(job.id, None)
        if before is not None:
            self._run_mw -= before[0]
            self._covered_mw -= before[1]
        self._sharing.drop(job.id)
        if not job.allocations:
            return
        curve = self.curve(job.spec, job.allocations)
        if curve is None:
            return
        most_w = curve.watts[-1]
        per_device_mw = _mw(most_w if job.cap_w is None else min(job.cap_w, most_w))
        devices = idle_mw = 0
        for one in job.allocations:
            count = len(one.gpus)
            if one.request.gpu_milli == WHOLE_GPU_MILLI:
                devices += count
                idle_mw += count * self._idle_mw[one.node]
            elif count:
                self._sharing.put(job.id, shared_devices(job.allocations), per_device_mw)
        run_mw = devices * per_device_mw
        self._held[job.id] = run_mw, idle_mw
        self._run_mw += run_mw
        self._covered_mw += idle_mw

    def idle_mw_of(self, model: str) -> int:
        """What a device of a model draws idle."""
        return _mw(self.gpus[model].idle_w)

    def idle_w(self, job: JobRecord) -> float:
        """What a device of a running job would draw idle; of its first one, 0 without any."""
        nodes = [one.node for one in job.allocations if one.gpus]
        return self._idle_mw[nodes[0]] / 1000 if nodes else 0.0

    def held_w(self, job_id: str) -> float:
        """Upper bound of what the devices of one job draw now; shared ones count in equal parts."""
        return (self._held.get(job_id, (0, 0))[0] + self._sharing.part_mw(job_id)) / 1000

    @property
    def shares(self) -> bool:
        """Whether any device is shared now."""
        return self._sharing.any

    def partners(self, job_id: str) -> list[str]:
        """Jobs that share a device with this one now."""
        return self._sharing.partners(job_id)

    @property
    def run_w(self) -> float:
        """Upper bound of what the devices of running jobs draw now."""
        return (self._run_mw + self._sharing.idle_mw + self._sharing.above_idle_mw) / 1000

    @property
    def free_w(self) -> float:
        """Idle watts of the devices that no job holds."""
        return (self.base_mw - self._covered_mw - self._sharing.idle_mw) / 1000

    def fits(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> bool:
        """Whether `job` may draw its planned cap there, beside what is in force elsewhere."""
        curve = None if self.budget_w is None else self.curve(job.spec, allocations)
        if self.budget_w is None or curve is None:
            return True
        return self._site_mw(job, allocations, curve) <= _mw(self.budget_w)

    def _site_mw(
        self, job: JobRecord, allocations: tuple[Allocation, ...], curve: PowerCurve
    ) -> int:
        """What everything may draw if `job` has its planned cap there."""
        cap_w = curve.max_w if job.wanted_cap_w is None else min(job.wanted_cap_w, curve.max_w)
        run_mw, idle_mw = self._held.get(job.id, (0, 0))
        others_mw = self.base_mw - self._covered_mw + idle_mw + self._run_mw - run_mw
        sharing, devices = self._sharing, shared_devices(allocations)
        shared_mw = sharing.above_idle_mw - sharing.held_rise_mw(job.id)
        shared_mw += sharing.rise_mw(job.id, devices, _mw(cap_w))
        alone_mw = self._above_idle_mw(allocations, cap_w)
        return others_mw + shared_mw + alone_mw

    @property
    def drawn_mw(self) -> int:
        """What everything may draw now."""
        return self.base_mw - self._covered_mw + self._run_mw + self._sharing.above_idle_mw

    def exceeded(self) -> bool:
        """Whether more may be drawn now than a budget allows."""
        return self.budget_w is not None and self.drawn_mw > _mw(self.budget_w)

    @property
    def drawn_by(self) -> dict[str, int]:
        """What everything may draw now, by domain; the empty name is the site's."""
        return {"": self.drawn_mw}

    def climbs(
        self, job: JobRecord, allocations: tuple[Allocation, ...], ramps: Ramps, now_s: float
    ) -> Refusal | None:
        """Why a ramp does not let `job` have its planned cap there now."""
        curve = self.curve(job.spec, allocations) if ramps.limits else None
        if curve is None:
            return None
        return ramps.refusal(job.id, self._would_draw(job, allocations, curve), now_s)

    def _would_draw(
        self, job: JobRecord, allocations: tuple[Allocation, ...], curve: PowerCurve
    ) -> dict[str, int]:
        return {"": self._site_mw(job, allocations, curve)}

    def load_mw(self, job: JobRecord) -> dict[str, int]:
        """What a job's devices may draw above idle now, by domain; the empty name is the site's."""
        run_mw, idle_mw = self._held.get(job.id, (0, 0))
        return {"": run_mw - idle_mw + self._sharing.held_rise_mw(job.id)}

    def share(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Set every planned job's cap, none without a budget; returns jobs whose cap changed."""
        if self.budget_w is None:
            changed = [job for job in jobs if job.wanted_cap_w is not None]
            for job in changed:
                job.wanted_cap_w = None
            return changed
        if not self._due:
            return []
        self._due = False
        if self._plan_sharing.any:
            return self._share_one_by_one(jobs, self.budget_w)
        asking, watts = self._asking, self.budget_w - (self.base_mw - self._planned_idle_mw) / 1000
        if asking.top_mw <= watts * 1000:
            return asking.give(asking.uncapped())
        if isinstance(self.policy, SharesByClass):
            return asking.give(self.policy.levels(asking.classes(), watts))
        return self._share_one_by_one(jobs, self.budget_w)

    def _share_one_by_one(self, jobs: Iterable[JobRecord], budget_w: float) -> list[JobRecord]:
        """Ask the policy for every job; one that shares devices has the least cap of theirs."""
        self._asking.forget_caps()
        planned = [job for job in jobs if job.id in self._planned]
        shared = self._plan_sharing.any
        booked = [self._with_shared(one.id) if shared else self._planned[one.id] for one in planned]
        asking = [job for job, one in zip(planned, booked, strict=True) if one.ask.devices]
        asks = [one.ask for one in booked if one.ask.devices]
        watts = budget_w - (self.base_mw - sum(one.idle_mw for one in booked)) / 1000
        shares = self._shares(asking, asks, watts)
        caps_w = {
            job.id: whole_watts(cap_w, ask.curve.floor_w)
            for job, ask, cap_w in zip(asking, asks, shares, strict=True)
        }
        changed = []
        for job in planned:
            owners = (job.id, *self._plan_sharing.owners(job.id)) if shared else (job.id,)
            cap_w = min(caps_w[one] for one in owners if one in caps_w)
            if cap_w != job.wanted_cap_w:
                job.wanted_cap_w = cap_w
                changed.append(job)
        return changed

    def _shares(
        self, jobs: Sequence[JobRecord], asks: Sequence[Ask], watts: float
    ) -> Sequence[float]:
        """What the policy gives each of `jobs` (W per device)."""
        del jobs
        return self.policy.share(asks, watts)

    def _with_shared(self, job_id: str) -> _Planned:
        """What a job asks the power policy for: of shared devices those where it is the dearest."""
        booked, owned = self._planned[job_id], self._plan_sharing.owned(job_id)
        if not owned:
            return booked
        idle_mw = booked.idle_mw + sum(self._idle_mw[node] for node, _ in owned)
        ask = replace(booked.ask, devices=booked.ask.devices + len(owned))
        return _Planned(ask, booked.needs_mw, idle_mw)


def _is_whole(allocation: Allocation) -> bool:
    return allocation.request.gpu_milli == WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class _Planned:
    """A planned job's demand, its least need above idle, and what its devices would draw idle."""

    ask: Ask
    needs_mw: int
    idle_mw: int
