"""A small cluster on which jobs run as long as they say, and the story of what a planner did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.executor import Plant
from wattherd.engine.core.invariants import validate
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, FinishJob, SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobStarted, JobStopped, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner, Quota
from wattherd.sim.lost_runs import LostRuns
from wattherd.sim.world import SimWorld


def t4_nodes(*gpus: int, cpu_milli: int = 64_000) -> ClusterSpec:
    """Nodes n0, n1, ... with so many T4s each."""
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"n{i}", cpu_milli=cpu_milli, memory_mib=65_536, gpu_count=n, gpu_model="T4"
            )
            for i, n in enumerate(gpus)
        )
    )


def timed(
    name: str, gpus: int = 1, *, at_s: float = 0.0, lasts_s: float = 100.0, **more: Any
) -> JobSpec:
    """A job of one-GPU tasks (unless `roles` say otherwise) that runs for `lasts_s`."""
    more.setdefault("roles", (TaskRole(count=gpus),))
    return JobSpec(id=name, submit_s=at_s, duration_s=lasts_s, **more)


@dataclass(slots=True)
class _Run:
    attempt: int
    left_s: float
    since_s: float
    nodes: tuple[int, ...]


class TimedPlant:
    """Jobs keep what they have done when they are stopped; stopping takes no time."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._runs: dict[str, _Run] = {}
        self._left_s: dict[str, float] = {}
        self._lost = LostRuns()

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        """Run for what is left of the job's duration."""
        self._lost.forget(spec.id)
        left_s = self._left_s.get(spec.id, spec.duration_s or 0.0)
        nodes = tuple(one.node for one in order.allocations)
        self._runs[spec.id] = _Run(order.attempt, left_s, now_s, nodes)
        return [JobStarted(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        """Stop at once; a run that is over has said so."""
        run = self._runs.pop(order.job_id, None)
        if run is None:
            return self._lost.stop(order, now_s)
        self._left_s[order.job_id] = run.left_s - (now_s - run.since_s)
        return [JobStopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt)]

    def lose(self, node: int, now_s: float) -> None:
        """What ran on a node is gone with what its run has done."""
        del now_s
        for job_id in [one for one, run in self._runs.items() if node in run.nodes]:
            run = self._runs.pop(job_id)
            self._lost.add(job_id, run.attempt, 0.0)

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        """Caps make no difference here."""
        del order, now_s
        return []

    def next_s(self) -> float | None:
        """When the next job ends."""
        return min((run.since_s + run.left_s for run in self._runs.values()), default=None)

    def advance(self, to_s: float) -> Sequence[Event]:
        """End what ends by then."""
        done = sorted(
            (run.since_s + run.left_s, job_id, run.attempt)
            for job_id, run in self._runs.items()
            if run.since_s + run.left_s <= to_s
        )
        for _, job_id, _ in done:
            del self._runs[job_id]
        return [JobExited(at_s=at, job_id=job_id, attempt=n) for at, job_id, n in done]


class Story:
    """Runs to the end (or `until_s`); every invariant is checked after every event."""

    def __init__(
        self,
        planner: Planner,
        cluster: ClusterSpec,
        jobs: Iterable[JobSpec],
        *,
        quota: Quota | None = None,
        until_s: float = float("inf"),
        events: Iterable[Event] = (),
        round_s: float | None = None,
        plant: Plant | None = None,
        narrow: bool = False,
    ) -> None:
        """`events` come beside the submissions of `jobs`; without a `plant` restarts are free."""
        config = CoreConfig(
            cluster=cluster, planner=planner, quota=quota, round_s=round_s, narrow=narrow
        )
        self.core = Core(config)
        self.commands: list[tuple[float, Command]] = []
        """Every command with the time at which it was given."""
        given = [*events, *(JobSubmitted(at_s=job.submit_s, job=job) for job in jobs)]
        world = SimWorld(self.core, plant or TimedPlant(), given, watchers=[self], record=False)
        world.run(until_s)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Note what the core said, and check it."""
        validate(self.core)
        self.commands.extend((event.at_s, command) for command in commands)

    def starts(self, job_id: str) -> list[float]:
        """When a job was started."""
        return [at for at, c in self.commands if isinstance(c, StartJob) and c.job_id == job_id]

    def stops(self, job_id: str) -> list[float]:
        """When a job was told to stop."""
        return [at for at, c in self.commands if isinstance(c, StopJob) and c.job_id == job_id]

    def places(self, job_id: str) -> list[tuple[tuple[int, ...], ...]]:
        """For every start, node and GPUs of each of its allocations: (node, gpu, gpu, ...)."""
        return [
            tuple((one.node, *one.gpus) for one in command.allocations)
            for _, command in self.commands
            if isinstance(command, StartJob) and command.job_id == job_id
        ]

    def ended(self, job_id: str) -> float:
        """When it reached a final state."""
        (at_s,) = [at for at, c in self.commands if isinstance(c, FinishJob) and c.job_id == job_id]
        return at_s

    def running(self) -> dict[str, int]:
        """GPUs of every job that holds some."""
        return {job.id: job.gpus for job in self.core.jobs.values() if job.active}

    def why(self, job_id: str) -> str:
        """What a waiting job is told; empty if nothing."""
        reason = self.core.jobs[job_id].reason
        return reason.text() if reason else ""
