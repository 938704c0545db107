"""A plant of jobs that need a known time, by default `spec.duration_s` seconds at full speed.

Work is done at rate 1 while devices are held, slower under a power cap. Every run begins with a
pause (`RestartCost`); a stop may take time for a checkpoint, during which nothing is done. Events
come at their exact times, out of one heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.estimate.job_work import FREE, RestartCost, Work, as_submitted, kept
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import (
    Event,
    JobProgressed,
    JobStopped,
    cap_applied,
    job_exited,
    job_started,
    job_stopped,
)
from wattherd.model.job import JobSpec
from wattherd.sim.speed import SpeedAt, uncapped
from wattherd.sim.surroundings import Surroundings

LossAt = Callable[[JobSpec, float], float]
"""Loss of a job after so many seconds of work."""


@dataclass(slots=True)
class _Run:
    """A job in this world: `left_s` of `work_s` at `since_s`, once `pause_s` is over.

    `saved_s` is what would be left after a crash. `running` is False while it holds no devices and
    while it writes its checkpoint; `version` tells its newest entry in the heap.
    """

    spec: JobSpec
    work_s: float
    left_s: float
    saved_s: float
    attempt: int = 0
    nodes: tuple[int, ...] = ()
    gpus: int = 0
    running: bool = False
    since_s: float = 0.0
    pause_s: float = 0.0
    speed: float = 1.0
    cap_w: float | None = None
    version: int = 0

    @property
    def done_s(self) -> float:
        """Work done so far."""
        return self.work_s - self.left_s

    @property
    def end_s(self) -> float:
        """When it will be through."""
        return self.since_s + self.pause_s + self.left_s / self.speed

    def settle(self, now_s: float) -> None:
        """Book the work done up to `now_s`."""
        passed = now_s - self.since_s
        paused = min(self.pause_s, passed)
        self.pause_s -= paused
        self.left_s = max(self.left_s - (passed - paused) * self.speed, 0.0)
        self.since_s = now_s


def known_s(spec: JobSpec, work: Work) -> float:
    """Seconds of work in a job.

    Raises:
        UserError: nobody knows them.
    """
    work_s = work(spec)
    if work_s is None:
        hint = "give it a duration_s, or simulate it with its profile"
        raise UserError("has no duration", where=f"job {spec.id}", field="duration_s", hint=hint)
    return work_s


class DurationPlant:
    """Jobs of known duration.

    `stop_s` is how long an orderly stop holds the devices. With `report_s` running jobs report
    their progress (seconds of work done) that often, else never, and with `loss_at` their loss.
    `surroundings` slow jobs down by where their devices are and who else is there.
    """

    def __init__(
        self,
        *,
        work: Work = as_submitted,
        cost: RestartCost = FREE,
        stop_s: float = 0.0,
        report_s: float | None = None,
        speed_at: SpeedAt = uncapped,
        surroundings: Surroundings | None = None,
        loss_at: LossAt | None = None,
    ) -> None:
        """Start with no job."""
        self._surroundings, self._loss_at = surroundings or Surroundings(), loss_at
        self._work, self._cost = work, cost
        self._stop_s = stop_s
        self._report_s = report_s
        self._speed_at = speed_at
        self._runs: dict[str, _Run] = {}
        self._ends: list[tuple[float, int, str]] = []
        """Heap of (time, version, job id); entries of older versions are void."""
        self._stops: list[tuple[float, int, JobStopped]] = []
        self._version = 0
        self._next_report_s = report_s

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Give a job its devices."""
        run = self._runs.get(spec.id)
        if run is None:
            work_s = known_s(spec, self._work)
            run = self._runs[spec.id] = _Run(spec, work_s, work_s, work_s)
        run.attempt, run.running = order.attempt, True
        run.nodes = tuple(allocation.node for allocation in order.allocations)
        run.gpus = sum(len(allocation.gpus) for allocation in order.allocations)
        run.since_s, run.pause_s = now_s, self._cost.pause_s(spec)
        run.saved_s = run.left_s
        run.cap_w = order.cap_w
        others = self._surroundings.enter(spec, order.allocations)
        run.speed = self._speed(run)
        self._foresee(run)
        self._meet(others, now_s)
        return [job_started(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def _speed(self, run: _Run) -> float:
        """By its devices and their cap, and by who else is there."""
        own = self._speed_at(run.spec, run.nodes, run.gpus, run.cap_w)
        return own * self._surroundings.factor(run.spec.id)

    def _meet(self, job_ids: Iterable[str], now_s: float) -> None:
        """Who is around these jobs has changed, and with it their speed."""
        for job_id in job_ids:
            run = self._runs[job_id]
            run.settle(now_s)
            run.speed = self._speed(run)
            self._foresee(run)

    def _foresee(self, run: _Run) -> None:
        self._version += 1
        run.version = self._version
        heapq.heappush(self._ends, (run.end_s, run.version, run.spec.id))

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Take a job's devices, once its checkpoint is written; a run that is over stays so."""
        run = self._runs.get(order.job_id)
        if run is None or run.attempt != order.attempt:
            return ()
        if run.running:
            run.settle(now_s)
            run.running, run.version = False, 0
            self._meet(self._surroundings.leave(order.job_id), now_s)
            run.left_s = run.work_s - kept(run.spec, run.done_s)
        at_s = now_s + self._stop_s
        stopped = job_stopped(
            at_s=at_s, job_id=order.job_id, attempt=order.attempt, progress=run.done_s
        )
        if not self._stop_s:
            return [stopped]
        self._version += 1
        heapq.heappush(self._stops, (at_s, self._version, stopped))
        return ()

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone, its work back to the last checkpoint."""
        for run in self._runs.values():
            if run.running and node in run.nodes:
                run.settle(now_s)
                run.running, run.version = False, 0
                self._meet(self._surroundings.leave(run.spec.id), now_s)
                saved_s = kept(run.spec, run.done_s) if run.spec.checkpoint_s else 0.0
                run.left_s = min(run.saved_s, run.work_s - saved_s)

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set the cap; drivers answer at once here, and the job's speed follows."""
        run = self._runs.get(order.job_id)
        if run is not None and run.running:
            run.settle(now_s)
            run.cap_w = order.cap_w
            run.speed = self._speed(run)
            self._foresee(run)
        return [
            cap_applied(at_s=now_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        ]

    def next_s(self) -> float | None:
        """The earliest end of a job or of a stop, or the next report."""
        times = []
        if (end_s := self._next_end_s()) is not None:
            times.append(end_s)
            if self._next_report_s is not None:
                times.append(self._next_report_s)
        if self._stops:
            times.append(self._stops[0][0])
        return min(times, default=None)

    def _next_end_s(self) -> float | None:
        while self._ends:
            end_s, version, job_id = self._ends[0]
            run = self._runs.get(job_id)
            if run is not None and run.version == version:
                return end_s
            heapq.heappop(self._ends)
        return None

    def advance(self, to_s: float) -> Sequence[Event]:
        """What happened up to `to_s`; stops before ends, ends before reports of the same time."""
        events: list[Event] = []
        while self._stops and self._stops[0][0] <= to_s:
            events.append(heapq.heappop(self._stops)[2])
        while (end_s := self._next_end_s()) is not None and end_s <= to_s:
            job_id = heapq.heappop(self._ends)[2]
            run = self._runs.pop(job_id)
            self._meet(self._surroundings.leave(job_id), end_s)
            events.append(job_exited(at_s=end_s, job_id=job_id, attempt=run.attempt))
        while self._next_report_s is not None and self._next_report_s <= to_s:
            events.extend(self._reports(self._next_report_s))
            self._next_report_s += self._report_s or 0.0
        return sorted(events, key=lambda event: event.at_s) if len(events) > 1 else events

    def _reports(self, now_s: float) -> list[Event]:
        events: list[Event] = []
        for run in self._runs.values():
            if run.running and run.since_s <= now_s:
                run.settle(now_s)
                events.append(
                    JobProgressed(
                        at_s=now_s,
                        job_id=run.spec.id,
                        attempt=run.attempt,
                        progress=run.done_s,
                        rate_per_s=run.speed,
                        loss=self._loss_at(run.spec, run.done_s) if self._loss_at else None,
                    )
                )
        return events
