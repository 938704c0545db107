"""Power of a node by its controller board: `redfish+https://BMC/redfish/v1/Systems/1`.

The action ComputerSystem.Reset (DMTF DSP2046) takes one of the types that the board allows; off is
at once unless `graceful=1` asks the system to shut down. Without a system in its path, the address
stands for the only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from wattherd.devices.wire import redfish, web
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.redfish import Resource
from wattherd.devices.wire.uri import Uri
from wattherd.devices.wire.web import Server

OPTIONS = frozenset({"graceful", *web.OPTIONS})
ACTION = "#ComputerSystem.Reset"
ALLOWED = "ResetType@Redfish.AllowableValues"
ON = "On", "ForceOn", "PushPowerButton"
OFF = "ForceOff", "PushPowerButton"
GRACEFUL = "GracefulShutdown", "PushPowerButton"
RUNNING = {"On": True, "PoweringOn": True, "Paused": True, "Off": False, "PoweringOff": True}


@dataclass(slots=True)
class RedfishOutlet:
    """The system at or below `path`."""

    server: Server
    path: str
    graceful: bool = False
    concurrent = True

    def is_on(self) -> bool:
        """Whether the system draws power; it does while it is shutting down."""
        state = self._system()[0].get("PowerState")
        if state not in RUNNING:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"PowerState is {state!r}")
        return RUNNING[state]

    def turn(self, *, on: bool) -> None:
        """Ask for the first fitting type of reset that the board allows."""
        system, path = self._system()
        try:
            action: Mapping[str, Any] = system["Actions"][ACTION]
            target = str(action.get("target") or f"{path}/Actions/ComputerSystem.Reset")
            kinds = self._kinds(on=on)
            allowed: Sequence[str] = action.get(ALLOWED) or kinds
        except redfish.BROKEN:
            raise DeviceError(DeviceErrorKind.ABSENT, f"{path} has no {ACTION}") from None
        kind = next((kind for kind in kinds if kind in allowed), None)
        if kind is None:
            raise DeviceError(DeviceErrorKind.ABSENT, f"{path} allows only {', '.join(allowed)}")
        self.server.request("POST", target, {"ResetType": kind})

    def _kinds(self, *, on: bool) -> Sequence[str]:
        if on:
            return ON
        return GRACEFUL if self.graceful else OFF

    def _system(self) -> tuple[Resource, str]:
        return redfish.find(self.server, self.path, _system_of, ["Systems"])


def outlet(uri: Uri) -> RedfishOutlet:
    """The outlet that `uri` names.

    Raises:
        UserError: no host, or a file that is not there.
    """
    path = quote(uri.path.rstrip("/") or redfish.ROOT)
    return RedfishOutlet(web.server(uri, redfish.session), path, uri.flag("graceful"))


def _system_of(resource: Resource) -> Resource | None:
    return resource if "PowerState" in resource else None
