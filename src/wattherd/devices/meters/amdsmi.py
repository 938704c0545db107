"""Power of an AMD GPU by AMD SMI: `amdsmi://0`, `amdsmi://UUID`.

Which of its readings a GPU has depends on its generation: MI300 tells the current socket power,
older ones a mean. Of a GPU with two dies (MI250) the first reads for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattherd.devices.meters.contract import MeterSample, Quality
from wattherd.devices.wire.amdsmi import AmdGpu
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.devices.wire.uri import Uri

OPTIONS: frozenset[str] = frozenset()
FIELDS = (
    ("current_socket_power", Quality.MEASURED),
    ("average_socket_power", Quality.AVERAGED),
)
"""Watts, the better first; the library says `N/A`, or 0 from a die that does not tell."""


@dataclass(slots=True)
class Amdsmi:
    """Power of one GPU."""

    gpu: AmdGpu
    quick = True

    def sample(self) -> MeterSample:
        """Watts.

        Raises:
            DeviceError: no library, no such GPU, or it does not tell.
        """
        info: dict[str, Any] = self.gpu.ask(lambda smi, one: dict(smi.amdsmi_get_power_info(one)))
        for field, quality in FIELDS:
            value = info.get(field)
            if isinstance(value, int) and value > 0:
                return MeterSample(float(value), quality=quality)
        raise DeviceError(DeviceErrorKind.ABSENT, f"GPU {self.gpu.name} tells no power")

    def close(self) -> None:
        """Let go of the library."""
        self.gpu.close()


def driver(uri: Uri, clock: Clock) -> Amdsmi:
    """The driver that `uri` names.

    Raises:
        UserError: it names no GPU.
    """
    del clock  # the library tells no time
    if not uri.authority or uri.path.strip("/"):
        raise uri.error("names no GPU", hint="write amdsmi://0 or amdsmi://UUID")
    return Amdsmi(AmdGpu(uri.authority, TimedCalls(uri.timeout_s)))
