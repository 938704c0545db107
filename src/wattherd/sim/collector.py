"""What becomes of each job in a simulated run: one small record per job, filled as it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.engine.core.core import Core
from wattherd.model.allocation import Allocation
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob, StopJob, WakeAt
from wattherd.model.event import Event, JobExited, JobSubmitted, NodeLost
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason
from wattherd.sim.meter import UNMOVED

_IGNORED = UNMOVED - {JobSubmitted}


@dataclass(slots=True, kw_only=True)
class JobOutcome:
    """One job: times in seconds since the run's epoch, energy in joules, GPU time in seconds.

    `held_s` is the time for which it held devices, however many.
    """

    job_id: str
    gpus: int
    submit_s: float
    deadline_s: float | None = None
    start_s: float | None = None
    finish_s: float | None = None
    state: str = ""
    runs: int = 0
    preemptions: int = 0
    energy_j: float = 0.0
    gpu_s: float = 0.0
    held_s: float = 0.0
    detail: str = ""

    @property
    def jct_s(self) -> float | None:
        """Completion time from submission, of jobs that succeeded."""
        done = self.finish_s is not None and self.state == "Succeeded"
        return (self.finish_s or 0.0) - self.submit_s if done else None

    @property
    def missed(self) -> bool:
        """Whether it had a deadline and did not make it."""
        if self.deadline_s is None:
            return False
        return self.finish_s is None or self.finish_s > self.deadline_s


@dataclass(slots=True)
class ModelUse:
    """What jobs held and drew on devices of one GPU model: GPU time (s), joules, time by kind."""

    gpu_s: float = 0.0
    energy_j: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)
    """GPU time by the profile of jobs; empty for jobs without one."""

    def add(self, kind: str, gpu_s: float, energy_j: float) -> None:
        """Count some more."""
        self.gpu_s += gpu_s
        self.energy_j += energy_j
        self.kinds[kind] = self.kinds.get(kind, 0.0) + gpu_s


class Collector:
    """Watches events and commands; energy and GPU time are booked when they change."""

    def __init__(self, core: Core) -> None:
        """Start with no job."""
        self._core = core
        self.outcomes: dict[str, JobOutcome] = {}
        self.by_model: dict[str, ModelUse] = {}
        """By GPU model; jobs across models are counted under `A100+T4`."""
        self._held: dict[str, tuple[float, float, int, str]] = {}
        """Since when (s) each job draws how much (W) and holds how many GPUs of which models."""
        nodes = core.config.cluster.nodes
        self._model_names = sorted({node.gpu_model for node in nodes if node.gpu_count})
        self._kinds: dict[str, str] = {}
        self._partners: dict[str, list[str]] = {}
        """With whom jobs share devices, where they do."""

    @property
    def ignores(self) -> frozenset[type[Event]]:
        """What changes nothing by itself."""
        return _IGNORED

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Take note of one event and of what the core made of it."""
        if isinstance(event, JobSubmitted) and event.job.id not in self.outcomes:
            self.outcomes[event.job.id] = _outcome(event.job)
            self._kinds[event.job.id] = event.job.profile
        touched: dict[str, None] = {}
        for command in commands:
            if type(command) is not WakeAt:
                self._command(command, event)
                touched[getattr(command, "job_id", "")] = None
        job_id = getattr(event, "job_id", None)
        if job_id is not None:
            touched[job_id] = None
        if type(event) is NodeLost:
            # It names no job, and what ran on that node alone is over without any order.
            touched.update(dict.fromkeys(self._held))
        if self._partners or self._core.watts.shares:
            touched = self._with_partners(touched)
        for one in touched:
            self._book(one)

    def close(self) -> None:
        """Book what jobs drew that still hold devices: time ends now."""
        for job_id in list(self._held):
            self._book(job_id)

    @property
    def held_j(self) -> float:
        """Joules of all jobs, as far as they are booked."""
        return math.fsum(one.energy_j for one in self.outcomes.values())

    def _with_partners(self, touched: dict[str, None]) -> dict[str, None]:
        """Jobs, and those who share a device with them or did so until now."""
        partners_of, found = self._core.watts.partners, touched.copy()
        for one in touched:
            found.update(dict.fromkeys(self._partners.get(one, ())))
            found.update(dict.fromkeys(partners_of(one)))
        for one in found:
            partners = partners_of(one)
            if partners:
                self._partners[one] = partners
            else:
                self._partners.pop(one, None)
        return found

    def _command(self, command: Command, event: Event) -> None:
        now_s = self._core.now_s
        match command:
            case StartJob():
                outcome = self.outcomes[command.job_id]
                outcome.runs += 1
                if outcome.start_s is None:
                    outcome.start_s = now_s
            case StopJob():
                moved = command.reason in (StopReason.RESIZED, StopReason.MIGRATED)
                self.outcomes[command.job_id].preemptions += not moved
            case FinishJob():
                outcome = self.outcomes[command.job_id]
                # News may come late (a plant that works in slices): the exit says when it was.
                ended_s = event.at_s if isinstance(event, JobExited) else now_s
                outcome.state, outcome.finish_s = command.state, ended_s
            case RejectJob():
                outcome = self.outcomes[command.job_id]
                outcome.state, outcome.detail = "Rejected", command.detail
            case _:
                pass

    def _book(self, job_id: str) -> None:
        """Add what the job drew and held since the last change, and remember what it does now."""
        core, outcome = self._core, self.outcomes.get(job_id)
        if outcome is None:
            return
        now_s = core.now_s
        before = self._held.pop(job_id, None)
        if before is not None:
            since_s, draw_w, gpus, models = before
            seconds = now_s - since_s
            outcome.energy_j += draw_w * seconds
            outcome.gpu_s += gpus * seconds
            outcome.held_s += seconds
            if gpus and seconds:
                kind = self._kinds.get(job_id, "")
                use = self.by_model.setdefault(models, ModelUse())
                use.add(kind, gpus * seconds, draw_w * seconds)
        job = core.jobs.get(job_id)
        if job is not None and job.allocations:
            draw_w = core.watts.held_w(job_id)
            self._held[job_id] = now_s, draw_w, job.gpus, self._models(job.allocations)

    def _models(self, allocations: Sequence[Allocation]) -> str:
        if len(self._model_names) == 1:
            return self._model_names[0]
        nodes = self._core.config.cluster.nodes
        return "+".join(sorted({nodes[one.node].gpu_model for one in allocations if one.gpus}))


def _outcome(spec: JobSpec) -> JobOutcome:
    return JobOutcome(
        job_id=spec.id, gpus=spec.gpus, submit_s=spec.submit_s, deadline_s=spec.deadline_s
    )
