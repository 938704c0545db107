"""A run as its directory tells, seen in the middle of a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wattherd.model.event import JobExited
from wattherd.runtime.local import run_dir
from wattherd.runtime.local.executor import end_stray
from wattherd.runtime.local.watched import KILLED, Watched

KEY = ("j-1", 1)


@pytest.mark.parametrize("look", range(1, 9))
def test_a_supervisor_that_begins_while_it_is_looked_at_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Whichever look at the directory it is that its beginning comes just after."""
    looks = 0

    def after(real: Any) -> Any:
        def looked(*args: Any, **more: Any) -> Any:
            nonlocal looks
            found = real(*args, **more)
            looks += 1
            if looks == look:
                run_dir.claim(tmp_path)
            return found

        return looked

    watched = Watched(KEY, tmp_path)
    monkeypatch.setattr(run_dir, "read", after(run_dir.read))
    monkeypatch.setattr(Path, "exists", after(Path.exists))
    for _ in range(5):
        assert list(watched.news()) == []
    assert looks > look
    assert (watched.begun, watched.supervisor, watched.over) == (True, os.getpid(), False)


def test_one_that_gave_way_to_another_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(KEY, tmp_path)
    second = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)
    watched.launched = second.pid
    real = os.waitpid

    def waited(pid: int, options: int) -> tuple[int, int]:
        run_dir.claim(tmp_path)
        return real(pid, options)

    monkeypatch.setattr(os, "waitpid", waited)
    assert list(watched.news()) == []
    assert list(watched.news()) == []
    monkeypatch.undo()
    second.wait()


def test_a_stray_that_is_about_to_begin_gives_way(tmp_path: Path) -> None:
    folder = tmp_path / "j-1" / "run-1"
    folder.mkdir(parents=True)
    for _ in range(2):
        end_stray(folder)
    assert Watched(KEY, folder).supervisor is None
    assert not run_dir.claim(folder)


def test_a_supervisor_that_died_without_a_word_is_given_up(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    who = {"pid": dead.pid, "ticks": 1, "boot": run_dir.boot_id()}
    (tmp_path / run_dir.BEGUN).write_text(json.dumps(who), encoding="utf-8")
    watched = Watched(KEY, tmp_path)
    (end,) = watched.news()
    assert isinstance(end, JobExited)
    assert (end.exit_code, watched.over) == (KILLED, True)


def test_a_supervisor_that_never_begins_is_given_up_when_it_has_ended(tmp_path: Path) -> None:
    watched = Watched(KEY, tmp_path)
    assert list(watched.news()) == []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    watched.launched = ended.pid
    (end,) = watched.news()
    assert isinstance(end, JobExited)
    assert end.exit_code == KILLED
    ended.wait()
