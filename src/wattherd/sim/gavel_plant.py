"""A plant that counts steps: the job model of Gavel's published simulation (OSDI'20).

A job makes `rate` steps per second, by worker type and number of GPUs; where its GPUs are of
several types, the slowest sets the pace. With a round length, jobs work in rounds: each does as
many whole steps as end within a round, then waits for the slowest of the others, and reports its
steps when the round is over. Without one, jobs work on until done. Restarts cost nothing. A job
that does not run on the GPUs it was given (no throughput: out of memory) fails at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable, types_of, whole_steps
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import CapApplied, Event, JobExited, JobProgressed, JobStarted, JobStopped
from wattherd.model.job import JobSpec
from wattherd.sim.lost_runs import LostRuns
from wattherd.sim.speed import SpeedAt, uncapped


@dataclass(slots=True)
class _Run:
    """A job on its devices; `steps` are to be done from `from_s` to `finish_s`."""

    spec: JobSpec
    attempt: int
    nodes: tuple[int, ...]
    uncapped_rate: float
    rate: float
    left: int
    from_s: float = 0.0
    finish_s: float = math.inf
    steps: int = 0

    @property
    def done(self) -> float:
        """Steps trained, as the job reports them."""
        return float((self.spec.steps or 0) - self.left)

    def work(self, from_s: float, seconds: float) -> None:
        """Begin as many steps as end within `seconds`."""
        self.from_s = from_s
        self.steps = self.left
        if math.isfinite(seconds):
            self.steps = whole_steps(self.rate, seconds, self.left)
        self.finish_s = from_s + self.steps / self.rate if self.rate > 0 else math.inf

    def settle(self, now_s: float) -> None:
        """Count the whole steps done by now."""
        if now_s < self.finish_s:
            self.steps = min(self.steps, int(self.rate * (now_s - self.from_s)))
        self.left -= self.steps
        self.steps = 0


class GavelPlant:
    """Jobs whose speed is measured by worker type."""

    def __init__(
        self,
        table: ThroughputTable,
        cluster: ClusterSpec,
        *,
        round_s: float | None = None,
        spread_slows: bool = False,
        speed_at: SpeedAt = uncapped,
    ) -> None:
        """`spread_slows` takes the rates measured on several servers where a job sits on several.

        The published simulation never does.
        """
        self._table = table
        self._types = types_of(
            table, [node.gpu_model if node.gpu_count else "" for node in cluster.nodes]
        )
        self._round_s = math.inf if round_s is None else round_s
        self._spread_slows = spread_slows
        self._speed_at = speed_at
        self._left: dict[str, int] = {}
        self._runs: dict[str, _Run] = {}
        self._lost = LostRuns()

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Begin to work at once, within the round in progress.

        Raises:
            UserError: it is not known how much there is to train.
        """
        if spec.steps is None:
            raise UserError("has no number of steps", where=f"job {spec.id}", field="steps")
        nodes = tuple(one.node for one in order.allocations if one.gpus)
        rate = self._rate(spec, nodes, sum(len(one.gpus) for one in order.allocations))
        started = JobStarted(at_s=now_s, job_id=spec.id, attempt=order.attempt)
        if not rate:
            crashed = JobExited(at_s=now_s, job_id=spec.id, attempt=order.attempt, exit_code=1)
            return [started, crashed]
        self._lost.forget(spec.id)
        run = _Run(spec, order.attempt, nodes, rate, rate, self._left.get(spec.id, spec.steps))
        run.rate = rate * self._slowest(spec, nodes, order.cap_w)
        run.work(now_s, self._round_s)
        self._runs[spec.id] = run
        return [started]

    def _rate(self, spec: JobSpec, nodes: tuple[int, ...], gpus: int) -> float:
        spread = self._spread_slows and len(nodes) > 1
        rate_of = self._table.spread_rate if spread else self._table.rate
        return min(rate_of(self._types[node], spec.profile, gpus) for node in nodes)

    def _slowest(self, spec: JobSpec, nodes: tuple[int, ...], cap_w: float | None) -> float:
        return self._speed_at(spec, nodes, spec.gpus, cap_w)

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Take the job's devices; the whole steps done so far stay."""
        run = self._runs.pop(order.job_id, None)
        if run is None:
            return self._lost.stop(order, now_s)
        run.settle(now_s)
        self._left[order.job_id] = run.left
        return [
            JobStopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt, progress=run.done)
        ]

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone; the steps of rounds that are over stay."""
        del now_s
        for job_id in [one for one, run in self._runs.items() if node in run.nodes]:
            run = self._runs.pop(job_id)
            self._left[job_id] = run.left
            self._lost.add(job_id, run.attempt, run.done)

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Set the cap; what is left of the round is worked at the new speed."""
        run = self._runs.get(order.job_id)
        if run is None or run.attempt != order.attempt:
            return ()
        rate = run.uncapped_rate * self._slowest(run.spec, run.nodes, order.cap_w)
        if rate != run.rate:
            left_s = self._round_s - (now_s - run.from_s)
            run.settle(now_s)
            run.rate = rate
            run.work(now_s, max(left_s, 0.0))
        return [
            CapApplied(at_s=now_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
        ]

    def next_s(self) -> float | None:
        """The next job to be done, or the end of the round."""
        ends = [run.finish_s for run in self._runs.values() if run.steps == run.left]
        next_s = min([*ends, self._round_end_s()])
        return next_s if math.isfinite(next_s) else None

    def _round_end_s(self) -> float:
        """When the last of those who work has done its steps."""
        return max((run.finish_s for run in self._runs.values() if run.rate > 0), default=math.inf)

    def advance(self, to_s: float) -> Sequence[Event]:
        """Let rounds pass, and jobs end, up to `to_s`."""
        events: list[Event] = []
        while True:
            end_s = self._round_end_s()
            events.extend(self._exits(min(to_s, end_s)))
            if end_s > to_s or not self._runs:
                return events
            events.extend(self._close(end_s))

    def _exits(self, to_s: float) -> Iterator[Event]:
        done = [
            run for run in self._runs.values() if run.steps == run.left and run.finish_s <= to_s
        ]
        for run in sorted(done, key=lambda run: run.finish_s):
            del self._runs[run.spec.id]
            self._left.pop(run.spec.id, None)
            yield JobExited(at_s=run.finish_s, job_id=run.spec.id, attempt=run.attempt)

    def _close(self, end_s: float) -> Iterator[Event]:
        """End the round: everybody reports, and begins the next."""
        for run in self._runs.values():
            if run.rate > 0:
                run.settle(end_s)
                run.work(end_s, self._round_s)
                yield JobProgressed(
                    at_s=end_s,
                    job_id=run.spec.id,
                    attempt=run.attempt,
                    progress=run.done,
                    rate_per_s=run.rate,
                )
