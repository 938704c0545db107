"""Finding one's way through a Redfish service: sessions, links, and the first resource that fits.

The way is found once; whoever asks keeps the path and asks there directly the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from wattherd.devices.wire import web
from wattherd.devices.wire.credentials import Credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

T = TypeVar("T")
Resource = Mapping[str, Any]
Pick = Callable[[Resource], T | None]
"""What is looked for in a resource; None if it is of a kind that may hold links only."""

ROOT = "/redfish/v1"
FARTHEST = 4
BROKEN = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a resource that is not formed as its schema says ends in."""


class RedfishSource(Protocol):
    """Where resources come from."""

    def get(self, target: str) -> Any:
        """The JSON at a path."""
        ...


def session(credentials: Credentials) -> Mapping[str, str]:
    """The header of a session token (DSP0266, section 13), else of a user."""
    token = credentials.token.get_secret_value().strip()
    return {"X-Auth-Token": token} if token else web.basic(credentials)


def find(
    source: RedfishSource, path: str, pick: Pick[T], ways: Sequence[str], steps: int = FARTHEST
) -> tuple[T, str]:
    """What `pick` finds at `path` or behind its links named in `ways`, and where it was.

    Raises:
        DeviceError: no answer, nowhere what is looked for, or no Redfish resource.
    """
    resource = source.get(path)
    if not isinstance(resource, dict):
        raise DeviceError(DeviceErrorKind.GARBAGE, f"{path} is no Redfish resource")
    try:
        found = pick(resource)
        onward = [] if found is not None else _links(resource, path, ways)
    except BROKEN as error:
        raise DeviceError(
            DeviceErrorKind.GARBAGE, f"{path} is no Redfish resource: {error}"
        ) from None
    if found is not None:
        return found, path
    for way in onward if steps else ():
        try:
            return find(source, way, pick, ways, steps - 1)
        except DeviceError as error:
            if error.trouble is not DeviceErrorKind.ABSENT:
                raise
    raise DeviceError(DeviceErrorKind.ABSENT, f"nothing of the kind in {path}")


def _links(resource: Resource, path: str, ways: Sequence[str]) -> Sequence[str]:
    members = resource.get("Members")
    if members is None:
        return [resource[name]["@odata.id"] for name in ways if resource.get(name)]
    paths: list[str] = [member["@odata.id"] for member in members]
    if len(paths) > 1:
        raise DeviceError(
            DeviceErrorKind.ABSENT, f"{path} has several members: name one of {paths}"
        )
    return paths
