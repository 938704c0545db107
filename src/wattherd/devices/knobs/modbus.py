"""A number in a register by Modbus TCP: `modbus://HOST:502/UNIT/REGISTER?type=int32&unit=kW`.

For setpoints of inverters and limits of power supplies. `type` and `order` are those of the meter,
`unit` and `scale` turn the register's number into watts; negative ones are written where the type
has a sign. What is written is read back from the same register; whether the device acts on it, its
meter shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wattherd.devices.knobs.contract import KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.modbus import RANGES, ModbusDevice, device_at
from wattherd.devices.wire.uri import WATTS, Uri

OPTIONS = frozenset({"type", "order", "unit", "scale"})


@dataclass(slots=True)
class ModbusKnob:
    """Writes one value; `factor` turns it into watts."""

    device: ModbusDevice
    factor: float = 1.0
    unit = KnobUnit.WATT
    step: float = 0.0

    def __post_init__(self) -> None:
        """Rounds to half of what a whole number counts by; floats only at their last digits."""
        whole = self.device.register.type in RANGES
        self.step = abs(self.factor) * (0.5 if whole else 1e-3)

    def limits(self) -> KnobLimits:
        """What the register can hold; what the device allows it does not tell."""
        now = self.read().value
        ends = [end * self.factor for end in RANGES.get(self.device.register.type, ())]
        return KnobLimits(unit=self.unit, lowest=min(ends, default=None),
                          highest=max(ends, default=None), default=None, now=now)  # fmt: skip

    def read(self) -> KnobSetting:
        """What the register holds."""
        value = self.device.read()
        if not math.isfinite(value):
            raise DeviceError(DeviceErrorKind.GARBAGE, f"answered {value}, which is no power")
        return KnobSetting(value * self.factor, {"value": value})

    def write(self, value: float) -> None:
        """Write watts."""
        if not math.isfinite(value):
            raise DeviceError(DeviceErrorKind.GARBAGE, "a register cannot say that there is none")
        self.device.write(value / self.factor)

    def put_back(self, state: State) -> None:
        """Write the number that was found."""
        self.device.write(float(state["value"]))

    def close(self) -> None:
        """Hang up."""
        self.device.close()


def driver(uri: Uri) -> ModbusKnob:
    """The knob that `uri` names.

    Raises:
        UserError: no host, no register, or a scale of zero.
    """
    scale = uri.number("scale", 1.0)
    if scale == 0.0:
        raise uri.error("must not be zero", field="scale", hint="write scale=-1 to turn the sign")
    return ModbusKnob(device_at(uri), scale * WATTS[uri.choice("unit", WATTS, "W")])
