"""A server's controller by IPMI over the network: `ipmi://BMC/dcmi`, `ipmi://BMC/SENSOR`.

Runs ipmitool, a session for each reading, which takes controllers long: give a control loop other
meters where there are any. `dcmi` is the power reading of DCMI 1.5 (section 6.6.1); many have a
sensor in watts instead, whose steps may be coarse: eight bits for its whole range.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import ipmitool
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = ipmitool.OPTIONS
DCMI = "dcmi"
READING = re.compile(r"Instantaneous power reading:\s+(\d+(?:\.\d+)?) Watts")


@dataclass(frozen=True, slots=True)
class Ipmi:
    """Asks for DCMI's reading or for a sensor in watts."""

    controller: ipmitool.Ipmitool
    name: str
    concurrent = True

    def sample(self) -> MeterSample:
        """Watts.

        Raises:
            DeviceError: no session in time, no such sensor, or none in watts.
        """
        if self.name == DCMI:
            return MeterSample(dcmi_watts(self.controller.run("dcmi", "power", "reading")))
        return MeterSample(sensor_watts(self.controller.run("sdr", "get", self.name)))

    def close(self) -> None:
        """Nothing is kept open."""


def driver(uri: Uri, clock: Clock) -> Ipmi:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or the name of a sensor that would be read as an option.
    """
    del clock  # the protocol tells no time
    name = uri.path.strip("/") or DCMI
    if name.startswith("-"):
        raise uri.error(f"{name!r} names no sensor")
    return Ipmi(ipmitool.controller(uri), name)


def dcmi_watts(said: str) -> float:
    """The reading in what `dcmi power reading` prints.

    Raises:
        DeviceError: there is none, or power measurement is switched off.
    """
    found = READING.search(said)
    if found is None:
        raise DeviceError(DeviceErrorKind.GARBAGE, f"ipmitool says {said.strip()[:60]!r}")
    if re.search(r"Power reading state is:\s+deactivated", said):
        raise DeviceError(
            DeviceErrorKind.ABSENT, "power measurement is switched off in the controller"
        )
    return float(found[1])


def sensor_watts(said: str) -> float:
    """The reading in what `-c sdr get` prints: name, value, unit, state.

    Raises:
        DeviceError: there is none, or it is not in watts.
    """
    try:
        _, value, unit, state = next(csv.reader(said.strip().splitlines()))[:4]
        watts = float(value) if unit == "Watts" else None
    except (ValueError, StopIteration):
        raise DeviceError(DeviceErrorKind.ABSENT, f"no reading in {said.strip()[:60]!r}") from None
    if watts is None or state == "ns":
        raise DeviceError(
            DeviceErrorKind.ABSENT, f"the sensor reads {value} {unit} (state {state})"
        )
    return watts
