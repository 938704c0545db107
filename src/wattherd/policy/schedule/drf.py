"""Dominant resource fairness as a scheduler (Ghodsi et al., NSDI'11), for gangs.

Again and again the next job of whoever has the least dominant share is started, where it fits;
nothing that runs is stopped. The first gang that finds no room is given a hold on the devices it
needs, so that the stream of smaller jobs cannot keep it waiting for ever.

A plan in which nothing came of anything is remembered: as long as nothing but jobs like those that
found no room has come since, only these are told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.queue.drf import Vector, dominant_share
from wattherd.policy.queue.gang import FreeRoom, GangHold, GangShape, GangShapes
from wattherd.policy.queue.order import PlannedAmounts, capacity_of, vector_of
from wattherd.policy.queue.waiting import KindLines, KindWalk, Standing

OWNERS: Mapping[str, Callable[[JobView], str]] = {
    "user": lambda job: job.spec.user,
    "queue": lambda job: job.spec.queue,
    "tenant": lambda job: job.spec.tenant,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drf:
    """Fair between owners (`over`: a key of OWNERS); `weights` of an owner are per resource.

    Resources are CPU, memory, GPU, in this order; whoever is not in `weights` has 1 for each. The
    jobs of one owner are served by priority, then in order of submission.
    """

    over: str = "user"
    weights: Mapping[str, Vector] = field(default_factory=dict)

    def plan(self, view: View, draft: Draft) -> None:
        """Start what is due, poorest owner first."""
        cycle = _Cycle(self, view, draft)
        if not cycle.goes_on_waiting():
            cycle.run()


_Like = tuple[object, ...]
"""The owner of a job, what it needs, and which nodes it may use."""


@dataclass(frozen=True, slots=True)
class _Calm:
    """A plan that started and held nothing, in a `world` in which the `hopeless` found no room."""

    world: tuple[object, ...]
    hopeless: Mapping[_Like, Reason]


class _Cycle:
    """One plan."""

    def __init__(self, planner: Drf, view: View, draft: Draft) -> None:
        self.planner, self.view, self.draft = planner, view, draft
        self.owner = OWNERS[planner.over]
        self.holds: dict[str, GangHold] = view.memory.setdefault("drf", {})
        self.shapes: GangShapes = view.memory.setdefault("drf shapes", GangShapes())
        kept = view.memory.setdefault("drf amounts", PlannedAmounts())
        self.amounts: PlannedAmounts[str] = kept
        self.amounts.hear(view, self.owner)
        self.shapes.forget(view.left())
        self.waiting: KindLines = view.memory.setdefault("drf lines", KindLines())
        self.waiting.hear(view, self._standing)
        self.room = FreeRoom.of(draft, view)
        self.capacity = capacity_of(view)
        self.held: dict[str, list[float]] = {}
        self.shares: dict[str, float] = {}
        """Dominant shares of owners, until something of theirs is started."""
        self.beside: dict[str, FreeRoom] = {}
        """What the hold of a job leaves, until something is started."""
        self.lines: dict[str, KindWalk] = {}
        self.changes = 0
        """How often there was other room since."""
        self.hopeless: dict[_Like, Reason] = {}
        """Why an owner's jobs of these needs find no room, while nothing is started or held."""
        self.roomless: set[tuple[object, ...]] = set()
        """Such needs, whoever has them: what he is told is his own."""
        self.refused: dict[object, Reason] = {}
        """Why the guard refuses such jobs what they find, meanwhile."""
        self.calm = True
        """Whether everybody waits for room, and nothing was started or held."""

    def goes_on_waiting(self) -> bool:
        """Tell those who came what others like them were told, if that is all there is to do."""
        known: _Calm | None = self.view.memory.get("drf calm")
        if known is None or self.view.left() or known.world != self._world():
            return False
        came = self.view.entered()
        told = [None if job.wanted else known.hopeless.get(self._like(job)) for job in came]
        if any(reason is None for reason in told):
            return False
        for job, reason in zip(came, told, strict=True):
            assert reason is not None  # noqa: S101 - just looked at
            self.draft.wait(job, reason)
        return True

    def _world(self) -> tuple[object, ...]:
        """All that decides whether a job finds room, while nobody comes or goes."""
        weights = sorted(self.planner.weights.items())
        free, usable = self.room.free.tobytes(), self.view.usable().tobytes()
        return free, usable, tuple(self.holds), self.planner.over, tuple(weights)

    def run(self) -> None:
        self._plan()
        calm = _Calm(self._world(), self.hopeless) if self.calm else None
        self.view.memory["drf calm"] = calm

    def _plan(self) -> None:
        self._sort()
        # A share changes only with what is started for its owner, who then stands in line anew.
        turns = [(self._share(owner), owner) for owner in self.lines]
        heapify(turns)
        while turns:
            owner = heappop(turns)[1]
            line = self.lines[owner]
            for job in line:
                if self._offer(job):
                    # Another one may have less now.
                    heappush(turns, (self._share(owner), owner))
                    break
                known = None if job.id in self.holds else self._known(job, self._like(job))
                if known is not None:
                    line.pass_over(known)

    def _sort(self) -> None:
        self.held = {one: list(held) for one, (_, *held) in self.amounts.of_all().items()}
        usable = self.view.usable()
        for job_id, hold in list(self.holds.items()):
            if job_id not in self.waiting or not hold.stands(self.waiting[job_id], usable):
                del self.holds[job_id]
        for owner, kinds in self.waiting.lines.items():
            apart = self.waiting.entries(self.holds, [owner])
            self.lines[owner] = KindWalk(kinds, apart, self._changes, self.draft.wait_alike)

    def _changes(self) -> int:
        return self.changes

    def _standing(self, job: JobView) -> Standing:
        """Jobs of an owner by priority, then in order of submission."""
        kin = None if job.active else self._kin(job)
        like: _Like = (job.id,) if kin is None else (*self._like(job), kin)
        return Standing(self.owner(job), like, (-job.spec.priority,))

    def _book(self, job: JobView) -> None:
        self.shares.pop(self.owner(job), None)
        held = self.held.setdefault(self.owner(job), [0.0, 0.0, 0.0])
        for r, amount in enumerate(vector_of(job.wanted)):
            held[r] += amount

    def _share(self, owner: str) -> float:
        known = self.shares.get(owner)
        if known is None:
            held, weights = self.held.get(owner, (0.0, 0.0, 0.0)), self.planner.weights.get(owner)
            known = self.shares[owner] = dominant_share(held, self.capacity, weights)
        return known

    def _offer(self, job: JobView) -> bool:
        """Start the job if there is room; else say why not, and perhaps hold room for it."""
        like, holds = self._like(job), job.id in self.holds
        known = None if holds else self._known(job, like)
        if known is not None:
            self.draft.wait(job, known)
            return False
        room, needs, shapes = self._room_for(job.id), like[1:], self.shapes[job]
        for shape in () if not holds and self._finds_none(needs) else shapes:
            shares = room.place(shape)
            if shares is not None:
                return self._start(job, shares)
        reason = self._no_room(job, shapes[-1], room)
        self.draft.wait(job, reason)
        if not holds:
            self.hopeless[like] = reason
            self.roomless.add(needs)
        self._hold_for(job, shapes[-1])
        return False

    def _finds_none(self, needs: tuple[object, ...]) -> bool:
        """Whether it is known that there is no room for such needs, whoever has them."""
        return needs in self.roomless

    def _like(self, job: JobView) -> _Like:
        return self.owner(job), *self.shapes.alike(job, self.view)

    def _known(self, job: JobView, like: _Like) -> Reason | None:
        """What one like it was told, by us or by the guard, that may do without asking again."""
        known = self.hopeless.get(like)
        return known or (self.refused.get(self._kin(job)) if self.refused else None)

    def _kin(self, job: JobView) -> object:
        """Equal for jobs that the guard refuses alike; None: this one has reasons of its own."""
        kin = self.shapes.kin(job, self.view.now_s)
        return None if kin is None else (kin, *self.shapes.where(job, self.view))

    def _start(self, job: JobView, shares: Sequence[Share]) -> bool:
        self.calm = False
        refusal = self.draft.start(job, shares)
        if refusal is not None:
            self.draft.wait(job, refusal)
            kin = self._kin(job)
            if kin is not None and job.id not in self.holds:
                self.refused[kin] = refusal
            return False
        self.room.take(job.spec, shares)
        self.holds.pop(job.id, None)
        self.waiting.remove(job.id)
        self._book(job)
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        """There is other room now than before."""
        self.hopeless, self.refused, self.calm = {}, {}, False
        self.roomless = set()
        self.changes += 1
        self.beside = {}

    def _room_for(self, job_id: str) -> FreeRoom:
        for other, hold in self.holds.items():
            if other != job_id:
                room = self.beside.get(other)
                if room is None:
                    room = self.room.without(hold.needs(len(self.room)))
                    self.beside[other] = room
                return room
        return self.room

    def _hold_for(self, job: JobView, shape: GangShape) -> None:
        """Only the first to find no room is given a hold, and keeps it until it starts."""
        if self.holds:
            return
        shares = FreeRoom.whole(self.view).place(shape)
        if shares is not None:
            self.holds[job.id] = GangHold(shape, tuple(shares))
            self._begin_anew()

    def _no_room(self, job: JobView, shape: GangShape, room: FreeRoom) -> Reason:
        owner, enough = self.owner(job), shape.gpus <= room.gpus
        return Reason(
            code=ReasonCode.FRAGMENTED if enough else ReasonCode.WAITING_FOR_GPUS,
            since_s=self.view.now_s,
            asked=shape.gpus,
            available=room.gpus,
            unit="GPUs",
            unblocks=f"the dominant share of {self.planner.over} {owner!r} is "
            f"{self._share(owner):.0%}; those with less come first",
        )
