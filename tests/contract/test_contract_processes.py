"""The service's loop and executor, with real processes, decide as the simulator does.

Each task is a shell that waits at a FIFO until its job is to end. Nothing is measured: caps are
duties of the processor, in force once the job's supervisor says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shell_contract import (
    PATIENCE_S,
    POLICIES,
    ScriptJob,
    ServiceShell,
    hold_to_the_simulator,
)
from wattherd.local.executor import LocalExecutor
from wattherd.local.orphans import end_stray
from wattherd.testing.live import SetClock


class _Since(SetClock):
    def now_s(self) -> float:
        return time.monotonic()


class ProcessService(ServiceShell):
    """Runs live below `root`."""

    def __init__(self, policy: str, root: Path) -> None:
        super().__init__(policy, _Since())
        self._root = root
        self._ends = root / "ends"
        self._ends.mkdir()
        self.loop.recover(LocalExecutor(root / "runs", self.machine, self.loop.tell))
        self.loop.begin()

    def command_of(self, job: ScriptJob) -> tuple[str, ...]:
        """Until the job has ended, or somebody opens its FIFO to write."""
        fifo = self._ends / job.name
        os.mkfifo(fifo)
        return ("/bin/sh", "-c", f"[ -e {fifo}.ended ] || read word < {fifo}; exit 0")

    def end(self, name: str) -> None:
        (self._ends / f"{name}.ended").touch()

    def _wake_ended(self) -> None:
        """Tasks that wait at the FIFO of a job that has ended go on."""
        for ended in self._ends.glob("*.ended"):
            with contextlib.suppress(OSError):  # nobody waits there
                os.close(os.open(ended.with_suffix(""), os.O_WRONLY | os.O_NONBLOCK))

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds)

    def until(self, true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and self.loop.broken is None and not true():
            self._wake_ended()
            time.sleep(0.1)

    def close(self) -> None:
        self.loop.end()
        for folder in (self._root / "runs").glob("*/run-*"):
            end_stray(folder)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_processes_start_and_stop_as_in_the_simulator(policy: str, tmp_path: Path) -> None:
    shell = ProcessService(policy, tmp_path)
    try:
        hold_to_the_simulator(policy, shell)
    finally:
        shell.close()
