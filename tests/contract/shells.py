"""Two shells around the same core and keeper: a simulated plant, and processes of this machine.

A scenario speaks with either in the same words, and reads afterwards, job by job, what happened.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.estimate.interference import PairSpeeds
from wattherd.estimate.power_curve import prior_curve
from wattherd.local.devices import Machine
from wattherd.local.executor import LocalExecutor
from wattherd.local.orphans import end_stray
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import (
    Command,
    FinishJob,
    GiveNotice,
    RejectJob,
    SetBatch,
    SetCap,
    StartJob,
    StopJob,
)
from wattherd.model.event import (
    BatchApplied,
    BudgetChanged,
    CapApplied,
    Event,
    JobCancelled,
    JobDrew,
    JobExited,
    JobHeld,
    JobReleased,
    JobStarted,
    JobStopped,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner, Quota
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.surroundings import Surroundings
from wattherd.sim.world import Computer
from wattherd.store.entry import JournalEntry
from wattherd.testing.live import MemoryJournal, SetClock
from wattherd.testing.plant_executor import PlantExecutor

MOST_S = 60.0
"""Real seconds in which anything must have happened, on a machine that is busy with others."""
ENDLESS_S = 10_000.0
REPORT_S = 0.1
STOP_S = 0.15
"""What a simulated job takes for its checkpoint, about as long as a real one."""
TICKS = """
cd "$WATTHERD_CHECKPOINT_DIR"
n=$(cat done 2>/dev/null || echo 0)
save() { echo $n > new; mv new done; exit 143; }
trap save TERM
while [ $n -lt TICKS ]; do
  grep -q '"stop"' "$WATTHERD_CONTROL" && save
  sleep 0.1
  n=$((n+1))
  m=$(sed -n 's/.*"micro_batch": *\\([0-9]*\\).*/, "micro_batch": \\1/p' "$WATTHERD_CONTROL")
  echo '{"step":' $((n/10)).$((n%10))', "loss": LOSS, "rate_per_s": 1'"$m}" >> "$WATTHERD_PROGRESS"
done
"""
"""A job of so many tenths of a second: reports, checkpoints when it is to stop, and goes on."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a scenario is played on."""

    machine: Machine
    planner: Planner
    quota: Quota | None = None
    computers: Mapping[str, Computer] = field(default_factory=dict)
    cluster: ClusterSpec | None = None

    def core(self) -> Core:
        curve = prior_curve(self.machine.gpu)
        config = CoreConfig(
            cluster=self.cluster or ClusterSpec((self.machine.node,)),
            planner=self.planner,
            quota=self.quota,
            round_s=0.0,
            gpus={self.machine.node.gpu_model: self.machine.gpu},
            curve_of=lambda spec, model: curve,
            narrow=True,
        )
        return Core(config)


class Shell(ABC):
    """One site. Invariants of the core are checked after every turn."""

    def __init__(self, setup: Setup) -> None:
        self._stories: dict[str, list[str]] = {}
        self._lasting: dict[str, StartJob] = {}
        self._order: list[tuple[str, str]] = []
        self._core = setup.core()
        self._computers = setup.computers

    def _keeper(self, journal: MemoryJournal, clock: SetClock) -> CoreLoop:
        return CoreLoop(
            self._core, journal, clock, computers=self._computers, on_turn=self._look_on
        )

    def _look_on(self, told: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
        validate(self._core)
        for entry, commands in told:
            for one in (entry.event, *commands):
                self._note(one)

    def _note(self, one: Event | Command) -> None:
        words = _words(one)
        if isinstance(one, StartJob):
            self._lasting[one.job_id] = one
        if words:
            job_id = getattr(one, "job_id")  # noqa: B009 - all that have words have it
            self._stories.setdefault(job_id, []).append(words)
            self._order.append((words, job_id))

    def submit(self, lasts_s: float = ENDLESS_S, width: int = 1, **more: Any) -> str:
        """A job that lasts `lasts_s`; `loss` is what it reports."""
        loss = str(more.pop("loss", 1))
        script = TICKS.replace("TICKS", str(round(lasts_s * 10))).replace("LOSS", loss)
        memory = more.pop("gpu_memory_mib", None)
        most = more.pop("most", None)
        least = more.pop("least", width if most else None)
        command = ("/bin/sh", "-c", script)
        spec = JobSpec(
            id="new", submit_s=0.0, duration_s=lasts_s, grace_s=more.pop("grace_s", 20.0),
            roles=(TaskRole(count=width, command=command, gpu_memory_mib=memory),),
            min_width=least, max_width=most, labels=(("loss", loss),), **more,
        )  # fmt: skip
        return self._submit(spec)

    def story(self, job_id: str) -> list[str]:
        """What happened to a job, in order.

        An order that is repeated because its outcome is not known yet is told once.
        """
        words = self._stories.get(job_id, [])
        return [one for at, one in enumerate(words) if not at or one != words[at - 1]]

    def order(self, words: str) -> list[str]:
        """Jobs in the order in which it happened to them."""
        return [job_id for one, job_id in self._order if one == words]

    def placed(self, job_id: str) -> list[tuple[int, tuple[int, ...]]]:
        """Node and devices of its latest run."""
        return [(one.node, one.gpus) for one in self._lasting[job_id].allocations]

    def hold(self, job_id: str) -> None:
        self.post(JobHeld(at_s=0.0, job_id=job_id))

    def release(self, job_id: str) -> None:
        self.post(JobReleased(at_s=0.0, job_id=job_id))

    def cancel(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.post(JobCancelled(at_s=0.0, job_id=job_id))

    def budget(self, budget_w: float | None) -> None:
        self.post(BudgetChanged(at_s=0.0, budget_w=budget_w))

    def drew(self, job_id: str, watts: float, *, micro_batch: int | None, duty: float) -> None:
        """A meter says what a device of the job's run draws."""
        attempt = self.ask(lambda core: core.jobs[job_id].attempt)
        self.post(
            JobDrew(
                at_s=0.0,
                job_id=job_id,
                attempt=attempt,
                watts=watts,
                duty=duty,
                micro_batch=micro_batch,
                rate_per_s=1.0,
            )
        )

    def state(self, job_id: str) -> str:
        def look(core: Core) -> str:
            job = core.jobs.get(job_id)
            return str(job.state if job else core.finished[job_id])

        return self.ask(look)

    def wait(self, state: str, *job_ids: str) -> None:
        """Until all of them are in a state."""
        self.until(lambda: all(self.state(one) == state for one in job_ids))

    def has(self, job_id: str, *words: str, times: int = 1) -> None:
        """Until it happened so often."""
        told = self._stories.setdefault(job_id, [])
        self.until(lambda: all(told.count(one) >= times for one in words))

    @abstractmethod
    def _submit(self, spec: JobSpec) -> str: ...
    @abstractmethod
    def post(self, event: Event) -> None: ...
    @abstractmethod
    def ask(self, of: Callable[[Core], Any]) -> Any: ...
    @abstractmethod
    def until(self, true: Callable[[], object]) -> None: ...
    @abstractmethod
    def close(self) -> None: ...


class Simulated(Shell):
    """A plant, and a clock that leaps from one happening to the next."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._clock, self._journal = SetClock(), MemoryJournal()
        self._keeper_ = self._keeper(self._journal, self._clock)
        plant = DurationPlant(
            stop_s=STOP_S,
            report_s=REPORT_S,
            surroundings=Surroundings(pairs=_Free({})),
            loss_at=lambda spec, _: float(dict(spec.labels)["loss"]),
        )
        self._executor = PlantExecutor(plant, self._clock, self._keeper_.tell)
        self._keeper_.recover(self._executor)

    def _submit(self, spec: JobSpec) -> str:
        done = self._keeper_.submit(spec, {}, by="ann")
        self._settle()
        return done.result(0)

    def post(self, event: Event) -> None:
        done = self._keeper_.post(event, by="ann")
        self._settle()
        done.result(0)

    def ask(self, of: Callable[[Core], Any]) -> Any:
        return of(self._core)

    def _settle(self) -> None:
        """Turns, until nothing more follows at this time."""
        while True:
            before = len(self._journal.kept)
            self._keeper_.turn()
            if len(self._journal.kept) == before:
                return

    def until(self, true: Callable[[], object]) -> None:
        end_s = self._clock.at_s + ENDLESS_S
        while not true():
            times = (self._executor.next_s(), self._keeper_.orders.next_wake_s())
            next_s = min((at_s for at_s in times if at_s is not None), default=math.inf)
            assert next_s < end_s, "waited in vain"
            self._executor.advance(max(self._clock.at_s, next_s))
            self._settle()

    def close(self) -> None:
        self._keeper_.end()


class _Free(PairSpeeds):
    """Who shares a device loses nothing: as jobs that sleep."""

    def speed(self, profile: str, others: tuple[str, ...]) -> float:
        del profile, others
        return 1.0


class Local(Shell):
    """Real processes below `root`."""

    def __init__(self, setup: Setup, root: Path) -> None:
        super().__init__(setup)
        self._root = root
        self._keeper_ = self._keeper(MemoryJournal(), _Since())
        self._executor = LocalExecutor(root, setup.machine, self._keeper_.tell)
        self._keeper_.recover(self._executor)
        self._keeper_.begin()

    def _submit(self, spec: JobSpec) -> str:
        return self._keeper_.submit(spec, {}, by="ann").result(MOST_S)

    def post(self, event: Event) -> None:
        self._keeper_.post(event, by="ann").result(MOST_S)

    def ask(self, of: Callable[[Core], Any]) -> Any:
        return self._keeper_.ask(of).result(MOST_S)

    def until(self, true: Callable[[], object]) -> None:
        end_s = time.monotonic() + MOST_S
        while not true():
            assert self._keeper_.broken is None, self._keeper_.broken
            assert time.monotonic() < end_s, f"waited in vain: {self._stories}"
            time.sleep(0.05)

    def close(self) -> None:
        self._keeper_.end()
        for folder in self._root.glob("*/run-*"):
            end_stray(folder)


class _Since(SetClock):
    def now_s(self) -> float:
        return time.monotonic()


def _words(one: Event | Command) -> str:
    """How a story tells of it; empty where it does not."""
    match one:
        case StartJob():
            return f"start on {sum(len(part.gpus) for part in one.allocations)}"
        case StopJob():
            return f"stop: {one.reason}"
        case GiveNotice():
            return f"notice: {one.reason}"
        case SetBatch() | BatchApplied():
            told = "batch" if isinstance(one, SetBatch) else "trains with"
            return f"{told} {one.micro_batch}"
        case SetCap():
            return "uncap" if one.cap_w is None else "cap"
        case CapApplied():
            return "capped" if one.cap_w is not None else "uncapped"
        case RejectJob():
            return f"rejected: {one.reason.code}"
        case FinishJob():
            return one.state
        case JobStarted():
            return "started"
        case JobStopped():
            return "stopped"
        case JobExited():
            return f"exited {one.exit_code}"
    return ""
