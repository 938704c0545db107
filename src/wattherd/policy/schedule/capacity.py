"""Capacity queues as a scheduler (YARN's CapacityScheduler, for gangs).

The most under-served queue is served first, in the order of its leaf, as long as neither a maximum
on the way to the root nor the user's limit is exceeded; idle capacity is lent to whoever asks.
What a queue is owed and lacks is reclaimed: jobs of queues that hold more than their ideal amount
get notice, and are stopped when the waiting time is over and the need still stands.

Gangs change two things. Jobs that their queue is owed and that find no room are given a strong
hold on the devices they need, which keeps everybody away; the first in line of a leaf is given a
weak one if its queue must first become smaller, which keeps away its own queue and borrowers. So
nobody is overtaken for ever by smaller jobs. And nothing is reclaimed but for a gang that can then
start: devices that are held for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import eligibility_key
from wattherd.policy.queue.capacity import Usage, ideal, next_leaf, over_served, user_limit
from wattherd.policy.queue.gang import FreeRoom, GangHold, GangHolds, GangShape, GangShapes
from wattherd.policy.queue.order import LeafLine, capacity_of, vector_of
from wattherd.policy.queue.reclaim import Reclaim, budgets, rank, victims
from wattherd.policy.queue.tree import ROUNDING, QueuePlace, QueueTree, quota_exceeded

Alike = tuple[object, ...]
NEXT_STEP_S = 1.0
"""Between a stop and the notice to the next, where a gang is owed more than one step gives back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityScheduler:
    """Capacity queues; `reclaim` None never takes back what was lent."""

    tree: QueueTree
    reclaim: Reclaim | None = field(default_factory=Reclaim)

    def plan(self, view: View, draft: Draft) -> None:
        """Start what is due, hold room for the first in line, reclaim what is owed."""
        _Cycle(self, view, draft).run()


@dataclass(slots=True)
class _Memory:
    """Holds, oldest first, and since when jobs have been marked for reclaim."""

    holds: dict[str, GangHold] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    shapes: GangShapes = field(default_factory=GangShapes)


class _Cycle:
    """One plan."""

    def __init__(self, planner: CapacityScheduler, view: View, draft: Draft) -> None:
        self.tree, self.reclaim = planner.tree, planner.reclaim
        self.view, self.draft = view, draft
        self.memory: _Memory = view.memory.setdefault("capacity", _Memory())
        self.total = view.gpu_total()
        self.room = FreeRoom.of(draft, view)
        self.capacity = capacity_of(view)
        self.usage = Usage()
        self.jobs = {job.id: job for job in view.live()}
        self.memory.shapes.keep(self.jobs)
        self.waiting: dict[str, dict[str, JobView]] = {}
        self.ideals: dict[str, float] = {}
        self.kept = GangHolds(self.memory.holds, len(self.room))
        self.blocked: dict[tuple[str, str], Reason] = {}
        """Why a (leaf, user) is beyond his limit."""
        self.hopeless: dict[Alike, Reason] = {}
        """Why such jobs found no room."""
        self.refused: dict[tuple[object, ...], Reason] = {}
        """Why the guard refused such jobs the room that they found."""
        self.limited = False
        """Whether a user limit, which may rise when others are served, refused somebody."""

    def run(self) -> None:
        self._sort()
        self._drop_stale_holds()
        while self._serve() and self.limited:
            pass
        if self.reclaim is not None:
            self._take_back(self.reclaim)

    # Who holds and who waits ----------------------------------------------------------------------

    def _sort(self) -> None:
        for job in self.jobs.values():
            place = self.tree.leaf(job.spec.queue)
            if job.wanted and place is not None:
                self.usage.add(place, job.spec.user, _gpus(job), vector_of(job.wanted))
            elif not job.wanted:
                self._line_up(job, place)
        self.ideals = ideal(self.tree, self.total, self._demand())

    def _line_up(self, job: JobView, place: QueuePlace | None) -> None:
        """Into the line of its leaf, unless that is unknown or stopped."""
        if place is None:
            self.draft.wait(job, self.tree.unknown(job.spec.queue, self.view.now_s))
            return
        refusal = self.tree.stopped(place, self.view.stopped)
        if refusal is not None:
            self.draft.wait(job, refusal)
            return
        self.waiting.setdefault(place.queue.name, {})[job.id] = job

    def _demand(self) -> dict[str, float]:
        """What every leaf holds or waits for, no user counting beyond what he may ever hold."""
        asked = dict(self.usage.users)
        for name, jobs in self.waiting.items():
            for job in jobs.values():
                key = name, job.spec.user
                asked[key] = asked.get(key, 0) + self.memory.shapes[job][0].gpus
        demand: dict[str, float] = {}
        for (name, _), gpus in asked.items():
            most = self.tree.user_most(self.tree[name], self.total)
            demand[name] = demand.get(name, 0.0) + min(gpus, most)
        return demand

    def _drop_stale_holds(self) -> None:
        usable = self.view.usable()
        for job_id, hold in list(self.memory.holds.items()):
            job = self.waiting.get(hold.queue, {}).get(job_id)
            if job is None or not hold.stands(job, usable):
                self.kept.drop(job_id)

    # Serving --------------------------------------------------------------------------------------

    def _serve(self) -> bool:
        """Offer every waiting job what is free, once; whether any was started."""
        lines = {
            name: LeafLine(self.tree[name].queue.order, jobs.values(), self.view.now_s)
            for name, jobs in self.waiting.items()
        }
        active = {
            name: len({job.spec.user for job in jobs.values()})
            for name, jobs in self.waiting.items()
        }
        self.blocked, self.hopeless, self.refused = {}, {}, {}
        self.limited, started = False, False
        self.kept.begin()
        while (
            name := next_leaf(self.tree, self.usage, self.total, lines.__contains__)
        ) is not None:
            place = self.tree[name]
            line = lines[name].turns(self.usage.held_in(name), self.capacity)
            if self._serve_leaf(place, line, active[name]):
                started = True
            else:
                del lines[name]
        return started

    def _serve_leaf(self, place: QueuePlace, line: Iterator[JobView], active: int) -> bool:
        """Offer the jobs in line what is free, until one is started: then others may be next."""
        name = place.queue.name
        for job in line:
            user = name, job.spec.user
            refusal = self.blocked.get(user)
            if refusal is None and self._is_hopeless(job):
                continue
            refusal = refusal or self._over_limit(job, place, active)
            if refusal is None:
                if self._offer(job, place):
                    return True
                continue
            self.limited, self.blocked[user] = True, refusal
            self.kept.drop(job.id)
            self.draft.wait(job, refusal)
        return False

    def _is_hopeless(self, job: JobView) -> bool:
        """Whether one like it got nothing just now; nothing was started or held since."""
        if job.id in self.memory.holds:
            return False
        known = self.hopeless.get(self._alike(job))
        known = known or (self.refused.get(self._kin(job)) if self.refused else None)
        if known is not None:
            self.draft.wait(job, known)
        return known is not None

    def _alike(self, job: JobView) -> Alike:
        """Equal for jobs without a hold that fare alike until something is started or held."""
        needs = self.memory.shapes.needs(job)
        whose = job.spec.queue, job.spec.user
        return *whose, needs, self.kept.changes, *eligibility_key(self.view, job.spec)

    def _kin(self, job: JobView) -> tuple[object, ...]:
        """The same for jobs that the guard refuses alike."""
        kin = self.memory.shapes.kin(job, self.view.now_s)
        return kin, self.kept.changes, *eligibility_key(self.view, job.spec)

    def _over_limit(self, job: JobView, place: QueuePlace, active: int) -> Reason | None:
        """Why the user may hold no more of this leaf, or None."""
        gpus = self.memory.shapes[job][-1].gpus
        name, user = place.queue.name, job.spec.user
        used, own = self.usage.queues[name], self.usage.users[name, user]
        most = self.tree.user_most(place, self.total)
        limit = user_limit(place, self.total, used=used, asked=gpus, active=active)
        if own + gpus <= limit + ROUNDING or (own == 0 and gpus <= most + ROUNDING):
            return None
        if own + gpus > most + ROUNDING:
            why = (
                f"user limit factor {place.queue.user_limit_factor:g} allows {user!r} {most:g} GPUs"
            )
        else:
            users = "user shares" if active == 1 else "users share"
            why = f"{active} {users} the queue; each may hold {limit:g} GPUs"
        why = f"{why} of queue {name!r}"
        return quota_exceeded(gpus, own, min(limit, most), why, self.view.now_s)

    def _offer(self, job: JobView, place: QueuePlace) -> bool:
        """Start the job if there is room; else say why not, and perhaps hold room for it."""
        refusal, guarded, old = None, False, self.memory.holds.get(job.id)
        alike = self._alike(job)
        self.kept.drop(job.id)
        for shape in self.memory.shapes[job]:
            refusal = self._over_maximum(place, shape.gpus)
            if refusal is not None:
                continue
            room = self._room_for(place, shape.gpus)
            shares = room.place(shape)
            if shares is None:
                refusal = _no_room(shape.gpus, room, self.view.now_s)
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
            self.hopeless[alike] = refusal  # of no use if a hold was given up or confirmed
        elif old is None and (kin := self._kin(job))[0] is not None:
            self.refused[kin] = refusal
        return False

    def _started(
        self, job: JobView, place: QueuePlace, shape: GangShape, shares: Sequence[Share]
    ) -> None:
        self.room.take(job.spec, shares)
        self.usage.add(place, job.spec.user, shape.gpus, vector_of(job.wanted))
        self.hopeless, self.refused = {}, {}
        del self.waiting[place.queue.name][job.id]

    # Room and holds -------------------------------------------------------------------------------

    def _borrows(self, name: str, gpus: int) -> bool:
        return self.usage.queues[name] + gpus > self.ideals[name] + ROUNDING

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
                why = f"queue {name!r} may hold {most:g} GPUs"
                if used + gpus <= most + ROUNDING:
                    why, most = f"{why}, {ahead} are kept for jobs that came first", most - ahead
                return quota_exceeded(gpus, used, most, why, self.view.now_s)
        return None

    def _room_for(self, place: QueuePlace, gpus: int) -> FreeRoom:
        leaf = place.queue.name
        needs = self.kept.needs(leaf, borrows=self._borrows(leaf, gpus))
        return self.room if needs is None else self.room.without(needs)

    def _hold_for(
        self, job: JobView, place: QueuePlace, shape: GangShape, old: GangHold | None
    ) -> None:
        """Keep room for a job that finds none, if its queue is owed it or can come to have it."""
        name = place.queue.name
        due = self.ideals[name] + ROUNDING
        strong = self.usage.queues[name] + self.kept.owed(name) + shape.gpus <= due
        if not strong and (shape.gpus > due or self.kept.is_kept_in(name)):
            return
        shares = old.shares if old and old.shape == shape else self._aim(shape, ())
        if shares:
            self.kept.confirm(job.id, GangHold(shape, shares, name, strong))

    def _aim(self, shape: GangShape, able: Sequence[JobView]) -> tuple[Share, ...]:
        """Where to hold room: beside other holds, where the fewest of `able` must go, in order.

        If that is nowhere (or nobody is able), on nodes that will be free in the end.
        """
        taken, soon = self.kept.all_needs(), self.room.copy()
        for job in able:
            soon.give(job.wanted)
            shares = soon.without(taken).place(shape)
            if shares is not None:
                return tuple(shares)
        shares = FreeRoom.whole(self.view).without(taken).place(shape)
        return tuple(shares or ())

    # Taking back ----------------------------------------------------------------------------------

    def _take_back(self, reclaim: Reclaim) -> None:
        """Mark what must go for strong holds; stop what was marked long enough ago."""
        over = over_served(
            self.tree, self.usage, self.ideals, self.total, dead_zone=reclaim.dead_zone
        )
        owed = [job_id for job_id, hold in self.memory.holds.items() if hold.strong]
        able = [job for job in self.jobs.values() if job.wanted and self._leaf(job) in over]
        if not owed or not able:
            self.memory.marks.clear()
            return
        able.sort(key=lambda job: rank(job, self.memory.marks))
        limits = budgets(reclaim, over, self.total)
        self._aim_again(owed, able, sum(limits.values()))
        holds = [self.memory.holds[job_id] for job_id in owed]
        self._mark(victims(self.room, holds, able, self._leaf, limits), reclaim, owed)

    def _leaf(self, job: JobView) -> str:
        place = self.tree.leaf(job.spec.queue)
        return place.queue.name if place else ""

    def _aim_again(self, owed: Sequence[str], able: Sequence[JobView], limit: int) -> None:
        """Move holds to where room comes soonest, unless marked jobs make it where they are.

        Those for which this plan will not stop anybody, its `limit` being used up, stay as well.
        """
        soon = self.room.copy()
        for job in able:
            if job.id in self.memory.marks:
                soon.give(job.wanted)
        for job_id in owed:
            hold = self.memory.holds[job_id]
            needs = hold.needs(len(soon))
            if (needs <= soon.free).all():
                soon.free -= needs
                continue
            if limit <= 0:
                return
            limit -= hold.shape.gpus
            self.kept.drop(job_id)
            shares = self._aim(hold.shape, able) or hold.shares
            self.kept.confirm(job_id, GangHold(hold.shape, shares, hold.queue))

    def _mark(self, chosen: Sequence[JobView], reclaim: Reclaim, owed: Sequence[str]) -> None:
        now_s, marks = self.view.now_s, self.memory.marks
        kept = {job.id: marks.get(job.id, now_s) for job in chosen}
        due = [job for job in chosen if kept[job.id] + reclaim.wait_s <= now_s]
        for job in chosen:
            if job.id not in marks and job not in due:
                self.draft.give_notice(job, StopReason.RECLAIMED, now_s + reclaim.wait_s)
        for job in due:
            self._stop(job)
            del kept[job.id]
        self.memory.marks = kept
        if kept:
            self.draft.wake_at(min(kept.values()) + reclaim.wait_s)
        for job_id in owed:
            job = self.jobs[job_id]
            place = self.tree.leaf(job.spec.queue)
            if place is not None and not (due and self._offer(job, place)) and kept:
                self.draft.wait(
                    job, self._coming(job_id, chosen, min(kept.values()) + reclaim.wait_s)
                )
        if due and any(job_id in self.memory.holds for job_id in owed):
            # More must go, and a stop that was planned is no news that calls for the next plan.
            self.draft.wake_at(now_s + NEXT_STEP_S)

    def _stop(self, job: JobView) -> None:
        place = self.tree.leaf(job.spec.queue)
        assert place is not None  # noqa: S101 - only jobs of known leaves are chosen
        self.room.give(job.wanted)
        gpus, vector = _gpus(job), [-x for x in vector_of(job.wanted)]
        self.usage.add(place, job.spec.user, -gpus, vector)
        self.draft.stop(job, StopReason.RECLAIMED)
        name, most = place.queue.name, self.ideals[place.queue.name]
        why = f"queue {name!r} gave back what it had borrowed"
        used = self.usage.queues[name]
        self.draft.wait(job, quota_exceeded(gpus, used, most, why, self.view.now_s))

    def _coming(self, job_id: str, chosen: Sequence[JobView], at_s: float) -> Reason:
        """Why a gang that is owed its devices still waits."""
        gpus = self.memory.holds[job_id].shape.gpus
        back = sum(_gpus(job) for job in chosen)
        names = ", ".join(job.id for job in chosen[:3]) + (", ..." if len(chosen) > 3 else "")
        gpus_back = f"{back} borrowed GPU{'' if back == 1 else 's'}"
        return Reason(
            code=ReasonCode.WAITING_FOR_PREEMPTION,
            since_s=self.view.now_s,
            asked=gpus,
            available=self.room.gpus,
            unit="GPUs",
            unblocks=f"{names} must give back {gpus_back}, the first",
            due_s=at_s,
        )


def _gpus(job: JobView) -> int:
    return sum(len(allocation.gpus) for allocation in job.wanted)


def _no_room(gpus: int, room: FreeRoom, now_s: float) -> Reason:
    enough = gpus <= room.gpus
    return Reason(
        code=ReasonCode.FRAGMENTED if enough else ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=gpus,
        available=room.gpus,
        unit="GPUs",
        unblocks="they do not fit together on the nodes that have room" if enough else "",
    )
