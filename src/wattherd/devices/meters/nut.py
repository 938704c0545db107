"""An uninterruptible power supply by Network UPS Tools: `nut://HOST:3493/UPS?variable=ups.realpower`.

The protocol is lines of text (RFC 9271). It goes over the wire as it is, a password too: keep it
to loopback or to a network of its own.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.wire import cooperative_io
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.credentials import read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.errors import words

OPTIONS = frozenset({"variable", "credentials"})
PORT = 3493
VARIABLE = "ups.realpower"
LONGEST_LINE = 4096
TROUBLES = {
    "ACCESS-DENIED": DeviceErrorKind.REFUSED,
    "INVALID-USERNAME": DeviceErrorKind.REFUSED,
    "INVALID-PASSWORD": DeviceErrorKind.REFUSED,
    "USERNAME-REQUIRED": DeviceErrorKind.REFUSED,
    "PASSWORD-REQUIRED": DeviceErrorKind.REFUSED,
    "UNKNOWN-UPS": DeviceErrorKind.ABSENT,
    "VAR-NOT-SUPPORTED": DeviceErrorKind.ABSENT,
    "DATA-STALE": DeviceErrorKind.UNREACHABLE,
    "DRIVER-NOT-CONNECTED": DeviceErrorKind.UNREACHABLE,
}
"""Error answers (section 4.4 of the RFC); the last two mean the UPS itself is lost."""


class _Line:
    """A connection that ends at a moment, however little arrives until then."""

    def __init__(self, host: str, port: int, wait_s: float) -> None:
        self.until_s = time.monotonic() + wait_s
        self.wire = socket.create_connection((host, port), wait_s)
        self.heard = b""

    def ask(self, question: str) -> str:
        """The line that answers a line."""
        self.wire.sendall(f"{question}\n".encode())
        while b"\n" not in self.heard:
            left_s = self.until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.wire.settimeout(left_s)
            packet = self.wire.recv(LONGEST_LINE)
            if not packet:
                raise ConnectionResetError("the server hung up")
            self.heard += packet
            if len(self.heard) > LONGEST_LINE:
                raise DeviceError(DeviceErrorKind.GARBAGE, "the answer is no line")
        line, _, self.heard = self.heard.partition(b"\n")
        return line.decode("utf-8", errors="replace").strip()

    def close(self) -> None:
        """Hang up."""
        self.wire.close()


class _LineAside:
    """The same in the asking thread."""

    def __init__(self, host: str, port: int, wait_s: float) -> None:
        self.until_s = time.monotonic() + wait_s
        opened = asyncio.open_connection(host, port, limit=LONGEST_LINE)
        self.reader, self.writer = cooperative_io.wait(asyncio.wait_for(opened, wait_s))

    def ask(self, question: str) -> str:
        """The line that answers a line."""
        self.writer.write(f"{question}\n".encode())
        left_s = max(self.until_s - time.monotonic(), 0.0)
        try:
            line = cooperative_io.wait(asyncio.wait_for(self.reader.readuntil(b"\n"), left_s))
        except asyncio.LimitOverrunError:
            raise DeviceError(DeviceErrorKind.GARBAGE, "the answer is no line") from None
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server hung up") from None
        return line.decode("utf-8", errors="replace").strip()

    def close(self) -> None:
        """Hang up."""
        self.writer.close()


@dataclass(frozen=True, slots=True)
class Nut:
    """Asks for one variable of one UPS, on a new connection each time."""

    host: str
    port: int
    ups: str
    variable: str
    secrets: Path | None
    timeout_s: float
    concurrent = True

    def sample(self) -> MeterSample:
        """The variable's value.

        Raises:
            DeviceError: no answer in time, an error of the server, or no number.
        """
        try:
            return MeterSample(self._value(self._asked()))
        except TimeoutError:
            problem = f"no complete answer within {self.timeout_s:g} s"
            raise DeviceError(DeviceErrorKind.TIMEOUT, problem) from None
        except OSError as error:
            raise DeviceError(
                DeviceErrorKind.UNREACHABLE, f"{self.host}:{self.port}: {words(error)}"
            ) from None

    def close(self) -> None:
        """Nothing is kept open."""

    def _asked(self) -> str:
        known = read_credentials(self.secrets)
        kind = _LineAside if cooperative_io.aside() else _Line
        line = kind(self.host, self.port, self.timeout_s)
        try:
            if known.username:
                _accepted(line.ask(f"USERNAME {known.username}"))
                _accepted(line.ask(f"PASSWORD {known.password.get_secret_value()}"))
            return line.ask(f"GET VAR {self.ups} {self.variable}")
        finally:
            line.close()

    def _value(self, answer: str) -> float:
        _accepted(answer)
        try:
            kind, ups, variable, value = shlex.split(answer)
            number = float(value)
        except ValueError:
            raise DeviceError(DeviceErrorKind.GARBAGE, f"answered {answer[:60]!r}") from None
        if (kind, ups, variable) != ("VAR", self.ups, self.variable):
            raise DeviceError(DeviceErrorKind.GARBAGE, f"answered {answer[:60]!r}")
        return number


def driver(uri: Uri, clock: Clock) -> Nut:
    """The driver that `uri` names.

    Raises:
        UserError: no host, or a UPS or variable that no line can name.
    """
    del clock  # the protocol tells no time
    port = PORT if uri.port is None else uri.port
    ups, variable = uri.path.strip("/"), uri.options.get("variable", VARIABLE)
    for name in (ups, variable):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise uri.error(f"{name!r} names nothing", hint="write nut://HOST/UPS?variable=NAME")
    return Nut(uri.needs_host(), port, ups, variable, uri.file("credentials"), uri.timeout_s)


def _accepted(answer: str) -> None:
    """Let all pass but errors."""
    if not answer.startswith("ERR"):
        return
    code = answer.removeprefix("ERR").split()[:1]
    trouble = TROUBLES.get(code[0] if code else "", DeviceErrorKind.GARBAGE)
    raise DeviceError(trouble, f"the server says {answer[:60]}")
