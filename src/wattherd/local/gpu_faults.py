"""Faults of GPUs as the kernel's log tells them.

NVIDIA's driver reports errors as Xids: `NVRM: Xid (PCI:0000:3b:00): 79, ... fallen off the bus`.
Some are the work of a program on the GPU and say nothing about the device (NVIDIA, "XID Errors";
its Kubernetes device plugin leaves the same ones out). Errors of memory that ECC could not correct
come as Xids, too, or from the kernel's EDAC where it is the host's memory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty program causes."""
OF_MEMORY = frozenset({48, 94, 95})
"""Xids of memory errors that ECC could not correct."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_EDAC = re.compile(r"EDAC \w+: \d+ UE (.*)")
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A device at fault: `gpu` is its PCI address, empty for the node itself."""

    kind: str
    gpu: str
    text: str


def fault_of(line: str) -> GpuFault | None:
    """The fault that a line of the kernel's log reports, if any."""
    xid = _XID.search(line)
    if xid is not None:
        number = int(xid[2])
        if number in OF_PROGRAMS:
            return None
        kind = "ecc" if number in OF_MEMORY else f"xid-{number}"
        return GpuFault(kind, xid[1].lower(), f"Xid {number}: {(xid[3] or '').strip()}")
    edac = _EDAC.search(line)
    return None if edac is None else GpuFault("ecc", "", f"uncorrected error of memory: {edac[1]}")


class KernelLog:
    """What is added to `/dev/kmsg`, or to a file like it, from now on."""

    def __init__(self, path: Path) -> None:
        """Begin at the end: what was reported earlier has been dealt with.

        Raises:
            UserError: it cannot be read.
        """
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
        self._rest = b""

    def new(self) -> list[str]:
        """Lines since the last call."""
        *lines, self._rest = (self._rest + self._read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _read(self) -> bytes:
        """All there is; the kernel gives one record at a time, and may have dropped some."""
        found = b""
        while len(found) < MOST_BYTES:
            try:
                part = os.read(self._file, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten before it was read: go on with the oldest left
                continue
            except OSError:
                break
            if not part:
                break
            found += part
        return found

    def close(self) -> None:
        """Read no more."""
        os.close(self._file)
