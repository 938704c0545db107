"""Power cap of an AMD GPU by AMD SMI: `amdsmi://0`, `amdsmi://UUID`.

On Linux the library counts caps in microwatts. Of a GPU with two dies the cap stands on the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import amdsmi
from wattherd.devices.wire.amdsmi import AmdGpu
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.devices.wire.uri import Uri

OPTIONS: frozenset[str] = frozenset()
MICRO = 1e-6
SENSOR = 0
HINT = "setting needs root"


@dataclass(slots=True)
class AmdsmiPower:
    """The power cap of one GPU."""

    gpu: AmdGpu
    unit = KnobUnit.WATT
    step = 1.0  # drivers round to whole watts

    def limits(self) -> KnobLimits:
        """The range that the GPU allows, and its default."""
        info = self._info()
        return KnobLimits(
            unit=self.unit,
            lowest=info["min_power_cap"] * MICRO,
            highest=info["max_power_cap"] * MICRO,
            default=info["default_power_cap"] * MICRO,
            now=info["power_cap"] * MICRO,
        )

    def read(self) -> KnobSetting:
        """The cap in force."""
        uuid = self.gpu.ask(lambda smi, handle: str(smi.amdsmi_get_gpu_device_uuid(handle)))
        cap_uw = self._info()["power_cap"]
        return KnobSetting(cap_uw * MICRO, {"uuid": uuid, "power_cap_uw": cap_uw})

    def write(self, value: float) -> None:
        """Set the cap; without one, the highest."""
        self._set(self._info()["max_power_cap"] if value == NO_LIMIT else round(value / MICRO))

    def put_back(self, state: State) -> None:
        """Set the cap that a GPU had; it is found by its UUID."""
        self.gpu = AmdGpu(str(state["uuid"]), self.gpu.patience)
        self._set(state["power_cap_uw"])

    def close(self) -> None:
        """Let go of the library."""
        self.gpu.close()

    def _info(self) -> dict[str, Any]:
        return self.gpu.ask(lambda smi, handle: dict(smi.amdsmi_get_power_cap_info(handle)))

    def _set(self, cap_uw: int) -> None:
        try:
            self.gpu.ask(lambda smi, handle: smi.amdsmi_set_power_cap(handle, SENSOR, cap_uw))
        except DeviceError as error:
            if error.trouble is DeviceErrorKind.REFUSED:
                raise DeviceError(error.trouble, f"{error.problem}; {HINT}") from None
            raise


def driver(uri: Uri) -> AmdsmiPower:
    """The driver that `uri` names.

    Raises:
        UserError: it names no GPU.
    """
    if not uri.authority or uri.path.strip("/"):
        raise uri.error("names no GPU", hint="write amdsmi://0 or amdsmi://UUID")
    return AmdsmiPower(AmdGpu(uri.authority, TimedCalls(uri.timeout_s)))


def present_uris() -> Sequence[str]:
    """Addresses of the GPUs of this machine, by UUID; none where there is no library."""
    return [f"amdsmi://{uuid}" for uuid in amdsmi.uuids()]
