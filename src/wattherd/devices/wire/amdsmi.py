"""AMD GPUs by AMD SMI's library: handles by number or UUID, asked with patience.

The Python package looks for its library when imported and prints when there is none: an address is
checked first, the package imported at the first question.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.timeouts import TimedCalls

T = TypeVar("T")

TROUBLES = {
    1: DeviceErrorKind.ABSENT,  # invalid argument
    2: DeviceErrorKind.ABSENT,  # not supported
    3: DeviceErrorKind.ABSENT,  # not yet implemented
    8: DeviceErrorKind.TIMEOUT,
    10: DeviceErrorKind.REFUSED,  # no permission
    31: DeviceErrorKind.ABSENT,  # not found
}
"""By status of `amdsmi_status_t`; all others mean that the driver or the GPU is gone."""


@dataclass(slots=True)
class AmdGpu:
    """The GPU that `name` stands for: a number or a UUID."""

    name: str
    patience: TimedCalls
    _smi: ModuleType | None = None
    _handle: Any = None

    def ask(self, call: Callable[[Any, Any], T]) -> T:
        """What `call` makes of the library and the handle.

        Raises:
            DeviceError: no library, no such GPU, it refuses or takes too long.
        """
        return self.patience.ask(lambda: self._ask(call))

    def close(self) -> None:
        """Let go of the library, unless a call hangs in it."""
        if not self.patience.hangs:
            self._let_go()

    def _ask(self, call: Callable[[Any, Any], T]) -> T:
        smi = self._smi = self._smi or _library()
        try:
            if self._handle is None:
                smi.amdsmi_init()
                self._handle = _named(smi, self.name)
            return call(smi, self._handle)
        except smi.AmdSmiLibraryException as error:
            self._let_go()
            code = error.get_error_code()
            trouble = TROUBLES.get(code, DeviceErrorKind.UNREACHABLE)
            said = " ".join(str(error.get_error_info()).split())
            raise DeviceError(trouble, f"GPU {self.name}: {said}") from None

    def _let_go(self) -> None:
        """Handles are void once a GPU was lost or the driver reloaded."""
        self._handle = None
        if self._smi is not None:
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()


def uuids() -> Sequence[str]:
    """UUIDs of the GPUs of this machine; none where there is no library."""
    try:
        smi = _library()
    except DeviceError:
        return []
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        found = [str(smi.amdsmi_get_gpu_device_uuid(handle)) for handle in handles]
        smi.amdsmi_shut_down()
    except smi.AmdSmiException:
        return []
    return found


def _library() -> ModuleType:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:
        # Without the library the package fails in whichever way it first trips over that.
        problem = f"no libamd_smi.so that fits the package amdsmi ({type(error).__name__}: {error})"
        raise DeviceError(DeviceErrorKind.UNREACHABLE, problem) from None


def _named(smi: Any, name: str) -> Any:
    handles = smi.amdsmi_get_processor_handles()
    for number, handle in enumerate(handles):
        if name in (str(number), smi.amdsmi_get_gpu_device_uuid(handle)):
            return handle
    raise DeviceError(DeviceErrorKind.ABSENT, f"no GPU {name} among {len(handles)}")
