"""Jobs of known duration in a world where every scheduling event costs every running job a restart.

The job model of Muri's simulator (SIGCOMM'22 artifact): between two events a job works for the
time that passed less its restart pause, or not at all if that is longer; a job that is through
when an event comes is through, whatever the pauses. What happens in this world is such an event,
so that every call of `advance` charges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.job_work import RestartCost, Work, as_submitted, kept
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import Event, cap_applied, job_exited, job_started, job_stopped
from wattherd.model.job import JobSpec
from wattherd.sim.duration_plant import known_s
from wattherd.sim.lost_runs import LostRuns
from wattherd.sim.speed import SpeedAt, uncapped

Floats = NDArray[np.float64]


class EventChargedPlant:
    """Running jobs are the first places of columns; who waits is remembered by its work left.

    A free place never ends: all that is asked of the columns is asked of all their places, so that
    nothing is to be cut out of them at every event.
    """

    def __init__(
        self, *, cost: RestartCost, work: Work = as_submitted, speed_at: SpeedAt = uncapped
    ) -> None:
        """`cost.pause_s` is charged at every event."""
        self._pause_s, self._work = cost.pause_s, work
        self._speed_at = speed_at
        self._left: dict[str, float] = {}
        """Work left (s) of jobs that have been stopped, when they were."""
        self._lost = LostRuns()
        self._orders: list[StartJob] = []
        self._specs: list[JobSpec] = []
        self._at: dict[str, int] = {}
        """Places of the running jobs."""
        self._table: Floats = np.empty((5, 0))
        self._widen(64)
        self._now_s = 0.0
        self._end_s: float | None = None
        """When the first of them ends, once it has been looked up."""
        self._slowed = False
        """Whether any job ever ran at another speed than its own."""

    def _widen(self, places: int) -> None:
        """Have so many places; those who run keep theirs."""
        table: Floats = np.ones((5, places))
        table[[0, 3]] = np.inf
        table[:, : self._table.shape[1]] = self._table
        self._table = table
        self._left_s, self._paused_s, self._speeds, self._ends_s, self._done_s = table

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Give a job its devices."""
        at = len(self._orders)
        if at == len(self._ends_s):
            self._widen(2 * at)
        self._lost.forget(spec.id)
        before_s = self._left.get(spec.id)
        left_s = known_s(spec, self._work) if before_s is None else before_s
        speed = self._speed(spec, order, order.cap_w)
        self._slowed = self._slowed or speed != 1.0
        self._orders.append(order)
        self._specs.append(spec)
        self._at[spec.id] = at
        self._left_s[at], self._paused_s[at] = left_s, self._pause_s(spec)
        self._speeds[at], self._ends_s[at] = speed, now_s + left_s / speed
        self._end_s = None
        return [job_started(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def _speed(self, spec: JobSpec, order: StartJob, cap_w: float | None) -> float:
        nodes = [one.node for one in order.allocations]
        return self._speed_at(spec, nodes, spec.gpus, cap_w)

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Take a job's devices; its progress stays. A run that is over stays so."""
        at = self._at.get(order.job_id)
        if at is None or self._orders[at].attempt != order.attempt:
            return self._lost.stop(order, now_s)
        left_s = self._left[order.job_id] = self._left_s.item(at)
        progress = known_s(self._specs[at], self._work) - left_s
        self._remove(at)
        return [
            job_stopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt, progress=progress)
        ]

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone, its work back to its checkpoint, or where its run began."""
        del now_s
        for at in reversed(range(len(self._orders))):
            order, spec = self._orders[at], self._specs[at]
            if all(one.node != node for one in order.allocations):
                continue
            work_s = known_s(spec, self._work)
            left_s = self._left.get(spec.id, work_s)
            if spec.checkpoint_s:
                left_s = min(left_s, work_s - kept(spec, work_s - self._left_s.item(at)))
            self._left[spec.id] = left_s
            self._lost.add(spec.id, order.attempt, work_s - left_s)
            self._remove(at)

    def _remove(self, at: int) -> None:
        """Close the gap with the last one."""
        del self._at[self._orders[at].job_id]
        order, spec, last = self._orders.pop(), self._specs.pop(), len(self._orders)
        if at < last:
            self._orders[at], self._specs[at] = order, spec
            self._at[order.job_id] = at
            self._table[:, at] = self._table[:, last]
        self._left_s[last] = self._ends_s[last] = np.inf
        self._end_s = None

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set the cap; drivers answer at once here, and the job's speed follows."""
        at = self._at.get(order.job_id)
        if at is not None:
            speed = self._speed(self._specs[at], self._orders[at], order.cap_w)
            self._slowed = self._slowed or speed != 1.0
            self._speeds[at] = speed
            self._ends_s[at] = now_s + self._left_s[at] / speed
            self._end_s = None
        return [
            cap_applied(at_s=now_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        ]

    def next_s(self) -> float | None:
        """The earliest end of a job, if no event comes before it."""
        if self._end_s is None and self._orders:
            self._end_s = self._ends_s.item(self._ends_s.argmin())
        return self._end_s

    def advance(self, to_s: float) -> Sequence[Event]:
        """An event at `to_s`: who is through is through, everybody else is charged."""
        passed_s = to_s - self._now_s
        if passed_s <= 0:
            return ()
        self._now_s = to_s
        first_s = self.next_s()
        if first_s is None:
            return ()
        events = self._exits(to_s) if first_s <= to_s else ()
        left_s, done_s = self._left_s, self._done_s
        np.subtract(passed_s, self._paused_s, out=done_s)
        np.maximum(done_s, 0.0, out=done_s)
        if self._slowed:
            done_s *= self._speeds
        np.subtract(left_s, done_s, out=left_s)
        if self._slowed:
            left_s = np.divide(left_s, self._speeds, out=done_s)
        np.add(left_s, to_s, out=self._ends_s)
        self._end_s = None
        return events

    def _exits(self, to_s: float) -> list[Event]:
        ends_s = self._ends_s
        (through,) = (ends_s <= to_s).nonzero()
        events: list[Event] = []
        if len(through) == 1:
            return [self._exit(int(through[0]), float(ends_s[through[0]]))]
        for at, end_s in zip(through[::-1].tolist(), ends_s[through[::-1]].tolist(), strict=True):
            events.append(self._exit(at, end_s))
        return sorted(events, key=lambda event: event.at_s)

    def _exit(self, at: int, end_s: float) -> Event:
        order = self._orders[at]
        self._left.pop(order.job_id, None)
        self._remove(at)
        return job_exited(at_s=end_s, job_id=order.job_id, attempt=order.attempt)
