"""Tenancy planners decide alike whatever the seed of Python's string hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import hashlib, sys
import numpy as np
sys.path[:0] = {here!r}, {above!r}
import test_core_machine as machines
from wattherd.testing.timed_world import Story, timed
machine = machines.PLANNERS[{name!r}]
rng = np.random.default_rng(5)
jobs = [
    timed(
        f"job-{{n}}",
        int(rng.integers(1, 5)),
        at_s=float(rng.integers(0, 300)),
        lasts_s=float(rng.integers(20, 200)),
        queue=str(rng.choice(["default", "a", "b"])),
        user=str(rng.choice(["ann", "bob", "cyd"])),
        priority=int(rng.integers(-1, 2)),
    )
    for n in range(120)
]
story = Story(machine.planner(), machines.CLUSTER, jobs, quota=machine.quota)
print(len(story.commands), hashlib.sha256(repr(story.commands).encode()).hexdigest())
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("capacity", marks=pytest.mark.long),
        "drf",
        pytest.param("hived", marks=pytest.mark.long),
    ],
)
def test_the_same_run_under_three_hash_seeds(name: str) -> None:
    script = SCRIPT.format(here=str(HERE), above=str(HERE.parent), name=name)
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(told) == 1
    assert int(told.pop().split()[0]) > 200
