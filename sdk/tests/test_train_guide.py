"""Every piece of Python in the guide runs as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = [
    Path(__file__).parents[2] / "docs" / "guides" / "training-sdk.md",
    Path(__file__).parents[1] / "README.md",
]
BLOCKS = [
    block
    for guide in GUIDES
    if guide.exists()
    for block in re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
]
READY = "def fresh_state(): return {}\ndef train_one_step(state): return 0.5\nsteps = 3\n"


def test_there_is_something_to_run() -> None:
    # The source distribution has its README only; the guide is in the checkout.
    assert len(BLOCKS) >= (4 if GUIDES[0].exists() else 1)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.split()[1] + "-" for block in BLOCKS])
def test_it_runs(block: str, tmp_path: Path) -> None:
    if "import torch" in block and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", READY + block]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
