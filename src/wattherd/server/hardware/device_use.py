"""How busy the GPUs of this machine are, and how much of their memory is taken, by their libraries.

It is asked when a page wants to know, never more than once a second, and decides nothing: what a
library does not tell, or not in time, is not known.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wattherd.devices.wire import amdsmi
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.errors import ClusterError
from wattherd.local.devices import Device

PERIOD_S = 1.0
PATIENCE_S = 1.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Part of the last moments in which it computed, and bytes of memory; None: not told."""

    busy: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


NOT_KNOWN = GpuUse()


class UseReader(Protocol):
    """Reads one device."""

    def read(self) -> GpuUse:
        """What it tells."""
        ...

    def close(self) -> None:
        """Let go of the library."""
        ...


class DeviceUse:
    """Use of every device, in order; `NOT_KNOWN` where nobody tells."""

    def __init__(
        self, devices: Sequence[Device], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is asked yet."""
        self._readers = [_reader(one) for one in devices]
        self._clock = clock
        self._lock = threading.Lock()
        self._read_s = float("-inf")
        self._last: tuple[GpuUse, ...] = (NOT_KNOWN,) * len(self._readers)

    def __call__(self) -> Sequence[GpuUse]:
        """The latest; who asks while another reads gets what was known before."""
        if not any(self._readers) or not self._lock.acquire(blocking=False):
            return self._last
        try:
            if self._clock() - self._read_s >= PERIOD_S:
                self._last = tuple(map(_read, self._readers))
                self._read_s = self._clock()
        finally:
            self._lock.release()
        return self._last

    def close(self) -> None:
        """Let go of the libraries."""
        with self._lock:
            for one in self._readers:
                if one is not None:
                    one.close()
            self._readers = []


def _reader(device: Device) -> UseReader | None:
    if device.maker == "nvidia" and importlib.util.find_spec("pynvml") is not None:
        return _Nvidia(device.uuid)
    if device.maker == "amd":
        return _Amd(device.uuid)
    return None


def _read(reader: UseReader | None) -> GpuUse:
    if reader is None:
        return NOT_KNOWN
    with contextlib.suppress(ClusterError):
        return reader.read()
    return NOT_KNOWN


class _Nvidia:
    """A GPU of NVIDIA's; a part of one (MIG) tells its memory only."""

    def __init__(self, uuid: str) -> None:
        from wattherd.devices.wire import nvml

        self._gpus = nvml.NvmlGpus(uuid, TimedCalls(PATIENCE_S))

    def read(self) -> GpuUse:
        return self._gpus.ask(_of_nvidia)

    def close(self) -> None:
        self._gpus.close()


def _of_nvidia(handles: Sequence[Any]) -> GpuUse:
    import pynvml

    busy: float | None = None
    used = total = None
    with contextlib.suppress(pynvml.NVMLError_NotSupported):
        busy = pynvml.nvmlDeviceGetUtilizationRates(handles[0]).gpu / 100
    with contextlib.suppress(pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handles[0])
        used, total = int(memory.used), int(memory.total)
    return GpuUse(busy=busy, memory_used_bytes=used, memory_bytes=total)


class _Amd:
    """A GPU of AMD's."""

    def __init__(self, uuid: str) -> None:
        self._gpu = amdsmi.AmdGpu(uuid, TimedCalls(PATIENCE_S))

    def read(self) -> GpuUse:
        activity = self._told(lambda smi, one: smi.amdsmi_get_gpu_activity(one))
        memory = self._told(lambda smi, one: smi.amdsmi_get_gpu_vram_usage(one))
        gfx = activity.get("gfx_activity")
        used, total = memory.get("vram_used"), memory.get("vram_total")
        return GpuUse(
            busy=gfx / 100 if isinstance(gfx, int) and gfx <= 100 else None,
            memory_used_bytes=used * MIB if isinstance(used, int) else None,
            memory_bytes=total * MIB if isinstance(total, int) else None,
        )

    def _told(self, call: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """What older GPUs and libraries may not tell."""
        try:
            return dict(self._gpu.ask(call))
        except (ClusterError, AttributeError, KeyError):
            return {}

    def close(self) -> None:
        self._gpu.close()
