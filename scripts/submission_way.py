"""Counts the files and functions that one submission passes, from its event to its commands.

    python scripts/submission_way.py           every file with its functions, and the sums
    python scripts/submission_way.py --brief   the sums alone

A job is submitted to a cluster under a budget on which another job runs. Its watts have to be
moved: the plan lowers the cap of the other, the cap is read back, the job starts. Counted is every
function of the package that is called between the event and the commands, once, however often it
is called; what stands within a function (a lambda, a generator) counts as that function.

Three ways are measured:

    core      `Core.handle` of `JobSubmitted` and of the wake-up for a plan that it asks for
    sim       the same in the simulated world, until the job has started there
    serve     the same in the loop of a service, its journal in memory and its runs on paper
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import wattherd
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.model.command import Command, SetCap, WakeAt
from wattherd.model.event import BudgetChanged, Event, JobStarted, JobSubmitted, Woke
from wattherd.model.job import JobSpec
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.ordered import Ordered
from wattherd.policy.schedule.priorities import Fifo
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.world import SimWorld
from wattherd.testing.live import MemoryJournal, PaperExecutor, SetClock
from wattherd.testing.timed_world import t4_nodes, timed

PACKAGE = Path(wattherd.__file__).parent
BUDGET_W = 135.0
"""Two T4 idle at 10 W each and may draw 60 to 70 W: both run, but not at their highest."""


class PassedFunctions:
    """Functions of the package that are called while it looks, by file."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self.by_file: dict[str, set[str]] = {}

    def during(self, act: Callable[[], object]) -> None:
        """Do something, and note what it calls."""
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            act()
        finally:
            sys.setprofile(before)

    @property
    def sums(self) -> tuple[int, int]:
        """How many files and functions."""
        return len(self.by_file), sum(len(names) for names in self.by_file.values())

    def _called(self, frame: FrameType, what: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if what == "call" and PACKAGE in path.parents:
            name = frame.f_code.co_qualname.partition(".<locals>")[0]
            file = path.relative_to(PACKAGE).as_posix()
            self.by_file.setdefault(file, set()).add(name.partition(".<lambda>")[0])


def idle_core() -> Core:
    """Two GPUs, first come first served, watts where they gain most."""
    rules = RankingRules(order=Fifo())
    cluster = t4_nodes(2)
    planner = Ordered(rules=rules)
    return Core(CoreConfig(cluster=cluster, planner=planner, power=WaterFilling(), round_s=0.0))


def way_through_the_core() -> PassedFunctions:
    """One submission, from its event to the command that lowers the other's cap."""
    core = idle_core()
    plan(core, BudgetChanged(at_s=0.0, budget_w=BUDGET_W))
    plan(core, JobSubmitted(at_s=0.0, job=timed("first")))
    core.handle(JobStarted(at_s=0.0, job_id="first", attempt=1))
    passed = PassedFunctions()
    commands: list[Command] = []
    submitted = JobSubmitted(at_s=1.0, job=timed("second"))
    passed.during(lambda: commands.extend(plan(core, submitted)))
    if not any(isinstance(one, SetCap) for one in commands):
        raise SystemExit("no watts were moved: this is no submission under a budget")
    return passed


def plan(core: Core, event: Event) -> list[Command]:
    """What the core orders after an event, and after the wake-up for which it asks."""
    commands = core.handle(event)
    for one in commands:
        if isinstance(one, WakeAt):
            commands = [*commands, *core.handle(Woke(at_s=one.at_s, key=one.key))]
    return commands


def way_through_the_simulator() -> PassedFunctions:
    """One submission in a simulated world, until the job has started."""
    core = idle_core()
    jobs: Sequence[JobSpec] = (timed("first"), timed("second", at_s=1.0))
    given = [BudgetChanged(at_s=0.0, budget_w=BUDGET_W)]
    submitted = [JobSubmitted(at_s=job.submit_s, job=job) for job in jobs]
    world = SimWorld(core, DurationPlant(), [*given, *submitted], record=False)
    world.run(until_s=0.5)
    passed = PassedFunctions()
    passed.during(lambda: world.run(until_s=50.0))
    _must_run(core)
    return passed


def way_through_a_service() -> PassedFunctions:
    """One submission in the loop of a service, until the job has started."""
    core, clock, executor = idle_core(), SetClock(), PaperExecutor()
    loop = CoreLoop(core, MemoryJournal(), clock)
    loop.recover(executor)
    loop.post(BudgetChanged(at_s=0.0, budget_w=BUDGET_W), by="ann")
    loop.submit(timed("first"), {}, by="ann")
    _turns(loop, clock)
    loop.tell(executor.started(executor.begun[0]))
    _turns(loop, clock)
    passed = PassedFunctions()

    def submit() -> None:
        loop.submit(timed("second"), {}, by="ann")
        _turns(loop, clock)
        for job_id, attempt, cap_w in executor.caps[-1:]:
            loop.tell(executor.capped((job_id, attempt), cap_w))
        _turns(loop, clock)

    passed.during(submit)
    _must_run(core)
    return passed


def _turns(loop: CoreLoop, clock: SetClock) -> None:
    for _ in range(3):
        clock.at_s += 1.0
        loop.turn()


def _must_run(core: Core) -> None:
    if sum(bool(job.allocations) for job in core.jobs.values()) != 2:
        raise SystemExit("the job did not start: this is not the way of a submission")


WAYS = {
    "core": way_through_the_core,
    "sim": way_through_the_simulator,
    "serve": way_through_a_service,
}


def main() -> None:
    """Print the ways."""
    for name, way in WAYS.items():
        passed = way()
        if "--brief" not in sys.argv:
            for file in sorted(passed.by_file):
                names = sorted(passed.by_file[file])
                print(f"  {file} {len(names)}: {', '.join(names)}")
        files, functions = passed.sums
        print(f"{name:<6} {files:>3} files {functions:>4} functions")


if __name__ == "__main__":
    main()
