"""What may go wrong with a device behind a wire, whether it is read or set."""

from __future__ import annotations

from enum import StrEnum

from wattherd.errors import ClusterError


class DeviceErrorKind(StrEnum):
    """Why a device gave no usable answer."""

    UNREACHABLE = "unreachable"  # nobody answers there, or the connection broke
    TIMEOUT = "timeout"  # no complete answer within the URI's `timeout`
    REFUSED = "refused"  # it answers, but not to us: permission, credentials, certificate
    ABSENT = "absent"  # it answers, but has no such sensor, register, series or limit
    GARBAGE = "garbage"  # it answers with what makes no sense


class DeviceError(ClusterError):
    """A device gave no usable answer; asking again may help."""

    def __init__(self, trouble: DeviceErrorKind, problem: str, *, source: str = "") -> None:
        """Keep the parts; `source` is added by whoever knows the device's URI."""
        self.trouble, self.problem, self.source = trouble, problem, source
        super().__init__(": ".join(part for part in (source, str(trouble), problem) if part))
