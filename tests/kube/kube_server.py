"""One program of the control plane: started on loopback, killed, paused, started again.

A server gets a session of its own and dies with the thread that started it (`setpriv --pdeathsig`),
so that a test run that is killed leaves none behind. Start servers from the main thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 180.0
"""How long anything is waited for: far longer than it takes, on machines far busier than this."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens at, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def wait_until(
    true: Callable[[], object],
    what: str | Callable[[], str],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.05,
) -> None:
    """Poll until `true()` is; an AssertionError that says `what` otherwise."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"still not so after {within_s:.0f} s: {said}")
        time.sleep(every_s)


def end(process: subprocess.Popen[Any], *, within_s: float = 60.0) -> None:
    """In peace, as the kubelet ends it; one that lives on would decide amid the tests that follow.

    It is killed then, and says first where each of its threads is (`PYTHONFAULTHANDLER`).
    """
    process.terminate()
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        time.sleep(1)
        process.kill()
        process.wait()
        said = process.stderr.read() if process.stderr is not None else "see what it wrote"
        raise AssertionError(f"it lives {within_s:g} s after SIGTERM: {said[-9000:]!r}") from None


class Server:
    """A program with its arguments, which may be started many times."""

    def __init__(
        self, program: Path, arguments: Sequence[str], log: Path, *, ready: Callable[[], bool]
    ) -> None:
        self.name = program.name
        self._command = [*_dies_with_us(), str(program), *arguments]
        self._log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def begin(self) -> None:
        """Start it; whoever needs its answers waits for it."""
        assert not self.running, f"{self.name} runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._surroundings(),
            )

    def _surroundings(self) -> dict[str, str]:
        """A home of its own; compiled kernels are kept where others of ours find them."""
        kept = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        own = {"HOME": str(self._log.parent), "XDG_CACHE_HOME": kept, "no_proxy": "127.0.0.1"}
        return {**os.environ, **own}

    def start(self) -> None:
        self.begin()
        self.wait()

    def is_ready(self) -> bool:
        return self._ready()

    def wait(self) -> None:
        """Until it is ready; what it said last is in the error if it ended instead."""
        wait_until(lambda: not self.running or self._ready(), f"{self.name} ready")
        assert self.running, f"{self.name} ended:\n{self.said()}"

    def said(self, characters: int = 3000) -> str:
        return self._log.read_text(errors="replace")[-characters:]

    def signal(self, number: signal.Signals) -> None:
        if self.running and self.pid > 1:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """As by kill -9."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(timeout=PATIENCE_S)

    def pause(self) -> None:
        """Until `resume`; returns once it has really stopped."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: self._state() in ("T", "Z", ""), f"{self.name} stopped")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _state(self) -> str:
        """The letter of the process's state (proc_pid_stat(5)); empty if it is no more."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""


def _dies_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
