"""Gavel (Narayanan et al., OSDI'20): shares of time on every worker type, given out in rounds.

A goal (max-min fairness, finish-time fairness, makespan; or FIFO) says which share of its time
each job should spend on each type. Rounds realise the shares: in each one, the jobs furthest
behind on a type run there, as many as fit, type by type. A round lasts until the last of its jobs
has done as many whole steps as end within `round_s`. Jobs that stay on their type stay where they
are (their lease is extended).

Shares are worked out anew when jobs came or went, at most every `reset_s`; a job that came since
has to wait for that. The solver runs outside: the round begins when its answer is there.

The defaults are those of the released scheduler. This planner keeps its own rounds, so run the
core without `round_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable, types_of, whole_steps
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask, inside
from wattherd.policy.schedule.gavel_goals import FIFO, GavelApplicant, IsolatedTime, fifo, question
from wattherd.policy.schedule.gavel_lp import GOALS, KIND
from wattherd.policy.schedule.node_choice import most_free

# --- What Gavel's rounds keep of every job: the share it is owed and the time it received.
#
# Worker types are numbered; lists below are by type. Time counts from the last reset, which comes
# with new shares; what a job got more or less than its share until then is carried on as a deficit.
# Every job starts with half a round on every type, so that no ratio is infinite (Gavel's released
# scheduler).

NEW_SHARE_PRIORITY = 1e9
"""Per unit of share, where no time was received by anybody yet."""


@dataclass(slots=True)
class GavelStanding:
    """One job; `shares` is None until it was part of an allocation."""

    job_id: str
    number: int
    received_s: list[float]
    deficit_s: list[float]
    shares: Sequence[float] | None = None

    def share(self, worker_type: int) -> float:
        """The part of time it is owed on a type."""
        return self.shares[worker_type] if self.shares is not None else 0.0


@dataclass(slots=True)
class GavelAccount:
    """All jobs that take part, in order of arrival."""

    types: int
    half_round_s: float
    standings: dict[str, GavelStanding] = field(default_factory=dict)
    received_s: list[float] = field(default_factory=list)
    reset_s: float = 0.0

    def __post_init__(self) -> None:
        """Nobody has received anything."""
        self.received_s = [0.0] * self.types

    def enter(self, job_id: str, number: int) -> None:
        """Take a job in; it is owed nothing before the next allocation."""
        self.standings[job_id] = GavelStanding(
            job_id, number, [self.half_round_s] * self.types, [0.0] * self.types
        )

    def leave(self, job_id: str) -> None:
        """Forget a job; the time it received stays in the totals until the next reset."""
        del self.standings[job_id]

    def book(self, job_id: str, worker_type: int, seconds: float) -> None:
        """Note time received on a type, by a job that may be gone by now."""
        standing = self.standings.get(job_id)
        if standing is not None:
            standing.received_s[worker_type] += seconds
        self.received_s[worker_type] += seconds

    def reset(self, now_s: float) -> None:
        """Carry over what was owed and not received; time counts from here."""
        elapsed_s = now_s - self.reset_s
        for worker_type in range(self.types):
            self.received_s[worker_type] = 0.0
            for standing in self.standings.values():
                got_s = standing.received_s[worker_type] - self.half_round_s
                standing.deficit_s[worker_type] += standing.share(worker_type) * elapsed_s - got_s
                standing.received_s[worker_type] = self.half_round_s
                self.received_s[worker_type] += self.half_round_s
        self.reset_s = now_s

    def grant(self, shares: Mapping[str, Sequence[float]]) -> None:
        """New shares, of these jobs and no others."""
        for standing in self.standings.values():
            standing.shares = shares.get(standing.job_id)

    def priority(self, standing: GavelStanding, worker_type: int) -> float:
        """The share owed over the fraction of the type's time received (OSDI'20, section 5)."""
        share, total_s = standing.share(worker_type), self.received_s[worker_type]
        fraction = standing.received_s[worker_type] / total_s if total_s else 0.0
        return share / fraction if fraction > 0 else share * NEW_SHARE_PRIORITY

    def ranked(self, worker_type: int) -> list[tuple[float, GavelStanding]]:
        """Everybody with their priority on a type, who is furthest behind first."""
        rated = [(self.priority(one, worker_type), one) for one in self.standings.values()]
        return sorted(
            rated,
            key=lambda pair: (
                -pair[0],
                -pair[1].deficit_s[worker_type],
                -pair[1].share(worker_type),
                pair[1].number,
            ),
        )


ROUND_S, RESET_S = 360.0, 1920.0
BLIND = "max-min-agnostic"
"""The goal that takes all types for equal; it has no best one to fill first either."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A job's part in a round: until when it has steps to do, on which type."""

    job_id: str
    number: int
    worker_type: int
    finish_s: float


@dataclass(slots=True)
class _Memory:
    """What Gavel remembers; types are numbered alphabetically among those of the cluster."""

    types: list[str]
    node_type: NDArray[np.int64]
    account: GavelAccount
    shuffle: WorkerTypeShuffle
    alone: IsolatedTime = field(default_factory=IsolatedTime)
    count: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gpus: list[int] = field(default_factory=list)
    rates: dict[tuple[object, ...], tuple[float, ...]] = field(default_factory=dict)
    masks: dict[str, NodeMask] = field(default_factory=dict)
    """Nodes (N,) of the jobs that may not use all of them."""
    slots: list[_Slot] = field(default_factory=list)
    changed: bool = True
    asked: str = ""
    asked_for: list[str] = field(default_factory=list)
    awaited: bool = False
    """Whether a wake-up is on its way."""
    unmet: bool = False
    """Whether jobs came while an answer was awaited."""
    began_s: float = 0.0
    next_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel:
    """Shares by `goal`, one of `gavel_lp.GOALS` or `fifo`, with the measured rates of `table`.

    `last_submit_s`, the last submission of a trace, repeats how the published simulator treats
    idle times: while submissions are still to come, jobs that came after the last allocation wait
    for the next one if nothing else runs; idle time counts as received by the jobs that run next;
    and after the last submission, deficits count from time 0 where nothing ran. Left out, an idle
    cluster has shares worked out at once, and time counts from the beginning of a round.
    """

    table: ThroughputTable
    goal: str = "max-min"
    round_s: float = ROUND_S
    reset_s: float = RESET_S
    seed: int = 0
    last_submit_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a goal that nobody knows."""
        if self.goal not in (*GOALS, FIFO):
            known = ", ".join((*GOALS, FIFO))
            raise UserError(f"no Gavel goal {self.goal!r}", hint=f"one of {known}")

    def plan(self, view: View, draft: Draft) -> None:
        """Begin a round when it is time, fill it when the shares are known."""
        memory = self._remembered(view)
        answer = view.computed(KIND) if memory.asked else None
        if answer is not None and answer.key == memory.asked:
            memory.asked = ""
            if answer.result is None:
                memory.changed = True  # keep the old shares, and ask again when it is time
            else:
                shares = zip(memory.asked_for, answer.result["shares"], strict=True)
                memory.account.grant(dict(shares))
            self._fill(view, draft, memory)
        elif view.woke and not memory.asked:
            self._begin(view, draft, memory)
        elif not memory.awaited and not memory.asked:
            draft.wake_at(view.now_s)
            memory.awaited = True
        else:
            memory.unmet |= bool(view.entered())
            _greet(view, draft, memory)

    def _remembered(self, view: View) -> _Memory:
        memory: _Memory | None = view.memory.get("gavel")
        if memory is None:
            models = [node.gpu_model if node.gpu_count else "" for node in view.nodes()]
            names = types_of(self.table, models)
            types = sorted(set(names) - {""})
            memory = view.memory["gavel"] = _Memory(
                types=types,
                node_type=np.array([types.index(name) if name else -1 for name in names]),
                account=GavelAccount(len(types), self.round_s / 2.0),
                shuffle=WorkerTypeShuffle(self.seed),
            )
        return memory

    # A round begins -----------------------------------------------------------------------------

    def _begin(self, view: View, draft: Draft, memory: _Memory) -> None:
        memory.awaited = False
        self._settle(memory, view.now_s)
        self._meet(view, draft, memory)
        if not self._due(memory, view.now_s) or not self._ask(view, draft, memory):
            self._fill(view, draft, memory)

    def _settle(self, memory: _Memory, now_s: float) -> None:
        """Book the time that jobs received in the round that is over."""
        since_s = memory.began_s
        for slot in sorted(memory.slots, key=lambda slot: (-slot.finish_s, slot.number)):
            seconds = min(slot.finish_s, now_s) - since_s
            memory.account.book(slot.job_id, slot.worker_type, seconds)
        if memory.slots:
            memory.began_s = now_s
        if self.last_submit_s is None:
            memory.began_s = now_s
        memory.slots = []

    def _meet(self, view: View, draft: Draft, memory: _Memory) -> None:
        """See who came and went, and which GPUs there are."""
        count = view.gpus_per_node()
        gpus = [int(count[memory.node_type == j].sum()) for j in range(len(memory.types))]
        if not np.array_equal(count, memory.count):
            memory.count, memory.gpus, memory.rates, memory.changed = count, gpus, {}, True
        memory.unmet = False
        jobs = {job.id: job for job in view.live()}
        masks = {job.id: view.eligible(job.spec) for job in jobs.values()}
        memory.masks = {name: mask for name, mask in masks.items() if mask is not None}
        for gone in [name for name in memory.account.standings if name not in jobs]:
            memory.account.leave(gone)
            memory.changed = True
        for job in jobs.values():
            known, able = job.id in memory.account.standings, any(self._rates(memory, job))
            if able and not known:
                memory.account.enter(job.id, job.number)
            elif known and not able:
                memory.account.leave(job.id)
            memory.changed |= able != known
            if not able and not job.wanted:
                draft.wait(job, _nowhere(job, _tasks(memory, job), view.now_s))

    def _rates(self, memory: _Memory, job: JobView) -> tuple[float, ...]:
        """Steps per second on every type, 0 where it does not run or never fits."""
        role, kind, scale = job.spec.roles[0], job.spec.profile, job.spec.gpus
        mask = memory.masks.get(job.id)
        key: tuple[object, ...] = (kind, scale, role.gpu_count)
        if mask is not None:
            key += (mask.tobytes(),)
        known = memory.rates.get(key)
        if known is None:
            known = memory.rates[key] = tuple(
                self.table.rate(name, kind, scale) if tasks >= role.count else 0.0
                for name, tasks in zip(memory.types, _tasks(memory, job), strict=True)
            )
        return known

    # Shares -------------------------------------------------------------------------------------

    def _due(self, memory: _Memory, now_s: float) -> bool:
        account = memory.account
        first = account.reset_s == 0.0
        return memory.changed and (first or now_s - account.reset_s >= self.reset_s)

    def _ask(self, view: View, draft: Draft, memory: _Memory) -> bool:
        """Have shares worked out; False if they are there already."""
        memory.account.reset(view.now_s)
        memory.changed = False
        applicants = [self._applicant(memory, job, view.now_s) for job in _known(view, memory)]
        if not applicants:
            memory.account.grant({})
        elif self.goal == FIFO:
            memory.account.grant(fifo(applicants, memory.gpus))
        else:
            payload = question(self.goal, applicants, memory.gpus, memory.alone)
            memory.asked = draft.compute(KIND, payload)
            memory.asked_for = [one.job_id for one in applicants]
        return bool(memory.asked)

    def _applicant(self, memory: _Memory, job: JobView, now_s: float) -> GavelApplicant:
        return GavelApplicant(
            job_id=job.id,
            rates=self._rates(memory, job),
            scale=job.spec.gpus,
            weight=job.spec.weight,
            left=max(_left(job) or 1, 1),
            elapsed_s=now_s - job.spec.submit_s,
        )

    # The round is filled ------------------------------------------------------------------------

    def _fill(self, view: View, draft: Draft, memory: _Memory) -> None:
        jobs = {job.id: job for job in _known(view, memory)}
        chosen = self._choose(memory, jobs)
        if chosen:
            self._run(view, draft, memory, jobs, chosen)
            return
        over = self.last_submit_s is None or view.now_s >= self.last_submit_s
        if jobs and memory.changed and over:
            # Nothing runs that would end this round: those who came since are allotted now.
            if self.last_submit_s is not None:
                memory.account.reset_s = 0.0
            if not self._ask(view, draft, memory):
                self._fill(view, draft, memory)
        elif memory.unmet:
            draft.wake_at(view.now_s)
            memory.awaited = True

    def _choose(self, memory: _Memory, jobs: Mapping[str, JobView]) -> dict[str, int]:
        """Who runs on which type, furthest behind first; one without share may hold a place."""
        order = [name for name in self.table.types if name in memory.types]
        if self.goal == BLIND:
            order = memory.shuffle.shuffled(order)
        taken: dict[str, int] = {}
        for worker_type in map(memory.types.index, order):
            room = memory.gpus[worker_type]
            for priority, standing in memory.account.ranked(worker_type):
                job = jobs.get(standing.job_id)
                if room == 0:
                    break
                if job is None or job.id in taken or job.spec.gpus > room:
                    continue
                if self.goal == FIFO and priority <= 0:
                    continue
                if self._rates(memory, job)[worker_type] > 0:
                    room -= job.spec.gpus
                    taken[job.id] = worker_type
        standings = memory.account.standings
        return {name: at for name, at in taken.items() if standings[name].shares is not None}

    def _run(
        self,
        view: View,
        draft: Draft,
        memory: _Memory,
        jobs: Mapping[str, JobView],
        chosen: Mapping[str, int],
    ) -> None:
        """Stop those whose turn is over, start the others, and set the round's end."""
        now_s = view.now_s
        for job in jobs.values():
            at = chosen.get(job.id)
            if job.wanted and memory.node_type[job.wanted[0].node] != at:
                moves = at is not None
                why = StopReason.MIGRATED if moves else StopReason.PREEMPTED_FOR_PRIORITY
                draft.stop(job, why)
        _place(draft, memory, [(jobs[name], at) for name, at in chosen.items()], now_s)
        running = [job for job in jobs.values() if job.wanted]
        memory.slots = [self._slot(memory, job, chosen[job.id], now_s) for job in running]
        end_s = max((slot.finish_s for slot in memory.slots), default=now_s)
        memory.next_s = end_s if end_s > now_s else now_s + self.round_s
        draft.wake_at(memory.next_s)
        memory.awaited = True
        for job in jobs.values():
            if not job.wanted and job.id not in chosen:
                draft.wait(job, _waits(job, memory, now_s))

    def _slot(self, memory: _Memory, job: JobView, worker_type: int, now_s: float) -> _Slot:
        rate = self._rates(memory, job)[worker_type]
        steps = whole_steps(rate, self.round_s, _left(job))
        return _Slot(job.id, job.number, worker_type, now_s + steps / rate)


def _known(view: View, memory: _Memory) -> list[JobView]:
    return [job for job in view.live() if job.id in memory.account.standings]


def _left(job: JobView) -> int | None:
    return None if job.spec.steps is None else job.spec.steps - int(job.progress)


def _place(
    draft: Draft, memory: _Memory, chosen: Sequence[tuple[JobView, int]], now_s: float
) -> None:
    """Give newcomers of the round their devices, the largest first: on one node if one has room.

    Those that may not use all nodes choose before them.
    """

    def turn(pair: tuple[JobView, int]) -> tuple[bool, int]:
        return pair[0].id not in memory.masks, -pair[0].spec.gpus

    for job, worker_type in sorted(chosen, key=turn):
        if job.wanted:
            continue
        tasks = job.spec.roles[0].count
        room = np.where(memory.node_type == worker_type, draft.room(job), 0)
        roomy = np.flatnonzero(room >= tasks)
        if len(roomy):
            shares = [Share(int(roomy[np.argmin(room[roomy])]), tasks)]
        else:
            shares = most_free(room, tasks) or []
        if shares:
            draft.start(job, shares)
        else:
            draft.wait(job, _fragmented(tasks, int(room.sum()), now_s))


def _greet(view: View, draft: Draft, memory: _Memory) -> None:
    """Tell those who came during a round when the next one begins."""
    for job in view.entered():
        if not job.wanted and job.id not in memory.account.standings:
            draft.wait(job, _waits(job, memory, view.now_s))


def _waits(job: JobView, memory: _Memory, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.gpus,
        available=0,
        unit="GPUs of one type",
        unblocks=f"others are further behind their share; next round at {memory.next_s:.0f} s",
    )


def _fragmented(asked: int, available: int, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.FRAGMENTED,
        since_s=now_s,
        asked=asked,
        available=available,
        unit="tasks on one type",
        unblocks="its turn has come, but the free devices are not together",
    )


def _tasks(memory: _Memory, job: JobView) -> list[int]:
    """How many of the job's tasks the GPUs of each type could hold if all were free."""
    each = inside(memory.count // max(job.spec.roles[0].gpu_count, 1), memory.masks.get(job.id))
    return [int(each[memory.node_type == j].sum()) for j in range(len(memory.types))]


def _nowhere(job: JobView, tasks: Sequence[int], now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.NEVER_FITS,
        since_s=now_s,
        asked=job.spec.roles[0].count,
        available=max(tasks, default=0),
        unit="tasks on one type",
        unblocks=f"no type holds that many and has a throughput of {job.spec.profile!r}",
    )


SEED_OFFSET = 5
"""The published scheduler's generator for this purpose is seeded by the run's seed plus this."""


class WorkerTypeShuffle:
    """Orders in which the published simulation goes through worker types, one a round.

    Policies that don't look at throughputs go through the types in an order that Python's generator
    shuffles anew each round. Published results follow from it, so it is drawn here the same way: a
    Mersenne Twister seeded by array, and a shuffle from the end by rejection of random bits.
    """

    def __init__(self, seed: int) -> None:
        """`seed` is that of the published run."""
        key = [seed + SEED_OFFSET]  # a list, because a number would be seeded in another way
        self._words = np.random.RandomState(key)

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """The items in the next order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self._below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def _below(self, limit: int) -> int:
        bits = limit.bit_length()
        while True:
            drawn = int(self._words.randint(1 << 32, dtype=np.uint32)) >> (32 - bits)
            if drawn < limit:
                return drawn
