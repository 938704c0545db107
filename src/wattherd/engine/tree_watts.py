"""The power side of the guard under a power tree: no domain may exceed its budget.

As `engine.watts` for the site alone, and by the same rules: counted are caps in force until lower
ones have been read back, idle devices at their idle watts, shared ones once. Sums are integers
(`engine.loads`), losses included, so that a plan is refused or not by exact comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.budgets import Fall
from wattherd.engine.feeds import NW, PPM, Feeds
from wattherd.engine.ledger import JobRecord
from wattherd.engine.loads import Loads, Spread
from wattherd.engine.power_reasons import new_to_plan, too_late
from wattherd.engine.rooms import Branches, Rooms, branch_table, branches_above
from wattherd.engine.sharing import SharedDevices, shared_devices
from wattherd.engine.tree_asking import TreeAsking
from wattherd.engine.watts import Watts
from wattherd.estimate.power_curve import CurveOf, PowerCurve, prior_curve
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.power_tree import PowerTree
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.power.contract import Ask, Asks, PowerPolicy
from wattherd.policy.power.in_tree import SharesInTree, within
from wattherd.policy.power.menu import Floats, Ints


class TreeWatts(Watts):
    """Budgets of all domains, and everything that counts against them."""

    by_domain: ClassVar[bool] = True

    def __init__(
        self,
        cluster: ClusterSpec,
        policy: PowerPolicy,
        curve_of: CurveOf,
        tree: PowerTree,
        gpus: Mapping[str, GpuModel] = GPUS,
    ) -> None:
        """Start with the budgets that the tree begins with; a site budget may come on top."""
        super().__init__(cluster, policy, curve_of, gpus)
        self.feeds = Feeds(tree, cluster)
        self._own_w = [domain.budget_w for domain in tree.domains]
        self._site_w: float | None = None
        self._said_w = {domain.name: domain.budget_w for domain in tree.domains}
        self.limits_nw: list[int | None] = []
        """What the guard holds each domain to."""
        self._idle = Loads(self.feeds)
        self._node_names = [node.name for node in cluster.nodes]
        for at, node in enumerate(cluster.nodes):
            idle_mw = self._idle_mw[at] * node.gpu_count + round(node.idle_w * 1000)
            self._idle.put(node.name, [(at, idle_mw)])
        self._step_mw = [self._least_step_mw(at) for at in range(len(cluster.nodes))]
        """From idle to the least that a GPU of each node runs with, of a job like any."""
        self._plan_loads, self._held_loads = Loads(self.feeds), Loads(self.feeds)
        self._tree_asking = TreeAsking()
        """Planned jobs that share no device."""
        self._set_limits()
        self.state(tree.root.budget_w, tree.root.name)

    def _least_step_mw(self, node: int) -> int:
        model = self._models[node]
        if not model:
            return 1
        return max(
            round(self.least_w(prior_curve(self.gpus[model])) * 1000) - self._idle_mw[node], 1
        )

    @property
    def limited(self) -> bool:
        """A tree always limits: what is planned is always booked."""
        return True

    def set_budget(
        self, budget_w: float | None, jobs: Iterable[JobRecord], domain: str = ""
    ) -> None:
        """A new budget of a domain, or of the site beside its own; unheard-of domains have none."""
        del jobs
        if not domain:
            self._site_w = budget_w
        elif domain in self.feeds.number:
            self._own_w[self.feeds.number[domain]] = budget_w
        self._set_limits()

    def _set_limits(self) -> None:
        limits_w = list(self._own_w)
        known = [one for one in (self._site_w, limits_w[self.feeds.root]) if one is not None]
        self.budget_w = limits_w[self.feeds.root] = min(known, default=None)
        self.limits_nw = [None if one is None else round(one * 1000) * PPM for one in limits_w]
        self._due = True

    def state(self, budget_w: float | None, domain: str = "") -> None:
        """What a domain is said to be allowed."""
        self._said_w[domain] = budget_w
        root = self.feeds.names[self.feeds.root]
        known = [one for one in map(self._said_w.get, ("", root)) if one is not None]
        self.stated_w = min(known, default=None)

    @property
    def held_mw(self) -> list[int | None]:
        """What the guard holds each domain to."""
        return [None if one is None else one // PPM for one in self.limits_nw]

    def limits_mw(self, levels: Mapping[str, float | None]) -> list[int | None]:
        """Budgets of each domain, where `levels` are those of the domains and of the site."""
        said_w = [levels.get(name) for name in self.feeds.names]
        root = [one for one in (said_w[self.feeds.root], levels.get("")) if one is not None]
        said_w[self.feeds.root] = min(root, default=None)
        return [None if one is None else round(one * 1000) for one in said_w]

    @property
    def stated_nw(self) -> list[int | None]:
        """The budget of each domain."""
        stated_w = [self._said_w[name] for name in self.feeds.names]
        stated_w[self.feeds.root] = self.stated_w
        return [None if one is None else round(one * 1000) * PPM for one in stated_w]

    # The plan -----------------------------------------------------------------------------------

    def plan(self, job: JobRecord) -> None:
        """Book anew the least that the plan makes a job draw."""
        before = self._plan_sharing.devices(job.id)
        super().plan(job)
        curve = self.curve(job.spec, job.wanted)
        least_mw = 0 if curve is None else round(self.least_w(curve) * 1000)
        self._plan_loads.put(job.id, self._above_idle(job.wanted, least_mw))
        self._plan_loads.share(self._plan_sharing, [*before, *shared_devices(job.wanted)])
        self._tree_asking.drop(job)
        if curve is not None and not self._plan_sharing.devices(job.id):
            ask = self._planned[job.id].ask
            self._tree_asking.put(job, ask, self._branches_of(job))

    def _above_idle(self, allocations: Iterable[Allocation], mw: int) -> list[tuple[int, int]]:
        """(Node, milliwatts) above idle with whole devices at `mw` each."""
        return [
            (one.node, len(one.gpus) * (mw - self._idle_mw[one.node]))
            for one in allocations
            if one.gpus and one.request.gpu_milli == WHOLE_GPU_MILLI
        ]

    def _with(
        self,
        loads: Loads,
        sharing: SharedDevices,
        job: JobRecord,
        allocations: tuple[Allocation, ...],
        mw: int,
    ) -> Spread:
        """The domains above `allocations`, and what they carry if a job has its `mw` there.

        What it has booked now does not count.
        """
        devices = shared_devices(allocations)
        rises = [(one[0], sharing.rise_mw(job.id, [one], mw)) for one in devices]
        new = loads.spread([*self._above_idle(allocations, mw), *rises])
        falls = [(one[0], sharing.fall_mw(job.id, one)) for one in sharing.devices(job.id)]
        old = loads.spread(falls)
        for domain, nw in loads.of(job.id).items():
            old[domain] = old.get(domain, 0) + nw
        idle = self._idle.nw
        return {
            domain: idle[domain] + loads.nw[domain] - old.get(domain, 0) + nw
            for domain, nw in new.items()
        }

    def room_mw(self) -> int | None:
        """There is no single room in a tree; see `refused`."""
        return None

    def powered(self, gpus: NDArray[np.int64], least: int) -> NDArray[np.int64]:
        """Free GPUs that all domains together could carry at their floors; whole nodes first."""
        used = [a + b for a, b in zip(self._idle.nw, self._plan_loads.nw, strict=True)]
        left = {
            domain: limit_nw - nw
            for domain, (limit_nw, nw) in enumerate(zip(self.limits_nw, used, strict=True))
            if limit_nw is not None
        }
        shown = np.zeros_like(gpus)
        for node in sorted(np.flatnonzero(gpus).tolist(), key=lambda one: (-gpus[one], one)):
            above = [(left[one], ppm, one) for one, ppm in self.feeds.paths[node] if one in left]
            step_mw = self._step_mw[node]
            count = min([int(gpus[node]), *(nw // (ppm * step_mw) for nw, ppm, _ in above)])
            if count > 0:
                shown[node] = count
                for nw, ppm, domain in above:
                    left[domain] = nw - count * ppm * step_mw
        return shown if int(shown.sum()) >= min(least, int(gpus.sum())) else gpus

    def refused(
        self, job: JobRecord, allocations: tuple[Allocation, ...], now_s: float
    ) -> Reason | None:
        """The first domain, from the racks up, that the least needs would be too much for."""
        curve = self.curve(job.spec, allocations)
        if curve is None:
            return None
        least_mw = round(self.least_w(curve) * 1000)
        loads, sharing = self._plan_loads, self._plan_sharing
        carried = self._with(loads, sharing, job, allocations, least_mw)
        over = [one for one in carried if self._over(one, carried[one])]
        if over:
            domain = self._deepest(over)
            asked = self._asked(job, allocations, least_mw, domain)
            return self._too_much(domain, asked, carried[domain] - asked, now_s)
        return self._doomed_at(carried, job, now_s) if self._soon else None

    def _deepest(self, domains: Iterable[int]) -> int:
        tree, names = self.feeds.tree, self.feeds.names
        return max(domains, key=lambda one: (tree.depth(names[one]), -one))

    def _doomed_at(self, carried: Spread, job: JobRecord, now_s: float) -> Reason | None:
        """The domain whose budget will soon fall below what it would carry."""
        falls = {self.feeds.number.get(name, self.feeds.root): one for name, one in self._later()}
        over = [one for one in carried if one in falls and carried[one] > _fall_nw(falls[one])]
        if not over or not new_to_plan(job):
            return None
        domain = self._deepest(over)
        room_nw = _fall_nw(falls[domain]) - self._idle.nw[domain]
        need_nw = carried[domain] - self._idle.nw[domain]
        name = self.feeds.names[domain]
        return too_late(need_nw / PPM, room_nw / PPM, falls[domain], now_s, name)

    def _later(self) -> list[tuple[str, Fall]]:
        """Falls to come; of two for the site the lower one last."""
        return sorted(self._soon.items(), key=lambda one: -one[1].budget_w)

    def _asked(
        self, job: JobRecord, allocations: tuple[Allocation, ...], mw: int, domain: int
    ) -> int:
        devices = shared_devices(allocations)
        rises = [(one[0], self._plan_sharing.rise_mw(job.id, [one], mw)) for one in devices]
        spread = self._plan_loads.spread([*self._above_idle(allocations, mw), *rises])
        return spread.get(domain, 0)

    def _over(self, domain: int, nw: int) -> bool:
        limit_nw = self.limits_nw[domain]
        return limit_nw is not None and nw > limit_nw

    def _too_much(self, domain: int, asked_nw: int, used_nw: int, now_s: float) -> Reason:
        limit_nw = self.limits_nw[domain] or 0
        name = self.feeds.names[domain]
        return Reason(
            code=ReasonCode.WAITING_FOR_POWER,
            since_s=now_s,
            asked=asked_nw / NW,
            in_use=used_nw / NW,
            available=max(limit_nw - used_nw, 0) / NW,
            unit=f"W at {name}",
            unblocks=f"the budget of {name} is {limit_nw / NW:g} W",
        )

    def too_many(self, fall: Fall) -> bool:
        """Whether a fall would leave less than the least needs of a domain's planned jobs."""
        domain = self.feeds.number.get(fall.domain, self.feeds.root)
        return self._idle.nw[domain] + self._plan_loads.nw[domain] > _fall_nw(fall)

    def overloaded(self, job: JobRecord | None = None) -> bool:
        """Whether the plan's least needs are too much for a domain (one that feeds `job`)."""
        loads, idle = self._plan_loads.nw, self._idle.nw
        above: Iterable[int] = range(len(loads))
        if job is not None:
            above = {domain for one in job.wanted for domain, _ in self.feeds.paths[one.node]}
        return any(self._over(domain, idle[domain] + loads[domain]) for domain in above)

    # Now ----------------------------------------------------------------------------------------

    def note(self, job: JobRecord) -> None:
        """Book anew what a job's devices may draw now."""
        before = self._sharing.devices(job.id)
        super().note(job)
        curve = self.curve(job.spec, job.allocations)
        mw = 0
        if curve is not None:
            cap_w = curve.max_w if job.cap_w is None else min(job.cap_w, curve.max_w)
            mw = round(cap_w * 1000)
        self._held_loads.put(job.id, self._above_idle(job.allocations, mw))
        self._held_loads.share(self._sharing, [*before, *shared_devices(job.allocations)])

    def fits(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> bool:
        """Whether every domain could carry the job's planned cap there, beside what is in force."""
        curve = self.curve(job.spec, allocations)
        if curve is None:
            return True
        cap_w = curve.max_w if job.wanted_cap_w is None else min(job.wanted_cap_w, curve.max_w)
        mw = round(cap_w * 1000)
        carried = self._with(self._held_loads, self._sharing, job, allocations, mw)
        return not any(self._over(domain, nw) for domain, nw in carried.items())

    def _site_mw(
        self, job: JobRecord, allocations: tuple[Allocation, ...], curve: PowerCurve
    ) -> int:
        cap_w = curve.max_w if job.wanted_cap_w is None else min(job.wanted_cap_w, curve.max_w)
        mw = round(cap_w * 1000)
        carried = self._with(self._held_loads, self._sharing, job, allocations, mw)
        return carried[self.feeds.root] // PPM if carried else self.drawn_mw

    @property
    def drawn_by(self) -> dict[str, int]:
        """What everything may draw now, by domain; the site also under its empty name."""
        carried = [nw // PPM for nw in self.carried_nw()]
        return {"": self.drawn_mw, **dict(zip(self.feeds.names, carried, strict=True))}

    def _would_draw(
        self, job: JobRecord, allocations: tuple[Allocation, ...], curve: PowerCurve
    ) -> dict[str, int]:
        cap_w = curve.max_w if job.wanted_cap_w is None else min(job.wanted_cap_w, curve.max_w)
        mw = round(cap_w * 1000)
        carried = self._with(self._held_loads, self._sharing, job, allocations, mw)
        found = {self.feeds.names[domain]: nw // PPM for domain, nw in carried.items()}
        return {"": found.get(self.feeds.names[self.feeds.root], self.drawn_mw), **found}

    def load_mw(self, job: JobRecord) -> dict[str, int]:
        """What a job adds to every domain now, losses included."""
        own = {self.feeds.names[at]: nw // PPM for at, nw in self._held_loads.of(job.id).items()}
        return {"": own.get(self.feeds.names[self.feeds.root], 0), **own}

    @property
    def drawn_mw(self) -> int:
        """What the site may take now, losses included."""
        root = self.feeds.root
        return (self._idle.nw[root] + self._held_loads.nw[root]) // PPM

    def exceeded(self) -> bool:
        """Whether any domain may carry more now than its budget."""
        return any(self._over(domain, nw) for domain, nw in enumerate(self.carried_nw()))

    def idle_nw(self, domain: int) -> int:
        """What a domain carries while nothing runs, losses included."""
        return self._idle.nw[domain]

    def carried_nw(self, off: Iterable[int] = ()) -> list[int]:
        """What every domain carries now at most; nodes that are `off` draw nothing."""
        carried = [a + b for a, b in zip(self._idle.nw, self._held_loads.nw, strict=True)]
        for node in off:
            for domain, nw in self._idle.of(self._node_names[node]).items():
                carried[domain] -= nw
        return carried

    # Sharing ------------------------------------------------------------------------------------

    def share(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Set every planned job's cap; returns jobs whose cap changed."""
        if not self._due:
            return []
        self._due = False
        asking = self._tree_asking
        if self._plan_sharing.any:
            asking.forget_caps()
            return self._share_one_by_one(jobs, 0.0)
        return asking.give(self._caps_w(asking.asks, asking.branches))

    def _shares(
        self, jobs: Sequence[JobRecord], asks: Sequence[Ask], watts: float
    ) -> Sequence[float]:
        """Caps within every domain; `watts` of a single site say nothing here."""
        del watts
        return self._caps_w(Asks(asks), branch_table([self._branches_of(job) for job in jobs]))

    def _caps_w(self, asks: Asks, branches: Ints) -> list[float]:
        """Caps (J,) in whole watts, within every domain."""
        if not asks:
            return []
        rooms = Rooms(self.feeds, self.limits_nw, self._idle.nw, branches)
        tops = _whole(asks.top_w, asks)
        if rooms.hold(tops):
            found: list[float] = tops.tolist()
            return found
        limits = rooms.limits(asks)
        policy = self.policy
        if isinstance(policy, SharesInTree):
            caps = policy.share_in(asks, limits)
        else:
            caps = policy.share(asks, float(max(limits.room_w, default=0.0)))
        return rooms.trimmed(asks, _whole(np.array(within(asks, caps, limits)), asks))

    def _branches_of(self, job: JobRecord) -> Branches:
        """What stands above the devices that a job's cap is for."""
        return branches_above(self.feeds, self._devices_at(job), self._idle_mw)

    def _devices_at(self, job: JobRecord) -> dict[int, int]:
        """Devices by node: the job's own, and shared ones where it is the dearest."""
        found: dict[int, int] = {}
        for one in job.wanted:
            if one.gpus and one.request.gpu_milli == WHOLE_GPU_MILLI:
                found[one.node] = found.get(one.node, 0) + len(one.gpus)
        for node, _ in self._plan_sharing.owned(job.id):
            found[node] = found.get(node, 0) + 1
        return found


def _whole(caps_w: Floats, asks: Asks) -> Floats:
    """As `asking.whole_watts`, of all asks (J,)."""
    whole: Floats = np.maximum(np.trunc(caps_w + 1e-6), asks.floor_w)
    return whole


def _fall_nw(fall: Fall) -> int:
    return round(fall.budget_w * 1000) * PPM
