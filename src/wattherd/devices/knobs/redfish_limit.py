"""The limit in a Redfish resource: where it stands, in what range, and the change that moves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.devices.knobs.contract import NO_LIMIT
from wattherd.devices.wire.device_errors import DeviceError, Trouble
from wattherd.devices.wire.redfish import Resource

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
            raise DeviceError(Trouble.ABSENT, f"the control is set in {units}, not in W")
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
        raise DeviceError(Trouble.ABSENT, "the power control has no PowerLimit")
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
    raise DeviceError(Trouble.ABSENT, f"no power control {control!r} (known: {names})")


def _watts(holder: Resource, field: str) -> float | None:
    value = holder.get(field)
    return None if value is None else float(value)


def _version(resource: Resource) -> str:
    return str(resource.get("@odata.etag") or "")


def _plain(value_w: float) -> int | float:
    """Whole watts as integers: older schemas and boards take nothing else."""
    return int(value_w) if float(value_w).is_integer() else value_w
