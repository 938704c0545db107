"""Which limits of a job are kept on this machine, in words.

A limit that nobody enforces is worse than none if nobody says so: the service says it when it
starts, each job says it of itself, and with `require_limits` such jobs are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wattherd.errors import UserError
from wattherd.local.cgroups import CONTROLLERS, CgroupLimits, Support
from wattherd.workload.counted_cpu import COUNTED

if TYPE_CHECKING:  # supervisors, which use this, stay small
    from wattherd.model.job import JobSpec

NAMES = {"cpu": "CPU", "memory": "memory", "pids": "number of processes"}
SWAPPED = "the kernel does not limit swap, so pages beyond it may go to disk"
DELEGATED = "systemd-run --user --scope -p Delegate=yes"
GUIDE = "docs/guides/local.md"


def asked(spec: JobSpec, paper: Mapping[str, Any]) -> CgroupLimits:
    """What a job file limits, all tasks together; nothing for a container, whose engine does."""
    if paper.get("container"):
        return CgroupLimits()
    free = paper.get(COUNTED, ())
    roles = [role for number, role in enumerate(spec.roles) if number not in free]
    cpu_milli = sum(role.count * role.cpu_milli for role in roles)
    memory_mib = sum(role.count * role.memory_mib for role in spec.roles)
    return CgroupLimits(
        cpus=cpu_milli / 1000 or None,
        memory_bytes=memory_mib << 20 or None,
        processes=paper.get("processes"),
    )


def unenforced(support: Support, limits: CgroupLimits) -> list[str]:
    """A sentence for each of these limits that no control group can keep here."""
    return list(_sentences(support.missing, limits, support.why_not))


def refused(names: Collection[str], limits: CgroupLimits) -> list[str]:
    """The same for limits that the kernel was asked to keep, and does not."""
    told = list(_sentences(names, limits, "the kernel has refused it"))
    if "swap" in names and limits.memory_bytes is not None:
        told.append(f"memory limit {_size(limits.memory_bytes)} is not enforced here: {SWAPPED}")
    return told


def _sentences(names: Collection[str], limits: CgroupLimits, why: str) -> Iterator[str]:
    shown = {
        "memory": limits.memory_bytes is not None and f"memory limit {_size(limits.memory_bytes)}",
        "cpu": limits.cpus is not None and f"CPU limit {limits.cpus:g}",
        "pids": limits.processes is not None and f"limit of {limits.processes:,} processes",
    }
    for name, what in shown.items():
        if what and name in names:
            yield f"{what} is not enforced here: {why}"


def _size(size_bytes: int) -> str:
    """As job files say it: memory comes in powers of two."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if size_bytes >= 1 << power:
            return f"{round(size_bytes / (1 << power), 2):g} {unit}"
    return f"{size_bytes:,} B"


def check_enforced(told: Collection[str]) -> None:
    """Refuse a job whose limits are not kept.

    Raises:
        UserError: one is not.
    """
    if told:
        hint = f"this service starts no such jobs (`require_limits`); see {GUIDE}"
        raise UserError("; ".join(told), hint=hint)


def start_notes(support: Support, *, require: bool, argv: Collection[str]) -> list[str]:
    """What an operator hears when a service starts; `argv` is how it was started."""
    if support.complete:
        where = support.memory.parent if support.memory is not None else None
        return [f"limits of memory, CPU and processes hold (control groups below {where})"]
    holds = [NAMES[name] for name in CONTROLLERS if name not in support.missing]
    lacks = ", ".join(NAMES[name] for name in support.missing)
    notes = [f"WARNING: limits are NOT enforced here: {lacks} ({support.why_not})"]
    if holds:
        notes.append(f"limits that hold: {', '.join(holds)}")
    told = "are refused (require_limits)" if require else "run without, and say so"
    notes.append(f"jobs that ask for such limits {told}")
    notes.append(f"to have them kept without root: {DELEGATED} {shlex.join(argv)}; see {GUIDE}")
    return notes
