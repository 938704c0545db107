"""What must always hold of the core: checked after every event in tests and on demand."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from wattherd.engine.core.capacity import Book
from wattherd.engine.core.view import PlannedUse
from wattherd.engine.jobs.lifecycle import FINAL, State
from wattherd.engine.jobs.record import JobRecord, may_run
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation

if TYPE_CHECKING:
    from wattherd.engine.core.core import Core


# Why whole sums again instead of checks at each change. A check where a value changes sees the
# change and believes what was there before; these sums believe nothing but the jobs. They cost
# O(jobs + nodes) and run after every event in tests, in the property machines above all
# (`tests/property/test_core_machine.py`): an invariant that breaks is found at the event that broke
# it, not at the start that fails hours later.
def validate(core: Core) -> None:
    """Check every invariant across the core's collections.

    Raises:
        Bug: one is broken; names it, with the story of the job concerned.
    """
    out = core.drained.out
    # I1, I2: what the books say is taken is exactly what jobs hold, or are planned to hold.
    held = [a for job in core.jobs.values() for a in job.allocations]
    _check_book(core.held, held, "held", {})
    planned = [a for job in core.jobs.values() for a in job.wanted]
    _check_book(core.planned, planned, "planned", out)
    if core.plan.use.gpus != PlannedUse(core.jobs.values()).gpus:
        raise Bug("what the plan gives to queues and users does not add up")
    # I3: a drained device may still be held, never be planned: the planned book gave it up at once.
    if any((a.node, gpu) in out for a in planned for gpu in a.gpus):
        raise Bug("a drained device is planned for")
    for job in core.jobs.values():
        _check_job(core, job)
    _check_arrays(core)
    _check_roster(core)
    # Who is not looked at, since it lacks a device, must lack one: else it would wait for ever.
    for job_id in core.plan.starting.looked_past():
        if all(map(core.held.fits, core.jobs[job_id].wanted)):
            raise Bug(f"{job_id} could start and is not looked at")
    # I4: a job is live or finished. In both it would be started again by news of its end.
    both = core.jobs.keys() & core.finished.keys()
    if both:
        raise Bug(f"jobs both live and finished: {sorted(both)}")


def _check_book(
    book: Book, allocations: list[Allocation], name: str, out: Collection[tuple[int, int]]
) -> None:
    """What is free must be what the allocations and drained devices leave, within capacity."""
    nodes = book.cluster.nodes
    cpu = np.array([node.cpu_milli for node in nodes])
    memory = np.array([node.memory_mib for node in nodes])
    gpus = [[1000] * node.gpu_count for node in nodes]
    for allocation in allocations:
        cpu[allocation.node] -= allocation.request.cpu_milli
        memory[allocation.node] -= allocation.request.memory_mib
        for gpu in allocation.gpus:
            gpus[allocation.node][gpu] -= allocation.request.gpu_milli
    # Drained devices have left the planned book, used or not; of the held book they are a part
    # until their job gives them back, so that `held` is checked without them.
    for node, gpu in out:
        gpus[node][gpu] = 0
    have_gpus = [book.gpu_free(node) for node in range(len(nodes))]
    sums = (int(book.whole.sum()), sum(node.cpu_milli for node in nodes) - int(cpu.sum()))
    for what, adds_up, negative in (
        ("CPU", (cpu == book.cpu_free).all(), (cpu < 0).any()),
        ("memory", (memory == book.memory_free).all(), (memory < 0).any()),
        ("GPU", gpus == have_gpus, any(min(free, default=0) < 0 for free in gpus)),
        ("whole GPU", book.whole.tolist() == [free.count(1000) for free in gpus], False),
        ("sum", sums == (book.whole_gpus, book.used_cpu_milli), False),
    ):
        if not adds_up:
            raise Bug(f"{name} {what} does not add up")
        if negative:
            raise Bug(f"{name} {what} is over-committed")


def _check_roster(core: Core) -> None:
    """Planners must hear of every job that may run, of no other, and of all changes."""
    jobs = core.roster.jobs()
    # Order counts, too: planners break ties by it, and a replay must see the same one.
    if jobs != [job for job in core.jobs.values() if may_run(job)]:
        raise Bug(f"the roster is not up to date: {[job.id for job in jobs]}")
    for job in core.roster.entered.values():
        if not may_run(job):
            raise Bug(f"job {job.id} entered the roster and may not run")


def _check_arrays(core: Core) -> None:
    """Of an array no more tasks hold devices than may run at a time.

    Where fewer may than did, those that run go on; but none that does not run has a turn then.
    """
    for array in {job.spec.array: None for job in core.jobs.values() if job.spec.array}:
        turns, most = core.waits.has_turn(array), core.waits.most(array)
        # A limit that was lowered at work stops nobody: those that run keep their turns, even if
        # they are more than the limit. What must not be is a turn for one that does not run
        # meanwhile.
        over = most is not None and len(turns) > most
        for task in core.waits.tasks(array):
            job = core.jobs[task]
            if job.active and task not in turns:
                raise Bug(f"{task} of {array} runs without a turn\n{job.told()}")
            idle = job.state in (State.BLOCKED, State.HELD)
            if task in turns and (idle or (over and job.state is State.QUEUED)):
                raise Bug(f"{task} of {array} is {job.state} and has a turn\n{job.told()}")


def _check_job(core: Core, job: JobRecord) -> None:
    broken = ""
    if job.state in FINAL:
        broken = "is final and still live"
    # I5: devices and states go together. A job that holds devices in another state would never give
    # them back; one without devices in an active state would never end.
    elif job.active != bool(job.allocations):
        broken = f"is {job.state} and holds {len(job.allocations)} allocations"
    elif job.state is State.BLOCKED and not job.blocked:
        broken = "is blocked by nothing"
    elif job.blocked and job.state not in (State.BLOCKED, State.HELD, State.BACKING_OFF):
        broken = f"is {job.state} and has to wait for {sorted(job.waits_for)} or its time"
    elif job.wanted and job.state in (State.BLOCKED, State.HELD, State.BACKING_OFF):
        broken = f"is {job.state} and has a plan"
    # I6: the plan names only nodes that exist, for jobs that may run, whole gangs of them.
    elif job.wanted and any(a.node in core.lost for a in job.wanted):
        broken = "is planned on a lost node"
    elif job.wanted and not _whole(job):
        broken = "is a partial gang"
    if broken:
        raise Bug(f"job {job.id} {broken}\n{job.told()}")


def _whole(job: JobRecord) -> bool:
    """Whether the plan holds as many tasks of every role as the job can run with."""
    spec = job.spec
    placed = [0] * len(spec.roles)
    for allocation in job.wanted:
        placed[allocation.role] += allocation.tasks
    return all(count in spec.counts(number) for number, count in enumerate(placed))
