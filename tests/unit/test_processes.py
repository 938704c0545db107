"""Signals go where they are meant to, and never to everybody."""

from __future__ import annotations

import signal
import subprocess

import pytest

from wattherd.local import processes
from wattherd.local.observation import certain


@pytest.mark.parametrize("ancestor", [0, 1, -1])
def test_everything_is_nobody_s_tree(ancestor: int) -> None:
    with pytest.raises(ValueError, match="everything"):
        processes.descendants(ancestor)


def test_dangerous_numbers_get_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(processes.os, "kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(processes.os, "getpid", lambda: 77)
    processes.signal_all([-5, 0, 1, 77, 4242], signal.SIGKILL)
    assert sent == [4242]


def test_a_tree_is_found_and_ended() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & sleep 60"]) as shell:
        while len(found := certain(processes.descendants(shell.pid)) or ()) < 2:
            pass
        processes.signal_all([shell.pid, *found], signal.SIGKILL)
        # It may live long enough to see its child killed, and end with the child's code.
        assert shell.wait(10) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert not certain(processes.descendants(shell.pid))
