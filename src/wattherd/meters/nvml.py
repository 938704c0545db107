"""NVIDIA GPUs by their driver's library: `nvml://0`, `nvml://GPU-UUID`, `nvml://all`.

What NVML calls the power usage is, from Ampere on (A100 aside), the mean over a second;
`mode=instant` asks for the latest sample instead, where the GPU has that field. Numbers follow the
order of the PCI bus and may change when a device is lost: UUIDs do not. The library's calls hang
when a GPU falls off the bus, so they are waited for only so long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from wattherd.meters.clock import Clock
from wattherd.meters.contract import MeterError, Sample, Trouble
from wattherd.meters.meter import timeout_s
from wattherd.meters.patience import Patience
from wattherd.meters.uri import MeterUri

OPTIONS = frozenset({"mode"})
MODES = "average", "instant"
ALL = "all"
TROUBLES = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Trouble.ABSENT,
    pynvml.NVML_ERROR_NOT_FOUND: Trouble.ABSENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Trouble.ABSENT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Trouble.ABSENT,
    pynvml.NVML_ERROR_NO_PERMISSION: Trouble.REFUSED,
    pynvml.NVML_ERROR_TIMEOUT: Trouble.TIMEOUT,
}
"""All other errors mean that the driver or the GPU is gone."""


@dataclass(slots=True)
class Nvml:
    """Sum of the power of the GPUs that `name` stands for: a number, a UUID or `all`."""

    name: str
    instant: bool
    patience: Patience
    _handles: Sequence[Any] = ()

    def sample(self) -> Sample:
        """Watts, and for `instant` the oldest time among the GPUs.

        Raises:
            MeterError: no driver, no such GPU, or it does not tell.
        """
        return self.patience.ask(self._sample)

    def close(self) -> None:
        """Let go of the library, unless a call hangs in it."""
        if self._handles and not self.patience.hangs:
            self._handles = ()
            pynvml.nvmlShutdown()

    def _sample(self) -> Sample:
        try:
            if not self._handles:
                self._handles = _handles(self.name)
            looks = [(_instant if self.instant else _average)(one) for one in self._handles]
        except pynvml.NVMLError as error:
            self._let_go()
            trouble = TROUBLES.get(error.value, Trouble.UNREACHABLE)
            raise MeterError(trouble, f"GPU {self.name}: {error}") from None
        at_s = min((look.at_s for look in looks if look.at_s is not None), default=None)
        return Sample(math.fsum(look.value for look in looks), at_s)

    def _let_go(self) -> None:
        """Handles are void once a GPU was lost or the driver reloaded."""
        if self._handles:
            self._handles = ()
            pynvml.nvmlShutdown()


def driver(uri: MeterUri, clock: Clock) -> Nvml:
    """The driver that `uri` names.

    Raises:
        UserError: it names no GPU.
    """
    del clock  # the library's, where it tells one
    if not uri.authority or uri.path.strip("/"):
        raise uri.error("names no GPU", hint="write nvml://0, nvml://GPU-UUID or nvml://all")
    instant = uri.choice("mode", MODES, "average") == "instant"
    return Nvml(uri.authority, instant, Patience(timeout_s(uri)))


def present_uris() -> Sequence[str]:
    """Addresses of the GPUs of this machine; none where there is no driver."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return [f"nvml://{number}" for number in range(count)]


def _handles(name: str) -> Sequence[Any]:
    """Handles of a library that is initialised; it is not if this fails."""
    pynvml.nvmlInit()
    try:
        return _named(name)
    except pynvml.NVMLError:
        pynvml.nvmlShutdown()
        raise


def _named(name: str) -> Sequence[Any]:
    if name == ALL:
        return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    if name.isdecimal():
        return [pynvml.nvmlDeviceGetHandleByIndex(int(name))]
    return [pynvml.nvmlDeviceGetHandleByUUID(name)]


def _average(handle: Any) -> Sample:
    return Sample(pynvml.nvmlDeviceGetPowerUsage(handle) * 1e-3)


def _instant(handle: Any) -> Sample:
    field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    at_s = field.timestamp * 1e-6 if field.timestamp > 0 else None
    return Sample(field.value.uiVal * 1e-3, at_s)
