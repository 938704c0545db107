"""The example that trains with stable-baselines3: what it learns does better than first come."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


@pytest.mark.timeout(900)
def test_what_stable_baselines3_learns_is_better_on_workloads_that_it_never_saw() -> None:
    if find_spec("sb3_contrib") is None:
        pytest.skip("sb3-contrib is not installed: with PyTorch 5 GB; `make test-torch` has it")
    example = ROOT / "examples" / "learn" / "sb3_scheduler.py"
    command = [sys.executable, "-W", "ignore", str(example), "6000"]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=800, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    lines = (one.split() for one in told.stdout.splitlines() if one.endswith(" min"))
    minutes = {one[0]: float(one[1]) for one in lines}
    assert minutes.keys() == {"learned", "fifo", "fifo-first-fit", "sjf", "srtf"}
    assert minutes["learned"] < 0.9 * minutes["fifo"]


def test_the_example_is_python_and_a_wheel_has_it() -> None:
    example = "examples/learn/sb3_scheduler.py"
    compile((ROOT / example).read_text(encoding="utf-8"), example, "exec")
    assert f'"{example}" = "wattherd/{example}"' in (ROOT / "pyproject.toml").read_text()
