"""Control groups: limits on processor, memory and number of processes, and a sure kill.

Two kinds of hierarchy exist. On current systems all is in one (cgroup v2); where controllers still
live in hierarchies of their own (v1), the limits are set there, and the empty v2 hierarchy beside
them, if mounted, still kills and freezes a tree as a whole. Files are as the kernel documents them
(Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/).

Where neither can be written, `find` says why, and a run is held together by its supervisor alone:
every orphan falls to it (PR_SET_CHILD_SUBREAPER), and limits are those of `setrlimit`.

What the kernel refuses for good (no such controller, no permission) is an answer. What fails for
want of descriptors or memory is none: it raises `OSError`, and whoever asked tries again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from wattherd.runtime.local import processes
from wattherd.runtime.local.reading import (
    Absent,
    Reading,
    There,
    Unknown,
    certain,
    passes,
    present,
    text,
)

ROOT = Path("/sys/fs/cgroup")
PARENT = "wattherd"
PERIOD_US = 100_000
LEAST_QUOTA_US = 1_000
"""The kernel takes no quota below a millisecond."""
KILL_ROUNDS = 100
WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""By version: the file, what a process outside of any group weighs, and the most there may be."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most vCPUs (1.0 is one), bytes and processes; None is without limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """What this machine allows: folders in which groups may be made, by controller.

    `kill` is a v2 folder that kills and freezes, `account` a v1 one that counts processor time;
    `why_not` says what is missing.
    """

    version: int
    cpu: Path | None = None
    memory: Path | None = None
    pids: Path | None = None
    kill: Path | None = None
    account: Path | None = None
    why_not: str = ""

    @property
    def complete(self) -> bool:
        """Whether every limit can be enforced."""
        return None not in (self.cpu, self.memory, self.pids)


def find(root: Path = ROOT) -> Support:
    """Look what can be used, making the parent group where possible.

    Raises:
        OSError: that cannot be told now.
    """
    if certain(present(root / "cgroup.controllers")) is not None:
        return _unified(root)
    cpu, memory, pids = (_writable(root / name) for name in ("cpu", "memory", "pids"))
    unified = root / "unified"
    mounted = certain(present(unified / "cgroup.controllers")) is not None
    kill = _writable(unified) if mounted else None
    _weigh(1, cpu, os.cpu_count() or 1)
    missing = [n for n, p in (("cpu", cpu), ("memory", memory), ("pids", pids)) if p is None]
    why_not = f"no writable cgroup for {', '.join(missing)} below {root}" if missing else ""
    return Support(1, cpu, memory, pids, kill, _writable(root / "cpuacct"), why_not)


def _unified(root: Path) -> Support:
    """v2: the controllers must be handed down to our own group."""
    parent = _writable(root)
    if parent is None:
        return Support(2, why_not=f"{root} is not writable (run as root, or delegate a subtree)")
    wanted = ("cpu", "memory", "pids")
    for folder in (root, parent):
        for name in wanted:
            _put(folder / "cgroup.subtree_control", f"+{name}")
    held = (certain(text(parent / "cgroup.subtree_control")) or "").split()
    cpu, memory, pids = (parent if name in held else None for name in wanted)
    _weigh(2, cpu, os.cpu_count() or 1)
    missing = [name for name in wanted if name not in held]
    why_not = f"controllers not delegated: {', '.join(missing)}" if missing else ""
    return Support(2, cpu, memory, pids, parent, why_not=why_not)


def _writable(folder: Path) -> Path | None:
    """Our parent group below `folder`, made if need be."""
    parent = folder / PARENT
    try:
        parent.mkdir(exist_ok=True)
        (parent / "cgroup.procs").read_text(encoding="utf-8")
    except OSError as error:
        if passes(error):
            raise
        return None
    return parent if os.access(parent / "cgroup.procs", os.W_OK) else None


def _weigh(version: int, folder: Path | None, cpus: float) -> None:
    """Let a group weigh as much as so many busy processes; else all jobs would weigh as one."""
    name, each, most = WEIGHTS[version]
    if folder is not None:
        _put(folder / name, min(most, max(2, round(each * cpus))))


class Group:
    """The control group of one run; below the process `supervisor`, if alive, its tasks live.

    The supervisor itself stays outside, so that a kill or a freeze does not reach it.
    """

    def __init__(self, support: Support, name: str, limits: Limits, supervisor: int | None) -> None:
        """Make it and set its limits; nothing is in it yet.

        Raises:
            OSError: it cannot be made.
        """
        self._support, self._name, self._limits = support, name, limits
        self._supervisor = supervisor
        self._stopped = False
        for folder in self._folders():
            folder.mkdir(exist_ok=True)
        self._limit()

    def _folders(self) -> list[Path]:
        support = self._support
        parents = (support.cpu, support.memory, support.pids, support.kill, support.account)
        return [parent / self._name for parent in dict.fromkeys(parents) if parent is not None]

    def _limit(self) -> None:
        support, limits = self._support, self._limits
        self.share_cpu(1.0)
        if support.cpu is not None and limits.cpus is not None:
            _weigh(support.version, support.cpu / self._name, limits.cpus)
        if support.memory and limits.memory_bytes is not None:
            name = "memory.max" if support.version == 2 else "memory.limit_in_bytes"
            _put(support.memory / self._name / name, limits.memory_bytes)
            swap, most = (
                ("memory.swap.max", 0)
                if support.version == 2
                else ("memory.memsw.limit_in_bytes", limits.memory_bytes)
            )
            _put(support.memory / self._name / swap, most)
        if support.pids and limits.processes is not None:
            _put(support.pids / self._name / "pids.max", limits.processes)

    def share_cpu(self, duty: float) -> bool:
        """Let it compute for this part (0 to 1) of its processor time; whether that is so now."""
        cpu, cpus = self._support.cpu, self._limits.cpus
        if cpu is None:
            return False
        whole = (os.cpu_count() or 1) if cpus is None else cpus
        quota = max(LEAST_QUOTA_US, round(PERIOD_US * whole * duty))
        if self._support.version == 2:
            return _put(cpu / self._name / "cpu.max", f"{quota} {PERIOD_US}")
        return _put(cpu / self._name / "cpu.cfs_quota_us", quota)

    def enter(self) -> None:
        """Put the calling process in: for children, between fork and exec."""
        for folder in self._folders():
            _put(folder / "cgroup.procs", os.getpid())

    def members(self) -> Reading[list[int]]:
        """All processes of the run that are alive; absent is none of them."""
        inside: set[int] = set()
        for folder in self._folders():
            match text(folder / "cgroup.procs"):
                case There(found):
                    inside.update(map(int, found.split()))
                case Unknown(why):
                    return Unknown(why)
                case Absent():
                    pass
        if self._supervisor is not None:
            match processes.descendants(self._supervisor):
                case There(below):
                    inside.update(below)
                case Unknown(why):
                    return Unknown(why)
                case Absent():
                    pass
        return processes.alive(inside)

    def freeze(self, *, frozen: bool) -> None:
        """Let no process of it compute, or all again.

        Raises:
            OSError: some may not have heard; to be tried again.
        """
        if self._support.kill is not None:
            _put(self._support.kill / self._name / "cgroup.freeze", int(frozen))
        else:
            self.signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of it.

        Raises:
            OSError: who they are cannot be told.
        """
        processes.signal_all(certain(self.members()) or (), number)

    def kill(self) -> Reading[list[int]]:
        """Kill everything, including what is being forked meanwhile; what is left, mostly nothing.

        Processes that the kernel cannot end now, as they wait for a disk or a GPU, are left.
        """
        with contextlib.suppress(OSError):  # SIGKILL ends what is stopped, too
            self.freeze(frozen=False)
        left: Reading[list[int]] = Unknown("not looked yet")
        for round_ in range(KILL_ROUNDS):
            if round_:
                time.sleep(0.02)
            with contextlib.suppress(OSError):  # signals reach the same processes
                if self._support.pids is not None:
                    _put(self._support.pids / self._name / "pids.max", 0)
                if self._support.kill is not None:
                    _put(self._support.kill / self._name / "cgroup.kill", 1)
            left = self.members()
            match left:
                case There([]):
                    return left
                case There(members):
                    processes.signal_all(members, signal.SIGKILL)
                case _:
                    pass
        return left

    def usage(self) -> tuple[float, int]:
        """Processor seconds since the group was made, and bytes of memory in use.

        Where no group counts them, what ended without being waited for is missing.

        Raises:
            OSError: that cannot be told now.
        """
        cpu_s, resident = processes.usage(certain(self.members()) or ())
        support, name = self._support, self._name
        if support.account is not None:
            cpu_s = (_number(support.account / name / "cpuacct.usage") or 0) / 1e9
        elif support.version == 2 and support.cpu is not None:
            cpu_s = _cpu_stat_s(support.cpu / name / "cpu.stat")
        if support.memory is not None:
            file = "memory.current" if support.version == 2 else "memory.usage_in_bytes"
            resident = _number(support.memory / name / file) or resident
        return cpu_s, resident

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed something of it for want of memory.

        Raises:
            OSError: that cannot be told now.
        """
        memory = self._support.memory
        if memory is None:
            return False
        name = "memory.events" if self._support.version == 2 else "memory.oom_control"
        counts = _counts(certain(text(memory / self._name / name)) or "")
        return counts.get("oom_kill", 0) > 0

    def remove(self) -> None:
        """Take the empty group away."""
        for folder in self._folders():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _put(path: Path, value: object) -> bool:
    """Whether the kernel has taken it.

    Raises:
        OSError: that cannot be told: it was not asked, for want of something.
    """
    try:
        path.write_text(str(value), encoding="utf-8")
    except OSError as error:
        # Busy is an answer: a limit below what is in use, a group that may hold no process.
        if passes(error) and error.errno != errno.EBUSY:
            raise
        return False
    return True


def _number(path: Path) -> int | None:
    found = (certain(text(path)) or "").strip()
    return int(found) if found.isdigit() else None


def _cpu_stat_s(path: Path) -> float:
    return _counts(certain(text(path)) or "").get("usage_usec", 0) / 1e6


def _counts(lines: str) -> dict[str, int]:
    """A line each: a name and a number."""
    pairs = (line.partition(" ") for line in lines.splitlines())
    return {key: int(value) for key, _, value in pairs if value.strip().isdigit()}
