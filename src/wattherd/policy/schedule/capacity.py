"""Capacity queues as a scheduler (YARN's CapacityScheduler, for gangs).

The most under-served queue is served first, in the order of its leaf, as long as neither a maximum
on the way to the root nor the user's limit is exceeded; idle capacity is lent to whoever asks.
What a queue is owed and lacks is reclaimed: jobs of queues that hold more than their ideal amount
get notice, and are stopped when the waiting time is over and the need still stands. Queues that
hold their guarantees leave each other alone, unless `Reclaim.balance` says otherwise.

A user limit is compared with what a user holds now, as YARN does, so that one more job may take him
beyond it: first come users below their limit, then those who are at it. What one user may hold by
the user limit factor is a quota of the guard, and is never exceeded.

Gangs change three things. Jobs that their queue is owed and that find no room are given a strong
hold on the devices they need, which keeps everybody away; the first in line of a leaf is given a
weak one if its queue must first become smaller, which keeps away its own queue and borrowers. So
nobody is overtaken for ever by smaller jobs. A gang wider than its queue's guarantee is never owed
its devices: the rest of its queue waits behind it, and once its queue holds nothing its weak hold
becomes a strong one, since else it would get nothing while others get all they are promised. And
nothing is reclaimed but for a gang that can then start: devices that are held for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattherd.model.allocation import Allocation
from wattherd.model.reason import Reason, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.queue.capacity import (
    FadingUse,
    Usage,
    ideal,
    next_leaf,
    over_served,
)
from wattherd.policy.queue.fair_share import FairClaim, FairShares, LeafHead, borrowed, fair_stops
from wattherd.policy.queue.gang import FreeRoom, GangHold, GangHolds, GangShape, GangShapes
from wattherd.policy.queue.leaf_lines import LeafJobs, LeafLines, demand
from wattherd.policy.queue.order import ORDERS, LeafLine, PlannedAmounts, capacity_of, vector_of
from wattherd.policy.queue.preemption import MayStop, Stoppable
from wattherd.policy.queue.queue_reasons import (
    Victim,
    gave_way,
    no_room,
    waits_behind,
    waits_for_stops,
    wider_than_promised,
)
from wattherd.policy.queue.reclaim import (
    LeafExcess,
    Reclaim,
    ReclaimingGang,
    ReclaimStops,
    budgets,
    gpus_of,
    ranked,
    smallest_stops,
    within_excess,
)
from wattherd.policy.queue.tree import (
    ROUNDING,
    QueuePlace,
    QueueTree,
    Reclaims,
    quota_exceeded,
)
from wattherd.policy.queue.waiting import KindLines, KindWalk, LiveJobs
from wattherd.units import counted


def _account(job: JobView) -> tuple[str, str]:
    return job.spec.queue, job.spec.user


Alike = tuple[object, ...]
Held = tuple[Allocation, ...]
NEXT_STEP_S = 1.0
"""Between a stop and the notice to the next, where a gang is owed more than one step gives back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityScheduler:
    """Capacity queues; `reclaim` None never takes back what was lent.

    `lately` is what queues held before, where somebody keeps it; else the view's memory does.
    """

    tree: QueueTree
    reclaim: Reclaim | None = field(default_factory=Reclaim)
    lately: FadingUse | None = field(default=None, compare=False)

    def plan(self, view: View, draft: Draft) -> None:
        """Start what is due, hold room for the first in line, reclaim what is owed."""
        _Cycle(self, view, draft).run()


@dataclass(slots=True)
class _Memory:
    """Holds, oldest first, and since when jobs have been marked for reclaim."""

    holds: dict[str, GangHold] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    shapes: GangShapes = field(default_factory=GangShapes)
    made: int = 0
    """Holds made so far."""
    amounts: PlannedAmounts[tuple[str, str]] = field(default_factory=PlannedAmounts)
    lines: LeafLines = field(default_factory=LeafLines)
    lately: FadingUse = field(default_factory=FadingUse)


class _Cycle:
    """One plan."""

    def __init__(self, planner: CapacityScheduler, view: View, draft: Draft) -> None:
        self.tree, self.reclaim = planner.tree, planner.reclaim
        self.strategies = self.tree.root.fair_sharing
        self.balanced = bool(self.strategies) or (self.reclaim is not None and self.reclaim.balance)
        self.view, self.draft = view, draft
        self.memory: _Memory = view.memory.setdefault("capacity", _Memory())
        self.lately = self.memory.lately if planner.lately is None else planner.lately
        self.total = view.gpu_total()
        self.room = FreeRoom.of(draft, view)
        self.capacity = capacity_of(view)
        self.usage = Usage(limits={})
        self.jobs = LiveJobs(view)
        self.memory.shapes.forget(view.left())
        self.waiting: dict[str, LeafJobs] = {}
        self.ideals: dict[str, float] = {}
        self.kept = GangHolds(self.memory.holds, len(self.room))
        self.blocked: dict[tuple[str, str], Reason] = {}
        """Why a (leaf, user) is beyond his limit."""
        self.at_limit: set[str] = set()
        """Jobs that were not tried for that."""
        self.hopeless: dict[Alike, Reason] = {}
        """Why such jobs found no room."""
        self.hopeless_kinds: dict[Alike, Reason] = {}
        """The same of kinds of jobs in a queue, whoever's they are."""
        self.refused: dict[tuple[object, ...], Reason] = {}
        """Why the guard refused such jobs the room that they found."""
        self.led: dict[str, str] = {}
        """By leaf, the gang wider than its guarantee behind which all others there wait."""
        self.limited = False
        """Whether a user limit, which may rise when others are served, refused somebody."""
        self.claimants: list[str] = []
        """Jobs for which others go."""
        self.going: dict[str, JobView] = {}
        """Jobs that will have been stopped once all claims are met, this time or later."""
        # Queues that are balanced have been told what part of the rest is theirs: who took more
        # would give it back at once (nor does Kueue's fair sharing look at borrowWithinCohort).
        to_borrow = self.reclaim is not None and not self.balanced
        self.may_stop = MayStop(self.tree, self.total, self.usage, self.jobs, self.going, to_borrow)
        self.starts = 0
        """Changes of the room."""
        self.left: dict[tuple[str, bool], FreeRoom] = {}
        """What holds leave, by queue and whether a job borrows, in the state `left_of`."""
        self.left_of: tuple[int, int] = (0, 0)
        """Jobs started and changes of holds at that time."""
        self._whole: FreeRoom | None = None
        self.generous = False
        """Whether users who are at their limit, not above it, are served now."""

    def run(self) -> None:
        self.lately.look(self.tree, self.view.now_s)
        self._sort()
        self._drop_stale_holds()
        while self._serve() and self.limited:
            pass
        # Users at their limit come after all others, but devices are not left idle for a limit
        # that YARN compares with what a user holds.
        while self.limited and self._serve_those_at_their_limit():
            while self._serve() and self.limited:
                pass
        self._take_back()
        self.lately.holds(self.usage)

    # Who holds and who waits ----------------------------------------------------------------------

    def _sort(self) -> None:
        self.memory.lines.hear(self.view, self.tree, self.memory.shapes)
        lines = self.memory.lines.lines
        for name in lines.names():
            self._line_up(lines, name, self.tree.leaf(name))
        self.memory.amounts.hear(self.view, _account)
        for (queue, user), (gpus, *vector) in self.memory.amounts.of_all().items():
            place = self.tree.leaf(queue)
            if place is not None:
                self.usage.add(place, user, gpus, vector)
        used = None if self.balanced else self.usage.queues
        self.ideals = ideal(
            self.tree,
            self.total,
            demand(self.tree, self.total, self.usage.users, self.waiting, self.memory.shapes),
            used,
            held=self.usage.queues,
            lately=self.lately.gpus,
        )

    def _line_up(self, lines: KindLines, name: str, place: QueuePlace | None) -> None:
        """Into the line of its leaf, unless that is unknown or stopped."""
        if place is None:
            refusal: Reason | None = self.tree.unknown(name, self.view.now_s)
        else:
            refusal = self.tree.stopped(place, self.view.stopped)
        if refusal is not None:
            self.draft.wait_alike(lines.jobs([name]), refusal)
        elif place is not None:
            self.waiting.setdefault(place.queue.name, LeafJobs(lines)).names.append(name)

    def _drop_stale_holds(self) -> None:
        usable = self.view.usable()
        for job_id, hold in list(self.memory.holds.items()):
            leaf = self.waiting.get(hold.queue)
            job = None if leaf is None else leaf.get(job_id)
            if job is None or not hold.stands(job, usable):
                self.kept.drop(job_id)

    # Serving --------------------------------------------------------------------------------------

    def _serve_those_at_their_limit(self) -> bool:
        """Offer one job of a user at his limit what is free; whether any was started.

        What was held for jobs in the last round of `_serve` is held from these jobs, too.
        """
        self.generous = True
        started = False
        for name, leaf in self.waiting.items():
            if name in self.led:
                continue
            place, active = self.tree[name], leaf.active()
            able = [job for job in leaf.jobs() if (name, job.spec.user) in self.blocked]
            line = LeafLine(place.queue.order, able, self.view.now_s)
            seen: dict[str, None] = {}
            for job in line.turns(self.usage.held_in(name), self.capacity):
                if job.spec.user in seen:
                    continue  # nobody overtakes himself
                seen[job.spec.user] = None
                if job.id not in self.at_limit:
                    continue  # tried just now, and told why it waits; what it holds stays held
                if self._over_limit(job, place, active) is not None:
                    continue
                if self._offer(job, place, self._alike(job)):
                    started = True
                    break
                self.draft.wait(job, self.blocked[name, job.spec.user])
                self.kept.drop(job.id)
            if started:
                break
        self.generous = False
        return started

    def _serve(self) -> bool:
        """Offer every waiting job what is free, once; whether any was started."""
        lines = {name: self._line(name, leaf) for name, leaf in self.waiting.items()}
        active = {name: leaf.active() for name, leaf in self.waiting.items()}
        self.blocked, self.hopeless, self.refused, self.led = {}, {}, {}, {}
        self.hopeless_kinds = {}
        self.at_limit = set()
        self.limited, started = False, False
        self.kept.begin()
        while (name := self._next_leaf(lines)) is not None:
            place = self.tree[name]
            if self._serve_leaf(place, lines[name], active[name]):
                started = True
            else:
                del lines[name]
        return started

    def _line(self, name: str, leaf: LeafJobs) -> LeafLine | KindWalk:
        """Those who wait in a leaf: one of each kind where their order stays as it is."""
        order = self.tree[name].queue.order
        if self.strategies or not ORDERS[order].stays:
            return LeafLine(order, leaf.jobs(), self.view.now_s)
        apart = leaf.entries(self.memory.holds)
        return KindWalk(leaf.kinds(), apart, self._world, self.draft.wait_alike)

    def _world(self) -> tuple[int, int]:
        """Equal as long as nothing was started and no hold was changed."""
        return self.starts, self.kept.changes

    def _next_leaf(self, lines: Mapping[str, LeafLine | KindWalk]) -> str | None:
        """The leaf to serve next, of those in which somebody has not been tried."""
        if not self.strategies:
            open_ = lines.__contains__
            return next_leaf(self.tree, self.usage, self.total, open_, self.lately.gpus)
        heads: dict[str, LeafHead] = {}
        for name, line in lines.items():
            assert isinstance(line, LeafLine)  # noqa: S101 - where there are strategies
            job = line.first(self.usage.held_in(name), self.capacity)
            if job is not None:
                gpus = self.memory.shapes[job][0].gpus
                heads[name] = LeafHead(gpus, job.spec.priority, job.number)
        shares = FairShares(self.tree, self.total, dict(self.usage.queues))
        return shares.next_leaf(heads)

    def _serve_leaf(self, place: QueuePlace, line: LeafLine | KindWalk, active: int) -> bool:
        """Offer the jobs in line what is free, until one is started: then others may be next."""
        name, held = place.queue.name, self.usage.held_in(place.queue.name)
        for job in line if isinstance(line, KindWalk) else line.turns(held, self.capacity):
            if name in self.led:
                self._wait_behind(job, self.led[name])
            elif self._serve_job(job, place, active, alike := self._alike(job)):
                return True
            elif isinstance(line, KindWalk):
                self._pass_over(line, job, name, alike)
        return False

    def _serve_job(self, job: JobView, place: QueuePlace, active: int, alike: Alike) -> bool:
        """Offer a job what is free; whether it was started."""
        user = place.queue.name, job.spec.user
        refusal = self.blocked.get(user)
        if refusal is None:
            known = None if job.id in self.memory.holds else self._known(job, alike)
            if known is not None:
                self.draft.wait(job, known)
                return False
            refusal = self._over_limit(job, place, active)
            if refusal is None:
                return self._offer(job, place, alike)
        self.limited, self.blocked[user] = True, refusal
        self.at_limit.add(job.id)
        self.kept.drop(job.id)
        self.draft.wait(job, refusal)
        return False

    def _pass_over(self, line: KindWalk, job: JobView, name: str, alike: Alike) -> None:
        """Those like it that come later fare as this one did, unless it changed anything.

        `alike` is what it was before it was looked at.
        """
        refusal = self.blocked.get((name, job.spec.user))
        if refusal is not None:
            line.pass_over_all(job.spec.user, refusal)
        elif job.id not in self.memory.holds:
            if alike[2] != self.kept.changes:
                alike = self._alike(job)
            known = self._known(job, alike)
            if known is not None:
                line.pass_over(known)

    def _wait_behind(self, job: JobView, first: str) -> None:
        """The rest of a leaf waits for a gang that needs the leaf to be empty."""
        self.kept.drop(job.id)
        gpus = self.memory.shapes[job][0].gpus
        why = waits_behind(first, job.spec.queue, gpus, self.room, self.view.now_s)
        self.draft.wait(job, why)

    def _known(self, job: JobView, alike: Alike) -> Reason | None:
        """Why one like it got nothing just now, if nothing was started or held since."""
        known = self.hopeless.get(alike)
        return known or (self.refused.get(self._kin(job)) if self.refused else None)

    def _alike(self, job: JobView) -> Alike:
        """Equal for jobs without a hold that fare alike until something is started or held."""
        alike = self.memory.shapes.alike(job, self.view)
        return job.spec.queue, job.spec.user, self.kept.changes, *alike

    def _kin(self, job: JobView) -> tuple[object, ...]:
        """The same for jobs that the guard refuses alike."""
        kin = self.memory.shapes.kin(job, self.view.now_s)
        return kin, self.kept.changes, *self.memory.shapes.where(job, self.view)

    def _over_limit(self, job: JobView, place: QueuePlace, active: int) -> Reason | None:
        """Why the user may hold no more of this leaf, or None."""
        gpus, now_s = self.memory.shapes[job][-1].gpus, self.view.now_s
        user, at_limit = job.spec.user, self.generous
        return self.usage.refused(place, self.total, user, gpus, active, now_s, at_limit=at_limit)

    def _offer(self, job: JobView, place: QueuePlace, alike: Alike) -> bool:
        """Start the job if there is room; else say why not, and perhaps hold room for it."""
        refusal, guarded, old = None, False, self.memory.holds.get(job.id)
        # Others of the queue fare as this one does, where no limit of a user is in the way.
        of_queue = job.spec.queue, *alike[2:]
        known = self.hopeless_kinds.get(of_queue) if old is None else None
        if known is not None:
            self.draft.wait(job, known)
            self.hopeless[alike] = known
            return False
        self.kept.drop(job.id)
        for shape in self.memory.shapes[job]:
            refusal = self._over_maximum(place, shape.gpus)
            if refusal is not None:
                continue
            room = self._room_for(place, shape.gpus)
            shares = room.place(shape) or self._held_room(shape, old)
            if shares is None:
                refusal = no_room(shape.gpus, room, self.view.now_s)
                continue
            refusal = self.draft.start(job, shares)
            if refusal is None:
                self._started(job, place, shape, shares)
                return True
            guarded = True
        assert refusal is not None  # noqa: S101 - every job has a shape
        self.draft.wait(job, refusal)
        if not guarded:
            self._hold_for(job, place, shape, old)
            # Of no use if a hold was given up or confirmed.
            self.hopeless[alike] = self.hopeless_kinds[of_queue] = refusal
        elif old is None and (kin := self._kin(job))[0] is not None:
            self.refused[kin] = refusal
        return False

    def _held_room(self, shape: GangShape, hold: GangHold | None) -> list[Share] | None:
        """The room that is held for a gang, if it is free by now, whatever later holds keep.

        Later are those of queues of lower priority, and younger ones.

        Holds lie side by side, but what they keep on one node may still be in use, and each might
        take what is free there for the other's.
        """
        if hold is None or hold.shape != shape:
            return None
        needs = hold.needs(len(self.room))
        free = (needs <= self.room.free).all() and self._clear(hold)
        turn = self.tree.rank(hold.queue), hold.age
        ahead = self.kept.needs_ahead(lambda one: (self.tree.rank(one.queue), one.age) < turn)
        if free and (needs <= self.room.free - ahead).all():
            return list(hold.shares)
        return None

    def _started(
        self, job: JobView, place: QueuePlace, shape: GangShape, shares: Sequence[Share]
    ) -> None:
        self.room.take(job.spec, shares)
        self.starts += 1
        self.usage.add(place, job.spec.user, shape.gpus, vector_of(job.wanted))
        self.hopeless, self.hopeless_kinds, self.refused = {}, {}, {}
        self.memory.lines.lines.remove(job.id)

    # Room and holds -------------------------------------------------------------------------------

    def _borrows(self, name: str, gpus: int) -> bool:
        """Whether a gang takes its queue beyond what it is due.

        A queue that holds nothing is due something, also where its gang is wider than that: it
        must not wait for the weak hold of another one, which waits for its own.
        """
        used = self.usage.queues[name]
        guaranteed = self.tree[name].guaranteed * self.total
        return used + gpus > self.ideals[name] + ROUNDING and not (used == 0 and gpus > guaranteed)

    def _over_maximum(self, place: QueuePlace, gpus: int) -> Reason | None:
        """Why a queue on the way to the root may hold no more, holds counted, or None."""
        leaf = place.queue.name
        kept = self.kept.gpus(leaf, borrows=self._borrows(leaf, gpus))
        for name in place.ancestors:
            if self.tree[name].maximum >= 1:
                continue  # what is free on the nodes tells more
            used, most = self.usage.queues[name], self.tree[name].maximum * self.total
            ahead = sum(n for other, n in kept.items() if name in self.tree[other].ancestors)
            if used + ahead + gpus > most + ROUNDING:
                why = f"queue {name!r} may hold {counted(most, 'GPU')}"
                if used + gpus <= most + ROUNDING:
                    are, most = "is" if ahead == 1 else "are", most - ahead
                    why = f"{why}, {ahead} {are} kept for jobs that came first"
                return quota_exceeded(gpus, used, most, why, self.view.now_s)
        return None

    def _room_for(self, place: QueuePlace, gpus: int) -> FreeRoom:
        leaf = place.queue.name
        borrows = self._borrows(leaf, gpus)
        needs = self.kept.needs(leaf, borrows=borrows)
        if needs is None:
            return self.room
        # Most jobs of a plan are offered the same room: nothing was started or held in between.
        world = self.starts, self.kept.changes
        if self.left_of != world:
            self.left_of, self.left = world, {}
        room = self.left.get((leaf, borrows))
        if room is None:
            room = self.left[leaf, borrows] = self.room.without(needs)
        return room

    def _hold_for(
        self, job: JobView, place: QueuePlace, shape: GangShape, old: GangHold | None
    ) -> None:
        """Keep room for a job that finds none, if its queue is owed it or can come to have it."""
        name = place.queue.name
        used, due = self.usage.queues[name] + self.kept.owed(name), self.ideals[name] + ROUNDING
        strong = used + shape.gpus <= due
        wide = shape.gpus > max(due, place.guaranteed * self.total + ROUNDING)
        if wide and used == 0:
            strong = True
        elif not strong and self.kept.is_kept_in(name):
            return
        hold = self._hold(shape, name, old, strong=strong)
        if hold is not None:
            self.kept.confirm(job.id, hold)
            if wide:
                self.led[name] = job.id
                due, now_s = place.guaranteed * self.total, self.view.now_s
                why = wider_than_promised(name, due, shape.gpus, self.room, now_s, strong=strong)
                self.draft.wait(job, why)

    def _hold(
        self, shape: GangShape, queue: str, old: GangHold | None, *, strong: bool
    ) -> GangHold | None:
        """Where to hold room, on nodes that will be free in the end; None: nowhere.

        Beside other holds; a strong one may lie over weak ones, which give way to it. What runs on
        the nodes of an `old` one may run for weeks: it moves to where less must still become free.
        So it gets nearer each time, and does not go round in circles.
        """
        whole, taken = self.whole(), self.kept.all_needs()
        shares = whole.without(taken).place(shape, self.room)
        stays = old is not None and old.shape == shape and (not strong or self._clear(old))
        if old is not None and stays:
            old = replace(old, queue=queue, strong=strong)
            moved = None if shares is None else replace(old, shares=tuple(shares))
            free = self.room.free
            return old if moved is None or moved.missing(free) >= old.missing(free) else moved
        if shares is None and strong:
            shares = whole.without(self.kept.strong_needs()).place(shape)
        if not shares:
            return None
        return GangHold(shape, tuple(shares), queue, strong, self._age(old))

    def _age(self, old: GangHold | None) -> int:
        if old is not None:
            return old.age
        self.memory.made += 1
        return self.memory.made

    def whole(self) -> FreeRoom:
        """All usable nodes, as if nothing ran."""
        if self._whole is None:
            self._whole = FreeRoom.whole(self.view)
        return self._whole

    def _clear(self, hold: GangHold) -> bool:
        """Whether no strong hold lies over this one."""
        left = self.whole().free - self.kept.strong_needs()
        return bool((hold.needs(len(self.room)) <= left).all())

    # Taking back ----------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Mark what must go for gangs that may have jobs stopped; stop what was marked in time."""
        chosen: dict[str, Victim] = {}
        over, left = self._lent()
        able = (
            [job for job in self.jobs.values() if job.wanted and self.may_stop.leaf(job) in over]
            if over
            else []
        )
        excess = {name: self._excess(name) for name in over}
        for job, may in self._claimants(lent=bool(able)):
            if not may and sum(left.values()) <= 0:
                continue  # this plan stops nobody else of other queues
            stops = self._stops_for(job, able, may, excess)
            if stops is None:
                continue
            self.claimants.append(job.id)
            for victim in stops.jobs:
                name = self.may_stop.leaf(victim)
                mine = may.is_own(victim)
                if name in excess and not mine:
                    excess[name].used -= gpus_of(victim)
                if mine or victim.id in stops.lower:
                    why = StopReason.PREEMPTED_FOR_PRIORITY
                    chosen[victim.id] = Victim(victim, why, job, may.is_above_limit(victim))
                elif left[name] > 0:
                    left[name] -= gpus_of(victim)
                    chosen[victim.id] = Victim(victim, StopReason.RECLAIMED, job)
            if self.strategies and self._taken(chosen):
                left = dict.fromkeys(left, 0.0)  # what one gang asks for is never taken in part
        self._mark(chosen)

    def _lent(self) -> tuple[dict[str, float], dict[str, float]]:
        """GPUs that leaves may have to give back, and how many of them this plan may take."""
        reclaim = self.reclaim
        if reclaim is None:
            return {}, {}
        if self.strategies:
            over = borrowed(self.tree, self.usage.queues, self.total)
            return over, dict.fromkeys(over, math.inf)
        zone = reclaim.dead_zone
        over = over_served(self.tree, self.usage, self.ideals, self.total, dead_zone=zone)
        return over, dict[str, float](budgets(reclaim, over, self.total))

    def _taken(self, chosen: Mapping[str, Victim]) -> bool:
        """Whether as much is taken back as a plan may."""
        back = [one.job for one in chosen.values() if one.why is StopReason.RECLAIMED]
        most = 0.0 if self.reclaim is None else self.reclaim.per_cycle * self.total
        return sum(map(gpus_of, back)) >= most - ROUNDING

    def _excess(self, name: str) -> LeafExcess:
        guaranteed = self.tree[name].guaranteed * self.total
        return LeafExcess(self.usage.queues[name], self.ideals[name], guaranteed)

    def _claimants(self, *, lent: bool) -> Iterator[tuple[JobView, Stoppable]]:
        """Waiting jobs that may have others stopped, and whom beside those of over-served queues.

        Those with strong holds come first if anything is `lent`, by priority of their queues and
        then the oldest; then those that outrank others or whose users are below their limit.
        """
        seen: dict[str, None] = {}
        may = self.may_stop
        holds = sorted(self.memory.holds.items(), key=lambda one: self.tree.rank(one[1].queue))
        for job_id, hold in holds:
            place = self.tree[hold.queue]
            if hold.strong and lent and place.queue.reclaims != Reclaims.NEVER:
                seen[job_id] = None
                job = self.jobs[job_id]
                yield job, may.stoppable(job, hold.shape.gpus, place)
        if self.strategies:
            yield from self._fair_claimants(seen, lent=lent)
            return
        for name, leaf in self.waiting.items():
            place = self.tree[name]
            if not may.anybody_for(place):
                continue
            for job in sorted(leaf.jobs(), key=lambda job: (-job.spec.priority, job.number)):
                if job.id in seen or (name, job.spec.user) in self.blocked:
                    continue
                stoppable = may.stoppable(job, self.memory.shapes[job][0].gpus, place)
                if stoppable:
                    yield job, stoppable

    def _fair_claimants(
        self, seen: Mapping[str, None], *, lent: bool
    ) -> Iterator[tuple[JobView, Stoppable]]:
        """All others that wait, but none as wide as one of its queue for which nobody can go."""
        shares = self.may_stop.at_work()
        for name in sorted(self.waiting, key=shares.of):
            place, failed = self.tree[name], math.inf
            if not lent and not self.may_stop.anybody_for(place):
                continue
            jobs = self.waiting[name].jobs()
            for job in sorted(jobs, key=lambda job: (-job.spec.priority, job.number)):
                gpus = self.memory.shapes[job][0].gpus
                if job.id in seen or (name, job.spec.user) in self.blocked or gpus >= failed:
                    continue
                yield job, self.may_stop.stoppable(job, gpus, place)
                if job.id not in self.claimants:
                    failed = gpus

    def _stops_for(
        self,
        job: JobView,
        able: Sequence[JobView],
        may: Stoppable,
        excess: Mapping[str, LeafExcess],
    ) -> ReclaimStops | None:
        """Hold room where it comes at the least cost, and say who must go for it.

        None if nobody must go, or if that would not suffice: then the hold stays where it is.
        """
        place = self.tree.leaf(job.spec.queue)
        assert place is not None  # noqa: S101 - only jobs of known leaves wait
        name, hold = place.queue.name, self.memory.holds.get(job.id)
        shape = hold.shape if hold is not None else self.memory.shapes[job][0]
        if place.queue.reclaims == Reclaims.LOWER_PRIORITY:
            able = [one for one in able if one.spec.priority < job.spec.priority]
        others = [o for o in able if self.may_stop.leaf(o) != name and o.id not in self.going]
        self.kept.drop(job.id)
        room = self.room.copy()
        for gone in self.going.values():
            room.give(gone.wanted)
        needs = self.kept.needs(name, borrows=self._borrows(name, shape.gpus))
        left = room if needs is None else room.without(needs)
        if self.strategies:
            owing = room if needs is None else room.owing(needs)
            stops = self._fair_stops(owing, shape, place, others, may)
        else:
            strong = hold is not None and hold.strong
            stops = self._least_stops(left, shape, place, others, may, excess, strong=strong)
        if stops is not None and needs is not None:
            # What is owed to who comes first and is not yet free comes out of what stops free.
            turn = self.tree.rank(name), hold.age if hold is not None else math.inf
            soon = room.owing(
                self.kept.needs_ahead(lambda one: (self.tree.rank(one.queue), one.age) < turn)
            )
            for victim in stops.jobs:
                soon.give(victim.wanted)
            if soon.left().place(shape) is None:
                stops = None
        if stops is None:
            if hold is not None:
                self.kept.confirm(job.id, hold)
            return None
        self.kept.confirm(job.id, GangHold(shape, stops.shares, name, age=self._age(hold)))
        for victim in stops.jobs:
            self.going[victim.id] = victim
        self.may_stop.coming[name, job.spec.user] += shape.gpus
        return stops

    def _fair_stops(
        self,
        room: FreeRoom,
        shape: GangShape,
        place: QueuePlace,
        others: Sequence[JobView],
        may: Stoppable,
    ) -> ReclaimStops | None:
        """Who goes for a gang where what is lent is shared by weights."""
        own = [one for one in may.outranked if one.id not in self.going]
        above = ranked(may.above_limit, self.memory.marks)
        claim = FairClaim(
            shape=shape,
            place=place,
            others=others if place.queue.reclaims != Reclaims.NEVER else (),
            own=[*own, *within_excess(above, may.user_excess, own)],
            at_work=self.may_stop.at_work(),
            strategies=self.strategies,
            marks=self.memory.marks,
        )
        return fair_stops(room, claim)

    def _least_stops(
        self,
        room: FreeRoom,
        shape: GangShape,
        place: QueuePlace,
        others: Sequence[JobView],
        may: Stoppable,
        excess: Mapping[str, LeafExcess],
        *,
        strong: bool,
    ) -> ReclaimStops | None:
        """Who goes for a gang that is owed what others hold, or outranks them."""
        name = place.queue.name
        used, due = self.usage.queues[name], self.ideals[name]
        guaranteed = place.guaranteed * self.total
        # Balanced queues are due more than anybody promised them.
        promised = guaranteed if self.balanced else max(due, guaranteed)
        claim = ReclaimingGang(
            shape=shape,
            others=others,
            own=[one for one in may.outranked if one.id not in self.going],
            above_limit=may.above_limit,
            user_excess=may.user_excess,
            leaf_of=self.may_stop.leaf,
            excess=excess,
            limits={
                above: self.tree[above].maximum * self.total - self.usage.queues[above]
                for above in place.ancestors
            },
            below=self.may_stop.above,
            # A wide gang with a strong hold may have what is lent, as far as it is enough.
            due=float(shape.gpus) if strong else max(due, guaranteed) - used,
            gain=max(promised - used, 0.0),
            lower=may.lower,
            lent=self.may_stop.lent(place) if may.lower else {},
        )
        return smallest_stops(room, claim, self.memory.marks)

    def _mark(self, chosen: Mapping[str, Victim]) -> None:
        now_s, marks = self.view.now_s, self.memory.marks
        wait_s = 0.0 if self.reclaim is None else self.reclaim.wait_s
        kept = {job_id: marks.get(job_id, now_s) for job_id in chosen}
        due = [one for job_id, one in chosen.items() if kept[job_id] + wait_s <= now_s]
        for job_id, one in chosen.items():
            if job_id not in marks and one not in due:
                self.draft.give_notice(one.job, one.why, now_s + wait_s)
        for one in due:
            self._stop(one)
            del kept[one.job.id]
        self.memory.marks = kept
        if kept:
            self.draft.wake_at(min(kept.values()) + wait_s)
        for job_id in self.claimants:
            job = self.jobs[job_id]
            place = self.tree.leaf(job.spec.queue)
            if (
                place is not None
                and not (due and self._offer(job, place, self._alike(job)))
                and kept
            ):
                self.draft.wait(job, self._coming(job, chosen, min(kept.values()) + wait_s))
        if due:
            # More must go, or what was given back is more than was asked for; and a stop that was
            # planned is no news that calls for the next plan.
            self.draft.wake_at(now_s + NEXT_STEP_S)

    def _stop(self, victim: Victim) -> None:
        job = victim.job
        place = self.tree.leaf(job.spec.queue)
        assert place is not None  # noqa: S101 - only jobs of known leaves are chosen
        self.room.give(job.wanted)
        self.starts += 1  # the room is another one
        self.hopeless, self.hopeless_kinds, self.refused = {}, {}, {}
        gpus, vector = gpus_of(job), [-x for x in vector_of(job.wanted)]
        self.usage.add(place, job.spec.user, -gpus, vector)
        self.draft.stop(job, victim.why)
        due, used = self.ideals[place.queue.name], self.usage.queues[place.queue.name]
        names = place.queue.name, self.may_stop.leaf(victim.claimant)
        self.draft.wait(job, gave_way(victim, names, gpus, used, due, self.view.now_s))

    def _coming(self, job: JobView, chosen: Mapping[str, Victim], at_s: float) -> Reason:
        """Why a gang for which others must go still waits."""
        hold = self.memory.holds.get(job.id)
        gpus = hold.shape.gpus if hold else self.memory.shapes[job][0].gpus
        return waits_for_stops(gpus, list(chosen.values()), self.room, self.view.now_s, at_s)
