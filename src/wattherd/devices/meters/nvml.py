"""Power of NVIDIA GPUs: `nvml://0`, `nvml://GPU-UUID`, `nvml://all`.

What NVML calls the power usage is, from Ampere on (A100 aside), the mean over a second;
`mode=instant` asks for the latest sample instead, where the GPU has that field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import nvml
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"mode"})
MODES = "average", "instant"


@dataclass(slots=True)
class Nvml:
    """Sum of the power of some GPUs."""

    gpus: nvml.NvmlGpus
    instant: bool

    def sample(self) -> MeterSample:
        """Watts, and for `instant` the oldest time among the GPUs.

        Raises:
            DeviceError: no driver, no such GPU, or it does not tell.
        """
        return self.gpus.ask(self._sum)

    def close(self) -> None:
        """Let go of the library."""
        self.gpus.close()

    def _sum(self, handles: Sequence[Any]) -> MeterSample:
        looks = [(_instant if self.instant else _average)(one) for one in handles]
        at_s = min((look.at_s for look in looks if look.at_s is not None), default=None)
        return MeterSample(math.fsum(look.value for look in looks), at_s)


def driver(uri: Uri, clock: Clock) -> Nvml:
    """The driver that `uri` names.

    Raises:
        UserError: it names no GPU.
    """
    del clock  # the library's, where it tells one
    if not uri.authority or uri.path.strip("/"):
        raise uri.error("names no GPU", hint="write nvml://0, nvml://GPU-UUID or nvml://all")
    instant = uri.choice("mode", MODES, "average") == "instant"
    return Nvml(nvml.NvmlGpus(uri.authority, TimedCalls(uri.timeout_s)), instant)


def present_uris() -> Sequence[str]:
    """Addresses of the GPUs of this machine; none where there is no driver."""
    return [f"nvml://{number}" for number in nvml.present()]


def _average(handle: Any) -> MeterSample:
    return MeterSample(pynvml.nvmlDeviceGetPowerUsage(handle) * 1e-3)


def _instant(handle: Any) -> MeterSample:
    field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    at_s = field.timestamp * 1e-6 if field.timestamp > 0 else None
    return MeterSample(field.value.uiVal * 1e-3, at_s)
