"""A run as its directory tells, seen in the middle of a change."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wattherd.local import run_dir, run_lock
from wattherd.local import run_observer as watched_module
from wattherd.local.observation import ABSENT, Present, Unknown, certain, words
from wattherd.local.orphans import end_holders, end_stray
from wattherd.local.run_lock import RunLock
from wattherd.local.run_observer import KILLED, LEFT_BEHIND, RunObserver
from wattherd.model.event import JobExited, JobProgressed, JobStarted

KEY = ("j-1", 1)
UNKNOWABLE = [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.EINTR, errno.ENOMEM]


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

    watched = RunObserver(KEY, tmp_path)
    for name in ("document", "present"):
        monkeypatch.setattr(watched_module, name, after(getattr(watched_module, name)))
    for _ in range(5):
        assert list(watched.news()) == []
        assert not watched.abandoned
    assert looks > look
    assert isinstance(watched.begun, Present)
    assert (watched.supervisor, watched.over) == (Present(os.getpid()), False)


def test_a_stray_that_is_about_to_begin_gives_way(tmp_path: Path) -> None:
    folder = tmp_path / "j-1" / "run-1"
    folder.mkdir(parents=True)
    for _ in range(2):
        end_stray(folder)
    assert RunObserver(KEY, folder).supervisor == ABSENT
    assert not run_dir.claim(folder)


def test_a_supervisor_that_died_without_a_word_is_given_up(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    who = {"pid": dead.pid, "ticks": 1, "boot": certain(run_dir.boot_id())}
    (tmp_path / run_dir.BEGUN).write_text(json.dumps(who), encoding="utf-8")
    watched = RunObserver(KEY, tmp_path)
    assert list(watched.news()) == []
    assert watched.abandoned
    end = watched.abandon()
    assert isinstance(end, JobExited)
    assert (end.exit_code, watched.over) == (KILLED, True)


@pytest.mark.parametrize("error", UNKNOWABLE)
@pytest.mark.parametrize("of", [run_dir.BEGUN, run_dir.EXIT, "stat", "boot_id"])
def test_what_cannot_be_read_is_neither_dead_nor_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, of: str
) -> None:
    """Of a live run, and of one that has ended well: nothing is told before it can be read."""
    run_dir.claim(tmp_path)
    real = os.open

    def opened(path: Any, *args: Any, **more: Any) -> int:
        if Path(path).name == of:
            raise OSError(error, os.strerror(error), str(path))
        return real(path, *args, **more)

    def read_text(path: Path, *args: Any, **more: Any) -> str:
        os.close(opened(path, os.O_RDONLY))
        return real_text(path, *args, **more)

    real_text = Path.read_text
    watched = RunObserver(KEY, tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", opened)
        broken.setattr(Path, "read_text", read_text)
        for _ in range(3):
            assert list(watched.news()) == []
            assert not watched.abandoned
            assert watched.unknown == words(OSError(error, os.strerror(error)))
    assert list(watched.news()) == []
    assert (watched.abandoned, watched.unknown) == (False, "")
    run_dir.write(tmp_path / run_dir.EXIT, {"exit_code": 0})
    (end,) = watched.news()
    assert isinstance(end, JobExited)
    assert end.exit_code == 0


def test_a_start_that_cannot_be_read_is_told_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.claim(tmp_path)
    run_dir.write(tmp_path / run_dir.STARTED, {"at": 0.0})
    run_dir.write(tmp_path / run_dir.EXIT, {"exit_code": 0})
    watched = RunObserver(KEY, tmp_path)
    real = watched_module.present
    with monkeypatch.context() as broken:
        broken.setattr(
            watched_module, "present",
            lambda path: Unknown("?") if path.name == run_dir.STARTED else real(path),
        )  # fmt: skip
        assert list(watched.news()) == []
        assert (watched.unknown, watched.over) == ("?", False)
    assert [type(event) for event in watched.news()] == [JobStarted, JobExited]


@pytest.mark.parametrize("half", [b"", b'{"exit_code": ', b"[]", b'{"why": ""}', b"\xff"])
def test_half_a_record_of_the_end_is_no_end(tmp_path: Path, half: bytes) -> None:
    run_dir.claim(tmp_path)
    (tmp_path / run_dir.EXIT).write_bytes(half)
    watched = RunObserver(KEY, tmp_path)
    assert list(watched.news()) == []
    assert (watched.over, watched.abandoned) == (False, False)
    assert run_dir.EXIT in watched.unknown


def test_processes_that_outlive_their_supervisor_keep_its_end_from_being_told(
    tmp_path: Path,
) -> None:
    """They hold the job's lock, which a second attempt cannot get before they have ended."""
    folder = tmp_path / "j-1" / "run-1"
    folder.mkdir(parents=True)
    second = RunLock(folder.with_name("run-2"))
    script = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from wattherd.local import run_dir, run_lock\n"
        f"folder = Path({str(folder)!r}); lock = run_lock.RunLock(folder)\n"
        "assert lock.take() and run_dir.claim(folder)\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=lock.inherited, stdout=-3)\n"
        "print(child.pid, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    left = int(done.stdout)
    try:
        watched = RunObserver(KEY, folder)
        for _ in range(2):
            assert list(watched.news()) == []
            assert (watched.abandoned, watched.unknown) == (False, LEFT_BEHIND)
        assert run_lock.held(folder) == Present(value=True)
        assert run_lock.holders(folder) == Present([left])
        assert not second.take()
        assert end_holders(folder) == [left]
        end_s = time.monotonic() + 10
        while run_lock.held(folder) != Present(value=False):
            assert time.monotonic() < end_s
        assert list(watched.news()) == []
        assert watched.abandoned
        assert second.take()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


# Reports ---------------------------------------------------------------------------------------

LINE = '{"step": %d, "filler": "' + "x" * 200 + '"}\n'


def steps(events: list[Any]) -> list[float]:
    return [one.progress for one in events if isinstance(one, JobProgressed)]


def test_a_long_list_of_reports_is_not_told_again_from_its_beginning(tmp_path: Path) -> None:
    reports = tmp_path / run_dir.PROGRESS
    reports.write_text("".join(LINE % number for number in range(20_000)))  # 4 MB
    watched = RunObserver(KEY, tmp_path)
    assert steps(list(watched.news())) == [19_999]
    with reports.open("a") as stream:
        stream.writelines(LINE % number for number in range(20_000, 40_000))
    assert steps([event for _ in range(9) for event in watched.news()]) == [39_999]


def test_the_last_report_is_told_before_the_end_however_many_there_are(tmp_path: Path) -> None:
    reports = tmp_path / run_dir.PROGRESS
    reports.write_text("".join(LINE % number for number in range(20_000)))
    run_dir.write(tmp_path / run_dir.EXIT, {"exit_code": 0})
    told = list(RunObserver(KEY, tmp_path).news())
    assert [type(one) for one in told] == [JobProgressed, JobExited]
    assert steps(told) == [19_999]


def test_a_report_between_two_looks_is_told_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written just after the reports were read, and the end before that is looked for."""
    reports, real = tmp_path / run_dir.PROGRESS, watched_module.document

    def ends(path: Path) -> Any:
        if path.name == run_dir.USAGE and not reports.exists():
            reports.write_text(LINE % 7)
            run_dir.write(tmp_path / run_dir.EXIT, {"exit_code": 0})
        return real(path)

    monkeypatch.setattr(watched_module, "document", ends)
    told = list(RunObserver(KEY, tmp_path).news())
    assert [type(one) for one in told] == [JobProgressed, JobExited]


def test_reports_that_begin_anew_are_read_anew(tmp_path: Path) -> None:
    reports = tmp_path / run_dir.PROGRESS
    watched = RunObserver(KEY, tmp_path)
    reports.write_text(LINE % 5 + LINE % 6)
    assert steps(list(watched.news())) == [6]
    reports.write_text(LINE % 1)
    assert steps(list(watched.news())) == [1]


def test_a_line_without_end_is_no_report_and_holds_nobody_up(tmp_path: Path) -> None:
    reports = tmp_path / run_dir.PROGRESS
    reports.write_text("x" * (3 << 20))
    watched = RunObserver(KEY, tmp_path)
    assert steps([event for _ in range(5) for event in watched.news()]) == []
    with reports.open("a") as stream:
        stream.write("\n" + LINE % 8)
    assert steps([event for _ in range(5) for event in watched.news()]) == [8]


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_was_ended_once_is_not_ended_at_every_start(tmp_path: Path, begun: bool) -> None:
    folder = tmp_path / "j-1" / "run-1"
    folder.mkdir(parents=True)
    (folder / "order.json").write_text(
        json.dumps({"afterwards": [["/bin/sh", "-c", f"echo once >> {tmp_path}/tidied"]]})
    )
    if begun:
        dead = {"pid": 1 << 22, "ticks": 1, "boot": certain(run_dir.boot_id())}
        (folder / run_dir.BEGUN).write_text(json.dumps(dead))
    for _ in range(5):
        assert end_stray(folder)
    tidied = tmp_path / "tidied"
    assert (tidied.read_text() if tidied.exists() else "") == ("once\n" if begun else "")
    assert not run_dir.claim(folder)


def test_whether_a_lock_is_held_is_asked_by_many_at_once(tmp_path: Path) -> None:
    assert run_lock.held(tmp_path / "run-1") == ABSENT
    lock = RunLock(tmp_path / "run-1")
    assert lock.take()
    assert lock.take()  # it is ours already
    assert [run_lock.held(tmp_path / f"run-{n}") for n in (1, 2)] == [Present(value=True)] * 2
