"""What every folder of tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def openb() -> Path:
    """The openb traces, found by WATTHERD_DATA; the test is skipped where they are absent."""
    data = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
    folder = data / "openb"
    if not (folder / "openb_node_list_gpu_node.csv").is_file():
        pytest.skip(f"no openb traces in {folder}; set WATTHERD_DATA")
    return folder
