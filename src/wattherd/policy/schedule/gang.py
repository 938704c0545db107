"""Gangs whole, by priority: the scheduler that clusters of containers are used to.

Jobs are tried by priority, then in order of coming; among queues by what each is promised
(`policy.queue.turns`). One that finds no room waits, and whoever fits may pass it. A job of higher
priority takes the place of less important ones: of as few as will do, the lowest and newest first,
and of none where that would not help.

What becomes free would else go to small jobs that came later, again and again, and a large gang
would never start. So the first gang that has waited for room longer than `patience_s` goes before
all behind it: these keep off the nodes that it may use until it has started. Nobody is stopped for
it. A gang that the nodes could not hold if they were empty holds up nobody, and so does one that
waits for watts.

Where a job goes is for `Seats` to say: by how many of its tasks each node could take (`RuleSeats`),
or, given by a shell, task by task by a placement policy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode, StopReason, make_reason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask, able_nodes, mask_keys, role_masks
from wattherd.policy.queue.turns import QueueRules, QueueTurns
from wattherd.policy.queue.waiting import KindLines, KindWalk, Standing
from wattherd.policy.schedule.node_choice import Place, consolidated, shares_of, whole_tasks

PATIENCE_S = 600.0
STOPS_NOBODY = ("preemption-policy", "Never")
"""The label of a job for which nobody is to be stopped."""
_MEMORY = "gang"
_MOST_TRIES = 64
"""Times that a single task is tried elsewhere because there were no watts where it was to go."""
_OF_ROOM = (ReasonCode.WAITING_FOR_GPUS, ReasonCode.FRAGMENTED)
_OF_WATTS = (ReasonCode.WAITING_FOR_POWER, ReasonCode.WAITING_FOR_BUDGET_RISE)
_OF_ITS_OWN = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUEUE_STOPPED, ReasonCode.UNKNOWN_QUEUE)
"""Refusals that say nothing of what others of the same need would meet."""
_LINE = "all"


Need = tuple[object, ...]


class Seats(Protocol):
    """Finds places for whole jobs, on an account of what the plan gives to whom."""

    def find(self, job: JobView, closed: NodeMask | None, *, trial: bool) -> list[Share] | Reason:
        """Shares off the nodes (N,) that are `closed`, or why there are none; then `follow`.

        In a `trial` nobody will be told why.
        """
        ...

    def follow(self, job: JobView) -> None:
        """What the plan gives this job may have changed."""
        ...

    def need(self, job: JobView) -> Need:
        """Equal for jobs that find the same places."""
        ...


@dataclass(frozen=True, slots=True)
class RuleSeats:
    """Implements `Seats` by a rule, on the books of the plan itself."""

    place: Place
    view: View
    draft: Draft
    needs: GangNeeds

    def find(self, job: JobView, closed: NodeMask | None, *, trial: bool) -> list[Share] | Reason:
        """As many tasks on each node as the rule says."""
        del trial
        whole = self.view.gpus_per_node()
        mask = self.view.eligible(job.spec)
        within = None if closed is None else np.where(closed, 0, whole)
        if closed is not None:
            mask = ~closed if mask is None else mask & ~closed
        shares = shares_of(job, self.draft, self.place, whole, within, mask)
        return no_room(job.spec, self.view, self.draft) if shares is None else shares

    def follow(self, job: JobView) -> None:
        """The plan keeps its own books."""

    def need(self, job: JobView) -> Need:
        """What it asks for, and where it may go."""
        return self.needs.of(job.spec, self.view)


class GangNeeds:
    """The needs of jobs, worked out once for each and numbered, as numbers are quick to compare."""

    def __init__(self) -> None:
        """None are known."""
        self._known: dict[str, tuple[JobSpec, Need]] = {}
        self._numbers: dict[Need, int] = {}

    def of(self, spec: JobSpec, view: View) -> Need:
        """What a job asks for, and where it may go; worked out anew once it was edited."""
        known = self._known.get(spec.id)
        if known is None or known[0] is not spec:
            masks = mask_keys(role_masks(view, spec))
            need = spec.roles, spec.gpu_models, spec.power_profile, spec.profile, *masks
            number = self._numbers.setdefault(need, len(self._numbers))
            known = self._known[spec.id] = spec, (number,)
        return known[1]

    def forget(self, job_id: str) -> None:
        """A job is gone; numbers go with the last one."""
        self._known.pop(job_id, None)
        if not self._known:
            self._numbers = {}


SeatsOf = Callable[[View, Draft], Seats]


@dataclass(slots=True, kw_only=True)
class Gang:
    """By priority, whole; among the queues of `queues`, where there are any.

    `place` chooses nodes by how many tasks each could take; `seats` takes its part, where given.
    """

    place: Place = consolidated
    seats: SeatsOf | None = None
    patience_s: float = PATIENCE_S
    queues: QueueRules | None = None
    kept: JobView | None = None
    """The gang that went before all others at the last plan."""

    def plan(self, view: View, draft: Draft) -> None:
        """Try who may hope, in turn."""
        memory: _Line = view.memory.setdefault(_MEMORY, _Line())
        if self.seats is None:
            seats: Seats = RuleSeats(self.place, view, draft, memory.needs)
        else:
            seats = self.seats(view, draft)
        _Round(self, view, draft, seats, memory).run()


@dataclass(slots=True)
class _Line:
    """Who waits, and since when; what kept them when they were tried last."""

    waiting: dict[str, JobView] = field(default_factory=dict)
    since_s: dict[str, float] = field(default_factory=dict)
    lacks: dict[str, ReasonCode] = field(default_factory=dict)
    wide: list[tuple[tuple[int, int], JobView]] = field(default_factory=list)
    """Those of several tasks, in turn."""
    wide_since: list[tuple[float, int]] = field(default_factory=list)
    """Since when each of those has waited, ascending, and its number."""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By id where each of those stands in `wide`."""
    heard: bool = False
    running: dict[str, int] = field(default_factory=dict)
    """Of all who had a plan when this one began, the priority."""
    priorities: Counter[int] = field(default_factory=Counter)
    """How many of those have each."""
    needs: GangNeeds = field(default_factory=GangNeeds)
    kinds: KindLines | None = None
    """All of them by kind, where nothing but need and priority decides; None: not asked for."""

    def hear(self, view: View) -> None:
        """Note which priorities run; nobody with a plan can be given another one."""
        changed = [*view.entered(), *view.replanned()] if self.heard else view.live()
        self.heard = True
        for job in view.left():
            self._runs(job.id, None)
        for job in changed:
            self._runs(job.id, job.spec.priority if job.wanted else None)

    def _runs(self, job_id: str, priority: int | None) -> None:
        before = self.running.pop(job_id, None)
        if before is not None:
            self.priorities[before] -= 1
            if not self.priorities[before]:
                del self.priorities[before]
        if priority is not None:
            self.running[job_id] = priority
            self.priorities[priority] += 1

    def drop(self, job_id: str) -> None:
        self.lacks.pop(job_id, None)
        self.waiting.pop(job_id, None)
        since_s = self.since_s.pop(job_id, 0.0)
        if self.kinds is not None:
            self.kinds.remove(job_id)
        place = self.places.pop(job_id, None)
        if place is not None:
            del self.wide[bisect_left(self.wide, (place,))]
            del self.wide_since[bisect_left(self.wide_since, (since_s, place[1]))]

    def join(self, job: JobView, now_s: float) -> None:
        """One that came waits since it was submitted, one that was stopped from now on."""
        if job.id in self.waiting:
            return
        self.waiting[job.id] = job
        since_s = now_s if job.service_s(now_s) else job.spec.submit_s
        self.since_s[job.id] = since_s
        if _tasks(job.spec) > 1:
            place = self.places[job.id] = turn(job)  # not asked again: an edit may change it
            insort(self.wide, (place, job))
            insort(self.wide_since, (since_s, job.number))

    def stand(self, jobs: Iterable[JobView], view: View) -> None:
        """Have jobs that wait stand among those of their kind."""
        if self.kinds is None:
            return
        for job in jobs:
            if job.id not in self.kinds:
                self.kinds.add(job, self._standing(job, view))

    def _standing(self, job: JobView, view: View) -> Standing:
        """Joules left to it are a job's own, and so is what follows from them."""
        spec = job.spec
        own = job.id if spec.energy_budget_j is not None else ""
        kind = (*self.needs.of(spec, view), spec.priority, STOPS_NOBODY in spec.labels, own)
        return Standing(_LINE, kind, (-spec.priority,))


@dataclass(slots=True)
class _Round:
    """One look through those who wait."""

    planner: Gang
    view: View
    draft: Draft
    seats: Seats
    line: _Line
    turns: QueueTurns | None = None
    kept: tuple[JobView, NodeMask | None] | None = None
    """The gang that goes first, and the nodes that others keep off (None: all)."""
    hopeless: dict[Need, Reason] = field(default_factory=dict)
    """Needs for which no room was found since something was given back, and why."""
    immovable: set[Need] = field(default_factory=set)
    """Needs for which nobody could be stopped to any avail, since somebody was stopped."""
    fresh: list[JobView] = field(default_factory=list)
    """Those who came."""
    changes: int = 0
    """How often something has happened after which others of a kind may fare differently."""
    stopped: list[JobView] = field(default_factory=list)
    """Those who made room; their turn is in the next plan."""
    own: bool = False
    """Whether a trial for the job at hand was refused for reasons of its own."""

    def run(self) -> None:
        everybody = self._hear()
        self.kept = self._out_of_patience()
        if (None if self.kept is None else self.kept[0]) is not self.planner.kept:
            everybody = True  # nodes are for everybody again, or no more
        self.planner.kept = None if self.kept is None else self.kept[0]
        if self.planner.seats is None and self.planner.queues is None:
            self._walk()
        else:
            self.line.kinds = None
            self._each(self.line.waiting.values() if everybody else self._hopeful())
        if self.turns is not None:
            self.turns.end()
        self._ask_for_wake()

    def _each(self, trying: Iterable[JobView]) -> None:
        """Look at one after the other."""
        for job in self._in_turn(trying):
            refused = self._try(job)
            if refused is None:
                self.line.drop(job.id)
                continue
            self.line.lacks[job.id] = refused.code
            self.draft.wait(job, refused)

    def _walk(self) -> None:
        """The same for everybody, where those of a kind fare alike: one of each is looked at."""
        line = self.line
        if line.kinds is None:
            line.kinds = KindLines()
            self.fresh = list(line.waiting.values())
        line.stand(self.fresh, self.view)
        first = () if self.kept is None else (self.kept[0].id,)
        apart = line.kinds.entries(first, (_LINE,))
        walk = KindWalk(line.kinds.of(_LINE), apart, self._changes, self._wait)
        for job in walk:
            before, self.own = self.changes, False
            refused = self._try(job)
            if job.id in apart:
                self.changes += 1  # whoever comes after it may be held up by it
            if refused is None:
                line.drop(job.id)
                continue
            self._wait([job], refused)
            # Where nodes are left to those behind the kept gang, each asks for itself.
            alone = self.own or (self._held_up(job) and self._some_closed())
            if self.changes == before and not alone:
                walk.pass_over(refused)
        line.stand([job for job in self.stopped if job.id in line.waiting], self.view)

    def _changes(self) -> int:
        return self.changes

    def _wait(self, jobs: Sequence[JobView], refused: Reason) -> None:
        # What kept those of one task nobody asks.
        wide = [job.id for job in jobs if job.id in self.line.places]
        self.line.lacks.update(dict.fromkeys(wide, refused.code))
        self.draft.wait_alike(jobs, refused)

    def _hear(self) -> bool:
        """Who came, who went; whether there may be room that was not there before."""
        self.line.hear(self.view)
        room = self.planner.seats is None or self.view.woke
        for job in self.view.left():
            self.line.drop(job.id)
            self.line.needs.forget(job.id)
            self.seats.follow(job)
            room = True
        for job in self.view.entered():
            self.seats.follow(job)
            if job.wanted:
                self.line.drop(job.id)
            else:
                self.line.join(job, self.view.now_s)
                self.fresh.append(job)
        return room

    def _hopeful(self) -> list[JobView]:
        """Those who came, and those whom watts kept last time."""
        lacks = self.line.lacks
        kept = [job for job_id, job in self.line.waiting.items() if lacks.get(job_id) in _OF_WATTS]
        return [*self.fresh, *kept]

    def _in_turn(self, trying: Iterable[JobView]) -> Iterable[JobView]:
        once = list({job.id: job for job in trying}.values())
        rules = self.planner.queues
        if rules is None:
            return sorted(once, key=turn)
        self.turns = QueueTurns(rules, self.view, self.line.waiting.values(), turn)
        return self.turns.in_turn(once)

    # The gang that waits too long -----------------------------------------------------------------

    def _out_of_patience(self) -> tuple[JobView, NodeMask | None] | None:
        """The first gang that has waited for room too long and would fit if nobody were there."""
        now_s, patience_s = self.view.now_s, self.planner.patience_s
        since_s, lacks = self.line.since_s, self.line.lacks
        for _, job in self.line.wide:
            late = now_s - since_s[job.id] >= patience_s and lacks.get(job.id) in _OF_ROOM
            if late and self._fits_when_empty(job.spec):
                return job, self._union(job.spec)
        return None

    def _fits_when_empty(self, spec: JobSpec) -> bool:
        for number, role in enumerate(spec.roles):
            room, mask = self._tasks_when_empty(role), able_nodes(self.view, spec, number)
            if int((room if mask is None else room[mask]).sum()) < role.count:
                return False
        return True

    def _tasks_when_empty(self, role: TaskRole) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """(N,) how many tasks of a role each node has room for with nobody on it."""
        gpus = self.view.gpus_per_node()
        nodes = self.view.nodes()
        room = np.full(len(nodes), role.count, dtype=np.int64)
        if role.gpu_count:
            a_gpu = max(1, WHOLE_GPU_MILLI // max(1, role.gpu_milli))
            room = np.minimum(room, whole_tasks(role, gpus * a_gpu, room))
        if role.cpu_milli:
            room = np.minimum(room, [node.cpu_milli // role.cpu_milli for node in nodes])
        if role.memory_mib:
            room = np.minimum(room, [node.memory_mib // role.memory_mib for node in nodes])
        return room

    def _union(self, spec: JobSpec) -> NodeMask | None:
        """Nodes that any role may use; None: all."""
        found: NodeMask | None = None
        for mask in role_masks(self.view, spec) or (None,):
            if mask is None:
                return None
            found = mask if found is None else found | mask
        return found

    def _held_up(self, job: JobView) -> bool:
        return self.kept is not None and turn(self.kept[0]) < turn(job)

    # One after the other --------------------------------------------------------------------------

    def _try(self, job: JobView) -> Reason | None:
        """Start a job, or plan its start for when others have made room; else why not."""
        refused = None if self.turns is None else self.turns.refused(job)
        if refused is not None:
            stops = self.turns is not None and self.turns.stops_for_quota(job)
            return None if stops and self._make_room(job) else refused
        need = self.seats.need(job)
        held_up = self._held_up(job)
        if not held_up and need in self.hopeless:
            refused = self.hopeless[need]
        else:
            refused = self._begin(job, held_up=held_up)
        if refused is None:
            if self.kept is not None and self.kept[0] is job:
                self.kept = None
            return None
        if held_up:
            return refused
        self.hopeless[need] = refused
        return None if self._make_room(job) else refused

    def _begin(self, job: JobView, *, held_up: bool, trial: bool = False) -> Reason | None:
        """Start a job where there is room for it; else why there is none."""
        closed = self._closed() if held_up else None
        if held_up and closed is None:
            return self._behind()
        first: Reason | None = None
        single = _tasks(job.spec) == 1
        for _ in range(_MOST_TRIES if single else 1):
            found = self.seats.find(job, closed, trial=trial)
            if isinstance(found, Reason):
                return first or (self._behind() if held_up else found)
            refused = self.draft.start(job, found)
            self.seats.follow(job)
            if refused is None or refused.code not in _OF_WATTS:
                return refused
            first = first or refused
            closed = self._without(closed, found)
        return first

    def _some_closed(self) -> bool:
        """Whether those behind the kept gang keep off some nodes and not off all."""
        return self.kept is not None and self.kept[1] is not None

    def _closed(self) -> NodeMask | None:
        """Nodes that those behind the kept gang keep off; None: there are no others."""
        return None if self.kept is None or self.kept[1] is None else self.kept[1].copy()

    def _without(self, closed: NodeMask | None, shares: Iterable[Share]) -> NodeMask:
        if closed is None:
            closed = np.zeros(len(self.view.nodes()), dtype=np.bool_)
        closed[[share.node for share in shares]] = True
        return closed

    def _behind(self) -> Reason:
        first = "" if self.kept is None else self.kept[0].id
        return Reason(
            code=ReasonCode.WAITING_FOR_TURN,
            since_s=self.view.now_s,
            unblocks=f"{first} came first and has waited for long",
        )

    # Room that others make ------------------------------------------------------------------------

    def _make_room(self, job: JobView) -> bool:
        """Stop the fewest without whom it fits, of those who matter less; whether there are any."""
        if STOPS_NOBODY in job.spec.labels or self._held_up(job):
            return False
        case = (*self.seats.need(job), job.spec.priority, job.spec.queue, job.spec.user)
        if case in self.immovable:
            return False
        may_stop = self._may_stop(job)
        if not may_stop:
            self.immovable.add(case)
            return False
        begin = self.draft.mark()
        taken: list[tuple[JobView, list[Share]]] = []
        for victim in may_stop:
            taken.append((victim, shares_held(victim)))
            self._stop(job, victim)
            if self._fits(job):
                break
        else:
            self.draft.undo(begin)
            for victim, _ in taken:
                self._is_back(victim)
            self.immovable.add(case)
            return False
        # The most important first: who need not go, stays.
        for victim, before in reversed(taken[:-1]):
            if self.draft.start(victim, before) is not None:
                continue
            self._is_back(victim)
            if not self._fits(job):
                self._stop(job, victim)
        self._begin(job, held_up=False)
        stopped = [victim for victim, _ in taken if not victim.wanted]
        for victim in stopped:
            self.line.join(victim, self.view.now_s)
        self.stopped += stopped
        self.changes += 1
        self.hopeless.clear()
        self.immovable.clear()
        return bool(job.wanted)

    def _may_stop(self, job: JobView) -> list[JobView]:
        """In order."""
        if self.turns is not None:
            return self.turns.may_stop(job, [one for one in self.view.live() if one.wanted])
        # Whoever was started in this plan came before, and matters as much at least.
        if min(self.line.priorities, default=job.spec.priority) >= job.spec.priority:
            return []
        lower = [
            one for one in self.view.live() if one.wanted and one.spec.priority < job.spec.priority
        ]
        return sorted(lower, key=lambda one: (one.spec.priority, -one.number))

    def _stop(self, job: JobView, victim: JobView) -> None:
        lower = victim.spec.priority < job.spec.priority
        if self.turns is not None:
            self.turns.book(victim, -1)
        self.draft.stop(
            victim, StopReason.PREEMPTED_FOR_PRIORITY if lower else StopReason.RECLAIMED
        )
        self.seats.follow(victim)

    def _is_back(self, victim: JobView) -> None:
        self.seats.follow(victim)
        if self.turns is not None:
            self.turns.book(victim)

    def _fits(self, job: JobView) -> bool:
        """Whether it could start now; it does not."""
        if self.turns is not None and self.turns.refused(job) is not None:
            return False
        mark = self.draft.mark()
        refused = self._begin(job, held_up=False, trial=True)
        self.draft.undo(mark)
        self.seats.follow(job)
        self.own |= refused is not None and refused.code in _OF_ITS_OWN
        return refused is None

    def _ask_for_wake(self) -> None:
        """Patience ends without any event."""
        now_s, patience_s = self.view.now_s, self.planner.patience_s
        ends = self.line.wide_since
        first = bisect_right(ends, now_s, key=lambda end: end[0] + patience_s)
        if first < len(ends) and ends[first][0] + patience_s < np.inf:
            self.draft.wake_at(ends[first][0] + patience_s)


def turn(job: JobView) -> tuple[int, int]:
    """By priority, then in order of coming."""
    return -job.spec.priority, job.number


def _tasks(spec: JobSpec) -> int:
    return sum(role.count for role in spec.roles)


def no_room(spec: JobSpec, view: View, draft: Draft) -> Reason:
    """There are too few free GPUs, or they are scattered."""
    free, asked = draft.free_gpu_total(), spec.gpus
    scattered = free >= asked > 0
    return make_reason(
        code=ReasonCode.FRAGMENTED if scattered else ReasonCode.WAITING_FOR_GPUS,
        since_s=view.now_s,
        asked=asked,
        in_use=view.gpu_total() - free,
        available=free,
        unit="GPUs",
        unblocks="free GPUs on fewer nodes" if scattered else "others end",
    )


def shares_held(job: JobView) -> list[Share]:
    """What the plan gives a job, device for device."""
    return [
        Share(node=one.node, tasks=one.tasks, role=one.role, gpus=one.gpus) for one in job.wanted
    ]
