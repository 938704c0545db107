"""A plant of measured applications: the job model of the Pollux artifact (OSDI'21).

A job makes progress at its goodput, gain / step time, where the gain says how much a batch of
this size is worth in iterations at the initial one. Epoch boundaries end a slice of time; their
durations are rounded to whole seconds, as published. A run begins with a pause (restart) that
holds its GPUs.

A job without a batch size of its own has an agent that adapts it (Pollux): anew at every start,
after every slice of time and between epochs. What the agent knows is reported after each slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattherd.estimate.application import Application, BatchPlan
from wattherd.estimate.goodput_agent import GoodputAgent
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import (
    Event,
    JobMeasured,
    JobProgressed,
    cap_applied,
    job_exited,
    job_started,
    job_stopped,
)
from wattherd.model.job import JobSpec
from wattherd.sim.speed import SpeedAt, uncapped

RESTART_S = 30.0
SLICE_S = 60.0


@dataclass(slots=True)
class _Run:
    """A job's training state; `placement` is empty while it has no GPUs."""

    spec: JobSpec
    application: Application
    agent: GoodputAgent | None
    nodes: tuple[int, ...] = ()
    placement: tuple[int, ...] = ()
    attempt: int = 0
    batch: BatchPlan | None = None
    speed: float = 1.0
    pause_s: float = 0.0
    progress: float = 0.0
    epoch: int = 0
    done_s: float | None = None


class ApplicationPlant:
    """Jobs of known applications, advanced in slices of `slice_s`."""

    def __init__(
        self,
        applications: Mapping[str, Application],
        *,
        restart_s: float = RESTART_S,
        slice_s: float = SLICE_S,
        speed_at: SpeedAt = uncapped,
    ) -> None:
        """Progress is computed slice by slice so that sums are those of the published runs."""
        self._speed_at = speed_at
        self._applications = applications
        self._restart_s = restart_s
        self._slice_s = slice_s
        self._runs: dict[str, _Run] = {}
        self._now_s = 0.0

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Give the job its placement; ranks are in the order of the allocations."""
        run = self._runs.get(spec.id)
        if run is None:
            run = self._runs[spec.id] = _first_run(spec, self._applications[spec.profile])
        run.placement = tuple(len(allocation.gpus) for allocation in order.allocations)
        run.attempt = order.attempt
        run.pause_s = self._restart_s
        run.batch = _plan(run)
        run.nodes = tuple(allocation.node for allocation in order.allocations)
        run.speed = self._speed_at(spec, run.nodes, spec.gpus, order.cap_w)
        return [job_started(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Take the job's GPUs; its progress stays."""
        run = self._runs[order.job_id]
        run.placement = ()
        return [job_stopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt)]

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone; jobs begin again with their epoch."""
        del now_s
        for run in self._runs.values():
            if run.placement and node in run.nodes:
                run.placement = ()
                run.progress = run.application.boundaries[run.epoch]

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set the cap; drivers answer at once here, and the job's speed follows."""
        run = self._runs.get(order.job_id)
        if run is None or run.attempt != order.attempt:
            return ()
        run.speed = self._speed_at(run.spec, run.nodes, run.spec.gpus, order.cap_w)
        return [
            cap_applied(at_s=now_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        ]

    def next_s(self) -> float | None:
        """Nothing is foreseen: the core's rounds drive this plant."""
        return None

    def advance(self, to_s: float) -> Sequence[Event]:
        """Advance all running jobs by whole slices up to `to_s`."""
        events: list[Event] = []
        while self._now_s + self._slice_s <= to_s:
            for run in [run for run in self._runs.values() if run.placement]:
                events.extend(self._slice(run))
            self._now_s += self._slice_s
        return sorted(events, key=lambda event: event.at_s)

    def _slice(self, run: _Run) -> Sequence[Event]:
        epoch, job_id = run.epoch, run.spec.id
        _train(run, self._now_s, self._slice_s)
        if run.done_s is not None:
            del self._runs[job_id]
            return [job_exited(at_s=run.done_s, job_id=job_id, attempt=run.attempt)]
        now_s, news = self._now_s + self._slice_s, list[Event]()
        if run.epoch != epoch:
            done = float(run.epoch)
            news.append(
                JobProgressed(at_s=now_s, job_id=job_id, attempt=run.attempt, progress=done)
            )
        report = run.agent.report() if run.agent is not None else None
        if report is not None:
            news.append(JobMeasured(at_s=now_s, job_id=job_id, attempt=run.attempt, report=report))
        return news


def _first_run(spec: JobSpec, application: Application) -> _Run:
    return _Run(spec, application, GoodputAgent(application) if spec.batch_size is None else None)


def _plan(run: _Run) -> BatchPlan:
    if run.agent is not None:
        return run.agent.batch(run.placement)
    size = run.spec.batch_size or run.application.initial_batch
    return run.application.batch_plan(size, sum(run.placement))


def _train(run: _Run, now_s: float, seconds: float) -> None:
    """Let `run` train for `seconds` from `now_s` on, or until it is done."""
    application = run.application
    delay = min(run.pause_s, seconds)
    run.pause_s -= delay
    now_s += delay
    left = seconds - delay
    while left > 0 and run.done_s is None:
        goodput = _goodput(run)
        boundary = application.boundaries[run.epoch + 1]
        if run.progress + goodput * left < boundary:
            run.progress += goodput * left
            _adapt(run, run.epoch)
            return
        run.epoch += 1
        spent = float(round((boundary - run.progress) / goodput))
        if run.epoch > application.last_epoch:
            run.done_s = now_s + spent
        run.progress = boundary
        now_s += spent
        left -= spent
        _adapt(run, run.epoch - 1)


def _adapt(run: _Run, epoch: int) -> None:
    """Let the agent learn from the steps made during `epoch`, and choose the batch size anew."""
    if run.agent is None or run.batch is None:
        return
    application, batch = run.application, run.batch
    step_s, sync_s = application.step_times(run.placement, batch.local)
    run.agent.observe(
        run.placement,
        batch.local,
        (step_s / run.speed, sync_s / run.speed),
        application.gradient(batch.total(sum(run.placement)), epoch),
    )
    run.batch = run.agent.batch(run.placement)


def _goodput(run: _Run) -> float:
    """Useful iterations per second."""
    plan = run.batch or _plan(run)
    return run.application.goodput(run.placement, plan, run.epoch) * run.speed
