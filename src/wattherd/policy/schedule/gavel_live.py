"""Gavel (see `gavel`) on jobs that nobody has measured: shares of time by learned speeds.

Goals, programs and rounds are those of the published system. What differs is what a service lacks,
or would lose by it:

- Speeds by type come from `View.rates`: learned, else a prior of the catalogue. How much is left
  comes from `View.steps_left`; who tells nothing is taken to last as long again as it has run.
- Published rounds are for restarts of about a minute. Here they are as much shorter as restarts
  are, down to a thirtieth.
- Between two rounds free GPUs go to who is furthest behind, and nobody is stopped. So a newcomer
  waits for no answer of the solver where there is room.
- What the guard refuses (watts, limits, stopped queues) is left out, and the round is made again:
  nobody is stopped for a job that may not start.
- An answer that does not come within a round is asked for again.
- Jobs of several roles, without GPUs or on a part of one have no speed by type. They take part in
  no share: they start where there is room, before others do, and run to their end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import able_nodes, inside
from wattherd.policy.schedule.gavel import RESET_S, ROUND_S, GavelAccount
from wattherd.policy.schedule.gavel_goals import FIFO, GavelApplicant, fifo, question
from wattherd.policy.schedule.gavel_lp import GOALS, KIND, isolated_rates
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.policy.schedule.node_choice import (
    confined,
    consolidated,
    shares_of,
    start_where_it_fits,
)
from wattherd.policy.schedule.speed_forecast import tempo_of

YOUNG_S = 60.0
"""A job of which nothing tells how long it lasts is taken to have run for so long at least."""
MOST_LEFT_S = 30 * 86_400.0
"""No job is taken to last longer, whatever it says: goals by length give much to long jobs."""
OTHER_SPEED = 1.1
"""Shares are worked out anew where a speed relative to another type's moves by more than this."""
LOOK_S = 10.0
"""Between two looks while somebody waits, at most."""
LEAST_SHARE = 1e-6
MOST_TRIES = 16
"""Rounds that are made again for what the guard refuses; then nobody is stopped in this one."""

Rates = tuple[float, ...]


@dataclass(slots=True)
class _LiveMemory:
    """What it remembers; types are the GPU models of the site, sorted."""

    types: list[str]
    node_type: NDArray[np.int64]
    account: GavelAccount
    gpus: list[int] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    """On which type jobs run, since the last plan."""
    booked_as: dict[str, int] = field(default_factory=dict)
    """Under which type the round books the time of those that run."""
    booked_s: float = 0.0
    began_s: float | None = None
    """When the round at hand began; None before the first one."""
    next_s: float = 0.0
    """When it ends, by what is known of restarts now."""
    allotted_s: float | None = None
    """When shares were asked for last."""
    changed: bool = True
    asked: str = ""
    asked_for: list[str] = field(default_factory=list)
    relative: dict[str, Rates] = field(default_factory=dict)
    """Speeds by type over the fastest, as shares were worked out for them."""


# Counted in seconds at its fastest, and not in its own steps: goals are the same for it, and a job
# that reports steps in millions gives solvers no numbers that they give up at.
@dataclass(frozen=True, slots=True)
class _SharedJob:
    """A job that takes part: speed by type over its fastest, 0 where it never fits, and its work.

    `left_s` and `done_s` are seconds on its fastest type.
    """

    view: JobView
    relative: Rates
    sources: tuple[str, ...]
    left_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class _ByReports:
    """How long jobs take in an nth of the cluster by themselves: what is done and what is left."""

    work: tuple[float, ...]

    def total_s(self, applicants: Sequence[GavelApplicant], gpus: Sequence[int]) -> list[float]:
        rates = isolated_rates(
            np.array([one.rates for one in applicants]),
            np.array([one.scale for one in applicants], dtype=np.float64),
            np.array(gpus, dtype=np.float64),
        )
        return [work / max(float(rate), 1e-12) for work, rate in zip(self.work, rates, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGavel:
    """Shares by `goal`, one of `gavel_lp.GOALS` or `fifo`, on what a view tells of speeds."""

    goal: str = "max-min"
    foresight: LiveForecast = field(default_factory=LiveForecast)

    def __post_init__(self) -> None:
        """Refuse a goal that nobody knows."""
        if self.goal not in (*GOALS, FIFO):
            known = ", ".join((*GOALS, FIFO))
            raise UserError(f"no Gavel goal {self.goal!r}", hint=f"one of {known}")

    def plan(self, view: View, draft: Draft) -> None:
        """Begin a round when it is time; else give out what is free."""
        memory = self._remembered(view)
        live = view.live()
        _book(memory, view)
        jobs = self._meet(view, memory, live)
        answered = self._hear(view, memory)
        tempo = tempo_of(self.foresight, view, live)
        if memory.began_s is not None:
            memory.next_s = memory.began_s + ROUND_S * tempo
        over = view.now_s >= memory.next_s
        others = [job for job in live if job.id not in jobs]
        asks = over and not answered and self._due(view, memory, jobs, tempo)
        if asks:
            self._ask(view, draft, memory, jobs)
        if over or answered:
            memory.began_s, memory.next_s = view.now_s, view.now_s + ROUND_S * tempo
        # The round of those that are asked for begins with the answer: else jobs would be stopped
        # twice within a second.
        if answered or (over and not (asks and memory.asked)):
            refused = self._round(view, draft, memory, jobs, others)
        else:
            refused = self._top_up(view, draft, memory, jobs, others)
        _tell(view, draft, memory, jobs, others, refused)
        memory.runs = {
            name: int(memory.node_type[one.view.wanted[0].node])
            for name, one in jobs.items()
            if one.view.wanted
        }
        if live:
            # The first round is as long as the prior of restarts has it, until these are learned.
            waits = any(not job.wanted for job in live)
            look_s = view.now_s + LOOK_S if waits else memory.next_s
            draft.wake_at(min(memory.next_s, look_s))

    def _remembered(self, view: View) -> _LiveMemory:
        memory: _LiveMemory | None = view.memory.get("gavel-live")
        if memory is None:
            nodes = view.nodes()
            types = sorted({node.gpu_model for node in nodes if node.gpu_count})
            at = [types.index(node.gpu_model) if node.gpu_count else -1 for node in nodes]
            memory = view.memory["gavel-live"] = _LiveMemory(
                types=types,
                node_type=np.array(at, dtype=np.int64),
                account=GavelAccount(len(types), 1.0),
                booked_s=view.now_s,
            )
        return memory

    # Who takes part -----------------------------------------------------------------------------

    def _meet(
        self, view: View, memory: _LiveMemory, live: Sequence[JobView]
    ) -> dict[str, _SharedJob]:
        count = view.gpus_per_node()
        gpus = [int(count[memory.node_type == at].sum()) for at in range(len(memory.types))]
        memory.changed |= gpus != memory.gpus
        memory.gpus = gpus
        found = [self._shared(view, memory, job, count) for job in live]
        jobs = {one.view.id: one for one in found if one is not None}
        standings = memory.account.standings
        for gone in [name for name in standings if name not in jobs]:
            memory.account.leave(gone)
            memory.relative.pop(gone, None)
            memory.changed = True
        for name, one in jobs.items():
            if name not in standings:
                memory.account.enter(name, one.view.number)
                memory.changed = True
            elif name in memory.relative and _differ(memory.relative[name], one.relative):
                memory.changed = True
        return jobs

    def _shared(
        self, view: View, memory: _LiveMemory, job: JobView, count: NDArray[np.int64]
    ) -> _SharedJob | None:
        """None for who has no speed by type, or fits on no single one."""
        spec = job.spec
        role = spec.roles[0]
        if len(spec.roles) > 1 or not role.gpu_count or role.gpu_memory_mib is not None:
            return None
        each = inside(count // role.gpu_count, able_nodes(view, spec))
        fits = [
            int(each[memory.node_type == at].sum()) >= role.count for at in range(len(memory.types))
        ]
        if not any(fits):
            return None
        steps = [view.rates.steps_per_s(spec, model, spec.gpus) for model in memory.types]
        known = [one for one in steps if one is not None]
        counted = len(known) == len(steps)
        rates = known if counted else [view.rates.rate(spec, model) for model in memory.types]
        per_s = tuple(one.per_s if fit else 0.0 for one, fit in zip(rates, fits, strict=True))
        left_s, done_s = self._work(view, job, max(per_s), counted=counted)
        relative = tuple(one / max(per_s) for one in per_s)
        return _SharedJob(job, relative, tuple(str(one.source) for one in rates), left_s, done_s)

    def _work(
        self, view: View, job: JobView, top_per_s: float, *, counted: bool
    ) -> tuple[float, float]:
        """Left and done; steps tell of it where they were learned."""
        done_s = job.service_s(view.now_s)
        left_s = max(done_s, YOUNG_S)
        told = view.steps_left(job) if counted else None
        if told is not None:
            left_s = told.steps / top_per_s
            if math.isfinite(job.progress) and job.progress > 0:
                done_s = job.progress / top_per_s
        return min(max(left_s, 1.0), MOST_LEFT_S), min(done_s, MOST_LEFT_S)

    # Shares -------------------------------------------------------------------------------------

    def _hear(self, view: View, memory: _LiveMemory) -> bool:
        """Take an answer in; whether there was one."""
        answer = view.computed(KIND) if memory.asked else None
        if answer is None or answer.key != memory.asked:
            return False
        memory.asked = ""
        if answer.result is None:
            memory.changed = True
            return False
        memory.account.grant(dict(zip(memory.asked_for, answer.result["shares"], strict=True)))
        return True

    def _due(
        self, view: View, memory: _LiveMemory, jobs: Mapping[str, _SharedJob], tempo: float
    ) -> bool:
        if not jobs:
            return False
        since_s = math.inf if memory.allotted_s is None else view.now_s - memory.allotted_s
        if memory.asked:  # who answers may be gone, as a service that was killed is
            return since_s >= 2 * ROUND_S * tempo
        return memory.changed and since_s >= RESET_S * tempo

    def _ask(
        self, view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob]
    ) -> None:
        memory.account.reset(view.now_s)
        memory.allotted_s, memory.changed = view.now_s, False
        memory.relative = {name: one.relative for name, one in jobs.items()}
        applicants = [
            GavelApplicant(
                job_id=name,
                rates=one.relative,
                scale=one.view.spec.gpus,
                weight=one.view.spec.weight,
                left=max(math.ceil(one.left_s), 1),
                elapsed_s=view.now_s - one.view.spec.submit_s,
            )
            for name, one in jobs.items()
        ]
        if self.goal == FIFO:
            memory.account.grant(fifo(applicants, memory.gpus))
            return
        alone = _ByReports(tuple(one.left_s + one.done_s for one in jobs.values()))
        memory.asked = draft.compute(KIND, question(self.goal, applicants, memory.gpus, alone))
        memory.asked_for = list(jobs)

    # Who runs -----------------------------------------------------------------------------------

    def _round(
        self, view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob],
        others: Sequence[JobView],
    ) -> dict[str, Reason]:  # fmt: skip
        """Those whose turn is over give way to those who are furthest behind."""
        refused: dict[str, Reason] = {}
        for _ in range(MOST_TRIES):
            able = {name: one for name, one in jobs.items() if name not in refused}
            chosen = self._choose(memory, able)
            mark = draft.mark()
            stopped = _give_way(draft, memory, jobs, chosen)
            found = start_where_it_fits(view, draft, others)
            found |= _start(view, draft, memory, jobs, chosen)
            if not stopped or not any(name in chosen for name in found):
                return refused | found | self._top_up(view, draft, memory, jobs, ())
            draft.undo(mark)
            refused |= {name: why for name, why in found.items() if name in chosen}
        return refused | self._top_up(view, draft, memory, jobs, others)

    def _choose(self, memory: _LiveMemory, jobs: Mapping[str, _SharedJob]) -> dict[str, int]:
        """Who runs on which type: by shares and time received, then whoever runs, then others."""
        room = list(memory.gpus)
        taken: dict[str, int] = {}

        def takes(name: str, at: int) -> bool:
            one = jobs.get(name)
            if one is None or name in taken or one.relative[at] <= 0:
                return False
            if one.view.spec.gpus > room[at]:
                return False
            room[at] -= one.view.spec.gpus
            taken[name] = at
            return True

        for at in _fastest_first(jobs, len(memory.types)):
            for _, standing in memory.account.ranked(at):
                if standing.share(at) > LEAST_SHARE:
                    takes(standing.job_id, at)
        for name, at in memory.runs.items():
            takes(name, at)
        for name, one in jobs.items():
            for at in _by_speed(one.relative):
                if takes(name, at):
                    break
        # Booked as it was chosen: else who is kept from a type would be furthest behind there for
        # ever, and a third job would never have its turn.
        memory.booked_as = dict(taken)
        _keep_places(memory.runs, jobs, taken)
        return taken

    def _top_up(
        self, view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob],
        others: Sequence[JobView],
    ) -> dict[str, Reason]:  # fmt: skip
        """Free GPUs go to those that wait; nobody is stopped."""
        refused = start_where_it_fits(view, draft, others)
        waiting = {name: one for name, one in jobs.items() if not one.view.wanted}
        for at in _fastest_first(waiting, len(memory.types)):
            for _, standing in memory.account.ranked(at):
                one = waiting.get(standing.job_id)
                if one is None or one.view.wanted or standing.share(at) <= LEAST_SHARE:
                    continue
                _try(view, draft, memory, one, at)
        for name, one in waiting.items():
            for at in _by_speed(one.relative):
                if one.view.wanted:
                    break
                why = _try(view, draft, memory, one, at)
                if why is not None:
                    refused[name] = why
            if one.view.wanted:
                refused.pop(name, None)
        return refused


def _differ(before: Rates, now: Rates) -> bool:
    """Whether a relative speed is another by more than `OTHER_SPEED`."""
    if len(before) != len(now):
        return True
    pairs = zip(before, now, strict=True)
    return any((a > 0) != (b > 0) or max(a, b) > OTHER_SPEED * min(a, b) for a, b in pairs)


def _book(memory: _LiveMemory, view: View) -> None:
    """Note the time that jobs received since the last plan."""
    seconds = view.now_s - memory.booked_s
    memory.booked_s = view.now_s
    for name, at in memory.runs.items():
        memory.account.book(name, memory.booked_as.get(name, at), seconds)


def _by_speed(rates: Rates) -> list[int]:
    """Types on which a job runs at all, the fastest first."""
    return sorted(
        (at for at, rate in enumerate(rates) if rate > 0), key=lambda at: (-rates[at], at)
    )


def _keep_places(
    runs: Mapping[str, int], jobs: Mapping[str, _SharedJob], chosen: dict[str, int]
) -> None:
    """Exchange places of a round where nobody loses speed by it and somebody is spared a restart.

    Solvers give shares on all types to jobs that are as fast on each; these would change places
    round by round.
    """
    for name, here in runs.items():
        there = chosen.get(name, here)
        if there == here or not _alike(jobs[name], here, there):
            continue
        for other, at in chosen.items():
            as_wide = jobs[other].view.spec.gpus == jobs[name].view.spec.gpus
            stays = runs.get(other) == here
            if at == here and not stays and as_wide and _alike(jobs[other], there, here):
                chosen[name], chosen[other] = here, there
                break


def _alike(one: _SharedJob, here: int, there: int) -> bool:
    """Whether a job is no slower here than there."""
    return one.relative[here] * OTHER_SPEED >= one.relative[there] > 0


def _fastest_first(jobs: Mapping[str, _SharedJob], types: int) -> list[int]:
    """Types by the mean of relative speeds."""
    speed = [math.fsum(one.relative[at] for one in jobs.values()) for at in range(types)]
    return sorted(range(types), key=lambda at: (-speed[at], at))


def _give_way(
    draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob], chosen: Mapping[str, int]
) -> bool:
    """Stop those that are not chosen, or chosen for another type; whether there was one."""
    stopped = False
    for name, one in jobs.items():
        job, at = one.view, chosen.get(name)
        if job.wanted and memory.node_type[job.wanted[0].node] != at:
            why = StopReason.PREEMPTED_FOR_PRIORITY if at is None else StopReason.MIGRATED
            draft.stop(job, why)
            stopped = True
    return stopped


def _start(
    view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob],
    chosen: Mapping[str, int],
) -> dict[str, Reason]:  # fmt: skip
    """Start those that are chosen, the widest first; who was refused, and why."""
    refused: dict[str, Reason] = {}
    for name in sorted(chosen, key=lambda name: -jobs[name].view.spec.gpus):
        one = jobs[name]
        why = None if one.view.wanted else _try(view, draft, memory, one, chosen[name])
        if why is not None:
            refused[name] = why
    return refused


def _try(view: View, draft: Draft, memory: _LiveMemory, one: _SharedJob, at: int) -> Reason | None:
    """Start a job on a type; None once it is done."""
    job = one.view
    mask, nodes = able_nodes(view, job.spec), memory.node_type == at
    nodes = nodes if mask is None else nodes & mask
    place = confined(consolidated, nodes)
    shares = shares_of(job, draft, place, view.gpus_per_node(), None, nodes)
    if shares is None:
        return _waits(view, draft, memory, job)
    why = draft.start(job, shares)
    if why is None and len(memory.types) > 1:
        speeds = ", ".join(
            f"{memory.types[type_]} {one.relative[type_]:.2g} x ({one.sources[type_]})"
            for type_ in _by_speed(one.relative)
        )
        draft.tell(job, f"goes to {memory.types[at]}; speeds: {speeds}")
    return why


def _tell(
    view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, _SharedJob],
    others: Sequence[JobView], refused: Mapping[str, Reason],
) -> None:  # fmt: skip
    """Say why those that wait do: trials that were taken back took their reasons with them."""
    for job in (*(one.view for one in jobs.values()), *others):
        if not job.wanted:
            draft.wait(job, refused.get(job.id) or _waits(view, draft, memory, job))


def _waits(view: View, draft: Draft, memory: _LiveMemory, job: JobView) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=view.now_s,
        asked=job.spec.gpus,
        available=draft.free_gpu_total(),
        unit="GPUs",
        unblocks="others are further behind their share of time; next round",
        due_s=memory.next_s,
    )
