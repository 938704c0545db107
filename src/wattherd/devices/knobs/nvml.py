"""Power limit of an NVIDIA GPU by its driver's library: `nvml://GPU-UUID`, `nvml://0`.

The limit is lost when the driver is reloaded or the machine restarted, and is a mean, not a
ceiling: bursts of 50 ms reach 1.4 times it on B300. What is read back is the limit enforced, which
other limiters may keep below the one ordered. A journal names GPUs by UUID, as numbers may move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import nvml
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.nvml import NvmlGpus
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.devices.wire.uri import Uri

OPTIONS: frozenset[str] = frozenset()
MILLI = 1e-3
HINT = "setting needs root or CAP_SYS_ADMIN, or a zeusd that has it (see zeusd+unix:)"


@dataclass(slots=True)
class NvmlPower:
    """The power management limit of one GPU."""

    gpus: NvmlGpus
    unit = KnobUnit.WATT
    step = 0.5

    def limits(self) -> KnobLimits:
        """The range that the GPU allows, and its default."""
        return self.gpus.ask(_limits)

    def read(self) -> KnobSetting:
        """The limit enforced; its state is the one ordered, by UUID."""
        return self.gpus.ask(_read)

    def write(self, value: float) -> None:
        """Set the limit; without one, the highest."""
        self._order(lambda handle: _set(handle, value))

    def put_back(self, state: State) -> None:
        """Set the limit that a GPU had; it is found by its UUID."""
        self.gpus = aim(self.gpus, state)
        self._order(lambda handle: _set(handle, state["power_limit_mw"] * MILLI))

    def identity(self) -> str:
        """The UUID of the GPU that has this number now."""
        return str(self.gpus.ask(_read).state["uuid"])

    def close(self) -> None:
        """Let go of the library."""
        self.gpus.close()

    def _order(self, call: Any) -> None:
        permitted(self.gpus, call)


def driver(uri: Uri) -> NvmlPower:
    """The driver that `uri` names.

    Raises:
        UserError: it does not name one GPU.
    """
    return NvmlPower(one_gpu(uri))


def one_gpu(uri: Uri) -> NvmlGpus:
    """The GPU that an address names.

    Raises:
        UserError: none, or all of them: a limit belongs to one.
    """
    if not uri.authority or uri.path.strip("/") or uri.authority == nvml.ALL:
        raise uri.error("names no GPU", hint=f"write {uri.scheme}://GPU-UUID or {uri.scheme}://0")
    return NvmlGpus(uri.authority, TimedCalls(uri.timeout_s))


def aim(gpus: NvmlGpus, state: State) -> NvmlGpus:
    """The GPU that a state belongs to, whatever its number is by now."""
    return NvmlGpus(str(state["uuid"]), gpus.patience)


def permitted(gpus: NvmlGpus, call: Any) -> None:
    """Order something of the one GPU.

    Raises:
        DeviceError: not done; where permission is missing, says what would help.
    """
    try:
        gpus.ask(lambda handles: call(handles[0]))
    except DeviceError as error:
        if error.trouble is DeviceErrorKind.REFUSED:
            raise DeviceError(error.trouble, f"{error.problem}; {HINT}") from None
        raise


def present_uris() -> Sequence[str]:
    """Addresses of the GPUs of this machine, by UUID; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        return [f"nvml://{pynvml.nvmlDeviceGetUUID(handle)}" for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _limits(handles: Sequence[Any]) -> KnobLimits:
    handle = handles[0]
    lowest_mw, highest_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    return KnobLimits(
        unit=KnobUnit.WATT,
        lowest=lowest_mw * MILLI,
        highest=highest_mw * MILLI,
        default=pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) * MILLI,
        now=_enforced_mw(handle) * MILLI,
    )


def _read(handles: Sequence[Any]) -> KnobSetting:
    handle = handles[0]
    state = {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "power_limit_mw": pynvml.nvmlDeviceGetPowerManagementLimit(handle),
    }
    return KnobSetting(_enforced_mw(handle) * MILLI, state)


def _enforced_mw(handle: Any) -> int:
    try:
        enforced: int = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    except pynvml.NVMLError as error:
        if error.value not in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        ):
            raise
        enforced = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    return enforced


def _set(handle: Any, value_w: float) -> None:
    if value_w == NO_LIMIT:
        value_w = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] * MILLI
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, round(value_w / MILLI))
