"""Power limit of a node by its controller board: `redfish+https://BMC/redfish/v1/Chassis/1`.

Both generations (DMTF DSP2046): EnvironmentMetrics with PowerLimitWatts.SetPoint, Power with
PowerControl[].PowerLimit.LimitInWatts; or a Control in watts, named by its own path. From a chassis
or the service root the driver finds its way. Boards that answer 204 and keep their old limit are
common; some act only after a restart (BlueField, whose SetPoint is in percent: refused here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from wattherd.devices.knobs.contract import NO_LIMIT, KnobLimits, KnobSetting, KnobUnit, State
from wattherd.devices.wire import redfish, web
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.redfish import Resource
from wattherd.devices.wire.uri import Uri
from wattherd.devices.wire.web import Server

# --- The limit in a Redfish resource: where it stands, in what range, and the change that moves it.

Change = Mapping[str, Any]
"""The body of a PATCH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishLimit:
    """A limit as a resource holds it; `undo` is the change that brings this very one back."""

    value_w: float
    lowest_w: float | None
    highest_w: float | None
    default_w: float | None
    undo: Change
    version: str
    to: Callable[[float], Change]
    lift: Callable[[], Change]


def limit_of(resource: Resource, control: str = "") -> RedfishLimit | None:
    """The power limit that a resource holds; None if it is of a kind that may hold links only.

    Raises:
        DeviceError: it has a place for a limit, but none in it, or one that is not in watts.
        KeyError, TypeError, ValueError, AttributeError: it is not formed as the schema says.
    """
    if resource.get("PowerControl"):
        return _old(resource, control)
    if resource.get("PowerLimitWatts"):
        holder = resource["PowerLimitWatts"]
        return _new(resource, holder, lambda change: {"PowerLimitWatts": change})
    if "SetPoint" in resource:
        units = resource.get("SetPointUnits", "W")
        if units != "W":
            raise DeviceError(DeviceErrorKind.ABSENT, f"the control is set in {units}, not in W")
        return _new(resource, resource, lambda change: change)
    return None


def _new(resource: Resource, holder: Resource, wrap: Callable[[Change], Change]) -> RedfishLimit:
    """A control (schemas EnvironmentMetrics and Control)."""
    mode, set_point = holder.get("ControlMode"), holder.get("SetPoint")
    lowest_w, highest_w = _watts(holder, "AllowableMin"), _watts(holder, "AllowableMax")
    in_force = mode != "Disabled" and set_point is not None
    # Boards refuse the null that stands in place of a limit which is not in force.
    kept = {} if mode == "Disabled" else {"SetPoint": set_point}
    undo = {**kept, **({"ControlMode": mode} if mode else {})}

    def to(value_w: float) -> Change:
        change: dict[str, Any] = {"SetPoint": _plain(value_w)}
        if mode == "Disabled":
            change["ControlMode"] = "Automatic"
        return wrap(change)

    def lift() -> Change:
        if mode:
            return wrap({"ControlMode": "Disabled"})
        return wrap({"SetPoint": None if highest_w is None else _plain(highest_w)})

    return RedfishLimit(
        value_w=float(set_point) if set_point is not None and in_force else NO_LIMIT,
        lowest_w=lowest_w, highest_w=highest_w, default_w=_watts(holder, "DefaultSetPoint"),
        undo=wrap(undo), version=_version(resource), to=to, lift=lift,
    )  # fmt: skip


def _old(resource: Resource, control: str) -> RedfishLimit:
    """A power control (schema Power); null is no limit."""
    controls: Sequence[Resource] = resource["PowerControl"]
    number = _chosen(controls, control)
    holder = controls[number].get("PowerLimit")
    if holder is None:
        raise DeviceError(DeviceErrorKind.ABSENT, "the power control has no PowerLimit")
    found_w = holder.get("LimitInWatts")

    def change(value_w: float | None) -> Change:
        # An empty object leaves that member of an array as it is (DSP0266, section 7.6).
        limit = {"PowerLimit": {"LimitInWatts": None if value_w is None else _plain(value_w)}}
        return {"PowerControl": [*({} for _ in range(number)), limit]}

    return RedfishLimit(
        value_w=NO_LIMIT if found_w is None else float(found_w),
        lowest_w=_watts(holder, "AllowableMin"),
        highest_w=_watts(controls[number], "PowerCapacityWatts"),
        default_w=None, undo=change(found_w), version=_version(resource),
        to=change, lift=lambda: change(None),
    )  # fmt: skip


def _chosen(controls: Sequence[Resource], control: str) -> int:
    """The one asked for; else the first, which stands for the whole chassis."""
    for number, one in enumerate(controls):
        if not control or control in (one.get("Name"), one.get("MemberId")):
            return number
    names = ", ".join(str(one.get("Name")) for one in controls)
    raise DeviceError(DeviceErrorKind.ABSENT, f"no power control {control!r} (known: {names})")


def _watts(holder: Resource, field: str) -> float | None:
    value = holder.get(field)
    return None if value is None else float(value)


def _version(resource: Resource) -> str:
    return str(resource.get("@odata.etag") or "")


def _plain(value_w: float) -> int | float:
    """Whole watts as integers: older schemas and boards take nothing else."""
    return int(value_w) if float(value_w).is_integer() else value_w


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
            raise DeviceError(DeviceErrorKind.REFUSED, f"{self._found}: {refusal}")


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
