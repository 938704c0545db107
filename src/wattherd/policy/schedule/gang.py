"""Gangs whole, by priority: the scheduler that clusters of containers are used to.

Jobs are tried by priority, then in order of coming. One that finds no room waits, and whoever fits
may pass it. A job of higher priority takes the place of less important ones: of as few as will do,
the lowest and newest first, and of none where that would not help.

What becomes free would else go to small jobs that came later, again and again, and a large gang
would never start. So the first gang that has waited for room longer than `patience_s` goes before
all behind it: these keep off the nodes that it may use until it has started. Nobody is stopped for
it, and a gang that the nodes could not hold if they were empty holds up nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from wattherd.model.reason import Reason, ReasonCode, StopReason, make_reason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask, common_mask, inside
from wattherd.policy.schedule.node_choice import Ints, Place, consolidated, shares_of, whole_tasks

PATIENCE_S = 600.0
_MEMORY = "gang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """By priority, whole; `place` chooses nodes by how many tasks each could take."""

    place: Place = consolidated
    patience_s: float = PATIENCE_S

    def plan(self, view: View, draft: Draft) -> None:
        """Try everybody who waits, in turn."""
        _Round(self, view, draft, view.memory.setdefault(_MEMORY, {})).run()


Kept = tuple[JobView, NodeMask | None]
"""A gang that goes first, and the nodes that are kept for it (None: all)."""


@dataclass(slots=True)
class _Round:
    """One look through those who wait; `since_s` is since when each of them does."""

    planner: Gang
    view: View
    draft: Draft
    since_s: dict[str, float]
    whole: Ints = field(init=False)
    kept: Kept | None = None
    """The gang that goes first, and the nodes that others keep off."""
    hopeless: dict[object, Reason] = field(default_factory=dict)
    """Needs for which no room was found since something was given back, and why."""

    def __post_init__(self) -> None:
        """GPUs that nodes have when empty."""
        self.whole = self.view.gpus_per_node()

    def run(self) -> None:
        live = self.view.live()
        waiting = sorted((job for job in live if not job.wanted), key=_turn)
        known = {job.id: self.since_s.get(job.id, self.view.now_s) for job in waiting}
        self.since_s.clear()
        self.since_s |= known
        self.kept = self._out_of_patience(waiting)
        for job in waiting:
            refused = self._try(job)
            if refused is not None and not self._make_room(job, live):
                self.draft.wait(job, refused)
            elif job.wanted:
                self.since_s.pop(job.id, None)
        self._ask_for_wake(waiting)

    def _out_of_patience(
        self, waiting: Iterable[JobView]
    ) -> tuple[JobView, NodeMask | None] | None:
        """The first gang that has waited for too long and would fit if nobody were there."""
        for job in waiting:
            tasks = sum(role.count for role in job.spec.roles)
            late = self.view.now_s - self.since_s[job.id] >= self.planner.patience_s
            if tasks > 1 and late and self._fits_when_empty(job):
                return job, common_mask(self.view, job.spec)
        return None

    def _fits_when_empty(self, job: JobView) -> bool:
        role, mask = job.spec.roles[0], self.view.eligible(job.spec)
        room = whole_tasks(role, self.whole, self.whole)
        models = job.spec.gpu_models
        if models and role.gpu_count:
            room = np.where([node.gpu_model in models for node in self.view.nodes()], room, 0)
        return int(inside(room, mask).sum()) >= role.count

    def _try(self, job: JobView) -> Reason | None:
        """Start it where there is room; else why not."""
        key = (job.spec.roles, job.spec.gpu_models, common_mask_key(self.view, job))
        held_up = self.kept is not None and _turn(self.kept[0]) < _turn(job)
        if not held_up and key in self.hopeless:
            return self.hopeless[key]
        shares = self._shares(job, held_up=held_up)
        if shares is not None:
            refused = self.draft.start(job, shares)
            if refused is None and self.kept is not None and self.kept[0] is job:
                self.kept = None
            return refused
        reason = self._held_up() if held_up else self._no_room(job)
        if not held_up:
            self.hopeless[key] = reason
        return reason

    def _shares(self, job: JobView, *, held_up: bool) -> list[Share] | None:
        within = None
        if held_up and self.kept is not None:
            nodes = self.kept[1]
            if nodes is None:
                return None
            within = inside(self.whole, ~nodes)
        mask = self.view.eligible(job.spec)
        return shares_of(job, self.draft, self.planner.place, self.whole, within, mask)

    def _make_room(self, job: JobView, live: Iterable[JobView]) -> bool:
        """Stop the fewest of lower priority without whom it fits; whether it starts so."""
        if self.kept is not None and _turn(self.kept[0]) < _turn(job):
            return False
        lower = [one for one in live if one.wanted and one.spec.priority < job.spec.priority]
        if not lower:
            return False
        lower.sort(key=lambda one: (one.spec.priority, -one.number))
        begin = self.draft.mark()
        taken: list[tuple[JobView, list[Share]]] = []
        shares = None
        for victim in lower:
            taken.append((victim, shares_held(victim)))
            self.draft.stop(victim, StopReason.PREEMPTED_FOR_PRIORITY)
            shares = self._shares(job, held_up=False)
            if shares is not None and self.draft.start(job, shares) is None:
                break
        if not job.wanted:
            self.draft.undo(begin)
            return False
        for victim, before in reversed(taken[:-1]):  # the most important first: who need not, stays
            self.draft.start(victim, before)
        self.since_s.pop(job.id, None)
        self.hopeless.clear()
        return True

    def _held_up(self) -> Reason:
        first = "" if self.kept is None else self.kept[0].id
        return Reason(
            code=ReasonCode.WAITING_FOR_TURN,
            since_s=self.view.now_s,
            unblocks=f"{first} came first and has waited for long",
        )

    def _no_room(self, job: JobView) -> Reason:
        free, asked = self.draft.free_gpu_total(), job.spec.gpus
        scattered = free >= asked > 0
        return make_reason(
            code=ReasonCode.FRAGMENTED if scattered else ReasonCode.WAITING_FOR_GPUS,
            since_s=self.view.now_s,
            asked=asked,
            in_use=self.view.gpu_total() - free,
            available=free,
            unit="GPUs",
            unblocks="free GPUs on fewer nodes" if scattered else "others end",
        )

    def _ask_for_wake(self, waiting: Iterable[JobView]) -> None:
        """Patience ends without any event."""
        now_s, patience_s = self.view.now_s, self.planner.patience_s
        ends = [
            self.since_s[job.id] + patience_s
            for job in waiting
            if job.id in self.since_s and sum(role.count for role in job.spec.roles) > 1
        ]
        later = [at_s for at_s in ends if at_s > now_s]
        if later:
            self.draft.wake_at(min(later))


def _turn(job: JobView) -> tuple[int, int]:
    """By priority, then in order of coming."""
    return -job.spec.priority, job.number


def shares_held(job: JobView) -> list[Share]:
    """What the plan gives a job, device for device."""
    return [
        Share(node=one.node, tasks=one.tasks, role=one.role, gpus=one.gpus) for one in job.wanted
    ]


def common_mask_key(view: View, job: JobView) -> bytes:
    """Equal for jobs that may use the same nodes with all of their roles."""
    mask = common_mask(view, job.spec)
    return b"" if mask is None else mask.tobytes()
