"""Processes below one another, by what /proc tells."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def parents() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        fields = stat(int(entry.name)) if entry.name.isdigit() else []
        if fields:
            found[int(entry.name)] = int(fields[1])
    return found


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def descendants(ancestor: int) -> list[int]:
    """All processes below `ancestor`, children before their own.

    Raises:
        ValueError: `ancestor` is the kernel or the first process: everything is below those.
    """
    if ancestor <= 1:
        raise ValueError(f"everything is below process {ancestor}")
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    return list(_below(ancestor, children))


def _below(ancestor: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(ancestor, ()):
        yield child
        yield from _below(child, children)


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
    """Processor seconds (with those of children waited for) and resident bytes of all together."""
    cpu_s, resident = 0.0, 0
    for pid in pids:
        fields = stat(pid)
        if fields:
            cpu_s += sum(map(int, fields[11:15])) / TICKS_PER_S
            resident += int(fields[21]) * PAGE_BYTES
    return cpu_s, resident
