"""Memory of a scheduler that works on and on (`benchmarks/kube_soak.py`), for a short while."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "kube_soak.py"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["scheduler", "extender"])
def test_memory_does_not_grow_with_what_came_and_went(kube_programs: Path, mode: str) -> None:
    del kube_programs
    options = ["--nodes=500", "--pods=200", "--minutes=3", f"--mode={mode}"]
    done = subprocess.run(
        [sys.executable, SOAK, *options], stdout=subprocess.PIPE, text=True, check=False
    )
    found = json.loads(done.stdout)
    assert found["growth"] <= found["allowed"], found["resident_mib"]
    assert found["pods_bound"] > 10 * 200 / 20
    assert done.returncode == 0
