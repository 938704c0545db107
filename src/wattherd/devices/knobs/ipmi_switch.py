"""Power of a node over IPMI: `ipmi://BMC` (chassis control, IPMI 2.0 section 28.3)."""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.devices.wire import ipmitool
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.ipmitool import Ipmitool
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"graceful", *ipmitool.OPTIONS})
SAID = {"Chassis Power is on": True, "Chassis Power is off": False}


@dataclass(frozen=True, slots=True)
class IpmiOutlet:
    """Chassis power; off is at once unless `graceful` asks the system to shut down."""

    controller: Ipmitool
    graceful: bool = False
    concurrent = True

    def is_on(self) -> bool:
        """Whether the chassis has power."""
        said = self.controller.run("chassis", "power", "status").strip()
        if said not in SAID:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"ipmitool says {said[:60]!r}")
        return SAID[said]

    def turn(self, *, on: bool) -> None:
        """Order it."""
        off = "soft" if self.graceful else "off"
        self.controller.run("chassis", "power", "on" if on else off)


def outlet(uri: Uri) -> IpmiOutlet:
    """The outlet that `uri` names.

    Raises:
        UserError: no host, or a path, which would mean nothing.
    """
    if uri.path.strip("/"):
        raise uri.error("a board has one chassis", hint=f"write ipmi://{uri.authority}")
    return IpmiOutlet(ipmitool.controller(uri, "operator"), uri.flag("graceful"))
