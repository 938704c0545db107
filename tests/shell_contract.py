"""One script for all shells: what the simulator decides, any shell decides, step by step.

A script is what happens from outside: jobs that come, a budget that is cut and raised, jobs that
end. The simulator plays it first, and says whom it started where, whom it stopped and which caps
were in force after each step. Then another shell plays the same steps, each as soon as the step
before has led to what it led to in the simulator. So orders are compared and not seconds: nothing
that the script leaves to chance differs between a clock that leaps, processes and a control plane.

Lengths of jobs are stated in hours and a script takes minutes: no job ends but by a step, and who
has less left is the same for all shells. Only `tiresias` decides by what jobs received: after the
step `Pass` those that came before have received more than its threshold, the later ones never do.

What learns from its jobs (`LEARNING`) learns nothing in a simulator. Another script has jobs tell
how far they are (`Report`), and there the service says first what is decided (`served`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.lifecycle import State
from wattherd.experiments.schedule.live import LEARNING
from wattherd.experiments.schedule.run import power_policy
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.setup import queue_spec
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.local.devices import Device, Machine
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, SetCap, StartJob, StopJob
from wattherd.model.event import (
    BudgetChanged,
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
    JobSubmitted,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.server.journal.contract import JournalTime
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.sim.world import SimWorld
from wattherd.store.entry import JournalEntry
from wattherd.testing.live import MemoryJournal

LEARNERS = tuple(name for name in LEARNING if name != "pollux")
"""Without the one that draws lots: what it draws goes by how often it was asked."""
POLICIES = ("fifo", "srtf", "tiresias", "drf", "capacity", "hived", "priority", "wattherd")
POWER = "water-filling"
MODEL = "A100-40GB"
GPU = GPUS[MODEL]
NODES, GPUS_EACH = 16, 8
EMPTY_W = NODES * GPUS_EACH * GPU.idle_w
STEP_S, PASS_S = 20.0, 60.0
"""In the simulator: longer than anybody waits before lent GPUs are taken back (15 s)."""
PATIENCE_S = 120.0
"""Real seconds in which anything must have happened, on a machine that is busy with others."""
SAME_W = 0.5
"""Watts in which a cap may differ from shell to shell: agents and drivers round to whole ones."""
Places = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of nodes and numbers of GPUs there, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """`pods` of `gpus` GPUs each; `hours` is the length that its user states."""

    name: str
    pods: int
    gpus: int
    hours: float
    queue: str
    user: str
    priority: int = 0

    def spec(self, at_s: float = 0.0, command: tuple[str, ...] = ()) -> JobSpec:
        """As the core is told of it."""
        role = TaskRole(
            name="pod", count=self.pods, cpu_milli=1000, gpu_count=self.gpus, command=command
        )
        return JobSpec(
            id=self.name,
            submit_s=at_s,
            roles=(role,),
            duration_s=3600.0 * self.hours,
            priority=self.priority,
            queue=self.queue,
            user=self.user,
            tenant=self.user,
        )


@dataclass(frozen=True, slots=True)
class Submit:
    """A job comes."""

    job: ScriptJob


@dataclass(frozen=True, slots=True)
class Budget:
    """All nodes together may draw so much from now on."""

    watts: float


@dataclass(frozen=True, slots=True)
class EndFirst:
    """Of the jobs that run the one that was started first ends; the simulator says which it is."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes."""

    seconds: float = PASS_S


@dataclass(frozen=True, slots=True)
class Report:
    """A job, if it runs, tells that it has done so many of its steps."""

    name: str
    done: float
    total: float


Step = Submit | Budget | EndFirst | Pass | Report


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided since the beginning, and which caps are in force now, in watts a GPU."""

    starts: tuple[tuple[str, Places], ...] = ()
    stops: tuple[str, ...] = ()
    caps_w: Mapping[str, float] = field(default_factory=dict)

    def differs(self, other: Decided) -> str:
        """In what; empty where it does not."""
        if self.starts != other.starts:
            return f"starts:\n  {_lines(self.starts)}\ninstead of\n  {_lines(other.starts)}"
        if self.stops != other.stops:
            return f"stops {self.stops} instead of {other.stops}"
        if self.caps_w.keys() != other.caps_w.keys() or any(
            not math.isclose(self.caps_w[name], cap_w, abs_tol=SAME_W)
            for name, cap_w in other.caps_w.items()
        ):
            return f"caps in force {dict(self.caps_w)} instead of {dict(other.caps_w)}"
        return ""


def _lines(starts: Iterable[tuple[str, Places]]) -> str:
    return "\n  ".join(f"{name} on {places}" for name, places in starts)


class Shell(Protocol):
    """A world in which a script can happen. No call waits for what follows from it."""

    def submit(self, job: ScriptJob) -> None:
        """A job comes."""
        ...

    def budget(self, watts: float) -> None:
        """All nodes together may draw so much."""
        ...

    def end(self, name: str) -> None:
        """A job that runs ends by itself, well."""
        ...

    def let_pass(self, seconds: float) -> None:
        """So much time passes."""
        ...

    def until(self, true: Callable[[], bool]) -> None:
        """Returns once it is true, or when that is to be expected no longer."""
        ...

    def decided(self) -> Decided:
        """From the beginning up to now."""
        ...


@runtime_checkable
class HearsReports(Protocol):
    """A shell in which jobs can tell how far they are."""

    def report(self, told: Report) -> None:
        """A job tells how far it is; nothing, if it does not run."""
        ...


def nodes() -> tuple[NodeSpec, ...]:
    """All alike."""
    return tuple(
        NodeSpec(
            name=f"n{at:02d}",
            cpu_milli=96_000,
            memory_mib=768 * 1024,
            gpu_count=GPUS_EACH,
            gpu_model=MODEL,
        )
        for at in range(NODES)
    )


QUEUES = QueueTree(
    CapacityQueue(
        name="root",
        children=(
            CapacityQueue(name="blue", guaranteed_pct=50, user_limit_factor=-1),
            CapacityQueue(name="red", guaranteed_pct=49, user_limit_factor=-1),
            CapacityQueue(name="default", guaranteed_pct=1, user_limit_factor=-1),
        ),
    )
)


def script(policy: str) -> list[Step]:
    """The same jobs in the same order for all policies; time matters for one of them only."""
    blue, red = {"queue": "blue", "user": "ann"}, {"queue": "red", "user": "bob"}
    long_before = [Pass()] if policy == "tiresias" else []
    return [
        Budget(_most_w()),
        Submit(ScriptJob(name="a", pods=6, gpus=8, hours=20, **blue)),
        Submit(ScriptJob(name="b", pods=9, gpus=8, hours=40, priority=-1, **blue)),
        *long_before,
        Submit(ScriptJob(name="c", pods=1, gpus=8, hours=9, **red)),
        Submit(ScriptJob(name="d", pods=2, gpus=8, hours=5, priority=2, **red)),
        Submit(ScriptJob(name="e", pods=1, gpus=4, hours=3, priority=1, **blue)),
        Submit(ScriptJob(name="f", pods=2, gpus=2, hours=2, **red)),
        Budget(_bears(60)),  # the cut: fewer GPUs than run can draw even their least
        Budget(_bears(100)),
        EndFirst(),
        Submit(ScriptJob(name="g", pods=4, gpus=8, hours=1, **blue)),
        EndFirst(),
        Budget(_most_w()),
        Submit(ScriptJob(name="h", pods=6, gpus=8, hours=0.5, **red)),
        EndFirst(),
        EndFirst(),
    ]


def learning_script() -> list[Step]:
    """Jobs that tell how far they are: speeds are learned, and so is what is left of each.

    `a` has long to go still, `c` next to nothing, and the last ones tell nothing at all.
    """
    blue, red = {"queue": "blue", "user": "ann"}, {"queue": "red", "user": "bob"}
    early = [
        Submit(ScriptJob(name="a", pods=6, gpus=8, hours=20, **blue)),
        Submit(ScriptJob(name="c", pods=4, gpus=8, hours=9, **red)),
        Submit(ScriptJob(name="d", pods=5, gpus=8, hours=5, **red)),
    ]
    rounds = [
        Report(name, speed * STEP_S * 3 * number, total)
        for number in range(1, 9)
        for name, speed, total in (("a", 1.0, 1e6), ("c", 3.0, 2000.0), ("d", 2.0, 20_000.0))
    ]
    return [
        Budget(_most_w()),
        Pass(STEP_S + 7),  # steps are no round seconds, in which planners wake up by themselves
        *early,
        *rounds,
        Submit(ScriptJob(name="b", pods=3, gpus=8, hours=40, **blue)),
        Submit(ScriptJob(name="e", pods=1, gpus=4, hours=3, **blue)),
        Pass(400.0),
        *(Report("b", 10.0 * STEP_S * number, 1e5) for number in range(1, 8)),
        Budget(_bears(60)),
        Pass(400.0),
        Budget(_bears(100)),
        EndFirst(),
        Submit(ScriptJob(name="g", pods=4, gpus=8, hours=1, **blue)),
        Pass(400.0),
        EndFirst(),
        Budget(_most_w()),
        EndFirst(),
    ]


def _most_w() -> float:
    return NODES * GPUS_EACH * GPU.max_w


def _bears(gpus: int) -> float:
    """So many GPUs at their lowest cap, and a little for water-filling to share out."""
    assert GPU.min_cap_w is not None
    return EMPTY_W + gpus * (GPU.min_cap_w - GPU.idle_w) + 137.0


# The simulator -----------------------------------------------------------------------------------


class ScriptPlant:
    """Jobs that do at once as they are told, and end when the script says so.

    Where devices are `late` caps are read back when somebody looks: of several orders for a job the
    last one alone, as agents and supervisors do.
    """

    def __init__(self, ends_s: Iterable[float], *, late: bool = False) -> None:
        self._ends_s, self._late = sorted(ends_s), late
        self._unread: dict[str, SetCap] = {}
        self._runs: dict[str, int] = {}
        """Attempts by job, in the order of their starts."""
        self.ended: list[str] = []

    def start(self, spec: JobSpec, order: StartJob, now_s: float) -> Sequence[Event]:
        self._runs.pop(spec.id, None)
        self._runs[spec.id] = order.attempt
        return [JobStarted(at_s=now_s, job_id=spec.id, attempt=order.attempt)]

    def stop(self, order: StopJob, now_s: float) -> Sequence[Event]:
        self._runs.pop(order.job_id, None)
        return [JobStopped(at_s=now_s, job_id=order.job_id, attempt=order.attempt)]

    def cap(self, order: SetCap, now_s: float) -> Sequence[Event]:
        self._unread[order.job_id] = order
        return [] if self._late else self.read_back(now_s)

    def read_back(self, now_s: float) -> list[Event]:
        """What was ordered last and runs is in force."""
        orders, self._unread = self._unread.values(), {}
        return [
            CapApplied(at_s=now_s, job_id=one.job_id, attempt=one.attempt, cap_w=one.cap_w)
            for one in orders
            if self._runs.get(one.job_id) == one.attempt
        ]

    def running(self) -> list[str]:
        """In the order of their starts."""
        return list(self._runs)

    def next_s(self) -> float | None:
        return self._ends_s[0] if self._ends_s else None

    def advance(self, to_s: float) -> Sequence[Event]:
        told = list[Event]()
        while self._ends_s and self._ends_s[0] <= to_s:
            at_s = self._ends_s.pop(0)
            name = next(iter(self._runs))
            self.ended.append(name)
            told.append(self.end(name, at_s))
        return told

    def end(self, name: str, at_s: float) -> Event:
        return JobExited(at_s=at_s, job_id=name, attempt=self._runs.pop(name), exit_code=0)

    def lose(self, node: int, now_s: float) -> None:
        raise NotImplementedError


class Observed:
    """What events and commands of a core say of its decisions."""

    def __init__(self, core: Core, name_of: Callable[[str], str] = str) -> None:
        self._core, self._name_of = core, name_of
        self._starts: list[tuple[str, Places]] = []
        self._stops: list[str] = []
        self._caps_w: dict[str, float] = {}
        """In force, of jobs that run."""
        self._attempts: dict[str, int] = {}

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Implements `sim.world.Watcher`."""
        validate(self._core)
        match event:
            case CapApplied() if self._attempts.get(event.job_id) == event.attempt:
                self._caps_w[event.job_id] = _cap_w(event.cap_w)
            case JobExited() | JobStopped() if self._attempts.get(event.job_id) == event.attempt:
                del self._attempts[event.job_id], self._caps_w[event.job_id]
        for command in commands:
            if isinstance(command, StartJob) and self._attempts.get(command.job_id) != (
                command.attempt
            ):
                self._attempts[command.job_id] = command.attempt
                self._caps_w[command.job_id] = _cap_w(command.cap_w)
                self._starts.append((command.job_id, places_of(command)))
            elif isinstance(command, StopJob):
                self._stops.append(command.job_id)

    def decided(self) -> Decided:
        """With the jobs' names in the script."""
        name_of = self._name_of
        return Decided(
            tuple((name_of(job_id), places) for job_id, places in list(self._starts)),
            tuple(name_of(job_id) for job_id in list(self._stops)),
            {name_of(job_id): cap_w for job_id, cap_w in dict(self._caps_w).items()},
        )


def _cap_w(cap_w: float | None) -> float:
    return GPU.max_w if cap_w is None else cap_w


def places_of(order: StartJob) -> Places:
    """Each node with all GPUs that the job has there."""
    found: dict[str, list[int]] = {}
    for one in order.allocations:
        found.setdefault(f"n{one.node:02d}", []).extend(one.gpus)
    return tuple((name, tuple(sorted(gpus))) for name, gpus in sorted(found.items()))


def simulated(policy: str) -> list[tuple[Step, Decided]]:
    """Each step, its open question answered, with what was decided up to its end."""
    cluster = ClusterSpec(nodes())
    given = SchedulerContext(jobs=ReadJobs(specs=_jobs(policy)), cluster=cluster, queues=QUEUES)
    built = preset("none").scheduler(policy, given)
    core = Core(
        CoreConfig(
            cluster=cluster,
            planner=built.planner,
            quota=built.quota,
            round_s=0.0,
            power=power_policy(POWER),
            curve_of=given.curve_of,
        )
    )
    now_s, events, ends_s, until_s = 1.0, list[Event](), list[float](), list[float]()
    for step in script(policy):
        match step:
            case Submit(job):
                events.append(JobSubmitted(at_s=now_s, job=job.spec(now_s)))
            case Budget(watts):
                events.append(BudgetChanged(at_s=now_s, budget_w=watts))
            case EndFirst():
                ends_s.append(now_s)
        now_s += step.seconds if isinstance(step, Pass) else STEP_S
        until_s.append(now_s - 1e-3)
    plant, observed = ScriptPlant(ends_s), Observed(core)
    world = SimWorld(core, plant, events, watchers=[observed], record=False)
    found = list[tuple[Step, Decided]]()
    for step, end_s in zip(script(policy), until_s, strict=True):
        world.run(end_s)
        told = replace(step, name=plant.ended[-1]) if isinstance(step, EndFirst) else step
        found.append((told, observed.decided()))
    return found


def _jobs(policy: str) -> tuple[JobSpec, ...]:
    return tuple(step.job.spec() for step in script(policy) if isinstance(step, Submit))


# The service --------------------------------------------------------------------------------------


class ServiceShell:
    """The loop around a core that `wattherd serve` runs, by its blueprint and without a disk.

    Whoever inherits gives it an executor.
    """

    def __init__(self, policy: str, clock: JournalTime) -> None:
        queues = queue_spec(QUEUES.root)
        config = ServeConfig(policy=policy, power=POWER, queues=queues)
        self.machine = Machine(
            node=nodes()[0],
            parts=nodes(),
            devices=(Device(model=MODEL, cpus=0.01),) * (NODES * GPUS_EACH),
            gpu=GPU,
            stated="model",
        )
        blueprint = Blueprint.of(config, self.machine)
        scheduler = blueprint.scheduler()
        core = Core(blueprint.core_config(scheduler))
        self._core = core
        self._names: dict[str, str] = {}
        self._observed = Observed(core, lambda job_id: self._names.get(job_id, job_id))
        self.journal = MemoryJournal()
        self.loop = CoreLoop(
            core, self.journal, clock, on_turn=self._look_on, computers=scheduler.computers
        )

    def _look_on(self, told: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
        for entry, commands in told:
            self._observed.after(entry.event, commands)

    def submit(self, job: ScriptJob) -> None:
        done = self.loop.submit(job.spec(command=self.command_of(job)), {}, by=job.user)
        self.happens()
        self._names[done.result(PATIENCE_S)] = job.name

    def command_of(self, job: ScriptJob) -> tuple[str, ...]:
        """What the job runs, where anything does."""
        del job
        return ()

    def budget(self, watts: float) -> None:
        done = self.loop.post(BudgetChanged(at_s=0.0, budget_w=watts), by="operator")
        self.happens()
        done.result(PATIENCE_S)

    def happens(self) -> None:
        """What was asked is written, where nobody else does so."""

    def report(self, told: Report) -> None:
        (job_id,) = [job_id for job_id, known in self._names.items() if known == told.name]
        job = self._core.jobs.get(job_id)
        if job is not None and job.state is State.RUNNING:
            about = {"at_s": 0.0, "job_id": job_id, "attempt": job.attempt}
            self.loop.tell(JobProgressed(**about, progress=told.done, total=told.total))
            self.happens()

    def decided(self) -> Decided:
        return self._observed.decided()


# Any other shell ----------------------------------------------------------------------------------


def hold_to_the_simulator(policy: str, shell: Shell) -> None:
    """Play the script; what is decided must be what the simulator decided, step by step."""
    hold_to(policy, simulated(policy), shell)


def happen(step: Step, shell: Shell) -> None:
    """In a shell."""
    match step:
        case Submit(job):
            shell.submit(job)
        case Budget(watts):
            shell.budget(watts)
        case EndFirst(name):
            shell.end(name)
        case Pass(seconds):
            shell.let_pass(seconds)
        case Report():
            assert isinstance(shell, HearsReports)
            shell.report(step)


def hold_to(policy: str, played: Iterable[tuple[Step, Decided]], shell: Shell) -> None:
    """Play what was played elsewhere; what is decided must be the same, step by step."""
    for number, (step, wanted) in enumerate(played):
        happen(step, shell)
        shell.until(lambda wanted=wanted: not shell.decided().differs(wanted))
        differs = shell.decided().differs(wanted)
        assert not differs, f"{policy}, step {number}, {step}: {differs}"
