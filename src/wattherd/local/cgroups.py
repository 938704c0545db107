"""Control groups: limits on processor, memory and number of processes, and a sure kill.

Two kinds of hierarchy exist. On current systems all is in one (cgroup v2); where controllers still
live in hierarchies of their own (v1), the limits are set there, and the empty v2 hierarchy beside
them, if mounted, still kills and freezes a tree as a whole. Files are as the kernel documents them
(Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/).

Groups are made below the root of a hierarchy where that may be written, else below the group that
this process is in: systemd and container engines hand such a subtree over (*delegate* it). In v2 a
group that hands controllers down may hold no process itself, so a service first moves into a leaf
of its own (`settle`; "no internal process constraint" in the kernel's document).

Where neither can be written, `find` says why, and a run is held together by its supervisor alone:
every orphan falls to it (PR_SET_CHILD_SUBREAPER), and its limits are not enforced
(`enforcement.py` says so). RLIMIT_AS and RLIMIT_NPROC do not stand in: the first counts addresses,
of which CUDA reserves more than there is memory, the second all processes of the account.

What the kernel refuses for good (no such controller, no permission) is an answer. What fails for
want of descriptors or memory is none: it raises `OSError`, and whoever asked tries again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from wattherd.local import processes
from wattherd.local.observation import (
    ABSENT,
    Absent,
    Present,
    Reading,
    Unknown,
    certain,
    passes,
    present,
    text,
)

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
PARENT, LEAF = "wattherd", "wattherd-service"
"""Groups that are made: of all runs, and, where processes have to leave it, of the service."""
CONTROLLERS = ("cpu", "memory", "pids")
SWAPS = Path("/proc/swaps")
PERIOD_US = 100_000
LEAST_QUOTA_US = 1_000
"""The kernel takes no quota below a millisecond."""
KILL_ROUNDS, MOVE_ROUNDS = 100, 10
WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""By version: the file, what a process outside of any group weighs, and the most there may be."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
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
    def missing(self) -> list[str]:
        """Controllers that no group can be made with."""
        return [name for name in CONTROLLERS if getattr(self, name) is None]

    @property
    def complete(self) -> bool:
        """Whether every limit can be enforced."""
        return not self.missing

    def document(self) -> dict[str, Any]:
        """The same for a run's order: its group stays where it was made."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: str(one) if isinstance(one, Path) else one for name, one in found.items()}

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> Support:
        """Where the group of a run is; orders of earlier versions leave that to be found.

        Raises:
            OSError: that cannot be told now.
        """
        told = order.get("cgroup")
        if told is None:
            return find()
        names = ("cpu", "memory", "pids", "kill", "account")
        paths = {name: Path(told[name]) for name in names if told[name] is not None}
        return cls(told["version"], **paths, why_not=told["why_not"])


def find(root: Path = ROOT, *, settle: bool = False) -> Support:
    """Look what can be used, making the parent group where possible.

    With `settle` this process, and others that are in the way, move into a leaf where a delegated
    subtree needs that: for a service when it starts, not for its supervisors.

    Raises:
        OSError: that cannot be told now.
    """
    own = _own_groups()
    if certain(present(root / "cgroup.controllers")) is not None:
        return _unified(root, own, settle=settle)

    def below(name: str) -> Path | None:
        return _writable(root / name) or _writable_own(root / name, own.get(name))

    cpu, memory, pids, account = map(below, ("cpu", "memory", "pids", "cpuacct"))
    unified = root / "unified"
    mounted = certain(present(unified / "cgroup.controllers")) is not None
    kill = (_writable(unified) or _writable_own(unified, own.get(""))) if mounted else None
    _weigh(1, cpu, os.cpu_count() or 1)
    found = Support(1, cpu, memory, pids, kill, account)
    why_not = f"no writable cgroup for {', '.join(found.missing)} below {root}"
    return found if found.complete else replace(found, why_not=why_not)


def _own_groups() -> dict[str, str]:
    """Of this process, by controller; v2 has no name. Leaves that we made count as what is above.

    Raises:
        OSError: that cannot be told now.
    """
    groups: dict[str, str] = {}
    for line in (certain(text(OWN)) or "").splitlines():
        _, names, path = line.split(":", 2)
        if not path.startswith("/.."):  # else it lies outside of what this container sees
            groups |= dict.fromkeys(names.split(","), path.removesuffix(f"/{LEAF}") or "/")
    return groups


def _writable_own(root: Path, group: str | None) -> Path | None:
    return None if group in (None, "/") else _writable(root / str(group).lstrip("/"))


def _unified(root: Path, own: Mapping[str, str], *, settle: bool) -> Support:
    """v2: the controllers must be handed down to our own group."""
    places = dict.fromkeys([root, root / own.get("", "/").lstrip("/")])
    found = [_handed_down(place, settle=settle) for place in places]
    return min(found, key=lambda one: (len(one.missing), one.kill is None))


def _handed_down(folder: Path, *, settle: bool) -> Support:
    """What can be limited below a group, whose controllers are handed down if need be."""
    parent = _writable(folder)
    if parent is None:
        return Support(2, why_not=f"{folder} is not writable (run as root, or delegate a subtree)")
    # The root of the whole hierarchy alone hands controllers down with processes in it.
    below_root = certain(present(folder / "cgroup.type")) is not None
    if not _hand_down(folder) and settle and below_root:
        _move_into_leaf(folder)
        _hand_down(folder)
    _hand_down(parent)
    held = (certain(text(parent / "cgroup.subtree_control")) or "").split()
    cpu, memory, pids = (parent if name in held else None for name in CONTROLLERS)
    _weigh(2, cpu, os.cpu_count() or 1)
    found = Support(2, cpu, memory, pids, parent)
    why_not = f"controllers not delegated to {folder}: {', '.join(found.missing)}"
    return found if found.complete else replace(found, why_not=why_not)


def _hand_down(folder: Path) -> bool:
    """Whether the kernel hands down all controllers there are; one by one, as some may lack."""
    there = (certain(text(folder / "cgroup.controllers")) or "").split()
    file = folder / "cgroup.subtree_control"
    refused = [name for name in CONTROLLERS if name in there and not _put(file, f"+{name}")]
    return not refused


def _move_into_leaf(folder: Path) -> None:
    """Put what is in a group that was handed over to us into a group below it."""
    leaf = folder / LEAF
    with contextlib.suppress(FileExistsError, PermissionError):
        leaf.mkdir()
    for _ in range(MOVE_ROUNDS):  # what is moved may be forking
        inside = (certain(text(folder / "cgroup.procs")) or "").split()
        moved = [pid for pid in inside if _put(leaf / "cgroup.procs", pid)]
        if not moved:
            return


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


def folders_of(support: Support, name: str) -> list[Path]:
    """Those of the group of that name."""
    parents = (support.cpu, support.memory, support.pids, support.kill, support.account)
    return [parent / name for parent in dict.fromkeys(parents) if parent is not None]


def join(support: Support, name: str) -> bool:
    """Put the calling process into a group that somebody else made; whether it is in.

    Its limits stay as they are.
    """
    inside = [_put(one / "cgroup.procs", os.getpid()) for one in folders_of(support, name)]
    return all(inside)


class Group:
    """The control group of one run; below the process `supervisor`, if alive, its tasks live.

    The supervisor itself stays outside, so that a kill or a freeze does not reach it.
    """

    def __init__(
        self, support: Support, name: str, limits: CgroupLimits, supervisor: int | None
    ) -> None:
        """Make it and set its limits; nothing is in it yet.

        Without a supervisor, of a run that is over, it may be gone, and what it was in, too.

        Raises:
            OSError: it cannot be made.
        """
        self._support, self._name, self._limits = support, name, limits
        self._supervisor = supervisor
        self._stopped = False
        self.refused: set[str] = set()
        """Limits, by controller, or `swap`, that the kernel has not taken."""
        for folder in self._folders():
            with contextlib.suppress(*(() if supervisor is not None else (FileNotFoundError,))):
                folder.mkdir(exist_ok=True)
        self._limit()

    def _folders(self) -> list[Path]:
        return folders_of(self._support, self._name)

    def _limit(self) -> None:
        support, limits = self._support, self._limits
        if not self.share_cpu(1.0) and None not in (support.cpu, limits.cpus):
            self.refused.add("cpu")
        if support.cpu is not None and limits.cpus is not None:
            _weigh(support.version, support.cpu / self._name, limits.cpus)
        if support.memory and limits.memory_bytes is not None:
            name = "memory.max" if support.version == 2 else "memory.limit_in_bytes"
            self._take("memory", support.memory / self._name / name, limits.memory_bytes)
            swap, most = (
                ("memory.swap.max", 0)
                if support.version == 2
                else ("memory.memsw.limit_in_bytes", limits.memory_bytes)
            )
            if not _put(support.memory / self._name / swap, most) and _swaps():
                self.refused.add("swap")
        if support.pids and limits.processes is not None:
            self._take("pids", support.pids / self._name / "pids.max", limits.processes)

    def _take(self, name: str, file: Path, most: int) -> None:
        if not _put(file, most):
            self.refused.add(name)

    def outside(self, pid: int) -> set[str]:
        """Controllers that a living process of the run is not under; it could not be put there.

        Raises:
            OSError: that cannot be told now.
        """
        known = {name: getattr(self._support, name) for name in CONTROLLERS}
        lists = {
            name: certain(text(folder / self._name / "cgroup.procs")) or ""
            for name, folder in known.items()
            if folder is not None
        }
        without = {name for name, found in lists.items() if str(pid) not in found.split()}
        lives = processes.alive({pid}) if without else ABSENT
        return without if certain(lives) else set()

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
                case Present(found):
                    inside.update(map(int, found.split()))
                case Unknown(why):
                    return Unknown(why)
                case Absent():
                    pass
        if self._supervisor is not None:
            match processes.descendants(self._supervisor):
                case Present(below):
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
                case Present([]):
                    return left
                case Present(members):
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


def _swaps() -> bool:
    """Whether memory may go out to a disk: the first line is a heading."""
    return len((certain(text(SWAPS)) or "").splitlines()) > 1


def _number(path: Path) -> int | None:
    found = (certain(text(path)) or "").strip()
    return int(found) if found.isdigit() else None


def _cpu_stat_s(path: Path) -> float:
    return _counts(certain(text(path)) or "").get("usage_usec", 0) / 1e6


def _counts(lines: str) -> dict[str, int]:
    """A line each: a name and a number."""
    pairs = (line.partition(" ") for line in lines.splitlines())
    return {key: int(value) for key, _, value in pairs if value.strip().isdigit()}
