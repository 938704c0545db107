"""A meter in a file: `file:///run/power/rack1?decimals=1`, one number in watts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"decimals"})


@dataclass(slots=True)
class FileMeter:
    """Whoever knows the watts writes them into a file."""

    path: Path
    decimals: int

    def sample(self) -> MeterSample:
        """What the file says.

        Raises:
            DeviceError: it is not there, or says no number.
        """
        try:
            return MeterSample(round(float(self.path.read_text()), self.decimals))
        except OSError as error:
            raise DeviceError(
                DeviceErrorKind.UNREACHABLE, f"{self.path}: {error.strerror}"
            ) from None
        except ValueError:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"{self.path} holds no number") from None

    def close(self) -> None:
        """There is nothing to let go of."""


def driver(uri: Uri, clock: Clock) -> FileMeter:
    """The meter at an address."""
    del clock
    return FileMeter(Path(uri.path), int(uri.options.get("decimals", "3")))
