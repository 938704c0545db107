"""Pollux (see `pollux`) on jobs that nobody has measured: goodput by what they report.

The search, its fitness and the factor for restarts are those of the published system. What differs
is what a service knows, and what it would lose:

- Goodput at a width is steps a second there, learned (`View.rates`), times what a step is worth
  there (`View.step_worth`): by the gradient noise and the batch that a job tells. Of a job that
  tells no noise all steps count alike, so goodput is speed. The service sets no batch: the job's
  program decides how its batch follows its width.
- A job's GPUs are of one model: mixed ones go at the pace of the slowest. A job stays on the model
  on which it runs; one that waits is counted with the model that has most GPUs for each job.
  Speeds of models are not weighed, as in the published system.
- Restarts cost what was learned. Searches come every second restart, at most once a minute and at
  least every 4 s; published are 60 s for restarts of 30 s.
- Free GPUs go at once to who waits, at the least width, and nobody is stopped for that. What the
  guard refuses (watts, limits, stopped queues) is tried narrower, else left out, and the plan is
  made again: nobody is stopped for a job that may not start.
- Jobs of several roles, without GPUs or on a part of one have no goodput. They start where there
  is room, before others do, and run to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.speed import asked_shape
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import able_nodes, inside
from wattherd.policy.schedule.live_forecast import LiveForecast
from wattherd.policy.schedule.node_choice import consolidated, start_where_it_fits
from wattherd.policy.schedule.pollux import (
    MOST_TASKS,
    Held,
    first_tasks,
    held_tasks,
    importance,
    translated,
)
from wattherd.policy.schedule.pollux_genetic import GENERATIONS, POPULATION
from wattherd.policy.schedule.pollux_problem import (
    PolluxApplicant,
    fair_tasks,
    question,
    restart_factor,
)
from wattherd.policy.schedule.pollux_search import KINDS
from wattherd.policy.schedule.speed_forecast import tempo_of

RESTARTS_APART = 2.0
"""Searches are so many restarts apart."""
LEAST_S, MOST_S = 4.0, 60.0
"""Between searches."""
LOOK_S = 10.0
"""Between two looks, at most."""
IN_VAIN = 10.0
"""After so many intervals, a question is asked again: who answers may be gone."""
MOST_TRIES = 16
"""Plans that are made again for what the guard refuses; then this answer is left."""


@dataclass(slots=True)
class _LiveMemory:
    asked: str = ""
    asked_for: list[str] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    widest: dict[str, int] = field(default_factory=dict)
    """Tasks: the most at which a job was seen to make progress."""
    states: list[list[int]] = field(default_factory=list)
    asked_s: float = 0.0
    due_s: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class _Goodputs:
    """Steps a second by tasks, worth of a step included; `sources` says who told them."""

    by_tasks: Mapping[int, float]
    sources: Mapping[int, str]

    def words(self, before: int, after: int) -> str:
        """`resized from 1 to 2 GPUs: ...`."""
        was, now = self.by_tasks.get(before), self.by_tasks.get(after)
        gain = f"{now / was:.2f} times the goodput" if was and now else "by goodput"
        return f"{gain} ({self.sources.get(after, '')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePollux:
    """A search of so many states and generations where it is `genetic`; `climb` is our own.

    Raises:
        UserError: there is no such search.
    """

    search: str = "genetic"
    seed: int = 0
    population: int = POPULATION
    generations: int = GENERATIONS
    foresight: LiveForecast = field(default_factory=LiveForecast)

    def __post_init__(self) -> None:
        """Refuse a search that nobody knows."""
        if self.search not in KINDS:
            raise UserError(f"no search {self.search!r}", hint=f"one of {', '.join(KINDS)}")

    def plan(self, view: View, draft: Draft) -> None:
        """Carry out the answer if it is there; else ask when it is time; give out what is free."""
        memory: _LiveMemory = view.memory.setdefault("pollux-live", _LiveMemory())
        live = view.live()
        jobs = {job.id: job for job in live if _able(job)}
        others = [job for job in live if job.id not in jobs]
        _note(memory, jobs)
        interval_s = self._interval_s(view, live)
        refused = start_where_it_fits(view, draft, others)
        answer = view.computed(KINDS[self.search]) if memory.asked else None
        if answer is not None and answer.key == memory.asked:
            memory.asked = ""
            if answer.result is not None:
                memory.states = answer.result["states"]
                refused |= self._carry_out(view, draft, memory, jobs, answer.result["plan"])
        elif view.now_s >= memory.due_s and jobs and not self._awaited(view, memory, interval_s):
            self._ask(view, draft, memory, jobs)
            memory.due_s = view.now_s + interval_s
        refused |= _top_up(view, draft, memory, jobs)
        for job in live:
            if not job.wanted:
                draft.wait(job, refused.get(job.id) or _waits(job, draft, memory, view.now_s))
        if live:
            memory.due_s = min(memory.due_s, view.now_s + interval_s)
            due_s = memory.due_s if memory.due_s > view.now_s else view.now_s + interval_s
            # Until the first restarts are learned the interval is that of a prior.
            draft.wake_at(min(due_s, view.now_s + LOOK_S))

    def _interval_s(self, view: View, jobs: Sequence[JobView]) -> float:
        restart_s = MOST_S * tempo_of(self.foresight, view, jobs)
        return min(max(RESTARTS_APART * restart_s, LEAST_S), MOST_S)

    def _awaited(self, view: View, memory: _LiveMemory, interval_s: float) -> bool:
        return bool(memory.asked) and view.now_s < memory.asked_s + IN_VAIN * interval_s

    def _ask(
        self, view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, JobView]
    ) -> None:
        order = sorted(jobs.values(), key=lambda job: importance(job, view.now_s))
        gpus = view.gpus_per_node().tolist()
        fair = fair_tasks(gpus, [job.spec.roles[0].gpu_count for job in order])
        homes = _homes(view, order)
        asked = question(
            gpus,
            [
                self._applicant(view, memory, job, share, homes[job.id])
                for job, share in zip(order, fair, strict=True)
            ],
        )
        names = [job.id for job in order]
        memory.states = translated(memory.states, memory.asked_for, names)
        asked["states"], asked["seed"] = memory.states, [self.seed, memory.rounds]
        asked["population"], asked["generations"] = self.population, self.generations
        memory.rounds += 1
        memory.asked_for, memory.asked_s = names, view.now_s
        memory.asked = draft.compute(KINDS[self.search], asked)

    def _applicant(
        self, view: View, memory: _LiveMemory, job: JobView, share: int, home: str | None
    ) -> PolluxApplicant:
        spec, mask = job.spec, able_nodes(view, job.spec)
        seen = memory.widest.get(job.id, 0)
        most = min(max(2 * seen, spec.least_width), MOST_TASKS, spec.most_width)
        goodput = self._goodputs(view, job, {*range(1, most + 1), share}).by_tasks
        barred = tuple(
            at
            for at, node in enumerate(view.nodes())
            if (mask is not None and not mask[at]) or home not in (None, node.gpu_model)
        )
        return PolluxApplicant(
            unit=spec.roles[0].gpu_count,
            least=spec.least_width,
            most=max(most, spec.least_width),
            factor=restart_factor(
                max(view.now_s - spec.submit_s, 0.0),
                max(memory.starts.get(job.id, 0) - 1, 0),
                view.restart_time(job).seconds,
            ),
            held=held_tasks(job),
            barred=barred,
            speedup=(0.0, *(goodput[count] / goodput[share] for count in range(1, most + 1))),
        )

    def _goodputs(self, view: View, job: JobView, tasks: set[int]) -> _Goodputs:
        """By what the job reports, else its kind, else a prior."""
        asked, unit = asked_shape(job.spec), job.spec.roles[0].gpu_count
        found, sources = dict[int, float](), dict[int, str]()
        for count in sorted(tasks):
            shape = replace(asked, workers=count, gpus=count * unit)
            step_s = self.foresight.step_s(view, job, shape)
            worth = view.step_worth(job, count * unit)
            found[count] = worth.share / max(step_s or 1.0, 1e-12)
            noise = (
                "no gradient noise told"
                if worth.noise is None
                else f"gradient noise {worth.noise:,.0f} samples, batch {worth.batch:,.0f}"
            )
            speed = self.foresight.sources(view, job, shape).rpartition(", ")[2]
            sources[count] = f"{speed}, {noise}"
        return _Goodputs(found, sources)

    def _carry_out(
        self, view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, JobView],
        plan: Sequence[Sequence[Sequence[int]]],
    ) -> dict[str, Reason]:  # fmt: skip
        """Change who is to be changed; who is refused keeps what it has."""
        targets = {
            name: tuple((int(node), int(tasks)) for node, tasks in pairs)
            for name, pairs in zip(memory.asked_for, plan, strict=True)
            if name in jobs
        }
        changed = {name: held for name, held in targets.items() if held != held_tasks(jobs[name])}
        refused: dict[str, Reason] = {}
        for _ in range(MOST_TRIES):
            mark = draft.mark()
            found = self._change(view, draft, jobs, changed)
            if not found:
                for name, held in changed.items():
                    if held:
                        memory.starts[name] = memory.starts.get(name, 0) + 1
                return refused
            draft.undo(mark)
            refused |= {name: why for name, why in found.items() if why is not None}
            for name in found:
                del changed[name]
        return refused

    def _change(
        self, view: View, draft: Draft, jobs: Mapping[str, JobView], changed: Mapping[str, Held]
    ) -> dict[str, Reason | None]:
        """Those that could not be started, and why."""
        had = {name: _count(held_tasks(jobs[name])) for name in changed}
        for name, held in changed.items():
            if jobs[name].wanted:
                gone = StopReason.RESIZED if held else StopReason.PREEMPTED_FOR_PRIORITY
                draft.stop(jobs[name], gone)
        refused: dict[str, Reason | None] = {}
        for name, held in changed.items():
            if not held:
                continue
            job = jobs[name]
            why = _start(draft, job, held)
            narrower = max(job.spec.least_width, had[name] + 1)
            for tasks in range(_count(held) - 1, narrower - 1, -1):
                if why is None:
                    break
                why = _start(draft, job, first_tasks(held, tasks))
            if why is not None:
                refused[name] = why
            elif had[name]:
                now = _count(held_tasks(job))
                words = self._goodputs(view, job, {had[name], now}).words(had[name], now)
                unit = job.spec.roles[0].gpu_count
                draft.tell(job, f"resized from {had[name] * unit} to {now * unit} GPUs: {words}")
        return refused


def _note(memory: _LiveMemory, jobs: Mapping[str, JobView]) -> None:
    """Forget who is gone; at which widths jobs were seen to work."""
    for known in (memory.starts, memory.widest):
        for gone in [name for name in known if name not in jobs]:
            del known[gone]
    for name, job in jobs.items():
        if job.wanted and not job.starting and job.progress > 0:
            memory.widest[name] = max(memory.widest.get(name, 0), _count(held_tasks(job)))


def _homes(view: View, order: Sequence[JobView]) -> dict[str, str | None]:
    """The GPU model on which each job is to run; None: on none alone it fits, or it has several."""
    nodes, gpus = view.nodes(), view.gpus_per_node()
    total: dict[str, int] = {}
    for node, count in zip(nodes, gpus.tolist(), strict=True):
        if node.gpu_count:
            total[node.gpu_model] = total.get(node.gpu_model, 0) + count
    found: dict[str, str | None] = {}
    bound = dict.fromkeys(total, 0)
    for job in sorted(order, key=lambda job: not job.wanted):
        spec, mask = job.spec, able_nodes(view, job.spec)
        held = {nodes[one.node].gpu_model for one in job.wanted if one.gpus}
        able = inside(gpus // spec.roles[0].gpu_count, mask)
        fits = [
            model
            for model in total
            if sum(int(n) for n, node in zip(able, nodes, strict=True) if node.gpu_model == model)
            >= spec.least_width
        ]
        if held:
            home = held.pop() if len(held) == 1 else None
        else:
            home = max(fits, key=lambda model: total[model] / (1 + bound[model]), default=None)
        found[job.id] = home
        if home is not None:
            bound[home] += 1
    return found


def _top_up(
    view: View, draft: Draft, memory: _LiveMemory, jobs: Mapping[str, JobView]
) -> dict[str, Reason]:
    """Free GPUs go to those that wait, at their least; nobody is stopped."""
    waiting = [job for job in jobs.values() if not job.wanted]
    if not waiting or not draft.free_gpu_total():
        return {}
    refused: dict[str, Reason] = {}
    homes = _homes(view, list(jobs.values()))
    models = np.array([node.gpu_model for node in view.nodes()])
    for job in sorted(waiting, key=lambda job: importance(job, view.now_s)):
        home = homes[job.id]
        room = draft.room(job)
        masks = [np.ones(len(models), dtype=np.bool_)]
        if home is not None:  # where it belongs first, then on any one model
            masks = [models == one for one in (home, *sorted({*models.tolist()} - {home}))]
        for mask in masks:
            shares = _least(job, inside(room, mask))
            why = None if shares is None else draft.start(job, shares)
            if shares is not None and why is None:
                memory.starts[job.id] = memory.starts.get(job.id, 0) + 1
                refused.pop(job.id, None)
                break
            if why is not None:
                refused[job.id] = why
    return refused


def _least(job: JobView, room: NDArray[np.int64]) -> list[Share] | None:
    return consolidated(room, room, job.spec.least_width)


def _start(draft: Draft, job: JobView, held: Held) -> Reason | None:
    return draft.start(job, [Share(node, tasks) for node, tasks in held])


def _able(job: JobView) -> bool:
    """Whether the job is replicas with whole GPUs, and no more."""
    roles = job.spec.roles
    whole = all(one.gpu_milli == WHOLE_GPU_MILLI for one in roles)
    return len(roles) == 1 and whole and roles[0].gpu_count > 0 and roles[0].gpu_memory_mib is None


def _count(held: Held) -> int:
    return sum(tasks for _, tasks in held)


def _waits(job: JobView, draft: Draft, memory: _LiveMemory, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_gpus,
        available=draft.free_gpu_total(),
        unit="GPUs",
        unblocks="for now the sum of all jobs' goodput is higher without it; next search",
        due_s=memory.due_s,
    )
