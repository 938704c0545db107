"""Runs that cannot be begun, told or read: they wait, say why, and never run twice."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import Site, until

from wattherd.local import run_dir, run_lock
from wattherd.local.logs import RotatingLog
from wattherd.local.observation import Present
from wattherd.local.orphans import end_stray
from wattherd.model.event import JobCancelled
from wattherd.testing.live import MemoryJournal

pytestmark = pytest.mark.long

MOST_S = 30.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "jobs", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)


def trouble(site: Site, job: str, attempt: int = 1) -> str:
    return site.executor.troubles.get((job, attempt), "")


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Writing of documents of that name fails, in this process."""
    real = run_dir.write

    def write(path: Path, document: Any, **more: Any) -> None:
        if path.name == name:
            raise OSError(number, os.strerror(number), str(path))
        real(path, document, **more)

    monkeypatch.setattr(run_dir, "write", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
def test_a_run_that_cannot_be_ordered_waits_and_says_why(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with monkeypatch.context() as broken:
        failing(broken, run_dir.ORDER, number)
        job = site.submit("echo once")
        until(lambda: "cannot be started" in trouble(site, job))
        assert os.strerror(number).lower() in trouble(site, job).lower()
        assert site.state(job) == "Starting"
    site.wait(job, "Succeeded")
    assert site.log(job) == "once\n"


def test_a_run_that_cannot_be_ordered_can_be_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, run_dir.ORDER, errno.ENOSPC)
    job = site.submit("echo never")
    until(lambda: trouble(site, job))
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
    assert site.log(job) == ""


def test_a_stop_that_cannot_be_written_is_written_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.submit("sleep 987", grace_s=0.5)
    site.wait(job, "Running")
    with monkeypatch.context() as broken:
        failing(broken, run_dir.CONTROL, errno.EIO)
        site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
        until(lambda: "orders cannot be written" in trouble(site, job))
        assert site.state(job) == "Stopping"
    site.wait(job, "Cancelled")


def test_ended_supervisors_leave_no_zombies(site: Site) -> None:
    before = children()
    for job in [site.submit("true") for _ in range(5)]:
        site.wait(job, "Succeeded")
    until(lambda: not children() - before)


def test_nothing_is_kept_of_runs_that_are_over_or_could_not_be_prepared(site: Site) -> None:
    refused = site.submit("true", paper={"secrets": {"KEY": "env:NO_SUCH_VARIABLE_HERE"}})
    done = site.submit("true")
    site.wait(refused, "Failed")
    site.wait(done, "Succeeded")
    kept = site.executor._devices, site.executor._caps_w, site.executor._by_duty
    until(lambda: not any(kept))


def children() -> set[int]:
    """Processes that we have started, ended ones among them that nobody has waited for."""
    threads = Path("/proc/self/task").iterdir()
    return {int(pid) for one in threads for pid in (one / "children").read_text().split()}


def test_an_attempt_waits_while_something_of_the_job_still_runs(site: Site) -> None:
    """Here a process that only holds the lock: the executor ends it, and the job begins."""
    folder = site.root / "j-1"
    folder.mkdir(parents=True)
    lock = run_lock.RunLock(folder / "run-0")
    assert lock.take()
    other = subprocess.Popen(["sleep", "60"], pass_fds=lock.inherited)
    os.close(lock.inherited[0])
    try:
        job = site.submit("echo alone")
        assert job == "j-1"
        until(lambda: "waits until an earlier attempt" in trouble(site, job))
        assert str(other.pid) in trouble(site, job)
        site.wait(job, "Succeeded")
        assert other.wait(10) == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()
    assert site.log(job) == "alone\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "wattherd-test", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.call(mount, stderr=-3):
        pytest.skip("only root can mount a small disk, where that is allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("ab", 0) as filler:
        while True:
            filler.write(b"x" * 4096)


def test_a_full_disk_stops_no_training_and_loses_no_end(small_disk: Path, tmp_path: Path) -> None:
    """While it is full a job prints, is counted and ends; another is stopped."""
    site = Site(small_disk, MemoryJournal())
    go = tmp_path / "go"
    try:
        ends = site.submit(f"echo first; until [ -e {go} ]; do echo more; sleep 0.05; done; exit 0")
        stays = site.submit("trap 'exit 143' TERM; while :; do sleep 0.05; done", grace_s=20.0)
        for job in (ends, stays):
            site.wait(job, "Running")
        until(lambda: "first" in site.log(ends))
        fill(small_disk)
        time.sleep(2.5)  # usage is written every second
        assert (site.state(ends), site.state(stays)) == ("Running", "Running")
        go.touch()
        site.keeper.post(JobCancelled(at_s=0.0, job_id=stays), by="ann").result(MOST_S)
        site.wait(ends, "Succeeded")
        site.wait(stays, "Cancelled")
        waits = site.submit("echo later")
        until(lambda: "no space left" in trouble(site, waits))
        (small_disk / "filler").unlink()
        site.wait(waits, "Succeeded")
    finally:
        site.keeper.end()
        for folder in small_disk.glob("*/run-*"):
            end_stray(folder)


def test_a_run_that_found_no_room_can_be_called_off_on_the_full_disk(small_disk: Path) -> None:
    site = Site(small_disk, MemoryJournal())
    try:
        fill(small_disk)
        job = site.submit("echo never")
        until(lambda: "no space left" in trouble(site, job))
        site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
        site.wait(job, "Cancelled")
    finally:
        site.keeper.end()


def test_a_run_that_waits_for_another_can_be_called_off_on_a_full_disk(small_disk: Path) -> None:
    """Its supervisor is there, and must find that the run never begins."""
    site = Site(small_disk, MemoryJournal())
    lock = small_disk / "j-1" / run_dir.LOCK
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            job = site.submit("echo never", grace_s=0.5)
            run = small_disk / job / "run-1"
            until((run / run_dir.ORDER).exists)
            until(lambda: site.executor._launches[job, 1].child is not None)
            fill(small_disk)
            site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
            site.wait(job, "Cancelled")
            assert run_dir.read(run / run_dir.BEGUN) == run_dir.NOBODY
            assert run_dir.forestall(run)  # asked again, it says the same
        finally:
            site.keeper.end()
    assert site.log(job) == ""


def test_text_that_found_no_room_is_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RotatingLog(tmp_path / "0.log", 1 << 20)
    real = os.write

    def full(descriptor: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log._write(b"one\n")
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        log._write(b"two\n")
        log._write(b"three\n")
    monkeypatch.setattr(os, "write", lambda to, text: real(to, bytes(text)[:3]))  # short ones
    log._write(b"four\n")
    lost = "[wattherd: 10 bytes of output are lost here: no space left on device]"
    assert (tmp_path / "0.log").read_text() == f"one\n\n{lost}\nfour\n"


def test_a_second_attempt_cannot_have_the_lock(site: Site) -> None:
    job = site.submit("sleep 987", grace_s=0.5)
    site.wait(job, "Running")
    run = site.root / job / "run-1"
    assert run_lock.held(run) == Present(value=True)
    assert not run_lock.RunLock(run.with_name("run-2")).take()
