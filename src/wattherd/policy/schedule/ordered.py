"""Jobs in an order: FIFO, priority, deadline, SJF, SRTF, SRSF, 2D-LAS, 2D-Gittins and the like.

The order says whose turn it is (`orders`), the placement which nodes a gang gets (`placements`).
What happens when a job's turn has come and it does not fit is the discipline's to say: later ones
may pass it (FIRST_FIT), nothing passes it (STRICT), or what passes must not delay it (BACKFILL:
EASY, with a reservation for the first job that waits). A preemptive planner takes devices from
jobs that come later; they stay where they are otherwise.

`anew` is how the published simulators of Tiresias (NSDI'19) and Muri (SIGCOMM'22) decide: at every
event the whole cluster is packed anew in order, by counting GPUs or by the rule of YARN. What is
admitted is exactly that; a running job is moved only if the others do not fit around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason, make_reason
from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.eligibility import NodeMask, able_nodes, inside
from wattherd.policy.schedule.job_order import Heads, JobOrder, RankingRules
from wattherd.policy.schedule.node_choice import (
    Ints,
    Place,
    confined,
    consolidated,
    shares_of,
    whole_tasks,
)
from wattherd.policy.schedule.priorities import JobStanding
from wattherd.policy.schedule.repack import RepackTrial, admit_anew
from wattherd.policy.schedule.running_jobs import End, LastFirst

# --- EASY backfill: the first job that waits gets a reservation, others may pass if they respect
# it.
#
# The reservation is for the earliest time at which the job fits if nothing new starts and all
# running jobs end when expected. What passes must be through by then, or keep off the devices that
# are reserved (Feitelson and Weil, IPPS'98; Lifka's EASY).


@dataclass(slots=True)
class Reservation:
    """From `at_s` on, others may use `spare` GPUs of each node."""

    at_s: float
    spare: NDArray[np.int64]

    def ends_before(self, standing: JobStanding, now_s: float) -> bool:
        """Whether a job that starts now is through in time."""
        return now_s + standing.pause_s + standing.left_s <= self.at_s

    def take(self, standing: JobStanding, shares: Sequence[Share]) -> bool:
        """Let a job stay on `shares` past the time, if they are spare then."""
        roles = standing.job.spec.roles
        needs = [(share.node, share.tasks * roles[share.role].gpu_count) for share in shares]
        if any(self.spare[node] < gpus for node, gpus in needs):
            return False
        for node, gpus in needs:
            self.spare[node] -= gpus
        return True


def reserve(
    standing: JobStanding, view: View, draft: Draft, ends: Iterable[End], place: Place
) -> Reservation:
    """The reservation for a job that does not fit beside those whose `ends` these are.

    A job that would not fit even then (another resource than its first role's is short) reserves
    nothing: everybody may pass it.
    """
    role = standing.job.spec.roles[0]
    gpus, free, room = view.gpus_per_node(), draft.free_gpus(), draft.room(standing.job)
    mask = able_nodes(view, standing.job.spec)
    whole, each = inside(whole_tasks(role, gpus, room), mask), max(role.gpu_count, 1)
    odd = free % each
    for end_s, _, one in ends:
        for allocation in one.job.wanted:
            free[allocation.node] += len(allocation.gpus)
            if mask is None or mask[allocation.node]:
                _gain(room, odd, allocation, each)
        shares = place(room, whole, role.count)
        if shares is not None:
            for share in shares:
                free[share.node] -= share.tasks * role.gpu_count
            return Reservation(end_s, free)
    return Reservation(math.inf, gpus.copy())


# Of three jobs that leave a node one GPU each none makes room for a task of three; all do.
def _gain(room: Ints, odd: Ints, gone: Allocation, each: int) -> None:
    """Count what a job leaves on a node as tasks of `each` GPUs in `room`; the rest is `odd`."""
    tasks, odd[gone.node] = divmod(int(odd[gone.node]) + len(gone.gpus), each)
    room[gone.node] += tasks


MEMORY = "ordered"
_key = attrgetter("key")
MOST_PASSED = 500
"""So many jobs are looked at in vain behind a reservation, then no more in this cycle (as Slurm's
bf_max_job_test): those who wait far behind would cost more than they bring."""
OF_ITS_OWN = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUEUE_STOPPED, ReasonCode.UNKNOWN_QUEUE)
"""Refusals that say nothing of other jobs of the same shape."""


class Discipline(StrEnum):
    """What may pass a job that does not fit."""

    FIRST_FIT = "first-fit"
    STRICT = "strict"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """One planner for all orders.

    With `wakes` it asks for a cycle when time alone changes the order; without, it leaves that to
    the rounds of the core. With `fastest` a job goes to the GPU model on which it is fastest of
    those with room for it, by `View.rates`, and across models only where no single one has room.
    """

    rules: RankingRules
    place: Place = consolidated
    discipline: Discipline = Discipline.FIRST_FIT
    preemptive: bool = True
    anew: Callable[[Sequence[int]], RepackTrial] | None = None
    wakes: bool = True
    fastest: bool = False

    def plan(self, view: View, draft: Draft) -> None:
        """Admit in order; start what is admitted, stop what has to give way."""
        lineup = view.memory.get(MEMORY)
        if lineup is None:
            lineup = view.memory[MEMORY] = JobOrder(self.rules)
        lineup.update(view)
        if self.anew is None:
            _Cycle(self, view, draft, lineup).run()
        else:
            strict = self.discipline is Discipline.STRICT
            admit_anew(view, draft, lineup, self.anew, self.place, strict=strict)
        _explain(view, draft, lineup)
        self._ask_for_wake(draft, lineup, view.now_s)

    def _ask_for_wake(self, draft: Draft, lineup: JobOrder, now_s: float) -> None:
        """Time changes nothing where nobody waits, unless events cost."""
        if self.wakes and (lineup.waiting or self.rules.cost.every_event):
            wake_s = lineup.wake_s(now_s)
            if wake_s is not None:
                draft.wake_at(wake_s)


class _Turn(Enum):
    """What came of a job's turn."""

    STARTED = auto()
    ALONE = auto()
    """It was refused for reasons of its own: others of its shape may start."""
    ALIKE = auto()
    """There is no room for any job of its shape."""


@dataclass(slots=True)
class _Cycle:
    """One look through the waiting jobs; what it decides is told to the lineup at the end."""

    planner: Ordered
    view: View
    draft: Draft
    lineup: JobOrder
    whole: Ints = field(init=False)
    heads: Heads = field(init=False)
    started: list[JobStanding] = field(default_factory=list)
    victims: dict[str, JobStanding] = field(default_factory=dict)
    moved: list[JobStanding] = field(default_factory=list)
    reservation: Reservation | None = None
    unspared: set[int] = field(default_factory=set)
    """Shapes for which there is no room on the devices that are not reserved."""
    passed: int = 0
    """How many jobs were looked at in vain since there is a reservation."""
    able: dict[str, NodeMask | None] = field(default_factory=dict)
    """Nodes that a job of some GPU models only could ever use."""
    models: dict[str, NodeMask] = field(default_factory=dict)
    """Nodes of each GPU model, once they are asked for."""
    running: LastFirst | None = None
    """Jobs that ran before and come after the first who asked for them."""

    def __post_init__(self) -> None:
        """Waiting jobs in order."""
        self.whole = self.view.gpus_per_node()
        self.heads = Heads(self.lineup.lines)

    def run(self) -> None:
        """Give every waiting job its turn."""
        while self.heads.key is not None:
            standing = self.heads.first
            turn = self._start(standing)
            if turn is _Turn.STARTED or self._preempt_for(standing):
                self.heads.skip()
            else:
                self._blocked(standing, turn)
        now_s = self.view.now_s
        for standing in self.victims.values():
            self.lineup.stopped(standing, now_s)
        for standing in self.moved:
            self.lineup.moved(standing, now_s)
        for standing in self.started:
            self.lineup.started(standing, now_s)
        fallen, self.lineup.fallen = self.lineup.fallen, []
        for standing in fallen:
            if standing.requeued:
                self.lineup.stays(standing, now_s)

    def _start(self, standing: JobStanding) -> _Turn:
        """Start it where it fits now, and keeps off what is reserved unless it ends in time."""
        reservation, shape = self.reservation, standing.shape
        if reservation is None or reservation.ends_before(standing, self.view.now_s):
            shares = self._place(standing)
            return _Turn.ALIKE if shares is None else self._give(standing, shares)
        if shape not in self.unspared:
            shares = self._place(standing, reservation.spare)
            if shares is not None and reservation.take(standing, shares):
                return self._give(standing, shares)
            self.unspared.add(shape)
        return _Turn.ALONE

    def _place(self, standing: JobStanding, within: Ints | None = None) -> list[Share] | None:
        job, mask = standing.job, self._able(standing.job.spec)
        place = self.planner.place
        for nodes in self._by_speed(job.spec):
            narrow = nodes if mask is None else nodes & mask
            shares = shares_of(job, self.draft, confined(place, narrow), self.whole, within, narrow)
            if shares is not None:
                return shares
        return shares_of(job, self.draft, place, self.whole, within, mask)

    def _by_speed(self, spec: JobSpec) -> list[NodeMask]:
        """Nodes of each GPU model, those on which a job is fastest first; none if all are alike."""
        rates = self.view.rates
        if not self.planner.fastest or not spec.gpus or not (rates.differs or rates.tabled):
            return []
        if not self.models:
            nodes = self.view.nodes()
            for model in sorted({node.gpu_model for node in nodes if node.gpu_count}):
                self.models[model] = np.array([node.gpu_model == model for node in nodes])
        found = [(-rates.rate(spec, model).per_s, model) for model in self.models]
        return [self.models[model] for _, model in sorted(found)]

    def _able(self, spec: JobSpec) -> NodeMask | None:
        """Nodes that a job could ever use; the same for all jobs that take the same GPU models."""
        if not spec.gpu_models:
            return self.view.eligible(spec)
        if spec.id not in self.able:
            self.able[spec.id] = able_nodes(self.view, spec)
        return self.able[spec.id]

    def _give(self, standing: JobStanding, shares: Sequence[Share]) -> _Turn:
        """Start it, unless the guard refuses; its reason then stands."""
        refusal = self._refused(standing, shares)
        if refusal is None:
            return _Turn.STARTED
        return _Turn.ALONE if refusal.code in OF_ITS_OWN else _Turn.ALIKE

    def _refused(self, standing: JobStanding, shares: Sequence[Share]) -> Reason | None:
        refusal = self.draft.start(standing.job, shares)
        if refusal is not None:
            self.lineup.fresh.pop(standing.job.id, None)
            return refusal
        if self.victims.pop(standing.job.id, None) is not None:
            self.moved.append(standing)
        else:
            self.started.append(standing)
        return None

    def _blocked(self, standing: JobStanding, turn: _Turn) -> None:
        """It does not start: what may pass it is for the discipline to say, unless it starves."""
        discipline = self.planner.discipline
        if discipline is Discipline.STRICT:
            self.heads.close()
            return
        if discipline is Discipline.BACKFILL or standing.starved:
            self._reserve(standing)
        if self.reservation is not None:
            self.passed += 1
        if self.passed > MOST_PASSED:
            self.heads.close()
        elif turn is _Turn.ALONE:
            self.heads.skip()
        else:
            self.heads.block()

    def _reserve(self, standing: JobStanding) -> None:
        """The first one that does not fit gets a reservation; all after it respect it."""
        if self.reservation is None:
            ends = self.lineup.ends(self.started, self.view.now_s)
            self.reservation = reserve(standing, self.view, self.draft, ends, self.planner.place)

    def _preempt_for(self, standing: JobStanding) -> bool:
        """Take devices from the last jobs in order, no more of them than are needed."""
        if not self.planner.preemptive or self.reservation is not None:
            return False
        if self.running is None:  # whoever asks later comes later
            self.running = self.lineup.behind(standing.key, self.view.now_s)
        later = self.running.until(standing.key)
        victims = self._enough(standing, (one for one in later if one.job.id not in self.victims))
        if not victims:
            return False
        before = self.draft.mark()
        for victim in victims:
            self.draft.stop(victim.job, StopReason.PREEMPTED_FOR_PRIORITY)
        shares = self._place(standing)
        refusal = None if shares is None else self._refused(standing, shares)
        if shares is None or refusal is not None:
            self.draft.undo(before)
            if refusal is not None:
                # The guard's reason went with the trial, but it is why this job waits.
                self.draft.wait(standing.job, refusal)
            return False
        for victim in victims:
            self.victims[victim.job.id] = victim
            self.heads.add(victim)
        return True

    def _enough(self, standing: JobStanding, later: Iterable[JobStanding]) -> list[JobStanding]:
        """The last of those who come `later`, told from there, that make room together, if any."""
        role, mask = standing.job.spec.roles[0], self._able(standing.job.spec)
        room, each = self.draft.room(standing.job), max(role.gpu_count, 1)
        odd = self.draft.free_gpus() % each
        looked: list[JobStanding] = []
        for victim in later:
            looked.append(victim)
            for allocation in victim.job.wanted:
                if mask is None or mask[allocation.node]:
                    _gain(room, odd, allocation, each)
            whole = inside(whole_tasks(role, self.whole, room), mask)
            shares = self.planner.place(room, whole, role.count)
            if shares is not None:
                nodes = {share.node for share in shares}
                return [one for one in looked if _touches(one, nodes)]
        return []


def _touches(standing: JobStanding, nodes: set[int]) -> bool:
    return any(allocation.node in nodes for allocation in standing.job.wanted)


def _explain(view: View, draft: Draft, lineup: JobOrder) -> None:
    """Tell those who began to wait why."""
    if not lineup.fresh:
        return
    total, free = view.gpu_total(), draft.free_gpu_total()
    order = type(lineup.order).__name__
    if lineup.rules.learned is not None:
        order = lineup.rules.learned.about(view)
    for standing in lineup.fresh.values():
        draft.wait(standing.job, _waits(standing, total, free, order))
    lineup.fresh = {}


def _waits(standing: JobStanding, total: int, free: int, order: str) -> Reason:
    scattered = free >= standing.gpus
    return make_reason(
        code=ReasonCode.FRAGMENTED if scattered else ReasonCode.WAITING_FOR_GPUS,
        since_s=standing.since_s,
        asked=standing.gpus,
        in_use=total - free,
        available=free,
        unit="GPUs",
        unblocks=f"others come first by {order}" if not scattered else "free GPUs on fewer nodes",
    )
