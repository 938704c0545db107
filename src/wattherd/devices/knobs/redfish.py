"""Power limit of a node by its controller board: `redfish+https://BMC/redfish/v1/Chassis/1`.

Both generations (DMTF DSP2046): EnvironmentMetrics with PowerLimitWatts.SetPoint, Power with
PowerControl[].PowerLimit.LimitInWatts; or a Control in watts, named by its own path. From a chassis
or the service root the driver finds its way. Boards that answer 204 and keep their old limit are
common; some act only after a restart (BlueField, whose SetPoint is in percent: refused here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.knobs.redfish_limit import RedfishLimit, limit_of
from wattherd.devices.wire import redfish, web
from wattherd.devices.wire.device_errors import DeviceError, Trouble
from wattherd.devices.wire.redfish import Resource
from wattherd.devices.wire.uri import Uri
from wattherd.devices.wire.web import Server

OPTIONS = frozenset({"control", *web.OPTIONS})
WAY = "EnvironmentMetrics", "Power", "Chassis"
"""Links to follow, the newer generation first."""


@dataclass(slots=True)
class RedfishPower:
    """The limit at or below `path`; `control` picks one of several by name or id."""

    server: Server
    path: str
    control: str = ""
    _found: str = ""
    unit = KnobUnit.WATT
    step = 0.5
    concurrent = True

    def limits(self) -> KnobLimits:
        """The range, where the board tells it."""
        limit = self._limit()
        return KnobLimits(unit=self.unit, lowest=limit.lowest_w, highest=limit.highest_w,
                      default=limit.default_w, now=limit.value_w)  # fmt: skip

    def read(self) -> KnobSetting:
        """The limit in force."""
        limit = self._limit()
        return KnobSetting(limit.value_w, {"path": self._found, "undo": limit.undo})

    def write(self, value: float) -> None:
        """Set the limit, or lift it."""
        limit = self._limit()
        self._patch(limit.lift() if value == NO_LIMIT else limit.to(value), limit.version)

    def put_back(self, state: State) -> None:
        """Set what was found, at the resource where it was found."""
        self._found = str(state["path"])
        self._patch(state["undo"], self._limit().version)

    def close(self) -> None:
        """Find the way anew next time."""
        self._found = ""

    def identity(self) -> str:
        """Maker, model and serial number of the chassis, as far as the board tells them."""
        self._limit()
        chassis = self.server.get(self._found.rpartition("/")[0])
        known = chassis if isinstance(chassis, dict) else {}
        told = [known.get(name) for name in ("Manufacturer", "Model", "SerialNumber", "UUID")]
        return " ".join(str(one) for one in told if one) if any(told[2:]) else ""

    def _limit(self) -> RedfishLimit:
        start, self._found = self._found or self.path, ""
        limit, self._found = redfish.find(self.server, start, self._pick, WAY)
        return limit

    def _pick(self, resource: Resource) -> RedfishLimit | None:
        return limit_of(resource, self.control)

    def _patch(self, change: Mapping[str, Any], version: str) -> None:
        # Boards that tell a version may ask for it (DSP0266, section 7.5).
        answer = self.server.request(
            "PATCH", self._found, change, {"If-Match": version} if version else None
        )
        refusal = _refusal(answer.content)
        if refusal:
            raise DeviceError(Trouble.REFUSED, f"{self._found}: {refusal}")


def driver(uri: Uri) -> RedfishPower:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or a file that is not there.
    """
    path = quote(uri.path.rstrip("/") or redfish.ROOT)
    server = web.server(uri, redfish.session)
    return RedfishPower(server, path, uri.options.get("control", ""))


def _refusal(content: Any) -> str:
    """What a board says against a change that it answered with success all the same."""
    notes = content.get("@Message.ExtendedInfo") if isinstance(content, dict) else None
    for note in notes if isinstance(notes, list) else ():
        severity = str(note.get("MessageSeverity", note.get("Severity", "OK")))
        if severity != "OK":
            return f"{note.get('MessageId', '')} {note.get('Message', '')}".strip()
    return ""
