"""Power of NVIDIA GPUs: `nvml://0`, `nvml://GPU-UUID`, `nvml://all`.

What NVML calls the power usage is, from Ampere on (A100 aside), the mean over a second;
`mode=instant` asks for the power now instead, where the GPU has that field; `mode=samples` for the
newest of the samples that the driver keeps, and all of them to who records a draw. On an H100
(driver 580.159) the first two are renewed every 100 ms, and samples are 20 ms apart, the last 2.4 s
of them: benchmarks/measured.
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
MODES = "average", "instant", "samples"


@dataclass(slots=True)
class Nvml:
    """Sum of the power of some GPUs."""

    gpus: nvml.NvmlGpus
    mode: str

    @property
    def quick(self) -> bool:
        """The power now is worth asking for ten times a second; a mean already has it all."""
        return self.mode == "instant"

    @property
    def keeps_samples(self) -> bool:
        """Whether `kept_since` tells what was between two questions: of one GPU alone."""
        return self.mode == "samples" and self.gpus.name != nvml.ALL

    def kept_since(self, at_s: float) -> Sequence[MeterSample]:
        """Samples that the driver keeps and that are later than a Unix time, oldest first.

        Raises:
            DeviceError: no driver, no such GPU, or it keeps none.
        """
        return self.gpus.ask(lambda handles: _kept(handles[0], at_s))

    def sample(self) -> MeterSample:
        """Watts, and for all but `average` the oldest time among the GPUs.

        Raises:
            DeviceError: no driver, no such GPU, or it does not tell.
        """
        return self.gpus.ask(self._sum)

    def close(self) -> None:
        """Let go of the library."""
        self.gpus.close()

    def _sum(self, handles: Sequence[Any]) -> MeterSample:
        look_at = {"average": _average, "instant": _instant, "samples": _newest}[self.mode]
        looks = [look_at(one) for one in handles]
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
    mode = uri.choice("mode", MODES, "average")
    return Nvml(nvml.NvmlGpus(uri.authority, TimedCalls(uri.timeout_s)), mode)


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


def _newest(handle: Any) -> MeterSample:
    kept = _kept(handle, 0.0)
    if not kept:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return kept[-1]


def _kept(handle: Any, at_s: float) -> Sequence[MeterSample]:
    since_us = max(round(at_s * 1e6), 0)
    try:
        _, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, since_us)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND and since_us:
            return []  # none is newer
        raise
    samples = {one.timeStamp: one.sampleValue.uiVal for one in found if one.timeStamp > since_us}
    return [MeterSample(samples[us] * 1e-3, us * 1e-6) for us in sorted(samples)]
