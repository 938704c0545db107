"""The power side of the guard: what devices may draw at most, now and under the plan.

Theory of operation
-------------------
*Domains.* Watts are counted in the domains of a power tree (site, rows, racks). A single budget is
a tree of one domain without a name that feeds every node: there is no other account.

*Caps count, not measured draw*, because draw can jump within any control delay: power spikes of
training last milliseconds, caps take effect in tens to hundreds of them (Zeus, NSDI'23; POLCA,
ASPLOS'24). A device of a running job counts at the cap in force, a free one at its idle watts, a
shared one once (`SharedDevices`). The guard can then promise that no budget is exceeded
whatever the jobs do, as long as drivers keep their caps.

*Two books* (`engine.power.domain_loads`) hold what jobs add above idling:

    _plan   every planned job at the least watts that the policy lets it run with
    _held   every job's devices at the cap in force

A start is planned if `_plan` fits into every budget above it: then there is a way to share the
watts, since everybody can be lowered to his least. It is carried out if `_held` fits with the
job's planned cap. Between the two lies the time in which others are lowered:

    plan        B is planned: A's least + B's least fit
    share       caps are set so that all fit: A's falls, B's is what A gives up
    order       A is told its lower cap; `_held` still has A at the higher one
    read back   A's lower cap is confirmed: `note(A)`, only now do the watts exist
    start       `fits(B)`: B may draw what A gave up

*Sharing* takes what budgets leave above idling and asks the power policy for a cap per planned job.
Caps go out in whole watts, rounded down, never below what a device can do.

*Units.* Milliwatts at devices, nanowatts at the inputs of domains: a loss factor is a whole number
of millionths (`engine.power.feeds`), so that all sums are integers and exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.budgets import BudgetFall, Ramps, Refusal, too_late, too_little
from wattherd.engine.power.demand import (
    ClassKey,
    DemandClasses,
    DemandRows,
    EnergyPrices,
    MeasuredDemands,
    as_mw,
    device_idle_mw,
    node_idle_mw,
)
from wattherd.engine.power.domain_headroom import (
    Branches,
    BudgetColumns,
    DomainHeadroom,
    branch_table,
    branches_beside,
)
from wattherd.engine.power.domain_loads import (
    Device,
    DomainLoads,
    Footprint,
    Spread,
    footprint_of,
    shared_devices,
    told_apart,
)
from wattherd.engine.power.feeds import NW, PPM, Feeds, one_domain
from wattherd.estimate.power_curve import (
    CurveOf,
    MixedCurve,
    PowerCurve,
    by_mean_draw,
    prior_curve,
    under_one_cap,
)
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.model.power_tree import PowerTree
from wattherd.model.reason import Reason
from wattherd.policy.power.choices import Floats, Ints
from wattherd.policy.power.contract import Asks, PowerAsk, PowerPolicy, SharesByClass
from wattherd.policy.power.in_tree import SharesInTree, within


def _nw(watts: float) -> int:
    # Through milliwatts: budgets and caps must round alike, or a cap of the whole budget misses it.
    return as_mw(watts) * PPM


class PlanOrder(NamedTuple):
    """What of a plan is order and no sum, for `PowerAccount.restore_plan_order`."""

    devices: Mapping[Device, Sequence[str]]
    """Jobs on shared devices as they were booked: the first of equals owns the device."""
    classes: Sequence[ClassKey]
    """Classes of equal jobs: the first of those that gain alike is served first."""


# Rules of the guard on watts, each with what breaks without it.
#
# W1. A device counts at the highest cap that it may follow (`JobCaps`, `note`). At a lower one: a
# budget is exceeded between an order and its read-back.
#
# W2. The plan must fit at everybody's least (`refused`). At more: plans are refused that caps could
# carry. At nothing: jobs are started that starve each other.
#
# W3. A start, a move or a raise must fit beside all caps in force (`fits`). Otherwise lower caps
# that are still under way are spent twice.
#
# W4. Idle devices count, held or not (`_idle_nw`). A device that is given back does not stop
# drawing; a sleeping node is counted idle, so that waking it breaks no budget.
#
# W4a. A device counts at no more than its own model draws, whatever the cap of its job. At the cap,
# a job across GPU models is throttled where the watts of all its devices are there.
#
# W5. A shared device counts once, at its dearest job (`SharedDevices`).
#
# W6. Who is new must fit under falls that come soon (`_doomed`); who has a plan stays until the
# fall. Else a job is started to be stopped a minute later.
#
# W7. Sums are integers, compared without tolerance. A tolerance is a budget that is exceeded by
# just as much, always.
class PowerAccount:
    """The budgets of all domains, and everything that counts against them."""

    def __init__(
        self,
        cluster: ClusterSpec,
        policy: PowerPolicy,
        curve_of: CurveOf,
        tree: PowerTree | None = None,
        gpus: Mapping[str, GpuModel] = GPUS,
        *,
        own_tops: bool = True,
    ) -> None:
        """Start with the budgets that the tree begins with; a site budget may come on top.

        With `own_tops` a device of a job across GPU models counts at no more than its own model
        draws; without, at the job's cap, as in journals of the time before.

        Raises:
            UserError: the tree does not feed exactly the nodes of the cluster.
        """
        self.policy = policy
        self.gpus = gpus
        self.curve_of = curve_of
        self.own_tops = own_tops
        self.feeds = Feeds(tree or one_domain(cluster), cluster)
        # What is left of the difference between a flat budget and a tree. Below one plain budget
        # all places are alike: equal jobs can be served as one (`DemandClasses`), no place need be
        # hidden (`powered`), and what a policy shares out is taken at its word (`_caps_w`).
        self.by_domain = not self.feeds.plain
        """Whether it matters for watts on which node a device is: not below one plain budget."""
        self._models = [node.gpu_model for node in cluster.nodes]
        self._idle_mw = [device_idle_mw(node, gpus) for node in cluster.nodes]
        self._base_mw = [node_idle_mw(node, gpus) for node in cluster.nodes]
        """What each node draws while nothing runs."""
        self._all_base_mw = sum(self._base_mw)
        self._idle_nw = self._carried_idle()
        self._step_mw = [self._least_step_mw(model) for model in self._models]
        """From idle to the least that a GPU of each node runs with, of a job like any."""
        self.prices = EnergyPrices(self._models, curve_of)
        self.demands = MeasuredDemands()
        # Budgets.
        self._own_w = [domain.budget_w for domain in self.feeds.tree.domains]
        """What each domain is held to."""
        self._site_w: float | None = None
        """What the site is held to beside its own domain's budget: the lower one counts."""
        # Beside `_own_w` since the guard may hold a domain to a fall that is still to come: reports
        # and meters judge by what is stated.
        self._stated_w = {domain.name: domain.budget_w for domain in self.feeds.tree.domains}
        self._stated_nw: list[int | None] | None = None
        """`stated_nw`, None after a change: meters of a simulation ask at every event."""
        self._soon: dict[int, list[BudgetFall]] = {}
        """Budgets of domains that are to come, within which new jobs must fit."""
        self._set_limits()
        # Jobs.
        self._plan = DomainLoads(self.feeds, self._idle_mw)
        self._held = DomainLoads(self.feeds, self._idle_mw)
        self._asks: dict[str, PowerAsk] = {}
        """What planned jobs ask for on their unshared devices."""
        # Asked once: to ask what a policy can do takes longer than to count a job's watts.
        self._in_tree = policy if isinstance(policy, SharesInTree) else None
        self._in_classes = policy if isinstance(policy, SharesByClass) else None
        self._demand = self._no_demand()
        """Planned jobs that share no device."""
        self._due = True
        """Whether the plan or a budget changed since the watts were shared out."""

    def _carried_idle(self) -> list[int]:
        """Nanowatts that every domain carries while nothing runs."""
        idle_nw = [0] * len(self.feeds.names)
        for base_mw, path in zip(self._base_mw, self.feeds.paths, strict=True):
            for domain, ppm in path:
                idle_nw[domain] += base_mw * ppm
        return idle_nw

    def _least_step_mw(self, model: str) -> int:
        # At least one, since it divides what a domain has left.
        least_w = self.least_w(prior_curve(self.gpus[model])) if model else 0.0
        return max(as_mw(least_w) - as_mw(self.gpus[model].idle_w), 1) if model else 1

    def _no_demand(self) -> DemandClasses | DemandRows:
        return DemandRows() if self.by_domain or self._in_classes is None else DemandClasses()

    # Budgets ------------------------------------------------------------------------------------

    @property
    def limited(self) -> bool:
        """Whether planned jobs are booked and capped.

        Below a single budget only while there is one. A tree of several is always booked: any of
        its branches may be given a budget at work, and there would be nobody's plan to hold to it.
        """
        # A core without any budget pays nothing for watts: nothing is booked until one is set, and
        # then all is (`_book_plan_anew`).
        return self.by_domain or self.limits_nw[0] is not None

    # A site has two budgets where its tree has one for the root: that of the tree, and one that is
    # stated for the site without naming a domain. The lower counts, and neither forgets the other.
    def set_budget(
        self, budget_w: float | None, jobs: Iterable[JobRecord], domain: str = ""
    ) -> None:
        """Hold a domain (empty: the site, beside its own budget) to a budget; None lifts it.

        `jobs` are all that may be planned. Unheard-of domains have no budget.
        """
        number = self.feeds.number_of(domain)
        if number is None:
            return
        if domain:
            self._own_w[number] = budget_w
        else:
            self._site_w = budget_w
        self._set_limits()
        self._due = True
        if not self.by_domain:
            self._book_plan_anew(jobs)

    def _book_plan_anew(self, jobs: Iterable[JobRecord]) -> None:
        # Nothing was booked while there was no budget. With one there before it is done as well:
        # of classes that gain alike the one of the earliest job comes first from then on.
        self._asks, self._demand = {}, self._no_demand()
        self._plan = DomainLoads(self.feeds, self._idle_mw)
        for job in jobs:
            self.plan(job)

    def _set_limits(self) -> None:
        limits_w = list(self._own_w)
        limits_w[self.feeds.root] = _least(self._site_w, limits_w[self.feeds.root])
        self.budget_w: float | None = limits_w[self.feeds.root]
        """What the guard holds the site to."""
        self.limits_nw: list[int | None] = [None if one is None else _nw(one) for one in limits_w]
        """What it holds each domain to."""
        self._budget_columns = BudgetColumns(self.feeds, self.limits_nw, self._idle_nw)

    def state(self, budget_w: float | None, domain: str = "") -> None:
        """What a domain is said to be allowed; the guard may already hold it to less."""
        self._stated_w[domain] = budget_w
        self._stated_nw = None

    @property
    def stated_w(self) -> float | None:
        """The site's budget."""
        root = self.feeds.names[self.feeds.root]
        return _least(self._stated_w.get(""), self._stated_w.get(root))

    @property
    def stated_nw(self) -> list[int | None]:
        """The budget of each domain; the same list until one is stated anew."""
        if self._stated_nw is None:
            stated_w = [self._stated_w[name] for name in self.feeds.names]
            stated_w[self.feeds.root] = self.stated_w
            self._stated_nw = [None if one is None else _nw(one) for one in stated_w]
        return self._stated_nw

    @property
    def held_mw(self) -> list[int | None]:
        """What the guard holds each domain to."""
        return [None if one is None else one // PPM for one in self.limits_nw]

    def limits_mw(self, levels: Mapping[str, float | None]) -> list[int | None]:
        """Budgets of each domain, where `levels` are those of the domains and of the site."""
        limits_w = [levels.get(name) for name in self.feeds.names]
        limits_w[self.feeds.root] = _least(levels.get(""), limits_w[self.feeds.root])
        return [None if one is None else as_mw(one) for one in limits_w]

    # The site's own falls and those of the root go by two names and meet at one number: each name
    # keeps one fall, the lowest of which counts.
    def expect(self, domain: str, fall: BudgetFall | None) -> None:
        """A budget that new jobs must fit into because it comes soon; None: none does."""
        number = self.feeds.number_of(domain)
        if number is None:
            return
        others = [one for one in self._soon.pop(number, ()) if one.domain != domain]
        falls = others if fall is None else [*others, fall]
        if falls:
            self._soon[number] = falls

    # Curves -------------------------------------------------------------------------------------

    # A job across GPU models has one cap on all of its devices, since its slowest rank sets the
    # pace of all: the curve of that cap is the slowest model's at each wattage, from the highest
    # floor on.
    def curve(self, spec: JobSpec, allocations: Iterable[Allocation]) -> PowerCurve | None:
        """The job's curve where it is placed, None if it holds no GPU.

        Across GPU models it is that of the one cap for all of them (`under_one_cap`).
        """
        models = {self._models[one.node]: None for one in allocations if one.gpus}
        return self._curve(spec, tuple(models))

    def _curve(self, spec: JobSpec, models: tuple[str, ...]) -> PowerCurve | None:
        if not models:
            return None
        curve = self.curve_of(spec, models[0])
        if len(models) > 1:
            curve = under_one_cap(tuple(self.curve_of(spec, model) for model in models))
        return self.prices.within(spec.id, curve)

    # Compared by identity and not by value: a plan hands the same tuple on to the start, and to
    # compare two tuples of allocations costs what it takes to count them.
    def _footprint(self, spec: JobSpec, allocations: tuple[Allocation, ...]) -> Footprint:
        """Where `allocations` stand: mostly where the job is booked already."""
        known = self._held.footprint(spec.id)
        if known.allocations is not allocations:
            known = self._plan.footprint(spec.id)
        if known.allocations is not allocations:
            known = footprint_of(allocations, self.feeds, self._idle_mw, self._models)
        if len(known.models) > 1 and self.own_tops:
            tops_mw = tuple(as_mw(self.curve_of(spec, model).max_w) for model in known.models)
            if tops_mw != known.tops_mw:
                known = told_apart(known, tops_mw, self.feeds, self._idle_mw, self._models)
        return known

    def speed(self, job: JobRecord) -> float:
        """Speed of a running job at its cap, relative to full draw; its slowest device counts."""
        curves = [
            self.curve_of(job.spec, self._models[one.node]) for one in job.allocations if one.gpus
        ]
        if job.cap_w is None or not curves:
            return 1.0
        return min(one.rate(job.cap_w) / one.rates[-1] for one in curves)

    def least_w(self, curve: PowerCurve) -> float:
        """The least per device with which the policy lets a job run."""
        return curve.max_w if self.policy.all_or_nothing else curve.floor_w

    def idle_mw_of(self, model: str) -> int:
        """What a device of a model draws idle."""
        return as_mw(self.gpus[model].idle_w)

    def idle_w(self, job: JobRecord) -> float:
        """What a device of a running job would draw idle; of its first one, 0 without any."""
        nodes = [one.node for one in job.allocations if one.gpus]
        return self._idle_mw[nodes[0]] / 1000 if nodes else 0.0

    def idle_nw(self, domain: int) -> int:
        """What a domain carries while nothing runs, losses included."""
        return self._idle_nw[domain]

    # The plan -----------------------------------------------------------------------------------

    def plan(self, job: JobRecord) -> None:
        """Book anew what the plan gives a job; nothing needs to be booked where nothing limits."""
        if not self.limited:
            return
        self._due = True
        if self._asks.pop(job.id, None) is not None:
            self._demand.drop(job)
        footprint = self._footprint(job.spec, job.wanted)
        curve = self._curve(job.spec, footprint.models)
        if curve is None:
            self._plan.drop(job.id)
            return
        # The least is that of the whole curve: a measured demand may turn out to be too low, and
        # then the job must still have its floor.
        self._plan.put(job.id, footprint, as_mw(self.least_w(curve)))
        curve = self.demands.within(job.id, curve)
        devices = footprint.devices
        if len(footprint.parts) > 1 and not footprint.shared:
            parts = tuple((part.devices, part.top_mw / 1000) for part in footprint.parts)
            curve = by_mean_draw(curve, parts)
        ask = PowerAsk(job_id=job.id, devices=devices, curve=curve, priority=job.spec.priority)
        self._asks[job.id] = ask
        if devices and not footprint.shared:
            if isinstance(self._demand, DemandClasses):
                self._demand.put(job, ask)
            else:
                self._demand.put(job, ask, footprint.branches)

    def plan_order(self, allocations: Iterable[Allocation]) -> PlanOrder:
        """Who comes first among equals under the plan, on the shared devices of `allocations`."""
        if not self.limited:
            return PlanOrder({}, ())
        devices = self._plan.shared.order(shared_devices(allocations))
        classes = self._demand.order() if isinstance(self._demand, DemandClasses) else ()
        return PlanOrder(devices, classes)

    def restore_plan_order(self, order: PlanOrder) -> None:
        """A change of the plan was taken back: who came first among equals does so again."""
        self._plan.shared.restore_order(order.devices)
        if isinstance(self._demand, DemandClasses):
            self._demand.restore_order(order.classes)

    def room_mw(self) -> int | None:
        """What the plan leaves of the site's budget above all least needs; None: no budget."""
        limit_nw = self.limits_nw[self.feeds.root]
        return None if limit_nw is None else (limit_nw - self._planned_nw(self.feeds.root)) // PPM

    def _planned_nw(self, domain: int) -> int:
        return self._idle_nw[domain] + self._plan.nw[domain]

    def needs_mw(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> int:
        """The least above idle with which the policy lets a job run there, at its devices.

        Of a device that it shares, only what it adds to the others of the plan.
        """
        footprint = self._footprint(job.spec, allocations)
        curve = self._curve(job.spec, footprint.models)
        if curve is None:
            return 0
        return self._plan.added_mw(job.id, footprint, as_mw(self.least_w(curve)))

    def refused(
        self, job: JobRecord, allocations: tuple[Allocation, ...], now_s: float
    ) -> Reason | None:
        """Why the plan's other jobs leave too few watts for the least needs of a job there.

        Named is the domain that is nearest to the devices: what is short there is not to be had by
        raising a budget further up.
        """
        if not self.limited:
            return None
        rise_nw = self._least_rise(job, allocations)
        # Its own booking is left out: it would be given back.
        used_nw = self._beside(self._plan, job.id, rise_nw)
        over = [one for one, nw in rise_nw.items() if self._over(one, used_nw[one] + nw)]
        if not over:
            return self._doomed(job, rise_nw, used_nw, now_s) if self._soon else None
        domain = self._deepest(over)
        limit_nw, name = self.limits_nw[domain] or 0, self.feeds.names[domain]
        return too_little(rise_nw[domain], used_nw[domain], limit_nw, name, now_s)

    def _least_rise(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> Spread:
        """What a job's least needs there would add to the plan, by domain above its devices."""
        footprint = self._footprint(job.spec, allocations)
        curve = self._curve(job.spec, footprint.models)
        if curve is not None:
            return self._plan.rise_nw(job.id, footprint, as_mw(self.least_w(curve)))
        # A job without GPUs adds no watts that are counted. Below a single budget that is too low
        # already it waits all the same: nothing starts there before that is mended. In a tree only
        # branches with devices of the job are looked at, and it has none.
        return {} if self.by_domain else {self.feeds.root: 0}

    def _doomed(
        self, job: JobRecord, rise_nw: Spread, used_nw: Spread, now_s: float
    ) -> Reason | None:
        """Why a job must not be started now that a fall would soon leave without its floor."""
        # Newcomers only. Who has a plan may keep and change it: the fall itself will say who has to
        # go, once, when it is due.
        if job.allocations or job.wanted:
            return None
        # The lowest of all that come, not the next: a job that passes the next one would be stopped
        # by the one after.
        falls = {domain: self._lowest_soon(domain) for domain in rise_nw if domain in self._soon}
        over = [one for one, to in falls.items() if used_nw[one] + rise_nw[one] > _nw(to.budget_w)]
        if not over:
            return None
        domain = self._deepest(over)
        fall, name = falls[domain], self.feeds.names[domain]
        if not name:
            return too_late(rise_nw[domain], _nw(fall.budget_w) - used_nw[domain], fall, now_s)
        idle_nw = self._idle_nw[domain]
        carried_nw = used_nw[domain] + rise_nw[domain]
        return too_late(carried_nw - idle_nw, _nw(fall.budget_w) - idle_nw, fall, now_s, name)

    def _lowest_soon(self, domain: int) -> BudgetFall:
        return min(self._soon[domain], key=lambda fall: fall.budget_w)

    # Said of a job that was stopped already: its own watts are no longer in the plan, so that
    # `refused` answers for the state it was stopped in.
    def cut(self, job: JobRecord, wanted: tuple[Allocation, ...], now_s: float) -> Reason:
        """Why a job lost what it was planned for, to a budget that fell."""
        if self.by_domain:
            refused = self.refused(job, wanted, now_s)
            if refused is not None:
                return refused
        # The others may need less than the budget by now: what was stopped first is not judged by
        # what later ones gave up.
        need_nw, limit_nw = self.needs_mw(job, job.allocations) * PPM, _nw(self.budget_w or 0.0)
        return too_little(need_nw, limit_nw, limit_nw, "", now_s)

    # Asked before every plan, of all domains: plain integers in a row, no objects.
    def overloaded(self, job: JobRecord | None = None) -> bool:
        """Whether the plan's least needs are too much for a domain (one that feeds `job`)."""
        if job is not None:
            above = {domain for one in job.wanted for domain, _ in self.feeds.paths[one.node]}
            return any(self._over(domain, self._planned_nw(domain)) for domain in above)
        for limit_nw, idle_nw, nw in zip(self.limits_nw, self._idle_nw, self._plan.nw, strict=True):
            if limit_nw is not None and idle_nw + nw > limit_nw:
                return True
        return False

    def too_many(self, fall: BudgetFall) -> bool:
        """Whether a fall would leave less than the least needs of a domain's planned jobs."""
        domain = self.feeds.number_of(fall.domain)
        return domain is not None and self._planned_nw(domain) > _nw(fall.budget_w)

    def powered(self, gpus: NDArray[np.int64], least: int, together: int = 1) -> NDArray[np.int64]:
        """Of free `gpus` (N,) those that all domains together could carry at their floors.

        Whole nodes come first, and on each a multiple of `together`: half a task helps nobody.
        Fewer than `least` are all: the guard says what they lack. Below one budget none is hidden.
        """
        if not self.by_domain:
            return gpus
        free = {node: int(gpus[node]) for node in np.flatnonzero(gpus).tolist()}
        wanted_nw = [0] * len(self.limits_nw)
        for node, count in free.items():
            step_mw = count * self._step_mw[node]
            for domain, ppm in self.feeds.paths[node]:
                wanted_nw[domain] += step_mw * ppm
        # A domain that can carry all at once limits nobody, whoever comes first.
        columns = zip(self.limits_nw, self._idle_nw, self._plan.nw, wanted_nw, strict=True)
        left = {
            domain: limit_nw - idle_nw - nw
            for domain, (limit_nw, idle_nw, nw, more_nw) in enumerate(columns)
            if limit_nw is not None and idle_nw + nw + more_nw > limit_nw
        }
        if not left:
            return gpus
        shown = np.zeros_like(gpus)
        # Fullest first, so that gangs find whole nodes; by number among equals, for decisions.
        for node in sorted(free, key=lambda one: (-free[one], one)):
            above = [(left[one], ppm, one) for one, ppm in self.feeds.paths[node] if one in left]
            step_mw = self._step_mw[node]
            most = min([free[node], *(nw // (ppm * step_mw) for nw, ppm, _ in above)])
            count = most - most % together
            if count > 0:
                shown[node] = count
                for nw, ppm, domain in above:
                    left[domain] = nw - count * ppm * step_mw
        return shown if int(shown.sum()) >= min(least, sum(free.values())) else gpus

    def _over(self, domain: int, nw: int) -> bool:
        limit_nw = self.limits_nw[domain]
        return limit_nw is not None and nw > limit_nw

    def _beside(self, book: DomainLoads, job_id: str, domains: Iterable[int]) -> Spread:
        """What domains carry in a book without a job, idle devices included."""
        others = book.without_nw(job_id, domains)
        return {domain: self._idle_nw[domain] + nw for domain, nw in others.items()}

    def _deepest(self, domains: Iterable[int]) -> int:
        # Of equally deep ones the first in the tree: a reason must not depend on a dict's history.
        return max(domains, key=lambda one: (self.feeds.depth[one], -one))

    # Now ----------------------------------------------------------------------------------------

    # Everything that changes what a device may draw passes here: a start, an end, a cap that was
    # read back or raised. `JobCaps` and the core call it; nobody else writes `_held`.
    def note(self, job: JobRecord) -> None:
        """Book anew what a job's devices may draw now: it started, stopped, or its cap changed."""
        footprint = self._footprint(job.spec, job.allocations)
        curve = self._curve(job.spec, footprint.models)
        if curve is None:
            self._held.drop(job.id)
        else:
            self._held.put(job.id, footprint, as_mw(_capped(job.cap_w, curve)))

    def fits(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> bool:
        """Whether every domain could carry the job's planned cap there, beside what is in force."""
        if not self.limited:
            return True
        rise_nw, own_nw = self._rise_at_cap(job, allocations), self._held.job_nw(job.id)
        # Asked of every job that waits for watts, after every event: nothing is built for it.
        idle_nw, held_nw, limits_nw = self._idle_nw, self._held.nw, self.limits_nw
        for domain, nw in rise_nw.items():
            limit_nw = limits_nw[domain]
            if limit_nw is not None:
                others_nw = idle_nw[domain] + held_nw[domain] - own_nw.get(domain, 0)
                if others_nw + nw > limit_nw:
                    return False
        return True

    # A ramp is asked after `fits`: what does not fit must not use up a ramp's credit.
    def climbs(
        self, job: JobRecord, allocations: tuple[Allocation, ...], ramps: Ramps, now_s: float
    ) -> Refusal | None:
        """Why a ramp does not let `job` have its planned cap there now."""
        rise_nw = self._rise_at_cap(job, allocations) if ramps.limits else {}
        if not rise_nw:
            return None
        used_nw = self._beside(self._held, job.id, rise_nw)
        carried_nw = {domain: used_nw[domain] + nw for domain, nw in rise_nw.items()}
        return ramps.refusal(job.id, self._by_name(carried_nw), now_s)

    def _by_name(self, nw: Mapping[int, int]) -> dict[str, int]:
        """Milliwatts by the names of domains; the site's also under the empty name."""
        names, root = self.feeds.names, self.feeds.root
        return {"": nw.get(root, 0) // PPM, **{names[one]: nw[one] // PPM for one in nw}}

    def _rise_at_cap(self, job: JobRecord, allocations: tuple[Allocation, ...]) -> Spread:
        """What a job would add there at its planned cap; nothing without GPUs."""
        footprint = self._footprint(job.spec, allocations)
        curve = self._curve(job.spec, footprint.models)
        if curve is None:
            return {}
        return self._held.rise_nw(job.id, footprint, as_mw(_capped(job.wanted_cap_w, curve)))

    def exceeded(self) -> bool:
        """Whether any domain may carry more now than its budget."""
        # By caps in force and not by the plan: that may fit while devices may still draw too much.
        return any(self._over(domain, nw) for domain, nw in enumerate(self.carried_nw()))

    # The only place at which sleeping nodes count nothing: for what is measured and told. The
    # guard's own comparisons keep their idle watts.
    def carried_nw(self, off: Iterable[int] = ()) -> list[int]:
        """What every domain carries now at most; nodes that are `off` draw nothing."""
        carried = [a + b for a, b in zip(self._idle_nw, self._held.nw, strict=True)]
        for node in off:
            for domain, ppm in self.feeds.paths[node]:
                carried[domain] -= self._base_mw[node] * ppm
        return carried

    @property
    def drawn_mw(self) -> int:
        """What the site may take now, losses included."""
        root = self.feeds.root
        return (self._idle_nw[root] + self._held.nw[root]) // PPM

    @property
    def drawn_by(self) -> dict[str, int]:
        """What everything may draw now (mW), by domain; the site also under its empty name."""
        return self._by_name(dict(enumerate(self.carried_nw())))

    def load_mw(self, job: JobRecord) -> dict[str, int]:
        """What a job adds to every domain now, losses included; the site also as in `drawn_by`."""
        return self._by_name(self._held.job_nw(job.id))

    @property
    def run_w(self) -> float:
        """Upper bound of what the devices of running jobs draw now."""
        shared = self._held.shared
        return (self._held.run_mw + shared.idle_mw + shared.above_idle_mw) / 1000

    @property
    def free_w(self) -> float:
        """Idle watts of the devices that no job holds, and of the machines around all of them."""
        held = self._held
        return (self._all_base_mw - held.idle_mw - held.shared.idle_mw) / 1000

    def held_w(self, job_id: str) -> float:
        """Upper bound of what the devices of one job draw now; shared ones count in equal parts."""
        return self._held.job_mw(job_id) / 1000

    @property
    def shares(self) -> bool:
        """Whether any device is shared now."""
        return self._held.shared.any

    def partners(self, job_id: str) -> list[str]:
        """Jobs that share a device with this one now."""
        return self._held.shared.partners(job_id)

    # Sharing out --------------------------------------------------------------------------------

    def share(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Set every planned job's cap, none without a budget; returns jobs whose cap changed."""
        if not self.limited:
            changed = [job for job in jobs if job.wanted_cap_w is not None]
            for job in changed:
                job.wanted_cap_w = None
            return changed
        # Nothing changed since the caps were shared: the same question has the same answer.
        if not self._due:
            return []
        self._due = False
        # One shared device makes all jobs ask by device: its owner's cap is its partners', so that
        # jobs no longer stand alone. Sites without shared GPUs never come here.
        if self._plan.shared.any:
            return self._share_by_device(jobs)
        if isinstance(self._demand, DemandRows):
            asks, branches = self._demand.asks, self._demand.branches
            return self._demand.give(self._caps_w(asks, branches))
        root = self.feeds.root
        room_nw = (self.limits_nw[root] or 0) - self._idle_nw[root] + self._plan.idle_mw * PPM
        if self._demand.top_mw * PPM <= room_nw or self._in_classes is None:
            return self._demand.give(self._demand.uncapped())
        return self._demand.give(self._in_classes.levels(self._demand.classes(), room_nw / NW))

    # Owned devices count for their owner alone: if each partner asked for them, the policy would
    # hand out the same watts twice. A job that owns none of its devices asks for nothing and takes
    # what its owners get.
    def _share_by_device(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Caps where jobs share devices: a job has the least cap of any device it is on.

        A device has one cap, and its dearest job asks for it; the others have what that gets.
        """
        self._demand.forget_caps()
        planned = [job for job in jobs if job.id in self._asks]
        shared = self._plan.shared
        asking, asks = [], []
        for job in planned:
            ask, owned = self._asks[job.id], len(shared.owned(job.id))
            if ask.devices + owned:
                asking.append(job)
                asks.append(replace(ask, devices=ask.devices + owned) if owned else ask)
        branches = branch_table([self._branches_of(job) for job in asking])
        caps = self._caps_w(Asks(asks), branches)
        caps_w = {job.id: cap_w for job, cap_w in zip(asking, caps, strict=True)}
        changed = []
        for job in planned:
            owners = (job.id, *shared.owners(job.id))
            cap_w = min(caps_w[one] for one in owners if one in caps_w)
            if cap_w != job.wanted_cap_w:
                job.wanted_cap_w = cap_w
                changed.append(job)
        return changed

    # Three steps: room for whole devices at their caps (`DomainHeadroom`), a policy's share of it
    # in floats, whole watts that fit as integers. If the highest caps fit nobody is asked.
    def _caps_w(self, asks: Asks, branches: Ints) -> list[float]:
        """Caps (J,) in whole watts, within every domain; `branches` (J, L, 3) are above each job.

        Below one plain budget a policy is taken at its word, and `fits` holds back what it gave too
        much. What it proposes for a tree is cut to fit: a policy that does not know of trees is
        asked as if there were the widest room only.
        """
        if not asks:
            return []
        mixed = {at: self._plan.footprint(asks[at].job_id).parts for at in _mixed(asks)}
        headroom = DomainHeadroom(self._budget_columns, branches, mixed)
        limits = headroom.limits(asks)
        # A policy that knows no tree is asked as if all stood below the widest domain, and cut back
        # after: a wrong share costs speed, never a budget.
        widest_w = float(max(limits.room_w, default=0.0))
        if not self.by_domain:
            return list(_whole(np.array(self.policy.share(asks, widest_w)), asks).tolist())
        tops = _whole(asks.top_w, asks)
        if headroom.hold(tops):
            return list(tops.tolist())
        if self._in_tree is not None:
            caps = self._in_tree.share_in(asks, limits)
        else:
            caps = self.policy.share(asks, widest_w)
        return headroom.trimmed(asks, _whole(np.array(within(asks, caps, limits)), asks))

    def _branches_of(self, job: JobRecord) -> Branches:
        """What stands above the devices that a job's cap is for.

        The job's own, and shared ones where it is the dearest.
        """
        footprint, owned = self._footprint(job.spec, job.wanted), self._plan.shared.owned(job.id)
        if not owned:
            return footprint.branches
        nodes = Counter(node for node, _ in owned)
        return branches_beside(footprint.branches, nodes, self.feeds, self._idle_mw)


def _capped(cap_w: float | None, curve: PowerCurve) -> float:
    """What a device draws at most: a cap above its top is none."""
    return curve.max_w if cap_w is None else min(cap_w, curve.max_w)


def _least(*budgets_w: float | None) -> float | None:
    return min((one for one in budgets_w if one is not None), default=None)


def _whole(watts: Floats, asks: Asks) -> Floats:
    """Caps (J,) as drivers take them, in whole watts, but never below what a device can do.

    `watts` (J,) are what a policy gives each device; across GPU models it is a mean, not a cap.
    """
    caps_w, floors_w, mixed = watts, asks.floor_w, _mixed(asks)
    if mixed:
        caps_w, floors_w = caps_w.copy(), floors_w.copy()
        for at in mixed:
            curve = asks[at].curve
            caps_w[at], floors_w[at] = curve.cap_w(caps_w[at]), curve.cap_w(floors_w[at])
    # A policy that means 200 W may say 199.9999999: its sums were rounded.
    whole: Floats = np.maximum(np.trunc(caps_w + 1e-6), floors_w)
    return whole


def _mixed(asks: Asks) -> list[int]:
    """Which of the jobs are spread over several GPU models."""
    curves = asks.curves
    mixed = [at for at, one in enumerate(curves.curves) if isinstance(one, MixedCurve)]
    return np.flatnonzero(np.isin(curves.of, mixed)).tolist() if mixed else []
