"""A test run that is killed leaves no server behind, and its folder to the next one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import remove_abandoned
from kube_server import wait_until

HERE = Path(__file__).parent
PROGRAM = """
import sys, time
from pathlib import Path
from control_plane import ControlPlane

plane = ControlPlane(Path(sys.argv[1]))
plane.etcd.start()
plane.apiserver.start()
print(plane.folder, plane.etcd.pid, plane.apiserver.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv (util-linux) on this machine")
def test_servers_end_with_a_run_that_is_killed(kube_programs: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(kube_programs)]
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), "all have ended")
    assert Path(folder).exists()
    remove_abandoned()
    assert not Path(folder).exists()


def is_alive(pid: str) -> bool:
    """Neither gone nor only waiting for whoever adopted it to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
