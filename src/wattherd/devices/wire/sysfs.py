"""Files by which Linux tells and takes numbers, with the reasons why it may not."""

from __future__ import annotations

from pathlib import Path

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind


def text(path: Path) -> str:
    """What a file says, without the end of its line.

    Raises:
        DeviceError: it is not there or may not be read.
    """
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except PermissionError:
        # RAPL is readable by root alone since CVE-2020-8694 (power side channels).
        problem = f"{path} may not be read: run as root, or let your group read it"
        raise DeviceError(DeviceErrorKind.REFUSED, problem) from None
    except OSError as error:
        raise DeviceError(DeviceErrorKind.UNREACHABLE, f"{path}: {error.strerror}") from None


def number(path: Path) -> int:
    """The whole number in a file.

    Raises:
        DeviceError: it cannot be read, or is none.
    """
    said = text(path)
    if not said.isdecimal():
        raise DeviceError(DeviceErrorKind.GARBAGE, f"{path} says {said!r}")
    return int(said)


def write(path: Path, value: int) -> None:
    """Tell Linux a number.

    Raises:
        DeviceError: it may not be written, or is refused.
    """
    try:
        # Of a file in sysfs nothing is truncated; of one that is missing nothing is made.
        with path.open("r+", encoding="ascii") as file:
            file.write(f"{value}\n")
            file.truncate()
    except PermissionError:
        problem = f"{path} may not be written: run as root (the BIOS may also have locked it)"
        raise DeviceError(DeviceErrorKind.REFUSED, problem) from None
    except FileNotFoundError:
        raise DeviceError(DeviceErrorKind.ABSENT, f"{path} does not exist") from None
    except OSError as error:
        raise DeviceError(DeviceErrorKind.REFUSED, f"{path}: {error.strerror}") from None
