"""Pollux (Qiao et al., OSDI'21): GPUs go where they raise goodput, fairly; batch sizes adapt.

Each round, a search looks for the allocation of most fitness (`pollux_problem`): which job gets
how many GPUs on which nodes. It runs outside of the core; the plan follows when its answer is
there, and is made of what still holds by then. Jobs' agents report how fast they are and what
their gradients allow; a job that has not reported yet gets a GPU to begin with, and none more than
twice the replicas that it has run with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.errors import UserError
from wattherd.model.allocation import Allocation
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.schedule.node_choice import most_free
from wattherd.policy.schedule.pollux_genetic import GENERATIONS, POPULATION
from wattherd.policy.schedule.pollux_problem import PolluxApplicant, question, restart_factor
from wattherd.policy.schedule.pollux_search import KINDS

INTERVAL_S = 60.0
MOST_TASKS = 64
"""The published simulator considers no larger jobs."""
Held = tuple[tuple[int, int], ...]
"""Tasks by node, (node, tasks), nodes ascending."""


@dataclass(slots=True)
class _Memory:
    asked: str = ""
    asked_for: list[str] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    states: list[list[int]] = field(default_factory=list)
    """The best of the last search: (job, node, tasks) after each other, by `asked_for`."""
    rounds: int = 0
    due_s: float = 0.0

    in_vain: bool = False
    """Whether nothing runs although the last answer was carried out."""

    def carry_out(
        self,
        plan: Sequence[Sequence[Sequence[int]]],
        jobs: Mapping[str, JobView],
        draft: Draft,
        now_s: float,
    ) -> None:
        """Stop what changes, then start it anew; what the guard refuses keeps what it had."""
        changed: list[tuple[JobView, Held]] = []
        for name, pairs in zip(self.asked_for, plan, strict=True):
            held = tuple((int(node), int(tasks)) for node, tasks in pairs)
            if name in jobs and held != held_tasks(jobs[name]):
                changed.append((jobs[name], held))
        before = {job.id: job.wanted for job, _ in changed}
        for job, held in changed:
            if job.wanted:
                draft.stop(job, StopReason.RESIZED if held else StopReason.PREEMPTED_FOR_PRIORITY)
        _greet([job for job, held in changed if not held], draft, now_s)
        refused = [
            (job, held) for job, held in changed if held and not self.start(job, held, draft)
        ]
        for job, held in refused:
            had = sum(one.tasks for one in before[job.id])
            smaller = self._start_smaller(job, held, draft, beyond=had)
            if not smaller and not _kept(job, before[job.id], draft):
                self._start_smaller(job, held, draft)
        self.in_vain = not any(job.wanted for job in jobs.values())

    def start(self, job: JobView, held: Held, draft: Draft) -> bool:
        """Whether the guard lets the job have this."""
        if draft.start(job, [Share(node, tasks) for node, tasks in held]) is not None:
            return False
        self.starts[job.id] = self.starts.get(job.id, 0) + 1
        return True

    def _start_smaller(self, job: JobView, held: Held, draft: Draft, *, beyond: int = 0) -> bool:
        """Half as many tasks, and half again, until the guard has watts for them; if it has."""
        tasks = sum(count for _, count in held) // 2
        while tasks >= job.spec.least_width and tasks > beyond:
            if self.start(job, first_tasks(held, tasks), draft):
                return True
            tasks //= 2
        return False

    def rouse(self, jobs: Iterable[JobView], draft: Draft) -> None:
        """Where searching led nowhere: start the first job that may run at its least."""
        for job in jobs:
            shares = most_free(draft.room(job), job.spec.least_width)
            held = tuple((share.node, share.tasks) for share in shares or ())
            if held and self.start(job, held, draft):
                self.in_vain = False
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """A search every `interval_s`, of so many states and generations where it is `genetic`.

    `climb`, the other one, is our own (`pollux_climb`). Without `interval_s` there is a search
    whenever a plan is made: for a core that plans in rounds.

    Raises:
        UserError: there is no such search.
    """

    search: str = "genetic"
    seed: int = 0
    interval_s: float | None = INTERVAL_S
    population: int = POPULATION
    generations: int = GENERATIONS

    def __post_init__(self) -> None:
        """Refuse a search that nobody knows."""
        if self.search not in KINDS:
            raise UserError(f"no search {self.search!r}", hint=f"one of {', '.join(KINDS)}")

    def plan(self, view: View, draft: Draft) -> None:
        """Carry out the answer if it has come; else ask, unless an answer is awaited."""
        memory: _Memory = view.memory.setdefault("pollux", _Memory())
        jobs = {job.id: job for job in view.live()}
        for gone in [name for name in memory.starts if name not in jobs]:
            del memory.starts[gone]
        _greet(jobs.values(), draft, view.now_s)
        answer = view.computed(KINDS[self.search]) if memory.asked else None
        if answer is not None and answer.key == memory.asked:
            memory.asked = ""
            if answer.result is not None:
                memory.states = answer.result["states"]
                memory.carry_out(answer.result["plan"], jobs, draft, view.now_s)
        elif not memory.asked and self._due(view, memory):
            self._ask(view, draft, memory, jobs)
        if self.interval_s is not None and jobs and not memory.asked:
            draft.wake_at(max(memory.due_s, view.now_s))

    def _due(self, view: View, memory: _Memory) -> bool:
        return self.interval_s is None or view.now_s >= memory.due_s

    def _ask(self, view: View, draft: Draft, memory: _Memory, jobs: Mapping[str, JobView]) -> None:
        memory.due_s = view.now_s + (self.interval_s or 0.0)
        order = sorted(jobs.values(), key=lambda job: importance(job, view.now_s))
        able = [job for job in order if _able(job)]
        if memory.in_vain:
            memory.rouse(able, draft)
            return
        if not able:
            memory.asked_for, memory.states = [], []
            return
        models = [node.gpu_model for node in view.nodes()]
        asked = question(
            view.gpus_per_node().tolist(),
            [_applicant(job, memory, models, view) for job in able],
        )
        names = [job.id for job in able]
        # Kept over these names from now on: the answer may bring no states of its own.
        memory.states = translated(memory.states, memory.asked_for, names)
        asked["states"] = memory.states
        asked["seed"] = [self.seed, memory.rounds]
        asked["population"], asked["generations"] = self.population, self.generations
        memory.rounds += 1
        memory.asked_for = names
        memory.asked = draft.compute(KINDS[self.search], asked)


def _kept(job: JobView, before: Sequence[Allocation], draft: Draft) -> bool:
    """Give a job back the devices that it had, which is no restart; whether they were left."""
    shares = [Share(one.node, one.tasks, gpus=one.gpus) for one in before]
    return bool(shares) and draft.start(job, shares) is None


def first_tasks(held: Held, tasks: int) -> Held:
    """The first so many tasks, node by node."""
    found, left = [], tasks
    for node, count in held:
        if left > 0:
            found.append((node, min(count, left)))
        left -= count
    return tuple(found)


def importance(job: JobView, now_s: float) -> tuple[float, float, int]:
    """Where jobs collide, least attained service comes first."""
    return job.service_gpu_s(now_s), job.spec.submit_s, job.number


def _able(job: JobView) -> bool:
    """Whether the job is of the kind that Pollux schedules: replicas with GPUs, and no more."""
    return len(job.spec.roles) == 1 and job.spec.roles[0].gpu_count > 0


def held_tasks(job: JobView) -> Held:
    """What it has by node."""
    tasks: dict[int, int] = {}
    for allocation in job.wanted:
        tasks[allocation.node] = tasks.get(allocation.node, 0) + allocation.tasks
    return tuple(sorted(tasks.items()))


def _applicant(job: JobView, memory: _Memory, models: Sequence[str], view: View) -> PolluxApplicant:
    spec, report, now_s = job.spec, job.report, view.now_s
    mask = view.eligible(spec)
    seen = report.most_replicas if report is not None else 0
    most = min(max(2 * seen, spec.least_width), MOST_TASKS, spec.most_width)
    restarts = max(memory.starts.get(job.id, 0) - 1, 0)
    barred = [
        node
        for node, model in enumerate(models)
        if not (_allows(spec, model) and (mask is None or mask[node]))
    ]
    return PolluxApplicant(
        unit=spec.roles[0].gpu_count,
        least=spec.least_width,
        most=max(most, spec.least_width),
        factor=restart_factor(max(now_s - spec.submit_s, 0.0), restarts),
        held=held_tasks(job),
        barred=tuple(barred),
        report=report,
    )


def _allows(spec: JobSpec, model: str) -> bool:
    return not spec.gpu_models or model in spec.gpu_models


def translated(
    states: Sequence[Sequence[int]], before: Sequence[str], now: Sequence[str]
) -> list[list[int]]:
    """States over the jobs of the last question, as states over those of this one."""
    places = {name: place for place, name in enumerate(now)}
    moved = [places.get(name, -1) for name in before]
    found = []
    for state in states:
        triples = zip(state[::3], state[1::3], state[2::3], strict=True)
        kept = [(moved[job], node, tasks) for job, node, tasks in triples if moved[job] >= 0]
        found.append([value for triple in kept for value in triple])
    return found


def _greet(jobs: Iterable[JobView], draft: Draft, now_s: float) -> None:
    """Say why those without GPUs wait."""
    for job in jobs:
        if not job.wanted:
            draft.wait(job, _waits(job, now_s) if _able(job) else _unfit(now_s))


def _waits(job: JobView, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_gpus,
        unit="GPUs",
        unblocks="for now the sum of all jobs' goodput is higher without it",
    )


def _unfit(now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.INVALID_SPEC,
        since_s=now_s,
        unblocks="Pollux runs jobs of one role with GPUs; use another policy for this one",
    )
