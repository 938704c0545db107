"""A server's own controller by Redfish: `redfish+https://BMC/redfish/v1/Chassis/1`.

The address may name a resource that holds a power, of either generation (DMTF DSP2046):
`.../EnvironmentMetrics` (PowerWatts.Reading) or `.../Power` (PowerControl[].PowerConsumedWatts), or
a sensor in watts; or a chassis, a collection with one member or the service root, from where the
driver finds its way once and then reads the same resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import redfish, web
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.redfish import RedfishSource, Resource
from wattherd.devices.wire.uri import WATTS, Uri

OPTIONS = frozenset({"control", *web.OPTIONS})
WAY = "EnvironmentMetrics", "Power", "Chassis"
"""Links to follow, the newer generation first."""


@dataclass(slots=True)
class Redfish:
    """Reads the power at or below `path`; `control` picks one of several by name or id."""

    server: RedfishSource
    path: str
    control: str = ""
    _found: str = ""
    concurrent = True

    def sample(self) -> MeterSample:
        """Watts, with the time that a sensor tells.

        Raises:
            DeviceError: no answer, or nowhere a power in it.
        """
        start, self._found = self._found or self.path, ""
        sample, self._found = redfish.find(self.server, start, self._power, WAY)
        return sample

    def close(self) -> None:
        """Find the way anew next time."""
        self._found = ""

    def _power(self, resource: Resource) -> MeterSample | None:
        return power_of(resource, self.control)


def driver(uri: Uri, clock: Clock) -> Redfish:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or a file that is not there.
    """
    del clock  # the sensor's counts, where it tells one
    path = quote(uri.path.rstrip("/") or redfish.ROOT)
    return Redfish(web.server(uri, redfish.session), path, uri.options.get("control", ""))


def power_of(resource: Resource, control: str = "") -> MeterSample | None:
    """The power that a resource holds; None if it is of a kind that may hold links only.

    Raises:
        DeviceError: it has a place for a power, but none in it.
        KeyError, TypeError, ValueError, AttributeError: it is not formed as the schema says.
    """
    if resource.get("PowerControl"):
        return _sample(_chosen(resource["PowerControl"], control), "PowerConsumedWatts")
    if "PowerWatts" in resource:
        return _sample(resource["PowerWatts"] or {}, "Reading")
    if resource.get("ReadingUnits") in WATTS:
        sample = _sample(resource, "Reading")
        return MeterSample(sample.value * WATTS[resource["ReadingUnits"]], sample.at_s)
    return None


def _chosen(controls: Sequence[Resource], control: str) -> Resource:
    """The one asked for; else the first, which stands for the whole chassis."""
    for one in controls:
        if not control or control in (one.get("Name"), one.get("MemberId")):
            return one
    names = ", ".join(str(one.get("Name")) for one in controls)
    raise DeviceError(DeviceErrorKind.ABSENT, f"no power control {control!r} (known: {names})")


def _sample(holder: Resource, field: str) -> MeterSample:
    value = holder.get(field)
    state = (holder.get("Status") or {}).get("State", "Enabled")
    if value is None or state in ("Absent", "Disabled", "UnavailableOffline"):
        raise DeviceError(DeviceErrorKind.ABSENT, f"{field} has no value (state {state})")
    stamp = holder.get("ReadingTime")
    return MeterSample(float(value), datetime.fromisoformat(stamp).timestamp() if stamp else None)
