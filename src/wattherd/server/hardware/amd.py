"""AMD GPUs of this machine by AMD SMI: what they are, and between which caps.

What the library does not tell of a GPU is taken from the catalog where it knows the model; without
a library there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.devices.wire import amdsmi
from wattherd.devices.wire.amdsmi import AmdGpu
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.server.hardware.gpu_devices import FoundGpu

PATIENCE_S = 5.0
MICRO = 1e-6
IDLE_PART = 0.1
"""Of the default cap: what a GPU of unknown model is taken to draw when idle. Estimated."""
UNNAMED = "AMD-GPU"


def found_gpus() -> Sequence[FoundGpu]:
    """GPUs whose caps the library tells, in its order; none where there is no library."""
    found = (_found(number, uuid) for number, uuid in enumerate(amdsmi.uuids()))
    return [one for one in found if one is not None]


def _found(number: int, uuid: str) -> FoundGpu | None:
    gpu = AmdGpu(uuid, TimedCalls(PATIENCE_S))
    try:
        caps = gpu.ask(lambda smi, handle: dict(smi.amdsmi_get_power_cap_info(handle)))
    except DeviceError:
        gpu.close()
        return None
    name = _told(gpu, lambda smi, one: smi.amdsmi_get_gpu_asic_info(one)["market_name"])
    vram_mib = _told(gpu, lambda smi, one: smi.amdsmi_get_gpu_vram_info(one)["vram_size"])
    gpu.close()
    return FoundGpu(
        number=number,
        uuid=uuid,
        name=str(name or UNNAMED),
        memory_mib=vram_mib if isinstance(vram_mib, int) else 0,
        lowest_w=caps["min_power_cap"] * MICRO,
        default_w=caps["default_power_cap"] * MICRO,
    )


def _told(gpu: AmdGpu, call: Callable[[Any, Any], Any]) -> Any:
    """What older GPUs and libraries may not tell."""
    try:
        return gpu.ask(call)
    except (DeviceError, KeyError):
        return None


def model_of(gpu: FoundGpu) -> GpuModel:
    """The catalog's idle watts where it knows the model, the library's caps in any case."""
    family = re.search(r"\bMI\d+[A-Z]*\b", gpu.name)
    known = GPUS.get(family[0]) if family else None
    return GpuModel(
        name=known.name if known else re.sub(r"[^\w.-]+", "-", gpu.name),
        idle_w=known.idle_w if known else IDLE_PART * gpu.default_w,
        max_w=gpu.default_w,
        memory_mib=gpu.memory_mib or (known.memory_mib if known else 0),
        min_cap_w=max(gpu.lowest_w, known.idle_w if known else IDLE_PART * gpu.default_w),
        source="AMD SMI",
        note="idle: catalog" if known else "idle: estimated",
    )
