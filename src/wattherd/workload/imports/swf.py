"""The Standard Workload Format, both ways: 18 columns of numbers, -1 where nothing is known.

Definition: Feitelson et al., Parallel Workloads Archive, "The Standard Workload Format", 2.2.
Users, groups and queues are numbers; comments `; Queue: 3 batch` name them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from wattherd.model.job import JobSpec
from wattherd.workload.imports.site import ImportLog, LoggedJob

COLUMNS = 18
_CANCELLED = 5.0
_NAMING = re.compile(r";\s*(User|Group|Queue|Partition):\s*(\d+)\s+(\S.*?)\s*$")


def read_swf(
    text: str, log: ImportLog, default_s: float, *, processors: str = "gpu"
) -> list[LoggedJob]:
    """The jobs of a log; a processor becomes a GPU, or (`processors="cpu"`) a vCPU."""
    names: dict[tuple[str, str], str] = {}
    jobs = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith(";"):
            if found := _NAMING.match(line):
                names[found[1].lower(), found[2]] = found[3]
            continue
        log.records += 1
        try:
            job = _job(line.split(), names, log, default_s, processors)
        except ValueError as error:
            log.refuse(number, str(error))
            continue
        if job is not None:
            jobs.append(job)
    if jobs:
        what = "GPU" if processors == "gpu" else "vCPU of one task"
        log.assume(f"a processor is a {what} (--processors)")
    return jobs


def _job(
    cells: list[str],
    names: dict[tuple[str, str], str],
    log: ImportLog,
    default_s: float,
    processors: str,
) -> LoggedJob | None:
    if len(cells) != COLUMNS:
        raise ValueError(f"{len(cells)} fields, where the format has {COLUMNS}")
    numbers = [float(cell) for cell in cells]
    if not all(math.isfinite(one) for one in numbers):
        raise ValueError("a field is no finite number")
    submit_s, wait_s, run_s, allocated = numbers[1:5]
    asked, asked_s, status = numbers[7], numbers[8], numbers[10]
    if submit_s < 0:
        raise ValueError("has no time of submission")
    if status == _CANCELLED and run_s <= 0:
        log.leave_out("cancelled before it began", cells[0])
        return None
    width = int(allocated if allocated > 0 else asked)
    if width < 1:
        log.leave_out("says of no processors", cells[0])
        return None
    duration_s = run_s
    if duration_s < 0:
        duration_s = asked_s if asked_s >= 0 else default_s
        log.assume(
            "a job of unknown run time takes the time it asked for (or --duration)", cells[0]
        )
    if numbers[16] > 0:
        log.assume("the preceding job and think time (columns 17, 18) are not used", cells[0])
    start_s = submit_s + wait_s if wait_s >= 0 else None
    memory = numbers[6] if numbers[6] > 0 else numbers[9]
    if memory > 0:
        log.assume("memory (columns 7, 10) is not used", cells[0])

    def named(kind: str, cell: str) -> str:
        return "" if cell.startswith("-") else names.get((kind, cell), cell)

    return LoggedJob(
        id=cells[0],
        submit_s=submit_s,
        duration_s=duration_s,
        start_s=start_s,
        end_s=None if start_s is None else start_s + duration_s,
        gpus=width if processors == "gpu" else 0,
        cpus=0.0 if processors == "gpu" else float(width),
        queue=named("queue", cells[14]),
        user=named("user", cells[11]),
        tenant=named("group", cells[12]),
        time_limit_s=asked_s if asked_s >= 0 else None,
        labels=(("swf_status", cells[10]),),
    )


def write_swf(jobs: Sequence[JobSpec], *, source: str = "") -> str:
    """Jobs as SWF: GPUs are processors (vCPUs of jobs without), seconds are whole.

    Ids become numbers from 1 in order; waiting times are unknown, as nobody has scheduled yet.
    """
    users, groups = _Numbers("User"), _Numbers("Group")
    queues = _Numbers("Queue")
    lines = []
    for number, job in enumerate(jobs, 1):
        cpus = math.ceil(sum(role.count * role.cpu_milli for role in job.roles) / 1000)
        limit = -1 if job.time_limit_s is None else round(job.time_limit_s)
        run = -1 if job.duration_s is None else round(job.duration_s)
        width = job.gpus or max(cpus, 1)
        cells = [number, round(job.submit_s), -1, run, width, -1, -1, width, limit, -1, 1]
        cells += [users(job.user), groups(job.tenant), -1, queues(job.queue), -1, -1, -1]
        lines.append(" ".join(str(cell) for cell in cells))
    head = ["; Version: 2.2", f"; MaxJobs: {len(lines)}", f"; MaxRecords: {len(lines)}"]
    head += [f"; Note: written by wattherd from {source}"] if source else []
    head += [line for kind in (users, groups, queues) for line in kind.lines()]
    return "\n".join([*head, *lines, ""])


class _Numbers:
    """Numbers names in the order in which they come; an empty name is -1."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known) + 1) if name else -1

    def lines(self) -> list[str]:
        return [f"; {self.kind}: {number} {name}" for name, number in self.known.items()]
