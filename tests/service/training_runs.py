"""The training programs in `examples/train`, run under a site and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from local_site import Site, until

from wattherd.local.run_plan import PASSED_ON

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "train"
ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY / "sdk" / "src"), "OPENBLAS_NUM_THREADS": "1"}
STEP = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def train(site: Site, example: str, *options: str, restarts: int = 0) -> str:
    argv = [sys.executable, str(EXAMPLES / f"{example}.py"), *options]
    return site.submit(argv, paper={"envs": ENVIRONMENT}, grace_s=20.0, restarts=restarts)


def undisturbed(folder: Path, example: str, *options: str) -> str:
    """What it prints without wattherd, in an environment as bare as a job's.

    The last digits of a loss depend on what a machine sets for its libraries (OPENBLAS_CORETYPE).
    """
    bare = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py"), *options],
        cwd=folder,
        env={**bare, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def final_loss(text: str) -> float:
    return float(text.rpartition("final loss ")[2])


def under_way(site: Site, job: str, attempt: int, steps: int = 100) -> None:
    until(lambda: len(STEP.findall(site.log(job, attempt))) > steps)
