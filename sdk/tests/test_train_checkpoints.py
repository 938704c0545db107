"""A checkpoint is whole or not there, and a damaged one is passed over."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd_train import Checkpoints, files


def test_the_last_few_are_kept_newest_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "down", keep=2)
    assert checkpoints.load() is None
    for step in (9, 10, 11):
        assert checkpoints.save(step, {"w": [step]}) is not None
    found = checkpoints.load()
    assert found is not None
    assert (found.step, found.state) == (11, {"w": [11]})
    assert checkpoints.steps() == [11, 10]
    older = checkpoints.load(step=10)
    assert older is not None
    assert older.state == {"w": [10]}
    assert checkpoints.load(step=9) is None


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, "first")
    checkpoints.save(5, "second")
    assert checkpoints.load() == checkpoints.load(step=5)
    assert checkpoints.load().state == "second"


def test_any_writer_and_reader_will_do(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, b"raw", lambda state, stream: stream.write(state))
    assert checkpoints.load(lambda stream: stream.read()).state == b"raw"


@given(cut=st.integers(0, 200), flip=st.integers(0, 7), which=st.sampled_from(["data", "manifest"]))
def test_what_is_damaged_is_passed_over(tmp_path_factory, cut, flip, which) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("damaged"))
    checkpoints.save(1, list(range(50)))
    folder = checkpoints.save(2, list(range(60)))
    path = folder / ("data" if which == "data" else "manifest.json")
    content = bytearray(path.read_bytes())
    if which == "manifest" or cut >= len(content):
        path.write_bytes(bytes(content[:cut][: len(content) - 1]))
    else:
        content[cut] ^= 1 << flip
        path.write_bytes(bytes(content))
    found = checkpoints.load()
    assert (found.step, found.state) == (1, list(range(50)))
    assert checkpoints.steps() == [1]


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, "kept")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    assert checkpoints.save(2, "lost") is None
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]
    assert checkpoints.load().state == "kept"
    assert checkpoints._trouble.count == 1


def test_a_really_full_disk(tmp_path: Path) -> None:
    """On a file system of 64 kB, where this process may mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        checkpoints = Checkpoints(tmp_path)
        assert checkpoints.save(1, b"small")
        assert checkpoints.save(2, os.urandom(1 << 20)) is None
        assert checkpoints.save(3, b"small again")
        assert checkpoints.steps() == [3, 1]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_cannot_be_pickled_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        Checkpoints(tmp_path).save(1, lambda: None)
    assert list(tmp_path.iterdir()) == []


SAVER = """
import sys
from wattherd_train import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep=2)
found = checkpoints.load()
step = found.step if found else 0
while True:
    step += 1
    checkpoints.save(step, (step, bytes(200_000)))
    print(step, flush=True)
"""


@pytest.mark.long
def test_killed_at_any_moment_it_loses_nothing_it_told(tmp_path: Path) -> None:
    told, kills = 0, 12
    for kill in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as saver:
            line = saver.stdout.readline()
            time.sleep(0.003 * kill)
            saver.send_signal(signal.SIGKILL)
            rest = saver.stdout.read().split("\n")
        told = int(([line.strip(), *rest[:-1]])[-1])
        found = Checkpoints(tmp_path).load()
        assert found.step >= told
        assert found.state[0] == found.step
    assert told >= kills
    Checkpoints(tmp_path).save(told + 10, None)
    assert not list(tmp_path.glob(".writing-*"))


def test_one_must_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoints(tmp_path, keep=0)
