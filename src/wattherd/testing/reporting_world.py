"""Trainings that report, second by second, to a core that learns: sound ones and unkind ones.

The opposite of a plant: nobody tells the core how long these last or how fast they are. A
`Training` makes steps at a pace that follows from its width, and what it reports of them is up to
the test.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.power_curve import PowerCurve, prior
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import Command, Compute, FinishJob, SetCap, StartJob, StopJob, WakeAt
from wattherd.model.event import (
    CapApplied,
    Computed,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner


@dataclass(slots=True, kw_only=True)
class Told:
    """One report; None is left out."""

    progress: float
    total: float | None = None
    loss: float | None = None
    rate_per_s: float | None = None
    noise_scale: float | None = None
    batch: float | None = None


@dataclass(slots=True, kw_only=True)
class Training:
    """`steps` of a job at `per_s` steps a second by width; a start takes `restart_s` seconds.

    `tells` is what it reports at a step, None for silence; by default step and total.
    """

    spec: JobSpec
    steps: float
    per_s: Callable[[int], float]
    restart_s: float = 3.0
    tells: Callable[[float], Told | None] | None = None
    by_width: Callable[[int], Told] | None = None
    """What else it tells by the number of its GPUs: gradient noise and batch."""
    on: Mapping[str, float] = field(default_factory=dict)
    """By how much it is faster on a GPU model; 1 on those that are not named."""

    def told(self, done: float) -> Told | None:
        """What it says after so many steps."""
        return Told(progress=done, total=self.steps) if self.tells is None else self.tells(done)


def _watts(models: Iterable[str]) -> dict[str, GpuModel]:
    """A model of which the catalogue knows nothing draws what a T4 does."""
    return {name: GPUS.get(name) or replace(GPUS["T4"], name=name) for name in models}


def _curve_of(spec: JobSpec, gpu_model: str) -> PowerCurve:
    return prior(spec, gpu_model if gpu_model in GPUS else "T4")


@dataclass(slots=True)
class _Run:
    attempt: int
    gpus: int
    since_s: float
    model: str


@dataclass(slots=True)
class ReportingWorld:
    """Carries a core's orders out; invariants are checked whenever it gives any."""

    planner: Planner
    cluster: ClusterSpec
    trainings: Iterable[Training]
    events: Iterable[Event] = ()
    computers: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Who answers the planner's questions, a second later; nobody: they stay unanswered."""
    core: Core = field(init=False)
    now_s: float = 0.0
    starts: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By job: when it was started, on how many GPUs."""
    ended_s: dict[str, float] = field(default_factory=dict)
    stories: dict[str, list[str]] = field(default_factory=dict)
    lived: list[tuple[Event, list[Command]]] = field(default_factory=list)
    """All that the core heard and what it said to that."""
    _done: dict[str, float] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _wakes: dict[str, float] = field(default_factory=dict)
    _due: list[tuple[float, int, Event]] = field(default_factory=list)
    _count: int = 0
    _jobs: dict[str, Training] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Everything that comes from outside is put in line."""
        models = self.cluster.gpu_models
        self.core = Core(
            CoreConfig(
                cluster=self.cluster, planner=self.planner, round_s=0.0, learns=True, narrow=True,
                job_rates=JobRates(models=models, unknown_equal=True), gpus=_watts(models),
                curve_of=_curve_of,
            )
        )  # fmt: skip
        self._jobs = {one.spec.id: one for one in self.trainings}
        for one in self._jobs.values():
            self._put(JobSubmitted(at_s=one.spec.submit_s, job=one.spec))
        for event in self.events:
            self._put(event)

    def run(self, until_s: float) -> ReportingWorld:
        """Second by second until all is over, or until then."""
        while self.now_s < until_s and len(self.ended_s) < len(self._jobs):
            self._events()
            self._train()
            self.now_s += 1.0
        return self

    def gpus(self) -> dict[str, int]:
        """GPUs of the jobs that run."""
        return {job_id: run.gpus for job_id, run in self._runs.items()}

    def mean_s(self) -> float:
        """Mean completion time; of jobs that are not over, until now."""
        found = [self.ended_s.get(name, self.now_s) - one.spec.submit_s
                 for name, one in self._jobs.items()]  # fmt: skip
        return sum(found) / len(found)

    def _put(self, event: Event) -> None:
        heapq.heappush(self._due, (event.at_s, self._count, event))
        self._count += 1

    def _events(self) -> None:
        while True:
            if self._due and self._due[0][0] <= self.now_s:
                self._hand(heapq.heappop(self._due)[2])
                continue
            due = [key for key, at_s in self._wakes.items() if at_s <= self.now_s]
            if not due:
                return
            del self._wakes[due[0]]
            self._hand(Woke(at_s=self.now_s, key=due[0]))

    def _hand(self, event: Event) -> None:
        commands = self.core.handle(event)
        self.lived.append((event, commands))
        if commands or not isinstance(event, JobProgressed):
            validate(self.core)
            for name, job in self.core.jobs.items():
                self.stories[name] = [line.what for line in job.story]
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case WakeAt():
                self._wakes[command.key] = command.at_s
            case StartJob():
                gpus = sum(len(one.gpus) for one in command.allocations)
                model = self.cluster.nodes[command.allocations[0].node].gpu_model
                self._runs[command.job_id] = _Run(command.attempt, gpus, self.now_s, model)
                self.starts.setdefault(command.job_id, []).append((self.now_s, gpus))
                who: Any = {"job_id": command.job_id, "attempt": command.attempt}
                self._put(JobStarted(at_s=self.now_s, **who))
                if command.cap_w is not None:
                    self._put(CapApplied(at_s=self.now_s, cap_w=command.cap_w, **who))
            case StopJob():
                self._runs.pop(command.job_id, None)
                done = self._done.get(command.job_id, 0.0)
                self._put(
                    JobStopped(
                        at_s=self.now_s, job_id=command.job_id, attempt=command.attempt,
                        progress=done,
                    )
                )  # fmt: skip
            case SetCap():
                who = {"job_id": command.job_id, "attempt": command.attempt}
                self._put(CapApplied(at_s=self.now_s, cap_w=command.cap_w, **who))
            case Compute():
                if command.kind in self.computers:
                    result = self.computers[command.kind](command.payload)
                    self._put(
                        Computed(
                            at_s=self.now_s + 1.0, kind=command.kind, key=command.key, result=result
                        )
                    )
            case FinishJob():
                self.ended_s[command.job_id] = self.now_s
            case _:
                pass

    def _train(self) -> None:
        for name, run in list(self._runs.items()):
            one = self._jobs[name]
            if self.now_s - run.since_s < one.restart_s:
                continue
            done = self._done[name] = self._done.get(name, 0.0) + one.per_s(run.gpus) * one.on.get(
                run.model, 1.0
            )
            who: Any = {"job_id": name, "attempt": run.attempt}
            told = one.told(done)
            more = Told(progress=done) if one.by_width is None else one.by_width(run.gpus)
            if told is not None:
                self._put(
                    JobProgressed(
                        at_s=self.now_s, progress=told.progress, total=told.total, loss=told.loss,
                        rate_per_s=told.rate_per_s, noise_scale=more.noise_scale,
                        batch=more.batch, **who,
                    )
                )  # fmt: skip
            if done >= one.steps:
                del self._runs[name]
                self._put(JobExited(at_s=self.now_s, **who))
