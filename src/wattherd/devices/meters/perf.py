"""CPU counters from the kernel's perf events: what a model of watts may know of a host.

Counts instructions, cycles, cache references and misses, task time and, where the processor's
memory controllers are told of, bytes moved (perf_event_open(2), struct perf_event_attr version 0;
/sys/bus/event_source/devices/uncore_imc*). Virtual machines often have no hardware counters:
what cannot be opened is absent from the answer, which never guesses. When the kernel shares
counters among more events than it has, counts are scaled by enabled over running time, as perf
does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

HARDWARE, SOFTWARE = 0, 1
EVENTS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "cycles": (HARDWARE, 0),
        "instructions": (HARDWARE, 1),
        "cache_references": (HARDWARE, 2),
        "cache_misses": (HARDWARE, 3),
        "task_ns": (SOFTWARE, 1),
    }
)
"""Names, type and number of events (linux/perf_event.h)."""
SYSCALLS: Mapping[str, int] = MappingProxyType({"x86_64": 298, "aarch64": 241})
DEVICES = Path("/sys/bus/event_source/devices")
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED | _RUNNING
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class CpuCounts:
    """Means over `seconds`; None where the kernel or the processor does not tell."""

    seconds: float
    instructions_hz: float | None
    cycles_hz: float | None
    cache_hits: float | None
    busy: float | None
    memory_bytes_hz: float | None

    def features(self) -> dict[str, float]:
        """What is known, by the names that models of watts use."""
        found = {
            "cpu_instructions_hz": self.instructions_hz,
            "cpu_cache_hits": self.cache_hits,
            "cpu_busy": self.busy,
            "cpu_memory_bytes_hz": self.memory_bytes_hz,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(slots=True)
class _Event:
    """An open event; `look` is its count scaled to all of its enabled time."""

    handle: int

    def look(self) -> float:
        count, enabled, running = struct.unpack("QQQ", os.read(self.handle, 24))
        return count * enabled / running if running else 0.0

    def close(self) -> None:
        os.close(self.handle)


@dataclass(slots=True)
class PerfCounters:
    """Counters of one process (`pid`, 0: this one) and its later children, user code only.

    Bytes moved belong to the whole machine and need CAP_PERFMON or perf_event_paranoid below 1.
    """

    pid: int = 0
    clock: Clock = SYSTEM
    _events: dict[str, list[_Event]] = field(default_factory=dict)
    _memory: list[_Event] = field(default_factory=list)

    def counts(self, window_s: float = 1.0) -> CpuCounts:
        """What was counted during `window_s`.

        Raises:
            DeviceError: the kernel has no perf events, lets nobody count, or the process is gone.
        """
        if not self._events:
            self._check_there()
            self._open()
        begun_s, before = self.clock.steady_s(), self._look()
        self.clock.sleep(window_s)
        passed_s, after = self.clock.steady_s() - begun_s, self._look()
        if passed_s <= 0:
            raise DeviceError(DeviceErrorKind.GARBAGE, "no time passed between two looks")
        rate = {name: (after[name] - before[name]) / passed_s for name in after}
        return _counts(passed_s, rate)

    def close(self) -> None:
        """Stop counting."""
        for event in (*chain.from_iterable(self._events.values()), *self._memory):
            event.close()
        self._events, self._memory = {}, []

    def _look(self) -> dict[str, float]:
        found = {name: sum(map(_Event.look, each)) for name, each in self._events.items()}
        if self._memory:
            found["memory_lines"] = sum(event.look() for event in self._memory)
        return found

    def _open(self) -> None:
        refused: OSError | None = None
        for name, (kind, number) in EVENTS.items():
            try:
                self._events[name] = [
                    _opened(kind, number, thread, -1, _NO_KERNEL | _INHERIT)
                    for thread in self._threads()
                ]
            except OSError as error:
                refused = refused or _serious(error)
        if not self._events:
            raise _trouble(refused)
        self._memory = _memory_events()

    def _check_there(self) -> None:
        if self.pid and not Path(f"/proc/{self.pid}").is_dir():
            raise DeviceError(DeviceErrorKind.ABSENT, "no such process", source=f"pid {self.pid}")

    def _threads(self) -> Sequence[int]:
        """An event follows one thread, and those it starts later."""
        folder = Path(f"/proc/{self.pid or 'self'}/task")
        found = sorted(int(entry.name) for entry in folder.iterdir()) if folder.is_dir() else []
        return found or [self.pid]


def _counts(seconds: float, rate: Mapping[str, float]) -> CpuCounts:
    looked, missed = rate.get("cache_references"), rate.get("cache_misses")
    hits = None if not looked or missed is None else min(max(1.0 - missed / looked, 0.0), 1.0)
    task, lines = rate.get("task_ns"), rate.get("memory_lines")
    return CpuCounts(
        seconds=seconds,
        instructions_hz=rate.get("instructions"),
        cycles_hz=rate.get("cycles"),
        cache_hits=hits,
        busy=None if task is None else task * 1e-9,
        memory_bytes_hz=None if lines is None else lines * _LINE_BYTES,
    )


def _opened(kind: int, config: int, pid: int, cpu: int, flags: int) -> _Event:
    """One event of perf_event_open(2).

    Raises:
        OSError: the kernel refused.
    """
    number = SYSCALLS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "no perf events known for this processor")
    attribute = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("IIQ", attribute, 0, kind, _ATTRIBUTE_BYTES, config)
    struct.pack_into("QQ", attribute, 32, _TIMES, flags | (_NO_HYPERVISOR if pid >= 0 else 0))
    buffer = (ctypes.c_char * _ATTRIBUTE_BYTES).from_buffer(attribute)
    library = ctypes.CDLL(None, use_errno=True)
    handle = library.syscall(number, buffer, pid, cpu, -1, _CLOSE_ON_EXEC)
    if handle < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return _Event(handle)


def _serious(error: OSError) -> OSError | None:
    """What is not just a counter that this processor lacks."""
    return None if error.errno in (errno.ENOENT, errno.EOPNOTSUPP) else error


def _trouble(refused: OSError | None) -> DeviceError:
    if refused is None:
        return DeviceError(DeviceErrorKind.ABSENT, "this processor tells of no counter")
    if refused.errno in (errno.EPERM, errno.EACCES):
        level = PARANOID.read_text(encoding="ascii").strip() if PARANOID.exists() else "?"
        hint = "run with CAP_PERFMON, or as root: sysctl kernel.perf_event_paranoid=2"
        problem = f"the kernel lets nobody count (perf_event_paranoid is {level}): {hint}"
        return DeviceError(DeviceErrorKind.REFUSED, problem)
    if refused.errno == errno.ESRCH:
        return DeviceError(DeviceErrorKind.ABSENT, "no such process")
    return DeviceError(DeviceErrorKind.ABSENT, f"no perf events: {refused.strerror}")


def _memory_events(devices: Path = DEVICES) -> list[_Event]:
    """Reads and writes of the memory controllers; none where untold or not allowed."""
    found: list[_Event] = []
    for folder in sorted(devices.glob("uncore_imc*")):
        for name in ("cas_count_read", "cas_count_write"):
            try:
                kind = int((folder / "type").read_text(encoding="ascii"))
                config = _config((folder / "events" / name).read_text(encoding="ascii"))
                cpus = (folder / "cpumask").read_text(encoding="ascii")
                found.extend(_opened(kind, config, -1, cpu, 0) for cpu in _cpus(cpus))
            except (OSError, ValueError):
                continue
    return found


def _config(text: str) -> int:
    """`event=0x04,umask=0x03` as a number: the event's byte, then the mask's."""
    terms = dict(term.split("=") for term in text.strip().split(","))
    return int(terms["event"], 16) | int(terms.get("umask", "0"), 16) << 8


def _cpus(text: str) -> Sequence[int]:
    return [int(part.split("-")[0]) for part in text.strip().split(",") if part]
