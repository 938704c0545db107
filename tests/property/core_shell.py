"""A shell that carries out the core's orders by hand, one confirmation at a time.

It keeps its own book of which devices are occupied in the world, so that an order which the
world could not carry out shows at once, whatever the core believes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.model.allocation import Allocation
from wattherd.model.command import (
    Command,
    Compute,
    FinishJob,
    GiveNotice,
    RejectJob,
    SetCap,
    SleepNode,
    StartJob,
    StopJob,
    WakeAt,
    WakeNode,
)
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    Computed,
    DeviceReturned,
    Event,
    JobExited,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeAsleep,
    NodeAwake,
    NodeLost,
    NodeReturned,
    QueueStarted,
    Woke,
)
from wattherd.model.job import JobSpec

ENOUGH_STEPS = 3000


@dataclass(slots=True)
class Run:
    """One attempt of a job in the world; `parts` are what still occupies devices."""

    job_id: str
    attempt: int
    parts: list[Allocation]
    status: str = "ordered"
    cap_order: SetCap | None = None


class Shell:
    """Drives one core; every event goes through `deliver`."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.core = Core(config)
        self.now_s = 0.0
        self.events: list[Event] = []
        self.commands: list[list[Command]] = []
        self.runs: dict[tuple[str, int], Run] = {}
        self.attempts: dict[str, int] = {}
        self.submitted: dict[str, JobSpec] = {}
        self.final: dict[str, str] = {}
        self.wakes: dict[str, float] = {}
        self.lost: dict[str, None] = {}
        self.off: dict[str, str] = {}
        """Nodes that are not on: falling, asleep or waking."""

    # --- what the core is told ---------------------------------------------------------------

    def deliver(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self.submitted.setdefault(event.job.id, event.job)
        if isinstance(event, NodeLost):
            self._lose(event.node)
        if isinstance(event, NodeReturned):
            self.lost.pop(event.node, None)
        self.events.append(event)
        commands = self.core.handle(event)
        self.commands.append(commands)
        for command in commands:
            self._obey(command)
        validate(self.core)

    def submit(self, spec: JobSpec) -> None:
        self.deliver(JobSubmitted(at_s=self.now_s, job=spec))

    def started(self, run: Run) -> None:
        run.status = "running"
        self.deliver(JobStarted(at_s=self.now_s, job_id=run.job_id, attempt=run.attempt))

    def stopped(self, run: Run) -> None:
        self._gone(run)
        self.deliver(
            JobStopped(at_s=self.now_s, job_id=run.job_id, attempt=run.attempt, progress=1.0)
        )

    def exited(self, run: Run, code: int = 0) -> None:
        self._gone(run)
        self.deliver(
            JobExited(at_s=self.now_s, job_id=run.job_id, attempt=run.attempt, exit_code=code)
        )

    def capped(self, run: Run) -> None:
        order, run.cap_order = run.cap_order, None
        assert order is not None
        self.deliver(
            CapApplied(at_s=self.now_s, job_id=run.job_id, attempt=run.attempt, cap_w=order.cap_w)
        )

    def switched(self, node: str) -> None:
        """A node has done what it was told."""
        if self.off[node] == "waking":
            del self.off[node]
            self.deliver(NodeAwake(at_s=self.now_s, node=node))
        else:
            self.off[node] = "asleep"
            self.deliver(NodeAsleep(at_s=self.now_s, node=node))

    def switching(self) -> list[str]:
        return [node for node, phase in self.off.items() if phase != "asleep"]

    def wake(self) -> None:
        """The earliest wake-up asked for."""
        key = min(self.wakes, key=lambda key: (self.wakes[key], key))
        self.now_s = max(self.now_s, self.wakes.pop(key))
        self.deliver(Woke(at_s=self.now_s, key=key))

    # --- what the core orders ----------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        match command:
            case StartJob():
                self._start(command)
            case StopJob():
                assert command.attempt == self.attempts[command.job_id]
                run = self.runs.get((command.job_id, command.attempt))
                assert run is not None or self.lost, "told to stop what does not run"
                if run is not None:
                    run.status = "stopping"
            case GiveNotice():
                assert self.runs[command.job_id, command.attempt].status != "stopping"
            case SetCap():
                self.runs[command.job_id, command.attempt].cap_order = command
            case SleepNode():
                assert command.node not in self.off
                assert command.node not in self.lost
                assert command.node not in self._busy(), "put to sleep while something runs"
                self.off[command.node] = "falling"
            case WakeNode():
                assert self.off[command.node] == "asleep"
                self.off[command.node] = "waking"
            case WakeAt():
                self.wakes[command.key] = command.at_s
            case RejectJob():
                self._final(command.job_id, "Rejected")
            case FinishJob():
                assert not self.runs_of(command.job_id), "finished while it runs"
                self._final(command.job_id, command.state)

    def _start(self, order: StartJob) -> None:
        assert order.job_id not in self.final
        assert order.attempt == self.attempts.get(order.job_id, 0) + 1
        assert not self.runs_of(order.job_id), "two runs of one job at a time"
        names = [node.name for node in self.config.cluster.nodes]
        assert not any(names[part.node] in self.lost for part in order.allocations)
        assert not any(names[part.node] in self.off for part in order.allocations)
        out = self.core.drained.out
        assert not any((part.node, gpu) in out for part in order.allocations for gpu in part.gpus)
        self.attempts[order.job_id] = order.attempt
        run = Run(order.job_id, order.attempt, list(order.allocations))
        self.runs[order.job_id, order.attempt] = run
        self.check_devices()

    def _busy(self) -> set[str]:
        nodes = self.config.cluster.nodes
        return {nodes[part.node].name for run in self.runs.values() for part in run.parts}

    def check_devices(self) -> None:
        """No device, CPU or byte of the world is given twice."""
        for index, node in enumerate(self.config.cluster.nodes):
            parts = [p for run in self.runs.values() for p in run.parts if p.node == index]
            assert sum(p.request.cpu_milli for p in parts) <= node.cpu_milli
            assert sum(p.request.memory_mib for p in parts) <= node.memory_mib
            for gpu in range(node.gpu_count):
                assert sum(p.request.gpu_milli for p in parts if gpu in p.gpus) <= 1000

    def _final(self, job_id: str, state: str) -> None:
        assert job_id not in self.final, f"{job_id} reached two final states"
        self.final[job_id] = state

    # --- the world ---------------------------------------------------------------------------

    def runs_of(self, job_id: str) -> list[Run]:
        return [run for run in self.runs.values() if run.job_id == job_id]

    def with_status(self, *statuses: str) -> list[Run]:
        return [run for run in self.runs.values() if run.status in statuses]

    def _gone(self, run: Run) -> None:
        del self.runs[run.job_id, run.attempt]

    def _lose(self, name: str) -> None:
        """What ran on the node is gone; other ranks of a gang linger until they are stopped."""
        self.lost[name] = None
        self.off.pop(name, None)
        names = [node.name for node in self.config.cluster.nodes]
        for run in list(self.runs.values()):
            run.parts = [part for part in run.parts if names[part.node] != name]
            if not run.parts:
                self._gone(run)

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Heal the world and let every job end; fails if that needs for ever."""
        for node in list(self.lost):
            self.deliver(NodeReturned(at_s=self.now_s, node=node))
        nodes = self.config.cluster.nodes
        for at, gpu in list(self.core.drained.out):
            self.deliver(DeviceReturned(at_s=self.now_s, node=nodes[at].name, gpu=gpu))
        self.deliver(BudgetChanged(at_s=self.now_s, budget_w=None))
        for queue in list(self.core.stopped):
            self.deliver(QueueStarted(at_s=self.now_s, queue=queue))
        for job_id in self.submitted:
            self.deliver(JobReleased(at_s=self.now_s, job_id=job_id))
        for _ in range(ENOUGH_STEPS):
            if not self.core.jobs:
                break
            self._finish_step()
        assert not self.core.jobs, self._stuck()
        self._check_end()

    def _finish_step(self) -> None:
        for status, confirm in (
            ("stopping", self.stopped),
            ("ordered", self.started),
            ("running", self.exited),
        ):
            for run in self.with_status(status)[:1]:
                confirm(run)
                return
        if self.switching():
            self.switched(self.switching()[0])
            return
        assert self.wakes, self._stuck()
        self.wake()

    def _check_end(self) -> None:
        assert sorted(self.final) == sorted(self.submitted)
        assert not self.runs
        for state in (self.core.held, self.core.planned):
            assert state.used_gpu_milli == 0
            cpu = [node.cpu_milli for node in self.config.cluster.nodes]
            assert state.cpu_free.tolist() == cpu

    def _stuck(self) -> str:
        lines = [
            f"{job.id}: {job.state}, wanted {job.wanted}, holds {job.allocations}, "
            f"waits for {sorted(job.waits_for)}, {job.reason.text() if job.reason else ''}"
            for job in self.core.jobs.values()
        ]
        return "no job gets anywhere:\n" + "\n".join(lines)

    def replay(self) -> None:
        """A fresh core given the same events gives the same commands."""
        core = Core(self.config)
        for event, commands in zip(self.events, self.commands, strict=True):
            assert core.handle(event) == commands


class ComputingShell(Shell):
    """Also keeps what it was asked to work out, and answers by `solve` when told to."""

    def __init__(self, config: CoreConfig, solve: Callable[[Any], Any]) -> None:
        super().__init__(config)
        self.solve = solve
        self.asked: list[Compute] = []

    def _obey(self, command: Command) -> None:
        if isinstance(command, Compute):
            self.asked.append(command)
        else:
            super()._obey(command)

    def answer(self, order: Compute, *, found: bool = True) -> None:
        result = self.solve(order.payload) if found else None
        event = Computed(at_s=self.now_s, kind=order.kind, key=order.key, result=result)
        self.deliver(event)

    def _finish_step(self) -> None:
        if self.asked:
            self.answer(self.asked.pop())
        else:
            super()._finish_step()
