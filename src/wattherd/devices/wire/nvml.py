"""NVIDIA GPUs by their driver's library: handles by number, UUID or `all`, asked with patience.

Numbers follow the order of the PCI bus and may change when a device is lost: UUIDs do not. The
library's calls hang when a GPU falls off the bus, so they are waited for only so long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.timeouts import TimedCalls

T = TypeVar("T")

ALL = "all"
TROUBLES = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: DeviceErrorKind.ABSENT,
    pynvml.NVML_ERROR_NOT_FOUND: DeviceErrorKind.ABSENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED: DeviceErrorKind.ABSENT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: DeviceErrorKind.ABSENT,
    pynvml.NVML_ERROR_NO_PERMISSION: DeviceErrorKind.REFUSED,
    pynvml.NVML_ERROR_TIMEOUT: DeviceErrorKind.TIMEOUT,
}
"""All other errors mean that the driver or the GPU is gone."""


@dataclass(slots=True)
class NvmlGpus:
    """The GPUs that `name` stands for: a number, a UUID or `all`."""

    name: str
    patience: TimedCalls
    _handles: Sequence[Any] = ()

    def ask(self, call: Callable[[Sequence[Any]], T]) -> T:
        """What `call` makes of the handles.

        Raises:
            DeviceError: no driver, no such GPU, it refuses or takes too long.
        """
        return self.patience.ask(lambda: self._ask(call))

    def close(self) -> None:
        """Let go of the library, unless a call hangs in it."""
        if not self.patience.hangs:
            self._let_go()

    def _ask(self, call: Callable[[Sequence[Any]], T]) -> T:
        try:
            if not self._handles:
                self._handles = _handles(self.name)
            return call(self._handles)
        except pynvml.NVMLError as error:
            self._let_go()
            trouble = TROUBLES.get(error.value, DeviceErrorKind.UNREACHABLE)
            raise DeviceError(trouble, f"GPU {self.name}: {error}") from None

    def _let_go(self) -> None:
        """Handles are void once a GPU was lost or the driver reloaded."""
        if self._handles:
            self._handles = ()
            pynvml.nvmlShutdown()


def present() -> Sequence[str]:
    """Numbers of the GPUs of this machine; none where there is no driver."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return [str(number) for number in range(count)]


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
