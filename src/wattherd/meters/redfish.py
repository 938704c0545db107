"""A server's own controller by Redfish: `redfish+https://BMC/redfish/v1/Chassis/1`.

The address may name a resource that holds a power, of either generation (DMTF DSP2046):
`.../EnvironmentMetrics` (PowerWatts.Reading) or `.../Power` (PowerControl[].PowerConsumedWatts), or
a sensor in watts; or a chassis, a collection with one member or the service root, from where the
driver finds its way once and then reads the same resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

from wattherd.meters import web
from wattherd.meters.clock import Clock
from wattherd.meters.contract import MeterError, Sample, Trouble
from wattherd.meters.credentials import Credentials
from wattherd.meters.meter import WATTS
from wattherd.meters.uri import MeterUri

OPTIONS = frozenset({"control", *web.OPTIONS})
WAY = "EnvironmentMetrics", "Power", "Chassis"
"""Links to follow, the newer generation first."""
FARTHEST = 4

Resource = Mapping[str, Any]


class Source(Protocol):
    """Where resources come from."""

    def get(self, target: str) -> Any:
        """The JSON at a path."""
        ...


@dataclass(slots=True)
class Redfish:
    """Reads the power at or below `path`; `control` picks one of several by name or id."""

    server: Source
    path: str
    control: str = ""
    _found: str = ""

    def sample(self) -> Sample:
        """Watts, with the time that a sensor tells.

        Raises:
            MeterError: no answer, or nowhere a power in it.
        """
        start, self._found = self._found or self.path, ""
        sample, self._found = self._follow(start, FARTHEST)
        return sample

    def close(self) -> None:
        """Find the way anew next time."""
        self._found = ""

    def _follow(self, path: str, steps: int) -> tuple[Sample, str]:
        """The power at `path` or behind its links, and where it was."""
        resource = self.server.get(path)
        if not isinstance(resource, dict):
            raise MeterError(Trouble.GARBAGE, f"{path} is no Redfish resource")
        try:
            sample = power_of(resource, self.control)
            ways = [] if sample else _links(resource, path)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MeterError(Trouble.GARBAGE, f"{path} is no Redfish resource: {error}") from None
        return (sample, path) if sample else self._first(path, ways, steps)

    def _first(self, path: str, ways: Sequence[str], steps: int) -> tuple[Sample, str]:
        for way in ways if steps else ():
            try:
                return self._follow(way, steps - 1)
            except MeterError as error:
                if error.trouble is not Trouble.ABSENT:
                    raise
        raise MeterError(Trouble.ABSENT, f"no power in {path}")


def driver(uri: MeterUri, clock: Clock) -> Redfish:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or a file that is not there.
    """
    del clock  # the sensor's counts, where it tells one
    path = quote(uri.path.rstrip("/") or "/redfish/v1")
    return Redfish(web.server(uri, session), path, uri.options.get("control", ""))


def session(credentials: Credentials) -> Mapping[str, str]:
    """The header of a session token (DSP0266, section 13), else of a user."""
    token = credentials.token.get_secret_value().strip()
    return {"X-Auth-Token": token} if token else web.basic(credentials)


def power_of(resource: Resource, control: str = "") -> Sample | None:
    """The power that a resource holds; None if it is of a kind that may hold links only.

    Raises:
        MeterError: it has a place for a power, but none in it.
        KeyError, TypeError, ValueError, AttributeError: it is not formed as the schema says.
    """
    if resource.get("PowerControl"):
        return _sample(_chosen(resource["PowerControl"], control), "PowerConsumedWatts")
    if "PowerWatts" in resource:
        return _sample(resource["PowerWatts"] or {}, "Reading")
    if resource.get("ReadingUnits") in WATTS:
        sample = _sample(resource, "Reading")
        return Sample(sample.value * WATTS[resource["ReadingUnits"]], sample.at_s)
    return None


def _chosen(controls: Sequence[Resource], control: str) -> Resource:
    """The one asked for; else the first, which stands for the whole chassis."""
    for one in controls:
        if not control or control in (one.get("Name"), one.get("MemberId")):
            return one
    names = ", ".join(str(one.get("Name")) for one in controls)
    raise MeterError(Trouble.ABSENT, f"no power control {control!r} (known: {names})")


def _sample(holder: Resource, field: str) -> Sample:
    value = holder.get(field)
    state = (holder.get("Status") or {}).get("State", "Enabled")
    if value is None or state in ("Absent", "Disabled", "UnavailableOffline"):
        raise MeterError(Trouble.ABSENT, f"{field} has no value (state {state})")
    stamp = holder.get("ReadingTime")
    return Sample(float(value), datetime.fromisoformat(stamp).timestamp() if stamp else None)


def _links(resource: Resource, path: str) -> Sequence[str]:
    members = resource.get("Members")
    if members is None:
        return [resource[name]["@odata.id"] for name in WAY if resource.get(name)]
    paths: list[str] = [member["@odata.id"] for member in members]
    if len(paths) > 1:
        raise MeterError(Trouble.ABSENT, f"{path} has several members: name one of {paths}")
    return paths
