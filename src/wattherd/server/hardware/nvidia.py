"""NVIDIA GPUs of this machine, as their driver describes them by NVML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pynvml

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.nvml import ALL, NvmlGpus
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.server.hardware.gpu_devices import FoundGpu

PATIENCE_S = 5.0
MIB = 1 << 20
IDLE_PART = 0.1
"""Of the power limit: what a GPU of unknown model is taken to draw when idle. Estimated."""


def found_gpus() -> Sequence[FoundGpu]:
    """GPUs in the driver's order; none where there is no driver, or it does not answer."""
    gpus = NvmlGpus(ALL, TimedCalls(PATIENCE_S))
    try:
        return gpus.ask(lambda handles: [_found(at, handle) for at, handle in enumerate(handles)])
    except DeviceError:
        return []
    finally:
        gpus.close()


def _found(number: int, handle: Any) -> FoundGpu:
    return FoundGpu(
        number=number,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
        lowest_w=pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[0] * 1e-3,
        default_w=pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) * 1e-3,
        address=_address(handle),
    )


def _address(handle: Any) -> str:
    """PCI address, by which the kernel names a GPU at fault; empty where the driver has none."""
    try:
        return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError:
        return ""


def model_of(gpu: FoundGpu) -> GpuModel:
    """The catalog's figures where it knows the model, the driver's limits in any case."""
    known = _catalogued(gpu)
    return GpuModel(
        name=known.name if known else re.sub(r"[^\w.-]+", "-", gpu.name),
        idle_w=known.idle_w if known else IDLE_PART * gpu.default_w,
        max_w=gpu.default_w,
        memory_mib=gpu.memory_mib,
        min_cap_w=gpu.lowest_w,
        source="NVML",
        note="idle: catalog" if known else "idle: estimated",
    )


def _catalogued(gpu: FoundGpu) -> GpuModel | None:
    """`NVIDIA A100-SXM4-80GB`: the A100 of the catalog whose memory and make are closest."""
    family = re.search(r"\b[A-Z]+\d+[A-Z]*\b", gpu.name)
    if family is None:
        return None
    alike = re.compile(rf"{family[0]}(-.*|M\d+)?$")
    pcie = "PCI" in gpu.name.upper()
    able = [
        (abs(one.memory_mib - gpu.memory_mib), pcie != ("PCIe" in one.name), name)
        for name, one in GPUS.items()
        if alike.match(name)
    ]
    return GPUS[min(able)[2]] if able else None
