"""Highest graphics clock of an NVIDIA GPU: `nvml-clock://GPU-UUID` (locked clocks, Volta on).

A lock is a ceiling where a power limit is a mean. NVML tells no lock: what is read back is whether
the clock stays at or below the one that was ordered here, and a lock of somebody else is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.knobs.nvml import aim, one_gpu, permitted
from wattherd.devices.wire.nvml import NvmlGpus
from wattherd.devices.wire.uri import Uri

OPTIONS: frozenset[str] = frozenset()
MEGA = 1e6


@dataclass(slots=True)
class NvmlClock:
    """The upper end of one GPU's locked graphics clocks; the lower end is the lowest there is."""

    gpus: NvmlGpus
    ordered_hz: float = NO_LIMIT
    unit = KnobUnit.HERTZ
    step = 15 * MEGA  # between neighbouring clocks

    def limits(self) -> KnobLimits:
        """The clocks that the GPU supports at its fastest memory clock."""
        lowest_hz, highest_hz = self.gpus.ask(_range)
        now = self.read().value
        return KnobLimits(unit=self.unit, lowest=lowest_hz, highest=highest_hz, default=highest_hz,
                      now=now)  # fmt: skip

    def read(self) -> KnobSetting:
        """The clock ordered if the GPU keeps below it, else the clock it runs at."""
        uuid, clock_hz = self.gpus.ask(_look)
        kept = self.ordered_hz == NO_LIMIT or clock_hz <= self.ordered_hz + self.step
        lock_hz = None if self.ordered_hz == NO_LIMIT else self.ordered_hz
        return KnobSetting(
            self.ordered_hz if kept else clock_hz, {"uuid": uuid, "lock_hz": lock_hz}
        )

    def write(self, value: float) -> None:
        """Lock the clock to at most this, or unlock it."""
        permitted(self.gpus, lambda handle: _lock(handle, value))
        self.ordered_hz = value

    def put_back(self, state: State) -> None:
        """Lock or unlock as it was known to be; the GPU is found by its UUID."""
        self.gpus = aim(self.gpus, state)
        self.write(NO_LIMIT if state["lock_hz"] is None else state["lock_hz"])

    def close(self) -> None:
        """Let go of the library."""
        self.gpus.close()


def driver(uri: Uri) -> NvmlClock:
    """The driver that `uri` names.

    Raises:
        UserError: it does not name one GPU.
    """
    return NvmlClock(one_gpu(uri))


def _range(handles: Sequence[Any]) -> tuple[float, float]:
    memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(handles[0]))
    clocks_mhz = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handles[0], memory_mhz)
    return min(clocks_mhz) * MEGA, max(clocks_mhz) * MEGA


def _look(handles: Sequence[Any]) -> tuple[str, float]:
    clock_mhz = pynvml.nvmlDeviceGetClockInfo(handles[0], pynvml.NVML_CLOCK_GRAPHICS)
    return pynvml.nvmlDeviceGetUUID(handles[0]), clock_mhz * MEGA


def _lock(handle: Any, highest_hz: float) -> None:
    if highest_hz == NO_LIMIT:
        pynvml.nvmlDeviceResetGpuLockedClocks(handle)
        return
    lowest_hz = _range([handle])[0]
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, int(lowest_hz / MEGA), int(highest_hz / MEGA))
