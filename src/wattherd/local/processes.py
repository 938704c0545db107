"""Processes below one another, by what /proc tells."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from wattherd.local.observation import (
    ABSENT,
    Absent,
    Present,
    Reading,
    Unknown,
    failed,
    looked_up,
    text,
)

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")


def all_pids() -> Reading[list[int]]:
    """Every process that can be seen."""
    match looked_up(lambda: [one.name for one in PROC.iterdir()]):
        case Present(names):
            return Present([int(name) for name in names if name.isdigit()])
        case other:
            return other


def parents() -> Reading[dict[int, int]]:
    """Every process and its parent; unknown as soon as one of them is."""
    match all_pids():
        case Present(pids):
            pass
        case other:
            return other
    found = {}
    for pid in pids:
        match stat(pid):
            case Present(fields):
                found[pid] = int(fields[1])
            case Unknown(why):
                return Unknown(why)
            case Absent():
                pass
    return Present(found)


def stat(pid: int) -> Reading[list[str]]:
    """Fields of /proc/PID/stat from the state on."""
    match text(PROC / str(pid) / "stat"):
        case Present(line):
            return Present(line.rpartition(")")[2].split())
        case other:
            return other


def alive(pids: Iterable[int]) -> Reading[list[int]]:
    """Those that exist and have not ended, in order; unknown as soon as one of them is."""
    found = []
    for pid in sorted(pids):
        match stat(pid):
            case Present(fields) if fields and fields[0] not in "ZX":
                found.append(pid)
            case Unknown(why):
                return Unknown(why)
            case _:
                pass
    return Present(found)


def descendants(ancestor: int) -> Reading[list[int]]:
    """All processes below `ancestor`, children before their own.

    Raises:
        ValueError: `ancestor` is the kernel or the first process: everything is below those.
    """
    if ancestor <= 1:
        raise ValueError(f"everything is below process {ancestor}")
    match parents():
        case Present(found):
            children: dict[int, list[int]] = {}
            for pid, parent in found.items():
                children.setdefault(parent, []).append(pid)
            return Present(list(_below(ancestor, children)))
        case other:
            return other


def _below(ancestor: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(ancestor, ()):
        yield child
        yield from _below(child, children)


def with_variable(assignment: str) -> Reading[list[int]]:
    """Processes, ourselves apart, that were started with this variable: `NAME=value`.

    Those of other users, which we may not look into, are left out.
    """
    match all_pids():
        case Present(pids):
            pass
        case other:
            return other
    found, wanted = [], b"\0" + assignment.encode() + b"\0"
    for pid in pids:
        match _environment(pid):
            case Present(variables) if wanted in b"\0" + variables and pid != os.getpid():
                found.append(pid)
            case Unknown(why):
                return Unknown(why)
            case _:
                pass
    return Present(found)


def _environment(pid: int) -> Reading[bytes]:
    try:
        return Present((PROC / str(pid) / "environ").read_bytes())
    except OSError as error:
        return ABSENT if error.errno in (errno.EACCES, errno.EPERM) else failed(error)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to all that still exist; never to the first process, a group, or ourselves.

    A control group shows 0 for a process of another namespace; a signal to 0 would reach our group.
    """
    for pid in set(pids) - {os.getpid()}:
        if pid <= 1:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def usage(pids: Iterable[int]) -> tuple[float, int]:
    """Processor seconds (with those of children waited for) and resident bytes of all together.

    What cannot be read counts for nothing.
    """
    cpu_s, resident = 0.0, 0
    for pid in pids:
        match stat(pid):
            case Present(fields):
                cpu_s += sum(map(int, fields[11:15])) / TICKS_PER_S
                resident += int(fields[21]) * PAGE_BYTES
            case _:
                pass
    return cpu_s, resident
