"""How somebody gets inside a run that is under way: where service, supervisor and session meet.

    RUN/sessions/NAME    a socket on which the service listens; the folder is closed to others

A *session* is one command inside a run, or input for the run's own task. The service makes the
socket; the run's supervisor sees it and starts a process for it (`inside`), which connects. So what
is started is the supervisor's offspring: it has the run's secrets, falls under the run's limits,
and is killed with the run, whatever becomes of the service. The run's lock is not handed on: what
a session leaves behind keeps no other attempt waiting.

Both ends speak in packets (`SOCK_SEQPACKET`): a JSON object, or a byte that tells the stream and
what is in it. Who sends data may be `WINDOW` bytes ahead of who takes it and says so
(`{"taken": BYTES}`): a reader that does not read fills no memory.

Only the standard library is imported here: a supervisor must start quickly and stay small.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = "sessions"
INPUT = "input-"
"""How names begin of sessions that are input for the run's first task, and no command."""
IN, OUT, ERR = 0, 1, 2
"""First bytes of packets of data: what a command reads and prints."""
WINDOW, CHUNK = 256 << 10, 16 << 10
MOST_PACKET, MOST_REQUEST = 64 << 10, 200 << 10
MOST_OF_RUN = 16
"""Sessions of one run that its supervisor starts at a time."""
END_OF_INPUT = 3
"""Exit code of a session after which the run's own input is at its end."""
INPUT_VARIABLE = "WATTHERD_INPUT_DESCRIPTOR"


def said(**document: Any) -> bytes:
    """A packet that is no data."""
    return json.dumps(document).encode()


def heard(packet: bytes) -> dict[str, Any] | None:
    """What a packet says; None where it is data.

    Raises:
        ValueError: it makes no sense.
    """
    if packet[:1] != b"{":
        return None
    try:
        found = json.loads(packet)
    except RecursionError:
        raise ValueError("nests too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - of what was read
    return found


def new_socket() -> socket.socket:
    """One that keeps packets apart."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


@contextlib.contextmanager
def _address(run: Path, name: str) -> Iterator[str]:
    """The socket's address, however long the way to it: addresses end at 107 bytes.

    Raises:
        OSError: the folder is missing, or is not ours.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(run / FOLDER, flags)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise FileNotFoundError(f"{run / FOLDER} is somebody else's")
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


def offer(run: Path, name: str) -> socket.socket:
    """Listen for the session of that name; the supervisor begins it when it sees this.

    Raises:
        OSError: the run was begun by an earlier version, or no socket can be made.
    """
    listener = new_socket()
    try:
        with _address(run, name) as address:
            listener.bind(address)
        listener.listen(1)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


def withdraw(run: Path, name: str) -> None:
    """The socket's name is not needed any more."""
    with contextlib.suppress(OSError):
        (run / FOLDER / name).unlink()


def is_ours(connection: socket.socket) -> bool:
    """Whether who connected is a process of our own user."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return bool(uid == os.geteuid())


def connect(run: Path, name: str) -> socket.socket | None:
    """Meet who has offered the session; None where nobody waits for it any more."""
    connection = new_socket()
    try:
        with _address(run, name) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        withdraw(run, name)
        return None
    return connection


class RunSessions:
    """The sessions of one run, for its supervisor: begun as they are offered, ended with it."""

    def __init__(self, run: Path) -> None:
        """None yet."""
        self._run = run
        self._begun: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()
        self.input: int | None = None
        """Where the first task's input is written to, if the job has any."""

    @property
    def pids(self) -> set[int]:
        """Processes of sessions that have not ended; those that have are waited for."""
        return {one.pid for one in self._begun.values() if one.poll() is None}

    def heed(self) -> None:
        """Begin what is offered; take note of what has ended.

        Raises:
            OSError: something could not be begun; to be tried again.
        """
        ended = [name for name, one in self._begun.items() if one.poll() is not None]
        for name in ended:
            if self._begun.pop(name).returncode == END_OF_INPUT:
                self.end_input()
            withdraw(self._run, name)
            self._ended.add(name)
        try:
            offered = [one.name for one in (self._run / FOLDER).iterdir()]
        except FileNotFoundError:  # the run is of an earlier version
            return
        self._ended &= set(offered)  # each is begun once, also where its name cannot be removed
        for name in sorted(offered):
            known = name in self._begun or name in self._ended
            if not known and len(self._begun) < MOST_OF_RUN:
                self._begun[name] = self._begin(name)

    def _begin(self, name: str) -> subprocess.Popen[bytes]:
        """No code of ours runs between fork and exec: threads of the supervisor hold locks."""
        given = () if self.input is None or not name.startswith(INPUT) else (self.input,)
        environment: Mapping[str, str] = os.environ
        if given:
            environment = {**os.environ, INPUT_VARIABLE: str(given[0])}
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "wattherd.local.session_process", str(self._run), name],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            pass_fds=given,
        )

    def open_input(self) -> int:
        """Where the first task reads its input from; the caller closes it.

        Raises:
            OSError: there is no descriptor left.
        """
        read, self.input = os.pipe()
        return read

    def end_input(self) -> None:
        """The first task finds the end of its input, when it has read what is left."""
        if self.input is not None:
            os.close(self.input)
            self.input = None

    def end(self) -> None:
        """Have all of them end now; nobody waits for that."""
        for one in self._begun.values():
            one.send_signal(signal.SIGTERM)
