"""What could never run: said with numbers, at submission or once no budget in sight is enough.

*By shape* (`ShapeFeasibility`): no state of the cluster could run the job, were it empty. Said at
submission, as is a job that would wait for itself by way of others (`circle`).

*By watts* (`SetAside`): no budget in sight lets the job run. Budgets change, so that such a job is
not refused: it is told so and kept out of planners' sight, since a planner that serves jobs in turn
would wait for it for ever. The budgets that are in force now count, and all that are announced: a
job that a later one lets in waits for that time. Once budgets change, all is looked at again.

What a job needs is bounded from below: the least watts on a cluster on which nothing else runs
(`LeastPower`). Whatever the guard accepts keeps to that bound, so that a job is never refused here
that could run. Roles are looked at one by one; a device that a job shares counts once, as the guard
counts it. Integers of milliwatts, of nanowatts in a tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.draft import share_request
from wattherd.engine.core.job_table import Waits, parents
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import Budgets
from wattherd.engine.power.feeds import PPM, Feeds
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Share
from wattherd.policy.eligibility import Eligibility, NodeMask, mask_keys
from wattherd.units import counted

# --- By shape: jobs that an empty cluster could not run -------------------------------------------


# Said at submission and not while waiting, since a job that can never run would head the line of a
# strict order for ever. It must therefore never be wrong in one direction: a job that is refused
# here could really not run, on an empty cluster with every node up. The other way is harmless: a
# job that passes and still never fits waits, and the planner says why.
class ShapeFeasibility:
    """Knows a cluster's machines by kind, and what it has said of each shape of job."""

    def __init__(self, cluster: ClusterSpec, eligible: Eligibility | None = None) -> None:
        """Count the nodes of each kind; jobs may use those that are `eligible`, None: all."""
        self._eligible = eligible
        # Machines are compared by what they hold; names and CPU models do not matter for fitting.
        # Large clusters have few kinds of nodes, and a sum over kinds costs by kinds.
        self._nodes = tuple(replace(node, name="", cpu_model="") for node in cluster.nodes)
        self._kinds = tuple(Counter(self._nodes).items())
        self._known: dict[tuple[object, ...], Reason | None] = {}

    def never_fits(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why no state of the cluster could run the job at its least width, or None.

        Each role is looked at alone: whatever fits together fits alone, so a reason given here is
        always true; a job that fails only in combination waits and is told so by the planner.
        """
        numbers, eligible = range(len(spec.roles)), self._eligible
        masks = tuple(
            None if eligible is None else eligible.nodes(spec, number) for number in numbers
        )
        # Remembered by shape: traces and sweeps submit thousands of equal jobs. Masks are part of
        # the shape, since two jobs that ask for the same may be let onto different nodes.
        shape = (spec.roles, spec.min_width, spec.gpu_models, mask_keys(masks))
        if shape not in self._known:
            self._known[shape] = self._reason(spec, masks)
        reason = self._known[shape]
        # What is remembered has no time; the answer has that of the question.
        return None if reason is None else replace(reason, since_s=now_s)

    def _reason(self, spec: JobSpec, masks: Sequence[NodeMask | None]) -> Reason | None:
        for number, (role, mask) in enumerate(zip(spec.roles, masks, strict=True)):
            count = spec.counts(number).start
            kinds = self._kinds
            if mask is not None:
                # Nodes outside of a mask do not exist for the job: a hint that names the largest
                # node of the cluster would send its user the wrong way.
                kinds = tuple(Counter(compress(self._nodes, mask)).items())
            room = sum(nodes * tasks_on(kind, role, spec.gpu_models) for kind, nodes in kinds)
            if room < count:
                largest = max((kind.gpu_count for kind, _ in kinds), default=0)
                refusal = _too_large(role, count, room, largest)
                return refusal if mask is None else _limited(refusal, mask)
        return None


def _limited(refusal: Reason, mask: NodeMask) -> Reason:
    """Told of a role that may use some nodes only."""
    nodes = f"{int(mask.sum())} of {counted(len(mask), 'node')}"
    return replace(refusal, unblocks=f"{refusal.unblocks}; it may use {nodes}")


def never_fits(spec: JobSpec, cluster: ClusterSpec, now_s: float) -> Reason | None:
    """What `ShapeFeasibility` says of a single job."""
    return ShapeFeasibility(cluster).never_fits(spec, now_s)


def tasks_on(node: NodeSpec, role: TaskRole, models: tuple[str, ...]) -> int:
    """How many tasks of `role` an empty `node` holds."""
    # The least that a task can run with: an elastic size passes if its smallest value fits.
    least = Share(0, 1, cpu_milli=role.cpus.start, gpu_count=role.gpu_counts.start)
    one = share_request(role, least, models)
    if not one.fits(node):
        return 0
    # Parts are packed by whole quotients: two tasks of 600 milli do not share a device, whatever is
    # left over on both.
    per_gpu = 1000 // one.gpu_milli if one.gpu_count == 1 else 1
    limits = [
        have // want
        for have, want in (
            (node.cpu_milli, one.cpu_milli),
            (node.memory_mib, one.memory_mib),
            (node.gpu_count * per_gpu, one.gpu_count),
        )
        if want
    ]
    # A task that needs nothing fits without end; any number above the most tasks of a job would do.
    return min(limits) if limits else 1_000_000


def _too_large(role: TaskRole, asked: int, available: int, largest: int) -> Reason:
    hint = (
        f"the largest node has {counted(largest, 'GPU')}"
        if role.gpu_counts.start > largest
        else "ask for less"
    )
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=0.0,
        asked=asked,
        available=available,
        unit=f"{role.name} tasks",
        unblocks=hint,
    )


# Only jobs that live can close a circle; what is over waits for nobody. Arrays are walked by their
# tasks, lines by who stands before.
def circle(
    spec: JobSpec, jobs: Mapping[str, JobRecord], waits: Waits, now_s: float
) -> Reason | None:
    """Why `spec` would wait for itself by way of other live `jobs`, or None."""
    # A task of an array waits for itself if it waits for its own array: the array is over when its
    # last task is.
    own = {spec.id, spec.array} if spec.array else {spec.id}
    # A new job closes a circle only if somebody waits for it already. Hardly any job is waited for
    # before it exists, so that the search below is hardly ever made.
    if not any(map(waits.waited_for, own)):
        return None
    known, ahead = {spec.id}, [*parents(spec), *waits.would_follow(spec)]
    while ahead:
        name = ahead.pop()
        if name in known:
            continue
        known.add(name)
        parent = jobs.get(name)
        if parent is None:
            ahead.extend(waits.tasks(name))
            continue
        if not own.isdisjoint(parent.waits_for):
            why = f"job {parent.id} waits for it in turn"
            return Reason(code=ReasonCode.INVALID_SPEC, since_s=now_s, unblocks=why)
        ahead.extend([*sorted(parent.waits_for), *waits.ahead(parent)])
    return None


# --- By watts: jobs that no budget in sight lets run ----------------------------------------------

Limits = tuple[int | None, ...]
"""Budgets in milliwatts of all domains, in the order of the account's tree."""


@dataclass(frozen=True, slots=True)
class PowerShortage:
    """Even alone a job needs `asked_w` at `domain` (empty: the site), which may have `limit_w`.

    `idle_w` of what it needs are drawn by the idle cluster already.
    """

    asked_w: float
    limit_w: float
    idle_w: float
    domain: str = ""

    @property
    def job_w(self) -> float:
        """What the job adds to the idle cluster."""
        return self.asked_w - self.idle_w


@dataclass(frozen=True, slots=True)
class _Kind:
    """`count` equal nodes below one domain."""

    node: NodeSpec
    domain: int
    count: int


# Why a bound and not the guard's own question. The guard asks whether a job fits beside all others
# here and now; this asks whether it would fit alone, anywhere, under a budget that may be announced
# only. To try all places would be a packing problem; a lower bound is enough, because its only use
# is to tell a job that it waits in vain. What it must never do is refuse a job that the guard would
# take: so each role is looked at alone, and of each domain the cheapest places count.
# `tests/unit/test_set_aside.py` has the cases.
class LeastPower:
    """Knows the machines of a cluster by kind and feed, and what it has said of each job shape."""

    def __init__(self, watts: PowerAccount, cluster: ClusterSpec) -> None:
        """Count the nodes of each kind below each domain."""
        self._watts = watts
        self._feeds = watts.feeds
        feeders = [path[0][0] for path in self._feeds.paths]
        # Below one feed machines of a kind are alike: the bound costs by kinds and feeds, not by
        # nodes.
        counts = Counter(
            (replace(node, name="", cpu_model=""), feeder)
            for node, feeder in zip(cluster.nodes, feeders, strict=True)
            # Watts of machines without GPUs do not change with jobs: what they draw is part of
            # idling.
            if node.gpu_count
        )
        self._kinds = tuple(_Kind(node, feeder, count) for (node, feeder), count in counts.items())
        self._models = tuple(sorted({one.node.gpu_model for one in self._kinds}))
        self._known: dict[tuple[object, ...], PowerShortage | None] = {}

    def forget(self) -> None:
        """Budgets have changed: what was said of earlier ones will not be asked again."""
        self._known.clear()

    @property
    def idle_w(self) -> float:
        """What the cluster draws while nothing runs; losses of a tree included."""
        return self._idle_mw(self._feeds.root) / 1000

    def below_idle(self, limits: Limits) -> list[PowerShortage]:
        """Domains (the site) that may draw less than their nodes do while nothing runs."""
        found = []
        for domain, limit_mw in enumerate(limits):
            idle_mw = self._idle_mw(domain)
            if limit_mw is not None and limit_mw < idle_mw:
                name = self._feeds.names[domain]
                found.append(PowerShortage(idle_mw / 1000, limit_mw / 1000, idle_mw / 1000, name))
        return found

    def _idle_mw(self, domain: int) -> int:
        return self._watts.idle_nw(domain) // PPM

    def shortage(self, spec: JobSpec, limits: Limits) -> PowerShortage | None:
        """What a job lacks under budgets of `limits`, were it alone on the cluster; None: nothing.

        Of a job that fits on no node at all nothing is said.
        """
        able = [model for model in self._models if not spec.gpu_models or model in spec.gpu_models]
        curves = {model: self._watts.curve_of(spec, model) for model in able}
        least_mw = tuple(round(self._watts.least_w(curves[model]) * 1000) for model in able)
        # The least watts of the job's curve are part of the key: curves are learned, and an answer
        # for yesterday's curve must not be given for today's.
        most_mw = tuple(round(curves[model].max_w * 1000) for model in able)
        shape = (spec.roles, spec.min_width, spec.gpu_models, least_mw, most_mw, limits)
        if shape not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            least, most = (dict(zip(able, one, strict=True)) for one in (least_mw, most_mw))
            tops_mw = most if self._watts.own_tops else {}
            self._known[shape] = self._find(spec, least, tops_mw, limits)
        return self._known[shape]

    def _find(
        self, spec: JobSpec, least_mw: dict[str, int], tops_mw: dict[str, int], limits: Limits
    ) -> PowerShortage | None:
        """Try each cap that is enough for some of the models; say what lacks least."""
        asks = [
            (role, spec.counts(number).start)
            for number, role in enumerate(spec.roles)
            if role.gpu_counts.start and spec.counts(number).start
        ]
        found: list[PowerShortage] = []
        if not asks:
            return self._too_dark(limits)
        # A job has one cap on all its devices, at least the highest floor among the models it is
        # spread over. Which models those are is its place's to say, so that every level which adds
        # a model is tried: the lowest takes the fewest models, the highest all.
        for cap_mw in sorted(set(least_mw.values())):
            # None of them draws more than it can, whatever the cap.
            models = {
                model: min(cap_mw, tops_mw.get(model, cap_mw))
                for model, mw in least_mw.items()
                if mw <= cap_mw
            }
            shortage = self._at(asks, spec.gpu_models, models, limits)
            if isinstance(shortage, _Enough):
                return None
            if shortage is not None:
                found.append(shortage)
        return min(found, key=lambda one: one.asked_w - one.limit_w, default=None)

    def _too_dark(self, limits: Limits) -> PowerShortage | None:
        """A job without GPUs adds nothing; a single budget below idle still refuses it."""
        limit_mw, idle_mw = limits[0], self._idle_mw(0)
        if self._watts.by_domain or limit_mw is None or idle_mw <= limit_mw:
            return None
        return PowerShortage(idle_mw / 1000, limit_mw / 1000, idle_mw / 1000, self._feeds.names[0])

    def _at(
        self,
        asks: Sequence[tuple[TaskRole, int]],
        wanted: tuple[str, ...],
        models: dict[str, int],
        limits: Limits,
    ) -> PowerShortage | _Enough | None:
        """What lacks with one cap, at which `models` draw their milliwatts.

        None where the devices themselves lack.
        """
        roles = [self._units(role, count, wanted, models) for role, count in asks]
        # Too few devices whatever they draw: that is `ShapeFeasibility`'s to say, not a lack of
        # watts.
        if any(sum(unit.count for unit in units) < need for units, need in roles):
            return None
        if not self._watts.by_domain:
            # Below one budget roles add up. In a tree they may sit in different branches, and then
            # their sum is no bound for any of them: each is judged alone.
            # Wherever they run, all roles draw on the one budget together.
            need_mw = sum(_cheapest(units, need) for units, need in roles)
            return self._judge(0, self._idle_mw(0) + need_mw, limits[0])
        for units, need in roles:
            shortage = self._in_tree(units, need, limits)
            if shortage is not None:
                return shortage
        return _Enough()

    def _judge(self, domain: int, asked_mw: int, limit_mw: int | None) -> PowerShortage | _Enough:
        if limit_mw is None or asked_mw <= limit_mw:
            return _Enough()
        idle_w = self._idle_mw(domain) / 1000
        return PowerShortage(asked_mw / 1000, limit_mw / 1000, idle_w, self._feeds.names[domain])

    def _units(
        self, role: TaskRole, count: int, wanted: tuple[str, ...], models: dict[str, int]
    ) -> tuple[list[_Unit], int]:
        """What takes one task each, or of shared devices as many as fit; and how many it needs."""
        gpus = role.gpu_counts.start
        part = role.gpu_milli != WHOLE_GPU_MILLI and gpus == 1
        # The first task on a device that is shared lifts it from idle, the others there add
        # nothing: the device counts once. So a unit is a device with as many tasks as fit, and the
        # bound stays one.
        per_device = max(1, WHOLE_GPU_MILLI // role.gpu_milli) if part and role.gpu_milli else 1
        units = []
        for kind in self._kinds:
            if kind.node.gpu_model not in models:
                continue
            tasks = tasks_on(kind.node, role, wanted)
            model = kind.node.gpu_model
            step_mw = gpus * (models[model] - self._watts.idle_mw_of(model))
            units.append(_Unit(kind.domain, step_mw, -(-tasks // per_device) * kind.count))
        return [one for one in units if one.count], -(-count // per_device)

    def _in_tree(self, units: Sequence[_Unit], need: int, limits: Limits) -> PowerShortage | None:
        """Fill from the leaves up: of the units below a domain it can carry the cheapest ones."""
        feeds = self._feeds
        below: dict[int, list[_Unit]] = {}
        for unit in units:
            below.setdefault(unit.domain, []).append(unit)
        short: PowerShortage | None = None
        # From the leaves to the root, each domain hands up as many places as it can carry itself.
        # What arrives at the root is the most that the tree carries at once; taking the cheapest at
        # each step keeps it an upper bound for whoever asks for fewer.
        for domain in feeds.upwards:
            mine = below.pop(domain, [])
            limit_mw = limits[domain]
            if limit_mw is not None:
                room_nw = limit_mw * PPM - self._watts.idle_nw(domain)
                # A domain is blamed only where it carries fewer than are asked for and fewer than
                # it has: one that merely holds few machines is short of machines, not of watts.
                kept, all_of_them = list(_carried(mine, domain, room_nw, feeds)), _count(mine)
                if _count(kept) < min(need, all_of_them):
                    asked_nw = self._watts.idle_nw(domain)
                    asked_nw += _cheapest_nw(mine, domain, need, feeds)
                    short = self._short(domain, asked_nw, limit_mw)
                mine = kept
            parent = feeds.parent[domain]
            if parent is None:
                return short if _count(mine) < need else None
            below.setdefault(parent, []).extend(mine)
        return None

    def _short(self, domain: int, asked_nw: int, limit_mw: int) -> PowerShortage:
        name, idle_w = self._feeds.names[domain], self._idle_mw(domain) / 1000
        return PowerShortage(asked_nw / PPM / 1000, limit_mw / 1000, idle_w, name)


_MOST_KNOWN = 20_000
"""Answers that are kept at most; budgets that change all the time would fill the memory."""


class _Enough:
    """There are watts for all."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """`count` times what takes a task, at `mw` above idle each, on nodes that `domain` feeds."""

    domain: int
    mw: int
    count: int


def _count(units: Iterable[_Unit]) -> int:
    return sum(one.count for one in units)


def _cheapest(units: Sequence[_Unit], need: int) -> int:
    """The milliwatts of the cheapest `need` units."""
    total_mw = 0
    for one in sorted(units, key=lambda unit: unit.mw):
        total_mw += min(one.count, need) * one.mw
        need -= min(one.count, need)
    return total_mw


def _cheapest_nw(units: Sequence[_Unit], domain: int, need: int, feeds: Feeds) -> int:
    priced = [replace(one, mw=one.mw * feeds.ppm(one.domain, domain)) for one in units]
    return _cheapest(priced, min(need, _count(units)))


def _carried(units: Sequence[_Unit], domain: int, room_nw: int, feeds: Feeds) -> Iterator[_Unit]:
    """Of `units` below a domain as many as it can carry, the cheapest ones."""
    priced = [(one.mw * feeds.ppm(one.domain, domain), one) for one in units]
    for nw, one in sorted(priced, key=lambda pair: pair[0]):
        # Shared devices may add nothing, or less than idling where a floor is below it; any number
        # of those fits.
        fits = one.count if nw <= 0 else max(min(one.count, room_nw // nw), 0)
        if fits:
            room_nw -= fits * nw
            yield replace(one, count=fits)


# Why planners must not see such jobs: under a strict order the first job that waits is waited for,
# and a budget below its least watts would keep all others from running until somebody noticed. Told
# apart from "waits for power" by the budgets in sight: waiting is right where a rise is announced.
class SetAside:
    """Judges jobs by the budgets in force and in sight."""

    def __init__(self, config: CoreConfig, watts: PowerAccount, budgets: Budgets) -> None:
        """Nothing is limited yet."""
        self._watts, self._budgets = watts, budgets
        self._least = LeastPower(watts, config.cluster)
        self.active = config.sets_aside
        self.due = False
        """Whether budgets changed since all jobs were looked at."""
        self._judged: Limits = ()

    def why(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why no budget lets a job run, now or from a time on that is known; None: one does now."""
        # Off for old journals (`RULES` in `core.config`): their decisions were made before there
        # was this rule, and a replay must come to the same ones.
        if not (self.active and self._watts.limited):
            return None
        now = self._least.shortage(spec, self._limits())
        if now is None:
            return None
        highest = now
        # The first rise that is enough is named with its time, else the budget that comes nearest:
        # that is what would have to be raised least.
        for at_s, levels in self._budgets.outlook(now_s):
            later = self._least.shortage(spec, self._limits(levels))
            if later is None:
                return _rises(now, at_s, now_s)
            if later.limit_w - later.asked_w > highest.limit_w - highest.asked_w:
                highest = later
        return _never(highest, now_s)

    def below_idle(self) -> list[PowerShortage]:
        """Domains (the site) whose budgets in force are below what their nodes draw idle."""
        return self._least.below_idle(self._limits()) if self._watts.limited else []

    def _limits(self, levels: dict[str, float | None] | None = None) -> Limits:
        """Milliwatts that domains may draw: now, or at given levels."""
        return tuple(self._watts.held_mw if levels is None else self._watts.limits_mw(levels))

    def again(self, jobs: Iterable[JobRecord], now_s: float) -> Iterator[JobRecord]:
        """Judge waiting jobs anew; those of which planners see more now, or less."""
        limits, before = self._limits(), self._judged
        self._judged, self.due = limits, False
        if limits != before:
            self._least.forget()
        # A rise can only help those that are aside already, so that only a fall asks about
        # everybody. Budgets that are walked down by a ramp change every second.
        fell = len(before) != len(limits) or any(map(_lower, limits, before))
        for job in jobs:
            if job.wanted or not (fell or job.aside is not None):
                continue
            was, job.aside = job.aside, self.why(job.spec, now_s)
            # A reason that was given by a planner stays where this rule has nothing to say.
            if was is not None or job.aside is not None:
                job.reason = job.aside
            if (was is None) is not (job.aside is None):
                yield job


def _lower(now: int | None, before: int | None) -> bool:
    return now is not None and (before is None or now < before)


# Told under a code of its own: who waits for a known time need not do anything, who waits for
# nothing must.
def _rises(now: PowerShortage, at_s: float, now_s: float) -> Reason:
    at = f" at {now.domain}" if now.domain else ""
    return Reason(
        code=ReasonCode.WAITING_FOR_BUDGET_RISE,
        since_s=now_s,
        asked=now.asked_w,
        available=now.limit_w,
        unit=f"W{at}",
        unblocks="a higher budget is announced, which begins",
        due_s=at_s,
    )


def _never(short: PowerShortage, now_s: float) -> Reason:
    """With what the idle cluster draws, as a budget is easily stated below that."""
    of, at = (f" of {short.domain}", f" at {short.domain}") if short.domain else ("", "")
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=now_s,
        asked=short.asked_w,
        available=short.limit_w,
        unit=f"W{at}",
        unblocks=(
            f"idle devices draw {short.idle_w:.10g} W, the job at least {short.job_w:.10g} W more; "
            f"no stated or announced budget{of} is as high: raise it, or ask for fewer GPUs"
        ),
    )
