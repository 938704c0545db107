"""Power limit of a node by DCMI over IPMI: `ipmi://BMC` (ipmitool, DCMI 1.5 section 6.6.2).

A limit has two parts: its watts and whether it is active. What the board does when it cannot keep a
limit (nothing, log, power off) stays as it was found. Each order takes three sessions, too slow for
a loop of a second; give it to nodes that Redfish does not reach. Boards without DCMI say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import ipmitool
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.ipmitool import Ipmitool
from wattherd.devices.wire.uri import Uri

OPTIONS = ipmitool.OPTIONS
INACTIVE = "No Active"
WATTS = re.compile(r"Power Limit:\s+(\d+) Watts")
STATE = re.compile(r"Current Limit State:\s+(.+)")


@dataclass(frozen=True, slots=True)
class IpmiPower:
    """DCMI's power limit of one node."""

    controller: Ipmitool
    unit = KnobUnit.WATT
    step = 0.5
    concurrent = True

    def limits(self) -> KnobLimits:
        """DCMI tells no range."""
        now = self.read().value
        return KnobLimits(unit=self.unit, lowest=None, highest=None, default=None, now=now)

    def read(self) -> KnobSetting:
        """The limit, if it is active."""
        limit_w, active = said_limit(self._power("get_limit"))
        # The number of a limit that is not active is not in force, and may be one (0) that the
        # board would refuse.
        found_w = limit_w if active else None
        return KnobSetting(limit_w if active else NO_LIMIT, {"limit_w": found_w})

    def write(self, value: float) -> None:
        """Set and activate, or deactivate."""
        if value == NO_LIMIT:
            self._power("deactivate")
            return
        self._power("set_limit", "limit", str(round(value)))
        self._power("activate")

    def put_back(self, state: State) -> None:
        """Set the limit that was found, if there was one."""
        self.write(NO_LIMIT if state["limit_w"] is None else state["limit_w"])

    def close(self) -> None:
        """Nothing is kept open."""

    def _power(self, *asked: str) -> str:
        return self.controller.run("dcmi", "power", *asked)


def driver(uri: Uri) -> IpmiPower:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or a path, which would mean nothing.
    """
    if uri.path.strip("/"):
        raise uri.error("a board has one limit", hint=f"write ipmi://{uri.authority}")
    return IpmiPower(ipmitool.controller(uri, "operator"))


def said_limit(said: str) -> tuple[int, bool]:
    """Watts and whether they are in force, in what `dcmi power get_limit` prints.

    Raises:
        DeviceError: there is no limit in it.
    """
    watts, state = WATTS.search(said), STATE.search(said)
    if watts is None or state is None:
        raise DeviceError(DeviceErrorKind.GARBAGE, f"ipmitool says {said.strip()[:60]!r}")
    return int(watts[1]), INACTIVE not in state[1]
