"""A smart meter by Modbus TCP: `modbus://HOST:502/UNIT/REGISTER?type=float32&order=big`.

What stands in the register, and how, is `wire.modbus`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.modbus import ModbusDevice, device_at
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"type", "order", "kind"})


@dataclass(frozen=True, slots=True)
class ModbusMeter:
    """Reads one value of a device."""

    device: ModbusDevice
    concurrent = True
    quick = True

    def sample(self) -> MeterSample:
        """The register's value.

        Raises:
            DeviceError: no connection, no answer in time, or an exception of the device.
        """
        return MeterSample(self.device.read())

    def close(self) -> None:
        """Hang up."""
        self.device.close()


def driver(uri: Uri, clock: Clock) -> ModbusMeter:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or unit and register are not both there and in range.
    """
    del clock  # the protocol tells no time
    return ModbusMeter(device_at(uri))
