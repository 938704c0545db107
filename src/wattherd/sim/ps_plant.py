"""A plant of parameter-server jobs: speed and loss by `estimate.ps_job`, overheads counted.

A run begins with a pause that holds its devices: the restart, and, where the job first runs in
another shape than its user asked for, the sample runs that whoever chose the shape needs (once per
job, whatever the policy). Jobs keep their steps when stopped. They report steps, pace and loss on
whole multiples of `report_s`, the last one at the moment they end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattherd.errors import Bug
from wattherd.estimate.ps_job import BusyDevices, PsJob, busy
from wattherd.estimate.speed import JobShape, asked_shape, shape_of
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import (
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
)
from wattherd.model.job import JobSpec
from wattherd.sim.lost_runs import LostRuns
from wattherd.sim.speed import SpeedAt, uncapped

RESTART_S = 30.0
PROFILE_S = 80.0
"""Eight sample configurations of ten seconds each."""
REPORT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds that a start costs, and that the first odd shape of a job costs on top."""

    restart_s: float = RESTART_S
    profile_s: float = PROFILE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """From `at_s` on: devices that work, and devices that are held."""

    at_s: float
    gpus: float
    cores: float
    held_gpus: float
    held_cores: float


@dataclass(slots=True)
class _Run:
    """One run of a job: it trains at `step_s` from `trains_from_s` on, `before` steps done.

    Uncapped a step takes `full_step_s`; a synchronous job is as slow as the slowest of its nodes.
    """

    spec: JobSpec
    truth: PsJob
    attempt: int
    shape: JobShape
    full_step_s: float
    step_s: float
    nodes: tuple[int, ...]
    trains_from_s: float
    before: float
    use: BusyDevices
    working: bool = False

    def steps_at(self, now_s: float) -> float:
        return self.before + max(now_s - self.trains_from_s, 0.0) / self.step_s

    @property
    def ends_s(self) -> float:
        return self.trains_from_s + max(self.truth.steps - self.before, 0.0) * self.step_s


@dataclass(slots=True)
class _Total:
    """Sums over runs, kept exactly enough by recomputing them when all is idle."""

    gpus: float = 0.0
    cores: float = 0.0
    held_gpus: float = 0.0
    held_cores: float = 0.0


class PsPlant:
    """Jobs whose truth is known, by id."""

    def __init__(
        self,
        truths: Mapping[str, PsJob],
        *,
        overheads: Overheads | None = None,
        report_s: float = REPORT_S,
        speed_at: SpeedAt = uncapped,
    ) -> None:
        """`truths` must hold every job that will be started."""
        self._truths = truths
        self._overheads = overheads or Overheads()
        self._report_s = report_s
        self._speed_at = speed_at
        self._runs: dict[str, _Run] = {}
        self._steps: dict[str, float] = {}
        self._lost = LostRuns()
        self._profiled: set[str] = set()
        self._now_s = 0.0
        self._total = _Total()
        self.use: list[UsePoint] = []
        self.paused_s: list[float] = []
        """Length of every pause, restarts and profiling."""

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Begin a run; it trains after its pause."""
        self._lost.forget(spec.id)
        truth, shape = self._truths[spec.id], shape_of(spec, order.allocations)
        pause_s = self._overheads.restart_s
        if spec.id not in self._profiled and shape != asked_shape(spec):
            self._profiled.add(spec.id)
            pause_s += self._overheads.profile_s
        self.paused_s.append(pause_s)
        step_s = truth.step_s(shape, order.attempt)
        nodes = tuple(one.node for one in order.allocations if one.gpus)
        self._runs[spec.id] = _Run(
            spec=spec,
            truth=truth,
            attempt=order.attempt,
            shape=shape,
            full_step_s=step_s,
            step_s=step_s / self._speed(spec, nodes, order.cap_w),
            nodes=nodes,
            trains_from_s=now_s + pause_s,
            before=self._steps.get(spec.id, 0.0),
            use=busy(truth, shape, step_s),
        )
        self._hold(shape, 1)
        self._note(now_s)
        return [JobStarted(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """End a run; its steps are kept."""
        if answer := self._lost.stop(order, now_s):
            return answer
        run = self._end(order.job_id, now_s)
        steps = self._steps[order.job_id] = min(run.steps_at(now_s), run.truth.steps)
        return [JobStopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt, progress=steps)]

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone; jobs begin again where they were stopped last."""
        for job_id in [one for one, run in self._runs.items() if node in run.nodes]:
            run = self._end(job_id, now_s)
            self._lost.add(job_id, run.attempt, self._steps.get(job_id, 0.0))

    def _speed(self, spec: JobSpec, nodes: Sequence[int], cap_w: float | None) -> float:
        return self._speed_at(spec, nodes, spec.gpus, cap_w)

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set the cap; drivers answer at once here, and the GPUs' speed follows."""
        run = self._runs.get(order.job_id)
        if run is not None and run.attempt == order.attempt:
            run.before = run.steps_at(now_s)
            run.trains_from_s = max(run.trains_from_s, now_s)
            run.step_s = run.full_step_s / self._speed(run.spec, run.nodes, order.cap_w)
        return [
            CapApplied(at_s=now_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        ]

    def next_s(self) -> float | None:
        """The next report, end of a pause, or end of a job."""
        if not self._runs:
            return None
        report_s = (math.floor(self._now_s / self._report_s) + 1) * self._report_s
        changes = [run.ends_s if run.working else run.trains_from_s for run in self._runs.values()]
        return max(min(report_s, *changes), self._now_s)

    def advance(self, to_s: float) -> Sequence[Event]:
        """Let time pass to the next change at most."""
        self._now_s = to_s
        for run in self._runs.values():
            if not run.working and run.trains_from_s <= to_s:
                self._work(run, 1)
                self._note(to_s)
        events: list[Event] = []
        if to_s % self._report_s == 0:
            events.extend(self._report(run, to_s) for run in self._runs.values() if run.working)
        for job_id in [one for one, run in self._runs.items() if self._done(run, to_s)]:
            run = self._end(job_id, to_s)
            events.append(self._report(run, to_s))
            events.append(JobExited(at_s=to_s, job_id=job_id, attempt=run.attempt))
        return events

    def _done(self, run: _Run, now_s: float) -> bool:
        return run.working and run.ends_s <= now_s

    def _report(self, run: _Run, now_s: float) -> Event:
        steps = min(run.steps_at(now_s), run.truth.steps)
        return JobProgressed(
            at_s=now_s,
            job_id=run.truth.id,
            attempt=run.attempt,
            progress=steps,
            rate_per_s=1.0 / run.step_s,
            loss=run.truth.loss.at(steps),
        )

    def _end(self, job_id: str, now_s: float) -> _Run:
        run = self._runs.pop(job_id, None)
        if run is None:
            raise Bug(f"job {job_id} does not run")
        if run.working:
            self._work(run, -1)
        self._hold(run.shape, -1)
        self._note(now_s)
        return run

    def _work(self, run: _Run, sign: int) -> None:
        run.working = sign > 0
        self._total.gpus += sign * run.use.gpus
        self._total.cores += sign * run.use.cores

    def _hold(self, shape: JobShape, sign: int) -> None:
        cores = shape.workers * shape.worker_cores + shape.servers * shape.server_cores
        self._total.held_gpus += sign * shape.gpus
        self._total.held_cores += sign * cores
        if not self._runs and sign < 0:
            self._total = _Total()

    def _note(self, now_s: float) -> None:
        total = self._total
        point = UsePoint(
            at_s=now_s,
            gpus=total.gpus,
            cores=total.cores,
            held_gpus=total.held_gpus,
            held_cores=total.held_cores,
        )
        if self.use and self.use[-1].at_s == now_s:
            self.use[-1] = point
        else:
            self.use.append(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Time averages in percent.

    `gpu_pct` and `cpu_pct` are devices that work, of all there are; `held_pct` GPUs that jobs hold;
    `gap_points` is |GPU - CPU| of those held: how unevenly jobs use what they were given.
    """

    gpu_pct: float
    cpu_pct: float
    held_pct: float
    gap_points: float


def utilisation(points: Sequence[UsePoint], cluster: ClusterSpec, until_s: float) -> Utilisation:
    """Averages from 0 to `until_s`; the gap over the time in which anything is held."""
    gpus = sum(node.gpu_count for node in cluster.nodes)
    cores = sum(node.cpu_milli for node in cluster.nodes) / 1000
    gpu_s = cpu_s = held_s = gap_s = used_s = 0.0
    ends = [point.at_s for point in points[1:]] + [until_s]
    for point, end_s in zip(points, ends, strict=True):
        seconds = min(end_s, until_s) - point.at_s
        if seconds <= 0:
            continue
        gpu_s += seconds * point.gpus
        cpu_s += seconds * point.cores
        held_s += seconds * point.held_gpus
        if point.held_gpus and point.held_cores:
            used_s += seconds
            gap_s += seconds * abs(point.gpus / point.held_gpus - point.cores / point.held_cores)
    return Utilisation(
        gpu_pct=100 * gpu_s / (until_s * gpus),
        cpu_pct=100 * cpu_s / (until_s * cores),
        held_pct=100 * held_s / (until_s * gpus),
        gap_points=100 * gap_s / used_s if used_s else 0.0,
    )
