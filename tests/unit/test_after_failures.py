"""A failed test, tried again or not, fails no other by what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

CONFTEST = """
from after_failures import AfterFailures

def pytest_configure(config):
    config.pluginmanager.register(AfterFailures(), "after failures")
"""

LEAVER = """
import gc, socket, subprocess, pathlib, weakref, pytest

class Gone: ...
stale = weakref.proxy(Gone())  # whoever asks what it is gets a ReferenceError

@pytest.mark.flaky(reruns=1)
def test_leaves_all_behind():
    process = subprocess.Popen(["sleep", "600"])
    with pathlib.Path("pids").open("a") as pids:
        pids.write(f"{process.pid}\\n")
    left = [process, socket.socket(), open("pids")]
    left.append(left)  # only a collection finds it
    raise AssertionError

@pytest.mark.parametrize("number", range(5))
def test_innocent(number):
    gc.collect()

@pytest.fixture(scope="module")
def shared():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        assert process.poll() is None, "somebody else ended it"
        process.kill()

def test_fails_beside_what_is_shared(shared):
    raise AssertionError

def test_still_has_it(shared):
    assert shared.poll() is None
"""


def test_sockets_files_and_processes_of_a_failure_fail_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(LEAVER)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:randomly",
         "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    said = ran.stdout + ran.stderr
    assert "2 failed, 6 passed, 1 rerun" in said, said
    assert "ResourceWarning" not in said, said
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists(), pid
