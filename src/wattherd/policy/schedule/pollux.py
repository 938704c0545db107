"""Pollux (Qiao et al., OSDI'21): GPUs go where they raise goodput, fairly; batch sizes adapt.

Each round, a search looks for the allocation of most fitness (`pollux_problem`): which job gets
how many GPUs on which nodes. It runs outside of the core; the plan follows when its answer is
there, and is made of what still holds by then. Jobs' agents report how fast they are and what
their gradients allow; a job that has not reported yet gets a GPU to begin with, and none more than
twice the replicas that it has run with. Next to the published genetic search there is our own,
greedy one (`pollux_greedy`).

Run the core in rounds (the paper's: 60 s). Without rounds, a search follows whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.schedule.pollux_problem import Applicant, question, restart_factor
from wattherd.policy.schedule.pollux_search import KINDS

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
    unmet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """`search` is one of `genetic` (published) and `greedy`; `seed` is that of the first."""

    search: str = "genetic"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a search that nobody knows."""
        if self.search not in KINDS:
            raise UserError(f"no Pollux search {self.search!r}", hint=f"one of {', '.join(KINDS)}")

    def plan(self, view: View, draft: Draft) -> None:
        """Carry out the answer if it has come; else ask, unless an answer is awaited."""
        memory: _Memory = view.memory.setdefault("pollux", _Memory())
        jobs = {job.id: job for job in view.live()}
        for gone in [name for name in memory.starts if name not in jobs]:
            del memory.starts[gone]
        answer = view.computed(KINDS[self.search]) if memory.asked else None
        if answer is not None and answer.key == memory.asked:
            memory.asked = ""
            if answer.result is not None:
                memory.states = answer.result["states"]
                _carry_out(view, draft, memory, jobs, answer.result["plan"])
            if not memory.unmet:
                return
        if memory.asked:
            memory.unmet |= bool(view.entered())
            _greet(jobs.values(), draft, view.now_s)
        else:
            self._ask(view, draft, memory, jobs)

    def _ask(self, view: View, draft: Draft, memory: _Memory, jobs: Mapping[str, JobView]) -> None:
        memory.unmet = False
        order = sorted(jobs.values(), key=lambda job: _importance(job, view.now_s))
        able = [job for job in order if len(job.spec.roles) == 1 and _unit(job)]
        for job in order:
            if not job.wanted and job not in able:
                draft.wait(job, _unfit(view.now_s))
        if not able:
            memory.asked_for, memory.states = [], []
            return
        models = [node.gpu_model for node in view.nodes()]
        asked = question(
            view.gpus_per_node().tolist(),
            [_applicant(job, memory, models, view.now_s) for job in able],
        )
        names = [job.id for job in able]
        asked["states"] = _translated(memory.states, memory.asked_for, names)
        asked["seed"] = [self.seed, memory.rounds]
        memory.rounds += 1
        memory.asked_for = names
        memory.asked = draft.compute(KINDS[self.search], asked)
        _greet(able, draft, view.now_s)


def _carry_out(
    view: View,
    draft: Draft,
    memory: _Memory,
    jobs: Mapping[str, JobView],
    plan: Sequence[Sequence[Sequence[int]]],
) -> None:
    """Stop what changes, then start it anew; what the guard refuses waits."""
    wanted: list[tuple[JobView, Held]] = []
    for name, pairs in zip(memory.asked_for, plan, strict=True):
        held = tuple((int(node), int(tasks)) for node, tasks in pairs)
        if name in jobs and held != _held(jobs[name]):
            wanted.append((jobs[name], held))
    for job, held in wanted:
        if job.wanted:
            draft.stop(job, StopReason.RESIZED if held else StopReason.PREEMPTED_FOR_PRIORITY)
    for job, held in wanted:
        if not held:
            draft.wait(job, _waits(job, view.now_s))
        elif draft.start(job, [Share(node, tasks) for node, tasks in held]) is None:
            memory.starts[job.id] = memory.starts.get(job.id, 0) + 1


def _importance(job: JobView, now_s: float) -> tuple[float, float, int]:
    """Where jobs collide, least attained service comes first."""
    return job.service_gpu_s(now_s), job.spec.submit_s, job.number


def _unit(job: JobView) -> int:
    return job.spec.roles[0].gpu_count


def _held(job: JobView) -> Held:
    tasks: dict[int, int] = {}
    for allocation in job.wanted:
        tasks[allocation.node] = tasks.get(allocation.node, 0) + allocation.tasks
    return tuple(sorted(tasks.items()))


def _applicant(job: JobView, memory: _Memory, models: Sequence[str], now_s: float) -> Applicant:
    spec, report = job.spec, job.report
    seen = report.most_replicas if report is not None else 0
    most = min(max(2 * seen, spec.least_width), MOST_TASKS, spec.most_width)
    restarts = max(memory.starts.get(job.id, 0) - 1, 0)
    barred = [node for node, model in enumerate(models) if not _allows(spec, model)]
    return Applicant(
        unit=_unit(job),
        least=spec.least_width,
        most=max(most, spec.least_width),
        factor=restart_factor(max(now_s - spec.submit_s, 0.0), restarts),
        held=_held(job),
        barred=tuple(barred),
        report=report,
    )


def _allows(spec: JobSpec, model: str) -> bool:
    return not spec.gpu_models or model in spec.gpu_models


def _translated(
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


def _greet(jobs: Any, draft: Draft, now_s: float) -> None:
    for job in jobs:
        if not job.wanted:
            draft.wait(job, _waits(job, now_s))


def _waits(job: JobView, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_gpus,
        unit="GPUs",
        unblocks="goodput of all jobs together is higher without it; its turn comes",
    )


def _unfit(now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.INVALID_SPEC,
        since_s=now_s,
        unblocks="Pollux runs jobs of one role with GPUs; use another policy for this one",
    )
