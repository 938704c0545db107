"""A server's controller board asked by ipmitool: one session for each question, which takes long.

What ipmitool prints is read by whoever asked; here are the session and the meaning of refusals.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wattherd.devices.wire import cooperative_io
from wattherd.devices.wire.credentials import read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri

OPTIONS = frozenset({"cipher", "credentials", "level"})
PORT = 623
CIPHERS = "3", "17"
LEVELS = "user", "operator", "administrator"
MOST_PROGRAMS = 128
"""Sessions at once in the asking thread; a board that hangs takes one until its timeout."""
TROUBLES = (
    ("not found", DeviceErrorKind.ABSENT),
    ("Unable to find", DeviceErrorKind.ABSENT),
    ("(c1)", DeviceErrorKind.ABSENT),  # invalid command: no DCMI
    ("Invalid command", DeviceErrorKind.ABSENT),
    ("(cb)", DeviceErrorKind.ABSENT),  # no such sensor or record
    ("(d4)", DeviceErrorKind.REFUSED),  # insufficient privilege
    ("nsufficient privilege", DeviceErrorKind.REFUSED),
    # It does not tell a wrong password from a machine that is off.
    ("Unable to establish", DeviceErrorKind.UNREACHABLE),
)
"""What ipmitool says, and what it means; completion codes are of IPMI 2.0, table 5-2."""


@dataclass(frozen=True, slots=True)
class Ipmitool:
    """Runs ipmitool against one controller, with the privilege `level` of its sessions."""

    host: str
    port: int
    cipher: str
    secrets: Path | None
    timeout_s: float
    level: str = "user"

    def run(self, *asked: str) -> str:
        """What it prints to a command.

        Raises:
            DeviceError: no session in time, or the controller refuses.
        """
        known = read_credentials(self.secrets)
        # The password in the environment, which others cannot see as they do arguments.
        environment = {**os.environ, "IPMI_PASSWORD": known.password.get_secret_value()}
        command = self._command(known.username, asked)
        run = _run_aside if cooperative_io.aside() else subprocess.run
        try:
            done = run(
                command, env=environment, capture_output=True, text=True, errors="replace",
                timeout=self.timeout_s, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DeviceError(
                DeviceErrorKind.TIMEOUT, f"no answer within {self.timeout_s:g} s"
            ) from None
        except OSError as error:
            raise DeviceError(DeviceErrorKind.UNREACHABLE, f"ipmitool: {error.strerror}") from None
        if done.returncode or not done.stdout.strip():
            raise refusal(f"{done.stderr}\n{done.stdout}")
        return done.stdout

    def _command(self, username: str, asked: Sequence[str]) -> Sequence[str]:
        return ["ipmitool", "-I", "lanplus", "-H", self.host, "-p", str(self.port),
                "-L", self.level.upper(), "-C", self.cipher, "-U", username, "-E", "-c",
                *asked]  # fmt: skip


def _run_aside(
    command: Sequence[str], *, env: Mapping[str, str], timeout: float, **_: object
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` does, in the asking thread: no thread waits for the program's end."""
    return cooperative_io.wait(_ended(command, env, timeout))


async def _ended(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    programs = cooperative_io.kept("programs", lambda: asyncio.Semaphore(MOST_PROGRAMS))
    async with programs:
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            subprocess.Popen(  # noqa: S603 - arguments of an address, no shell
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            ) as program,
        ):
            try:
                await asyncio.wait_for(_end_of(program.pid), timeout_s)
            except BaseException as error:
                program.kill()
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(command, timeout_s) from None
                raise
            code = program.wait()
            said = [_text(file) for file in (out, err)]
            return subprocess.CompletedProcess(command, code, said[0], said[1])


async def _end_of(pid: int) -> None:
    """Wait until a child has ended; it is still there to be waited for."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    handle = os.pidfd_open(pid)
    try:
        loop.add_reader(handle, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def controller(uri: Uri, level: str = "user") -> Ipmitool:
    """The controller that `uri` names; `level` is the privilege that questions take.

    Raises:
        UserError: no host, an unknown cipher or level, or no such file of credentials.
    """
    return Ipmitool(
        host=uri.needs_host(),
        port=PORT if uri.port is None else uri.port,
        cipher=uri.choice("cipher", CIPHERS, "17"),
        secrets=uri.file("credentials"),
        timeout_s=uri.timeout_s,
        level=uri.choice("level", LEVELS, level),
    )


def refusal(said: str) -> DeviceError:
    """The error that ipmitool's words stand for."""
    line = next(iter(filter(None, map(str.strip, said.splitlines()))), "nothing")
    trouble = next((meant for sign, meant in TROUBLES if sign in said), DeviceErrorKind.GARBAGE)
    return DeviceError(trouble, f"ipmitool says: {line[:120]}")
